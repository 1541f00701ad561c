"""What there is on this machine, and its state: looks for about a second, changes nothing and leaves nothing behind.

Whatever cannot be read is unknown, with the reason, and keeps nothing else from being read.
"""

from __future__ import annotations

import fcntl
import os
import resource
import tempfile
import time
import warnings
from contextlib import ExitStack
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import psutil

from pytest_gpuserve.builds.interpreter import installed_versions
from pytest_gpuserve.device.card import CPU, Reader, list_cards, opened
from pytest_gpuserve.device.card_probe import CardProbe
from pytest_gpuserve.device.cpu import cores_taken_by_others, cores_used, read_cpu, read_host_counters, read_processes
from pytest_gpuserve.device.host import DEFAULT_DISTRIBUTIONS, is_virtual, read_boost, read_core_limit, read_host
from pytest_gpuserve.device.lock import DeviceLock
from pytest_gpuserve.device.sample import Unknown
from pytest_gpuserve.device.select import select_device, visible_cards
from pytest_gpuserve.errors import GpuserveError
from pytest_gpuserve.process.container import examine
from pytest_gpuserve.process.logs import printable
from pytest_gpuserve.servers.triton_install import PACKAGE, find_triton

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import ModuleType

    from pytest_gpuserve.device.card import Card, NvmlAnswer
    from pytest_gpuserve.device.cpu import CpuReading, Stat
    from pytest_gpuserve.device.host import Boost, Host
    from pytest_gpuserve.device.sample import CardEvent, CardSample


SHARED_MEMORY: Final = "/dev/shm"  # noqa: S108 -- a name


@dataclass(frozen=True, slots=True)
class Finding:
    """Whether a fixture or a container engine works here, its version or problem, and what helps."""

    what: str
    works: bool
    found: str
    remedy: str = ""


SERVERS: Final = {
    "mosec": ("mosec_server", "mosec"),
    "litserve": ("litserve_server", "litserve"),
    "torch": ("torch_worker", "torch"),
}
"""Distributions that a server needs, each with its fixture and the extra of this package that brings it."""


def servers(python: str) -> list[Finding]:
    """Which servers an interpreter can run. Raises `ServerFailed` where it does not answer."""
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
    """Who used the CPU while nothing was measured; the first three in cores.

    Args:
        stolen_since_boot: Share of all CPU time that there was work for since the boot.
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
    """Whether a session measures on a device now; ``held`` is None where that is not known, ``told`` says why."""

    held: bool | None
    told: str = ""
    pid: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostState:
    """The machine, and its state now; ``unknown`` says why a field is None.

    Args:
        core_limit: Cores' worth of time that this process may use; infinite without a limit.
        sees_all: Whether all processes of the machine can be seen, not only those of a container.
        open_files: Soft and hard limit on the open files of a process; infinite without one.
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
class CardState:
    """A card, or an instance of a divided one, and its state now.

    Args:
        samples: About a second apart; none where it cannot be read.
        unknown: Why a value of the samples is None, in the words of `CardProbe`.
    """

    card: Card
    visible: bool = True
    samples: tuple[CardSample, ...] = ()
    events: tuple[CardEvent, ...] = ()
    unknown: Mapping[str, str] = field(default_factory=dict)
    lock: LockState = LockState(held=False)


@dataclass(frozen=True, slots=True)
class Driver:
    """NVIDIA's driver: whether it answers for every card, or certainly is absent, and what is wrong."""

    answers: bool
    absent: bool
    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineState:
    """The machine and its cards.

    Args:
        devices: Lock keys of the devices that may be measured on: ``cpu``, or a card's UUID.
        refused: Why the device that was asked for is not among them; empty otherwise.
    """

    host: HostState
    driver: Driver
    cards: tuple[CardState, ...] = ()
    cpu_lock: LockState = LockState(held=False)
    devices: tuple[str, ...] = ()
    refused: str = ""
    refused_remedy: str = ""


_T = TypeVar("_T")


def attempt(unknown: dict[str, str], what: str, read: Callable[[], _T]) -> _T | None:
    """Read something, or keep why it cannot be read. Raises GpuserveError where the user can fix it."""
    try:
        return read()
    except GpuserveError:
        raise
    except OSError as problem:
        unknown[what] = str(problem)
    except Exception as problem:  # noqa: BLE001 -- whatever a strange machine does to one reader, the rest is still told
        unknown[what] = f"{type(problem).__name__}: {problem}"
    return None


def words(problem: GpuserveError) -> tuple[str, str]:
    """What an error says, and what helps, each on a line."""
    told = f"{problem.summary} Found: {problem.found}" if problem.found else problem.summary
    return told, "; or ".join(problem.remedies)


