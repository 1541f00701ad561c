"""Which host this is, without telling anybody: baselines are public files, so no hostname or machine id is in clear."""

from __future__ import annotations

import hashlib
import math
import os
import platform
import re
import shlex
import socket
import time
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import psutil

from pytest_gpuserve.device.sample import HostSample, Watched
from pytest_gpuserve.errors import UsageProblem

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

# The kernel counts the time of guests of this host within user and nice already; stolen time nobody here has used.
_NOT_WORKED: Final = frozenset({"idle", "iowait", "steal", "guest", "guest_nice"})


def busy_seconds(seconds: Mapping[str, float]) -> float:
    """Count what all cores together have worked, for whomever; the count never falls between two readings.

    Idle time is left out before anything is added. Added and taken off again it would leave a rounding error that
    changes from reading to reading: the count of an idle host would step back, which means a counter begun anew.

    Args:
        seconds: The fields of `psutil.cpu_times()` by name, since the host started.
    """
    return sum(value for name, value in seconds.items() if name not in _NOT_WORKED)


SCAN_SECONDS: Final = 1.0
"""How often, at most, all processes of the machine are looked through for new members of a tree."""

SCAN_SHARE: Final = 0.001
"""Of a core, at most, that this may cost; on a machine of thousands of processes it is done less often."""

_STAT_BYTES: Final = 4096

_TICKS_A_SECOND: Final = os.sysconf("SC_CLK_TCK")


class Stat(NamedTuple):
    """What the kernel says of a process; times in its clock ticks, of 10 ms almost everywhere.

    Args:
        parent: Pid of its parent.
        own_ticks: CPU time of all its threads.
        reaped_ticks: CPU time of its descendants that have ended and been waited for.
        began_ticks: When it began, which tells it from a later one of the same pid.
    """

    parent: int
    own_ticks: int
    reaped_ticks: int
    began_ticks: int


def parse_stat(text: bytes) -> Stat:
    """Read ``/proc/PID/stat``; source: proc_pid_stat(5)."""
    # The command name before the last parenthesis may hold anything, spaces and parentheses too.
    fields = text.rpartition(b")")[2].split()
    user, system, reaped_user, reaped_system = map(int, fields[11:15])
    return Stat(int(fields[1]), user + system, reaped_user + reaped_system, int(fields[19]))


def read_processes() -> dict[int, Stat]:
    """Look at all processes that can be seen, by pid."""
    found: dict[int, Stat] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 -- hundreds of entries once a second
        if name.isdecimal():
            # It may have ended since.
            with suppress(OSError), closing(_StatFile(int(name))) as file:
                found[int(name)] = parse_stat(file.read())
    return found


def cores_used(before: Mapping[int, Stat], after: Mapping[int, Stat], seconds: float) -> dict[int, float]:
    """How many cores each process has used between two looks, on average; one that ended in between is not there.

    Args:
        before: The first look, by pid.
        after: The second.
        seconds: Between them.
    """
    used: dict[int, float] = {}
    for pid, stat in after.items():
        first = before.get(pid)
        # Who has the pid of one that ended is another, all of whose time is new.
        known = first.own_ticks if first is not None and first.began_ticks == stat.began_ticks else 0
        used[pid] = max(0, stat.own_ticks - known) / _TICKS_A_SECOND / seconds
    return used


class _StatFile:
    """``/proc/PID/stat``, kept open: that costs less than to open it anew, and the pid may by then be another's."""

    def __init__(self, pid: int) -> None:
        self._descriptor = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)

    def read(self) -> bytes:
        return os.pread(self._descriptor, _STAT_BYTES, 0)

    def close(self) -> None:
        os.close(self._descriptor)


@dataclass
class _Member:
    """A process of a tree.

    Args:
        file: Where it is looked at.
        stat: As it was when it was last looked at.
    """

    file: _StatFile
    stat: Stat


