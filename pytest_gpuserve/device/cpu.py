"""Who used the host's CPU: our processes, and others while we measured.

On the device ``cpu`` the CPU is the device: what another process, or another guest of the same hypervisor, takes of
it looks like a slower server. Near a GPU it matters less, but a starved client or tokenizer looks the same.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import psutil

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# The kernel counts the time of guests of this host within user and nice already; stolen time nobody here has used.
_NOT_WORKED: Final = frozenset({"idle", "iowait", "steal", "guest", "guest_nice"})


def busy_seconds(seconds: Mapping[str, float]) -> float:
    """Sum the time that all cores together have worked, of the fields of ``psutil.cpu_times()``; the sum never falls.

    Idle time is left out before anything is added. Added and subtracted again it would leave a rounding error that
    changes from reading to reading: the sum of an idle host would fall, which means a counter that was reset.
    """
    return sum(value for name, value in seconds.items() if name not in _NOT_WORKED)


_TICKS_A_SECOND: Final = os.sysconf("SC_CLK_TCK")


class Stat(NamedTuple):
    """The kernel's counters of a process in its clock ticks, of 10 ms almost everywhere.

    Args:
        own_ticks: CPU time of the process itself.
        began_ticks: When it began, which tells it from a later one of the same pid.
    """

    own_ticks: int
    began_ticks: int


def parse_stat(text: bytes) -> Stat:
    """Read ``/proc/PID/stat``; source: proc_pid_stat(5)."""
    # The command name before the last parenthesis may hold anything, spaces and parentheses too.
    fields = text.rpartition(b")")[2].split()
    return Stat(int(fields[11]) + int(fields[12]), int(fields[19]))


def read_processes() -> dict[int, Stat]:
    """Look at all processes that can be seen, by pid."""
    found: dict[int, Stat] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        # It may have ended since.
        with suppress(OSError):
            found[int(folder.name)] = parse_stat((folder / "stat").read_bytes())
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