def look_at_cards(answer: NvmlAnswer, visible: str | None, *, meanwhile: Callable[[], object]) -> tuple[CardState, ...]:
    """Read each card before and after ``meanwhile``, which is called once whether there are cards or not."""
    seen = visible_cards(answer.cards, visible)
    watched = [_Watched(card) for card in answer.cards]
    with ExitStack() as stack:
        nvml = _initialised(stack, watched)
        for each in watched:
            each.begin(nvml)
            each.look()
        meanwhile()
        for each in watched:
            each.look()
    return tuple(each.now(visible=each.card in seen) for each in watched)


class _Watched:
    """A card, and what was seen of it."""

    def __init__(self, card: Card) -> None:
        self.card = card
        self.unknown: dict[str, str] = {}
        self._events: list[CardEvent] = []
        self._samples: list[CardSample] = []
        self._probe: CardProbe | None = None

    def begin(self, nvml: ModuleType | None) -> None:
        """Find it; without NVML there is nothing to be found."""
        if nvml is not None:
            # Nothing of ours is on a card now.
            self._probe = attempt(
                self.unknown,
                "the card",
                lambda: CardProbe(nvml, self.card.uuid, tell=self._hear, is_ours=lambda _: False, patience=1),
            )

    def look(self) -> None:
        """Look at it."""
        probe = self._probe
        if probe is not None:
            sample = attempt(self.unknown, "the card", lambda: probe.read(slow=True))
            self._samples += [] if sample is None else [sample]

    def now(self, *, visible: bool) -> CardState:
        """What was seen."""
        return CardState(
            card=self.card,
            visible=visible,
            samples=tuple(self._samples),
            events=tuple(self._events),
            unknown=self.unknown,
            lock=read_lock(self.card.uuid),
        )

    def _hear(self, told: CardEvent | Unknown) -> None:
        if isinstance(told, Unknown):
            self.unknown[told.what] = told.why
        else:
            self._events.append(told)


def _initialised(stack: ExitStack, watched: Sequence[_Watched]) -> ModuleType | None:
    """The binding, until the stack's end; None where that is of no use, or fails, which is kept as the reason."""
    if not watched:
        return None
    import pynvml  # noqa: PLC0415 -- where it is needed, as by `list_cards`

    try:
        stack.enter_context(opened(pynvml))
    except pynvml.NVMLError as error:
        for each in watched:
            each.unknown["the card"] = Reader(pynvml).said(error)
        return None
    binding: ModuleType = pynvml
    return binding


LOOK_SECONDS: Final = 1.0
"""How long is looked at what changes."""

MOST_PROCESSES: Final = 5
"""That are named."""

LEAST_CORES: Final = 0.05
"""That a process must have used to be named."""