class TreeClock:
    """Counts the CPU time of a changing set of processes; the count only ever rises."""

    def __init__(self) -> None:
        self._ticks = 0
        self._members: dict[int, _Member] = {}
        # By the parent's pid: what was counted of its children that have ended, and it was not yet charged for.
        self._owed: dict[int, int] = {}

    @property
    def pids(self) -> frozenset[int]:
        """The processes."""
        return frozenset(self._members)

    def follow(self, pids: Iterable[int], seen: Mapping[int, Stat], *, newborn: bool) -> None:
        """Take over the set.

        Args:
            pids: Of the processes, parents before their children.
            seen: How these are now.
            newborn: Whether who is new has only just begun, so that all it has used counts.
        """
        self.count()
        pids = list(pids)
        for pid in self.pids.difference(pids):
            self._leave(pid)
        for pid in pids:
            if pid in self._members:
                if self._members[pid].stat.began_ticks == seen[pid].began_ticks:
                    continue
                self._leave(pid)
            with suppress(OSError):
                self._members[pid] = _Member(_StatFile(pid), seen[pid])
                if newborn:
                    self._ticks += seen[pid].own_ticks + seen[pid].reaped_ticks

    def count(self) -> float:
        """Look at every member, and return the CPU seconds that all have used since they came."""
        reaped: dict[int, int] = {}
        # Parents come before their children, so that no child is seen alive whose parent was charged for it already.
        for pid, member in list(self._members.items()):
            before = member.stat
            try:
                member.stat = parse_stat(member.file.read())
            except OSError:
                self._leave(pid)
                self._owed[before.parent] = self._owed.get(before.parent, 0) + before.own_ticks + before.reaped_ticks
                continue
            self._ticks += max(0, member.stat.own_ticks - before.own_ticks)
            reaped[pid] = max(0, member.stat.reaped_ticks - before.reaped_ticks)
        for pid, ticks in reaped.items():
            # A parent is charged for the whole life of a child that it waited for, most of which was counted already.
            known = min(ticks, self._owed.get(pid, 0))
            self._ticks += ticks - known
            if known:
                self._owed[pid] -= known
        return self._ticks / _TICKS_A_SECOND

    def close(self) -> None:
        """Close the files of all members."""
        for pid in self.pids:
            self._leave(pid)

    def _leave(self, pid: int) -> None:
        self._members.pop(pid).file.close()


class Trees:
    """The client's and the server's processes: who they are, and what they use.

    Args:
        owner: Pid of the session; what is below it is ours.
    """

    def __init__(self, owner: int) -> None:
        self._owner = owner
        self._watched = Watched()
        self._client = TreeClock()
        self._server = TreeClock()
        self._client_told = self._server_told = False
        self._next_scan = 0.0

    def watch(self, watched: Watched) -> None:
        """Follow other trees from now on; what was counted stays counted."""
        self._watched = watched
        self._client_told |= bool(watched.client)
        self._server_told |= bool(watched.server)
        self._scan(newborn=False)

    def count(self) -> tuple[float | None, float | None]:
        """CPU seconds of client and server since they were first told; None for one that never was."""
        if (self._client_told or self._server_told) and time.perf_counter() >= self._next_scan:
            self._scan(newborn=True)
        client = self._client.count() if self._client_told else None
        server = self._server.count() if self._server_told else None
        return client, server

    def is_ours(self, pid: int) -> bool:
        """Whether a process is the session's: its own, one that was told, or below one of them."""
        roots = {self._owner, *self._watched.client, *self._watched.server}
        if pid in roots or pid in self._server.pids or pid in self._client.pids:
            return True
        try:
            return any(parent.pid in roots for parent in psutil.Process(pid).parents())
        except psutil.Error:
            return False

    def close(self) -> None:
        """Close all files."""
        self._client.close()
        self._server.close()

    def _scan(self, *, newborn: bool) -> None:
        began = time.perf_counter()
        seen = read_processes()
        # We are below the session ourselves, but what we use is no client's.
        seen.pop(os.getpid(), None)
        children: dict[int, list[int]] = {}
        for pid, stat in seen.items():
            children.setdefault(stat.parent, []).append(pid)
        server = below(self._watched.server, children, seen.keys())
        self._server.follow(server, seen, newborn=newborn)
        self._client.follow(below(self._watched.client, children, seen.keys() - set(server)), seen, newborn=newborn)
        ended = time.perf_counter()
        self._next_scan = ended + max(SCAN_SECONDS, (ended - began) / SCAN_SHARE)


