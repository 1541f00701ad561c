"""Reads the state of this machine for about a second; changes nothing and leaves nothing behind.

A value that cannot be read is None and keeps no other value from being read.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

import psutil

from pytest_gpuserve.device.card import initialised
from pytest_gpuserve.device.card_probe import CardProbe
from pytest_gpuserve.device.cpu import cores_taken_by_others, cores_used, read_cpu, read_processes
from pytest_gpuserve.device.host import read_core_limit, read_host
from pytest_gpuserve.device.lock import DeviceLock
from pytest_gpuserve.errors import GpuserveError
from pytest_gpuserve.process.logs import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path
    from typing import TypeAlias

    from pytest_gpuserve.device.card import Card
    from pytest_gpuserve.device.cpu import CpuReading, Stat
    from pytest_gpuserve.device.host import Host
    from pytest_gpuserve.device.sample import CardSample

SHARED_MEMORY: Final = "/dev/shm"  # noqa: S108 -- a name

LOOK_SECONDS: Final = 1.0
"""How long values that change are watched."""

MOST_PROCESSES: Final = 5
"""Busy processes that are named."""

LEAST_CORES: Final = 0.05
"""A process that used less is not named."""


@dataclass(frozen=True, slots=True)
class CpuUse:
    """CPU use of other programs while nothing was measured, in cores.

    Args:
        processes: The busiest ones, as ``name (pid 7) 0.60``.
    """

    by_others: float
    stolen: float
    processes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LockState:
    """Whether a session measures on a device now.

    Args:
        held: None if that cannot be read.
        told: The holder, or why it cannot be read.
    """

    held: bool | None
    told: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostState:
    """The machine now; a field that could not be read is None.

    Args:
        problem: Why pytest would refuse to measure on this host; empty otherwise.
        core_limit: Cores' worth of CPU time that this process may use; infinite without a limit.
        shared_memory_bytes: Free space of /dev/shm.
        temp_bytes: Free space of the folder for temporary files.
    """

    host: Host | None = None
    problem: str = ""
    core_limit: float | None = None
    cpu: CpuUse | None = None
    shared_memory_bytes: int | None = None
    temp_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuState:
    """A GPU, or a MIG instance, now.

    Args:
        samples: Two, about a second apart; fewer if NVML did not answer.
        sees_all: Whether this process sees the whole machine's processes, not only a container's.
        problem: Why NVML could not read it; empty otherwise.
    """

    card: Card
    samples: tuple[CardSample, ...] = ()
    sees_all: bool = True
    problem: str = ""
    lock: LockState = LockState(held=False)


def look(cards: Sequence[Card], environ: Mapping[str, str]) -> tuple[HostState, list[GpuState]]:
    """Read the machine and each GPU at the begin and at the end of `LOOK_SECONDS`."""
    before, cpu_before = _sampled(cards), _attempt(_read_cpu)
    time.sleep(LOOK_SECONDS)
    after, cpu_after = _sampled(cards), _attempt(_read_cpu)
    problem = ""
    host = None
    try:
        host = _attempt(lambda: read_host(environ=environ))
    except GpuserveError as error:
        problem = " ".join([error.summary, error.found, *error.remedies]).strip()
    state = HostState(
        host=host,
        problem=problem,
        core_limit=_attempt(read_core_limit),
        cpu=_cpu_use(cpu_before, cpu_after) if cpu_before and cpu_after else None,
        shared_memory_bytes=_attempt(lambda: _free_bytes(SHARED_MEMORY)),
        temp_bytes=_attempt(lambda: _free_bytes(tempfile.gettempdir())),
    )
    sees_all = _sees_all()
    gpus = [
        GpuState(
            card=card,
            samples=tuple(sample for sample, _ in (first, last) if sample is not None),
            sees_all=sees_all,
            problem=last[1],
            lock=read_lock(card.uuid),
        )
        for card, first, last in zip(cards, before, after, strict=True)
    ]
    return state, gpus


_T = TypeVar("_T")


def _attempt(read: Callable[[], _T]) -> _T | None:
    """Read a value; None if this machine does not have it."""
    with suppress(OSError, ValueError, psutil.Error):
        return read()
    return None


def _sampled(cards: Sequence[Card]) -> list[tuple[CardSample | None, str]]:
    """Sample each GPU; in place of a sample, the reason why there is none."""
    samples: list[tuple[CardSample | None, str]] = []
    for card in cards:
        try:
            probe = CardProbe(initialised(), card.uuid, tell=lambda _: None, is_ours=lambda _: False)
            samples.append((probe.read(slow=True), ""))
        except Exception as error:  # noqa: BLE001 -- one GPU that cannot be read must not hide the others
            samples.append((None, str(error)))
    return samples


_CpuReadings: TypeAlias = "tuple[CpuReading, dict[int, Stat]]"


def _read_cpu() -> _CpuReadings:
    return read_cpu([psutil.Process()]), read_processes()


def _cpu_use(before: _CpuReadings, after: _CpuReadings) -> CpuUse:
    first, last = before[0], after[0]
    seconds = last.at_seconds - first.at_seconds
    stolen = max(0.0, last.stolen_seconds - first.stolen_seconds) / seconds
    used = cores_used(before[1], after[1], seconds)
    busiest = sorted(((cores, pid) for pid, cores in used.items() if pid != os.getpid()), reverse=True)
    return CpuUse(
        by_others=max(0.0, cores_taken_by_others(first, last) - stolen),
        stolen=stolen,
        processes=tuple(
            f"{_program(pid)} (pid {pid}) {cores:.2f}"
            for cores, pid in busiest[:MOST_PROCESSES]
            if cores >= LEAST_CORES
        ),
    )


def _program(pid: int) -> str:
    # Never its arguments: they may hold a token.
    try:
        return printable(psutil.Process(pid).name())
    except psutil.Error:
        return "a process that has ended"


def _sees_all() -> bool:
    # This kernel thread has pid 2 on every Linux, and a container with pids of its own does not show it.
    try:
        return psutil.Process(2).name() == "kthreadd"
    except psutil.Error:
        return False


def _free_bytes(folder: str) -> int:
    left = os.statvfs(folder)
    return left.f_bavail * left.f_frsize


def read_lock(key: str, *, folder: Path | None = None) -> LockState:
    """Read whether a session measures on a device: ``cpu``, or a GPU's UUID."""
    lock = DeviceLock(key, command="", folder=folder)
    # A link or a pipe in the lock's place must neither be followed nor hold us up.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(lock.path, flags)
    except FileNotFoundError:
        return LockState(held=False)
    except OSError as error:
        return LockState(held=None, told=f"{lock.path}: {error.strerror}")
    try:
        # A shared lock: two doctors do not keep each other out, and a waiting session tries again soon.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return LockState(held=True, told=str(lock.holder()))
    except OSError as error:
        return LockState(held=None, told=f"{lock.path}: {error.strerror}")
    finally:
        os.close(descriptor)
    return LockState(held=False)
