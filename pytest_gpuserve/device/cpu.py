"""Use of the host's CPU by our processes, and by others during a measurement.

On the device ``cpu`` the CPU is the device: time that another process, or another guest of the hypervisor, takes looks
like a slower server. Beside a GPU it matters less, but a starved client or tokenizer looks the same.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import psutil

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# The kernel's user and nice times include guests of this host; stolen time was not used here at all.
_NOT_WORKED: Final = frozenset({"idle", "iowait", "steal", "guest", "guest_nice"})


def busy_seconds(seconds: Mapping[str, float]) -> float:
    """Sum the working time of all cores together, from the fields of ``psutil.cpu_times()``; the sum never falls.

    Idle time is left out before the addition. To add and subtract it would leave a rounding error that changes between
    readings. The sum of an idle host could then fall, which would look like a reset counter.
    """
    return sum(value for name, value in seconds.items() if name not in _NOT_WORKED)


@dataclass(frozen=True, slots=True)
class CpuReading:
    """CPU seconds used up to a moment of the monotonic clock, over all cores.

    Args:
        stolen_seconds: Time that the hypervisor gave to other guests while we had work to do.
        ours_seconds: Time of our own processes.
    """

    at_seconds: float
    busy_seconds: float
    stolen_seconds: float
    ours_seconds: float


def read_cpu(ours: Iterable[psutil.Process]) -> CpuReading:
    """Read the counters of the host and of our processes; a process that has ended counts as zero."""
    used = sum(_used(process) for process in ours)
    times = psutil.cpu_times()
    return CpuReading(
        at_seconds=time.monotonic(),
        busy_seconds=busy_seconds(times._asdict()),
        stolen_seconds=getattr(times, "steal", 0.0),
        ours_seconds=used,
    )


def cores_taken_by_others(before: CpuReading, after: CpuReading) -> float:
    """Mean cores of other processes and of stolen time between two readings, never negative."""
    seconds = after.at_seconds - before.at_seconds
    if seconds <= 0:
        return 0.0
    busy = after.busy_seconds - before.busy_seconds
    stolen = after.stolen_seconds - before.stolen_seconds
    ours = after.ours_seconds - before.ours_seconds
    return max(0.0, (busy - ours) + stolen) / seconds


def cpu_share(before: CpuReading, after: CpuReading) -> float | None:
    """Share of all the machine's cores that were busy between two readings; None if unknown.

    It is a share of all cores, because the readings are: this process may be allowed only some of them.
    """
    seconds = (after.at_seconds - before.at_seconds) * (psutil.cpu_count() or 0)
    return (after.busy_seconds - before.busy_seconds) / seconds if seconds > 0 else None


def _used(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.Error:
        return 0.0
    # A parent's counters include ended children: servers of other workers come and go meanwhile.
    return float(times.user + times.system + times.children_user + times.children_system)