def below(roots: Iterable[int], children: Mapping[int, Iterable[int]], among: Collection[int]) -> list[int]:
    """Find some processes and all below them, as far as the way there leads through a given set; parents first."""
    found: dict[int, None] = {}
    level = list(roots)
    while level:
        fresh = [pid for pid in level if pid in among and pid not in found]
        found |= dict.fromkeys(fresh)
        level = [child for pid in fresh for child in children.get(pid, ())]
    return list(found)


def read_host_counters() -> HostSample:
    """Look at the host: CPU, load, swap."""
    swap = psutil.swap_memory()
    return HostSample(
        busy_seconds=busy_seconds(psutil.cpu_times()._asdict()),
        load=psutil.getloadavg()[0],
        swap_used_bytes=swap.used,
        swapped_bytes=swap.sin + swap.sout,
    )


HOST_VARIABLE = "GPUSERVE_HOST"
"""Environment variable that names the host, so that a pool of identical machines can share one name."""

_HOST_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_GIB = 2**30

_BOOST_SWITCHES: Final = (
    ("sys/devices/system/cpu/intel_pstate/no_turbo", "1"),
    ("sys/devices/system/cpu/cpufreq/boost", "0"),
)
"""Files that say whether cores may clock above their base frequency, and what is in them where they may not.

Source: the kernel's admin-guide/pm/intel_pstate.rst and cpufreq.rst.
"""


@dataclass(frozen=True)
class Host:
    """The machine around the card.

    Attributes:
        id: Short stable identity: 12 hex digits, or what the environment variable GPUSERVE_HOST says.
        cpu: Model of the processor.
        cores: Logical cores that this process may use (affinity and cpusets count; time quotas do not).
        memory_bytes: Memory of the machine.
        kernel: Release of the kernel.
        system: Name and version of the distribution.
        numa_nodes: Memory nodes; None where the kernel does not tell.
        governor: How the cores' frequency is chosen, such as ``performance``; with commas where cores differ, and None
            where the kernel does not tell, as in most virtual machines.
    """

    id: str
    cpu: str
    cores: int
    memory_bytes: int
    kernel: str
    system: str
    numa_nodes: int | None = None
    governor: str | None = None


def read_host(*, root: Path = Path("/"), environ: Mapping[str, str] | None = None) -> Host:
    """Read the facts of this machine.

    The identity is the first 12 hex digits of SHA-256 over machine id, CPU model, the machine's logical cores and its
    memory in whole GiB: another machine, or the same one with other hardware, has another.

    Args:
        root: Folder below which ``etc``, ``var``, ``proc`` and ``sys`` are read.
        environ: Environment that may hold GPUSERVE_HOST; this process's own by default.

    Raises:
        UsageProblem: GPUSERVE_HOST is set to something that is not a name.
    """
    cpu = _cpu_model(root)
    memory_bytes = psutil.virtual_memory().total
    return Host(
        id=_named_host(os.environ if environ is None else environ)
        or _identity(_machine_id(root), cpu, str(os.cpu_count()), str(round(memory_bytes / _GIB))),
        cpu=cpu,
        cores=len(os.sched_getaffinity(0)),
        memory_bytes=memory_bytes,
        kernel=platform.release(),
        system=_system(root),
        numa_nodes=_numa_nodes(root),
        governor=_governor(root),
    )


@dataclass(frozen=True, slots=True)
class Boost:
    """Whether cores may clock above their base frequency (turbo, boost).

    Args:
        on: Whether they may.
        turn_off: The command that ends it.
    """

    on: bool
    turn_off: str


def read_boost(*, root: Path = Path("/")) -> Boost | None:
    """Read whether turbo or boost is on; None where the kernel does not tell."""
    for name, off in _BOOST_SWITCHES:
        now = _read(root / name).strip()
        if now in {"0", "1"}:
            return Boost(now != off, f"echo {off} | sudo tee /{name}")
    return None


