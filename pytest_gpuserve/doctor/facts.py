"""What was seen of this machine: what the doctor judges. None is what could not be seen, with the reason beside it."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.device.software import DEFAULT_DISTRIBUTIONS
from pytest_gpuserve.doctor.finding import Finding
from pytest_gpuserve.errors import GpuserveError
from pytest_gpuserve.process.container import examine
from pytest_gpuserve.servers.relocation import installed_versions
from pytest_gpuserve.servers.triton_install import PACKAGE, find_triton

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_gpuserve.device.card import Card
    from pytest_gpuserve.device.host import Boost, Host
    from pytest_gpuserve.device.sample import CardEvent, CardSample

SERVERS: Final = {
    "mosec": ("mosec_server", "mosec"),
    "litserve": ("litserve_server", "litserve"),
    "torch": ("torch_worker", "torch"),
}
"""Distributions that a server needs, each with its fixture and the extra of this package that brings it."""


def servers(python: str) -> list[Finding]:
    """Which servers an interpreter can run.

    Raises:
        ServerFailed: It does not answer.
    """
    versions = installed_versions(python, DEFAULT_DISTRIBUTIONS)
    findings = [
        Finding(fixture, works=True, found=f"{distribution} {versions[distribution]}")
        if distribution in versions
        else Finding(
            fixture,
            works=False,
            found=f"{distribution} is not installed",
            remedy=f"{python} -m pip install 'pytest-gpuserve[{extra}]', or python=... of the fixture",
        )
        for distribution, (fixture, extra) in SERVERS.items()
    ]
    try:
        install = find_triton(python)
    except GpuserveError as problem:
        found = f"{problem.summary}: {problem.found}" if problem.found else problem.summary
        remedy = problem.remedies[0] if problem.remedies else ""
        triton = [Finding(name, False, found, remedy) for name in ("triton_server", "pytriton_server")]  # noqa: FBT003 -- named by the line above
    else:
        found = f"{PACKAGE.partition('=')[0]} {install.version}, without a container"
        triton = [Finding(name, works=True, found=found) for name in ("triton_server", "pytriton_server")]
    return [*findings, *triton]


def containers() -> list[Finding]:
    """Which container engines can run ``triton_server(image=...)``."""
    return [
        Finding(f"containers by {state.name}", state.works, state.found, state.remedy)
        for state in examine(env=os.environ)
    ]


@dataclass(frozen=True, slots=True)
class BusyProcess:
    """A process that is not ours, and the cores that it used on average."""

    pid: int
    name: str
    cores: float


@dataclass(frozen=True, slots=True)
class CpuUse:
    """Who used the CPU while nothing was measured.

    Args:
        seconds: How long was looked.
        by_others: Cores that other processes used.
        stolen: Cores that the hypervisor gave to other guests while there was work here.
        stolen_since_boot: Their share of all CPU time that there was work for since the boot.
        processes: The busiest others, with those that were waited for first.
    """

    seconds: float
    by_others: float
    stolen: float
    stolen_since_boot: float
    processes: tuple[BusyProcess, ...] = ()


@dataclass(frozen=True, slots=True)
class Swap:
    """Memory on disk: how much lies there, and how much was moved there or back while we looked, in bytes."""

    used_bytes: int
    moved_bytes: int


@dataclass(frozen=True, slots=True)
class Space:
    """A folder's file system, and how much of it is left for this user, in bytes."""

    path: str
    total_bytes: int
    free_bytes: int


@dataclass(frozen=True, slots=True)
class LockState:
    """Whether a session measures on a device now.

    Args:
        held: Whether one does; None if that cannot be told.
        told: Who and since when, or why it cannot be told.
        pid: The session's; None if unknown.
    """

    held: bool | None
    told: str = ""
    pid: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostNow:
    """The machine, and its state now.

    Args:
        host: Its facts.
        host_problem: Why they cannot be read, which is the user's to mend; empty otherwise.
        host_remedy: What helps then.
        boost: Whether its cores may clock above their base frequency.
        core_limit: Cores' worth of time that this process may use; infinite without a limit.
        is_virtual: Whether there is a hypervisor.
        sees_all: Whether the processes of all of the machine can be seen, not only those of a container.
        cpu: Who used its CPU.
        swap: Its memory on disk.
        shared_memory: ``/dev/shm``.
        open_files: Soft and hard limit on the files that a process may have open; infinite without one.
        temp: The folder for temporary files.
        unknown: For what is None, why, by the field's name.
    """

    host: Host | None = None
    host_problem: str = ""
    host_remedy: str = ""
    boost: Boost | None = None
    core_limit: float | None = None
    is_virtual: bool | None = None
    sees_all: bool = False
    cpu: CpuUse | None = None
    swap: Swap | None = None
    shared_memory: Space | None = None
    open_files: tuple[float, float] | None = None
    temp: Space | None = None
    unknown: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CardNow:
    """A card, or an instance of a divided one, and its state now.

    Args:
        card: Its facts.
        visible: Whether CUDA_VISIBLE_DEVICES leaves it to us.
        samples: Looks at it, about a second apart; none where it cannot be looked at.
        events: What befell it in between.
        unknown: For what is None in the samples, why, in the words of `CardProbe`.
        lock: Whether a session measures on it.
    """

    card: Card
    visible: bool = True
    samples: tuple[CardSample, ...] = ()
    events: tuple[CardEvent, ...] = ()
    unknown: Mapping[str, str] = field(default_factory=dict)
    lock: LockState = LockState(held=False)


@dataclass(frozen=True, slots=True)
class Driver:
    """NVIDIA's driver.

    Args:
        answers: Whether it does, for every card.
        absent: Whether there is none, or no card, for certain.
        problem: What is wrong; empty if nothing is.
    """

    answers: bool
    absent: bool
    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineState:
    """All of it.

    Args:
        host: The machine.
        driver: NVIDIA's driver.
        cards: The cards.
        cpu_lock: Whether a session measures on the device ``cpu``.
        devices: Of those that may be measured on, the lock's key each: ``cpu``, or a card's UUID.
        refused: Why the device that was asked for is not among them, which ends a session; empty otherwise.
        refused_remedy: What helps then.
    """

    host: HostNow
    driver: Driver
    cards: tuple[CardNow, ...] = ()
    cpu_lock: LockState = LockState(held=False)
    devices: tuple[str, ...] = ()
    refused: str = ""
    refused_remedy: str = ""
