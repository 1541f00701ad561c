"""Who used the host's CPU: all of it, the client's and the server's processes, and others while we measured.

On the device ``cpu`` the CPU is the device: what another process, or another guest of the same hypervisor, takes of
it looks like a slower server. Near a GPU it matters less, but a starved client or tokenizer looks the same.
"""

from __future__ import annotations

import os
import time
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import psutil

from pytest_gpuserve.device.sample import WatchedProcesses

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

# The kernel counts the time of guests of this host within user and nice already; stolen time nobody here has used.
_NOT_WORKED: Final = frozenset({"idle", "iowait", "steal", "guest", "guest_nice"})


def busy_seconds(seconds: Mapping[str, float]) -> float:
    """Sum the time that all cores together have worked, of the fields of ``psutil.cpu_times()``; the sum never falls.

    Idle time is left out before anything is added. Added and subtracted again it would leave a rounding error that
    changes from reading to reading: the sum of an idle host would fall, which means a counter that was reset.
    """
    return sum(value for name, value in seconds.items() if name not in _NOT_WORKED)


SCAN_SECONDS: Final = 1.0
"""How often, at most, all processes of the machine are looked through for new members of a tree."""

SCAN_SHARE: Final = 0.001
"""Of a core, at most, that this may cost; on a machine of thousands of processes it is done less often."""

_STAT_BYTES: Final = 4096

_TICKS_A_SECOND: Final = os.sysconf("SC_CLK_TCK")


class Stat(NamedTuple):
    """The kernel's counters of a process in its clock ticks, of 10 ms almost everywhere.

    Args:
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
    """Cores that each process used between two readings, by pid; one that ended in between is left out."""
    used: dict[int, float] = {}
    for pid, stat in after.items():
        first = before.get(pid)
        # A process that reuses a pid is another one, all of whose time is new.
        known = first.own_ticks if first is not None and first.began_ticks == stat.began_ticks else 0
        used[pid] = max(0, stat.own_ticks - known) / _TICKS_A_SECOND / seconds
    return used


class _StatFile:
    """``/proc/PID/stat``, kept open: reopening costs more, and the pid may then belong to another process."""

    def __init__(self, pid: int) -> None:
        self._descriptor = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)

    def read(self) -> bytes:
        return os.pread(self._descriptor, _STAT_BYTES, 0)

    def close(self) -> None:
        os.close(self._descriptor)


@dataclass
class _Member:
    """A process of a tree, and its counters when it was last read."""

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
        """Replace the set by ``pids``, parents before their children; of a ``newborn`` all that it has used counts."""
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


class ProcessTrees:
    """The client's and the server's processes; all below ``owner``, the session's pid, are ours."""

    def __init__(self, owner: int) -> None:
        self._owner = owner
        self._watched = WatchedProcesses()
        self._client = TreeClock()
        self._server = TreeClock()
        self._client_told = self._server_told = False
        self._next_scan = 0.0

    def watch(self, watched: WatchedProcesses) -> None:
        """Follow other trees from now on; what was counted stays counted."""
        self._watched = watched
        self._client_told |= bool(watched.client)
        self._server_told |= bool(watched.server)
        self._scan(newborn=False)

    def count(self) -> tuple[float | None, float | None]:
        """CPU seconds of client and server since they were first watched; None for one that never was."""
        if (self._client_told or self._server_told) and time.perf_counter() >= self._next_scan:
            self._scan(newborn=True)
        client = self._client.count() if self._client_told else None
        server = self._server.count() if self._server_told else None
        return client, server

    def is_ours(self, pid: int) -> bool:
        """Whether a process is the session's: its own, a watched one, or below one of them."""
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


@dataclass(frozen=True, slots=True)
class CpuReading:
    """CPU seconds used up to a moment of the monotonic clock, over all cores.

    Args:
        stolen_seconds: What the hypervisor gave to other guests while we had work to do.
        ours_seconds: What our own processes used.
    """

    at_seconds: float
    busy_seconds: float
    stolen_seconds: float
    ours_seconds: float


def read_cpu(ours: Iterable[psutil.Process]) -> CpuReading:
    """Read the counters of the host and of our processes; one that has ended in between counts as nothing."""
    used = sum(_used(process) for process in ours)
    times = psutil.cpu_times()
    return CpuReading(
        at_seconds=time.monotonic(),
        busy_seconds=busy_seconds(times._asdict()),
        stolen_seconds=getattr(times, "steal", 0.0),
        ours_seconds=used,
    )


def cores_taken_by_others(before: CpuReading, after: CpuReading) -> float:
    """Cores that were not ours between two readings, on average: other processes' and stolen time, never negative."""
    seconds = after.at_seconds - before.at_seconds
    if seconds <= 0:
        return 0.0
    busy = after.busy_seconds - before.busy_seconds
    stolen = after.stolen_seconds - before.stolen_seconds
    ours = after.ours_seconds - before.ours_seconds
    return max(0.0, (busy - ours) + stolen) / seconds


def cpu_share(before: CpuReading, after: CpuReading) -> float | None:
    """Share of all the machine's cores that were busy between two readings; None where that is not known.

    Of all, for the readings are of all: this process may be allowed only some of them.
    """
    seconds = (after.at_seconds - before.at_seconds) * (psutil.cpu_count() or 0)
    return (after.busy_seconds - before.busy_seconds) / seconds if seconds > 0 else None


def _used(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.Error:
        return 0.0
    # What has ended and been waited for counts on with its parent: servers of other workers come and go meanwhile.
    return float(times.user + times.system + times.children_user + times.children_system)