class HostLook:
    """A look at the host, in two parts."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._unknown: dict[str, str] = {}
        self._cpu: CpuUse | None = None
        self._swap: Swap | None = None

    def watch(self) -> None:
        """Watch what changes, for `LOOK_SECONDS`."""
        swap = attempt(self._unknown, "swap", _swap)
        before = attempt(self._unknown, "cpu", _readings)
        time.sleep(LOOK_SECONDS)
        after = attempt(self._unknown, "cpu", _readings)
        if before is not None and after is not None:
            self._cpu = attempt(self._unknown, "cpu", lambda: _cpu_use(before, after))
        now = attempt(self._unknown, "swap", _swap)
        if swap is not None and now is not None:
            self._swap = Swap(now.used_bytes, max(0, now.moved_bytes - swap.moved_bytes))

    def now(self) -> HostState:
        """All that is known of the host."""
        unknown = self._unknown
        host, problem = self._host()
        return HostState(
            host=host,
            host_problem=problem[0],
            host_remedy=problem[1],
            boost=attempt(unknown, "boost", read_boost),
            core_limit=attempt(unknown, "core_limit", read_core_limit),
            is_virtual=attempt(unknown, "is_virtual", is_virtual),
            sees_all=attempt(unknown, "sees_all", _sees_all) or False,
            cpu=self._cpu,
            swap=self._swap,
            shared_memory=attempt(unknown, "shared_memory", lambda: _space(SHARED_MEMORY)),
            open_files=attempt(unknown, "open_files", _open_files),
            temp=attempt(unknown, "temp", lambda: _space(tempfile.gettempdir())),
            unknown=unknown,
        )

    def _host(self) -> tuple[Host | None, tuple[str, str]]:
        try:
            return attempt(self._unknown, "host", lambda: read_host(environ=self._environ)), ("", "")
        except GpuserveError as problem:
            return None, words(problem)


def _readings() -> tuple[CpuReading, dict[int, Stat]]:
    return read_cpu([psutil.Process()]), read_processes()


def _cpu_use(before: tuple[CpuReading, dict[int, Stat]], after: tuple[CpuReading, dict[int, Stat]]) -> CpuUse:
    first, last = before[0], after[0]
    worked = last.busy_seconds + last.stolen_seconds
    if worked <= 0:
        raise OSError("the kernel's counters of CPU time stand still")
    seconds = last.at_seconds - first.at_seconds
    stolen = max(0.0, last.stolen_seconds - first.stolen_seconds) / seconds
    used = cores_used(before[1], after[1], seconds)
    others = [(cores, pid) for pid, cores in used.items() if cores >= LEAST_CORES and pid != os.getpid()]
    return CpuUse(
        seconds=seconds,
        by_others=max(0.0, cores_taken_by_others(first, last) - stolen),
        stolen=stolen,
        stolen_since_boot=last.stolen_seconds / worked,
        processes=tuple(
            BusyProcess(pid, _program(pid), cores) for cores, pid in sorted(others, reverse=True)[:MOST_PROCESSES]
        ),
    )


def _program(pid: int) -> str:
    # Never its arguments: there may be a token among them.
    try:
        return printable(psutil.Process(pid).name())
    except psutil.Error:
        return "a process that has ended"


def _swap() -> Swap:
    with warnings.catch_warnings():
        # It warns, and gives zeros, where the kernel does not tell.
        warnings.simplefilter("error")
        seen = read_host_counters()
    return Swap(seen.swap_used_bytes, seen.swapped_bytes)


def _sees_all() -> bool:
    # This thread of the kernel has that pid on every Linux, and none in a container that has pids of its own.
    try:
        return psutil.Process(2).name() == "kthreadd"
    except psutil.Error:
        return False


def _space(folder: str) -> Space:
    left = os.statvfs(folder)
    return Space(folder, left.f_blocks * left.f_frsize, left.f_bavail * left.f_frsize)


def _open_files() -> tuple[float, float]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return inf if soft == resource.RLIM_INFINITY else soft, inf if hard == resource.RLIM_INFINITY else hard


def read_lock(key: str, *, folder: Path | None = None) -> LockState:
    """Say whether a session measures on a device: ``cpu``, or a card's UUID."""
    lock = DeviceLock(key, command="", folder=folder)
    # What people put there that is no file must neither be followed nor hold us up.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(lock.path, flags)
    except FileNotFoundError:
        return LockState(held=False)
    except OSError as error:
        return LockState(held=None, told=f"{lock.path}: {error.strerror}")
    try:
        # Two who look do not keep each other out, and a session that wants it tries again in a moment.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = lock.holder()
        return LockState(held=True, told=str(holder), pid=holder.pid)
    except OSError as error:
        return LockState(held=None, told=f"{lock.path}: {error.strerror}")
    finally:
        os.close(descriptor)
    return LockState(held=False)


KERNEL_MODULE: Final = Path("/proc/driver/nvidia/version")
"""Is there while NVIDIA's driver is loaded, also in a container that its library was not given to."""


def look(asked: str | None, environ: Mapping[str, str]) -> MachineState:
    """Read the state of the machine and its cards; ``asked`` is the device as for ``--gpu``, None for any."""
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    answer = list_cards()
    host_look = HostLook(environ)
    cards = look_at_cards(answer, visible, meanwhile=host_look.watch)
    host = host_look.now()
    devices = (*(card.card.uuid for card in cards if card.visible), CPU)
    refused = ("", "")
    if asked is not None and host.host is not None:
        try:
            chosen = select_device(asked, known_names=(), answer=answer, host=host.host, visible=visible)
            devices = (chosen.lock_key,)
        except GpuserveError as problem:
            devices, refused = (), words(problem)
    return MachineState(
        host=host,
        driver=read_driver(answer),
        cards=cards,
        cpu_lock=read_lock(CPU),
        devices=devices,
        refused=refused[0],
        refused_remedy=refused[1],
    )


def read_driver(answer: NvmlAnswer, *, module: Path = KERNEL_MODULE) -> Driver:
    """Say what is wrong with the driver; ``module`` exists while it is loaded."""
    if answer.absent and module.exists():
        found = f"the driver is loaded, but does not answer here: {answer.problem}"
        return Driver(answers=False, absent=False, problem=found)
    return Driver(not answer.problem, answer.absent, answer.problem)
