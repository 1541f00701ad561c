"""How much of the host's CPU went to others while we measured.

On the device ``cpu`` the CPU is the device: what another process, or another guest of the same hypervisor, takes of
it looks like a slower server. Near a card it matters less, but a starved client or tokenizer looks the same.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psutil

from pytest_gpuserve.device.host import busy_seconds

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True)
class CpuReading:
    """CPU seconds used up to a moment.

    Args:
        at_seconds: The moment, by the monotonic clock.
        busy_seconds: All cores together, everything that ran.
        stolen_seconds: All cores together, what the hypervisor gave to other guests while we had work to do.
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
