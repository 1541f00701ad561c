"""Telemetry of a GPU in a window, from the samples in and around it.

An unknown value is None, never zero. Times are those of the load's ticks, in ns.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.measure.window import GpuUse

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pytest_gpuserve.device.gpu_probe import GpuSample

NS: Final = 1_000_000_000

GAP_NS: Final = NS
"""Longest gap between two samples; what happened in a longer one is unknown."""

GPU_IDLE: Final = 0x1
"""Clock-event reason of an idle GPU, nvml.h's nvmlClocksEventReasonGpuIdle: its clocks fall then."""


def between(samples: Sequence[GpuSample], begin_ns: int, end_ns: int) -> Sequence[GpuSample]:
    """Samples in a stretch from ``begin_ns`` to before ``end_ns``."""
    first = bisect_left(samples, begin_ns, key=_at_ns)
    return samples[first : bisect_left(samples, end_ns, key=_at_ns)]


def samples_of(samples: Sequence[GpuSample], begin_ns: int, end_ns: int) -> Sequence[GpuSample]:
    """Samples that tell of a stretch: those in it, or if there are none those just before and after it.

    Empty if a part of the stretch lies in a gap, or beside the samples.
    """
    around = _around(samples, begin_ns, end_ns)
    return between(around, begin_ns, end_ns) or around


def gpu_use(samples: Sequence[GpuSample], begin_ns: int, end_ns: int) -> GpuUse:
    """Sum up a stretch of time from samples, which include those before and after it.

    The energy counter at its ends is interpolated, so that neighbouring stretches add up to the whole.
    """
    seen = samples_of(samples, begin_ns, end_ns)
    near = between(samples, begin_ns - GAP_NS, end_ns + GAP_NS + 1)
    counted = _around([sample for sample in near if sample.joules is not None], begin_ns, end_ns)
    return GpuUse(
        joules=_rise(counted, begin_ns, end_ns),
        memory_bytes=max((sample.memory_bytes for sample in seen if sample.memory_bytes is not None), default=None),
        utilisation=_mean(sample.utilisation for sample in seen),
        # An idle GPU lowers its clock, so that only a computing one tells how fast it is.
        sm_clock_mhz=_mean(sample.sm_clock_mhz for sample in seen if not (sample.clock_reasons or 0) & GPU_IDLE),
    )


def _around(samples: Sequence[GpuSample], begin_ns: int, end_ns: int) -> Sequence[GpuSample]:
    """Samples from the last one before a stretch to the first one after it; empty if there is a gap between two."""
    first, last = bisect_right(samples, begin_ns, key=_at_ns) - 1, bisect_left(samples, end_ns, key=_at_ns)
    if first < 0 or last == len(samples):
        return ()
    found = samples[first : last + 1]
    return () if any(later.at_ns - earlier.at_ns > GAP_NS for earlier, later in pairwise(found)) else found


def _rise(counted: Sequence[GpuSample], begin_ns: int, end_ns: int) -> float | None:
    """Rise of the energy counter, in joules; None without samples, or if it was reset meanwhile."""
    points = [(sample.at_ns, sample.joules or 0.0) for sample in counted]
    if not points or any(later < earlier for (_, earlier), (_, later) in pairwise(points)):
        return None
    return max(0.0, _value_at(points[-2:], end_ns) - _value_at(points[:2], begin_ns))


def _value_at(points: Sequence[tuple[int, float]], at_ns: int) -> float:
    """Interpolate linearly between two points, or take the only one."""
    (first_ns, first), (last_ns, last) = points[0], points[-1]
    share = (at_ns - first_ns) / (last_ns - first_ns) if last_ns > first_ns else 0.0
    return first + (last - first) * share


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    # Rounding must not make a share greater than 1.
    return min(math.fsum(known) / len(known), max(known)) if known else None


def _at_ns(sample: GpuSample) -> int:
    return sample.at_ns