def read_core_limit(*, root: Path = Path("/")) -> float | None:
    """Read how many cores' worth of time the control groups of this process allow it, by the tightest of them.

    Returns:
        Infinity where there is no limit, and None where nothing tells.
    """
    limits = [limit for folder in _cpu_groups(root) if (limit := _group_limit(folder)) is not None]
    # The root of the second version has no file of its own, and no limit.
    if not limits and "cpu" in _read(root / "sys/fs/cgroup/cgroup.controllers").split():
        return math.inf
    return min(limits, default=None)


def is_virtual(*, root: Path = Path("/")) -> bool | None:
    """Whether a hypervisor says that it is below this kernel; None where the processor has no flag for it (not x86)."""
    flags = re.search(r"^flags\s*:(.*)$", _read(root / "proc/cpuinfo"), re.MULTILINE)
    return None if flags is None else "hypervisor" in flags[1].split()


def _cpu_groups(root: Path) -> Iterator[Path]:
    """The folders of the groups that limit this process's CPU time, of both versions of control groups."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and "cpu" not in controllers.split(","):
            continue
        base = root / "sys/fs/cgroup" / controllers
        # In a container the path may be the host's, which is not mounted here: what is at the base holds all the same.
        own = base / path.lstrip("/")
        yield from (folder for folder in (own, *own.parents) if folder.is_relative_to(base))


def _group_limit(folder: Path) -> float | None:
    text = _read(folder / "cpu.max") or f"{_read(folder / 'cpu.cfs_quota_us')} {_read(folder / 'cpu.cfs_period_us')}"
    try:
        quota, period = text.split()
        return math.inf if quota in {"max", "-1"} else int(quota) / int(period)
    except (ValueError, ZeroDivisionError):
        return None


def _named_host(environ: Mapping[str, str]) -> str | None:
    name = environ.get(HOST_VARIABLE)
    if name is None or _HOST_NAME.fullmatch(name):
        return name
    raise UsageProblem(
        f"The environment variable {HOST_VARIABLE} must name this host with 1 to 64 letters, digits, '.', '_' or '-'.",
        found=repr(name),
        remedies=(f"set it to a name such as {HOST_VARIABLE}=runner-pool-1", f"unset {HOST_VARIABLE}"),
    )


def _identity(*parts: str) -> str:
    # NUL cannot occur in any part, so no two lists of parts join to the same text.
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


def _machine_id(root: Path) -> str:
    for path in (root / "etc/machine-id", root / "var/lib/dbus/machine-id"):
        text = _read(path).strip()
        # systemd writes this word into images that have not been started yet: it is the same on all of them.
        if text and text != "uninitialized":
            return text
    return socket.gethostname()


def _cpu_model(root: Path) -> str:
    facts: dict[str, str] = {}
    for line in _read(root / "proc/cpuinfo").splitlines():
        key, _, value = line.partition(":")
        facts.setdefault(key.strip(), value.strip())
    if facts.get("model name"):
        return " ".join(facts["model name"].split())
    # ARM kernels give numbers in place of a name.
    numbers = [facts[key] for key in ("CPU implementer", "CPU part", "CPU variant") if facts.get(key)]
    return " ".join([platform.machine(), *numbers])


def _system(root: Path) -> str:
    for path in (root / "etc/os-release", root / "usr/lib/os-release"):
        facts: dict[str, str] = {}
        for line in _read(path).splitlines():
            key, equals, value = line.strip().partition("=")
            if equals and not key.startswith("#"):
                facts[key] = _unquoted(value)
        name = " ".join(facts[key] for key in ("NAME", "VERSION_ID") if facts.get(key))
        if name:
            return name
    return platform.system()


def _numa_nodes(root: Path) -> int | None:
    return len(list((root / "sys/devices/system/node").glob("node[0-9]*"))) or None


def _governor(root: Path) -> str | None:
    # A core that is switched off has none.
    files = (root / "sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_governor")
    return ",".join(sorted({name for name in map(str.strip, map(_read, files)) if name})) or None


def _unquoted(value: str) -> str:
    try:
        return " ".join(shlex.split(value))
    except ValueError:
        return value


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
