"""Telemetry of GPUs in a stretch of time, from the samples in and around it.

An unknown value is None, never zero. `merged` combines stretches, so a run is the sum of its windows.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping  # noqa: TC003 -- msgspec reads the annotations
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pytest_gpuserve.device.sample import GpuSample, TelemetrySample


COMMON: Final = {
    13: "graphics engine exception, most often a kernel of the server that reads or writes out of bounds",
    31: "memory page fault, most often an address of the server's that is not mapped",
    32: "invalid or corrupted push buffer, of the driver, the bus or the GPU",
    38: "driver firmware error",
    43: "the GPU stopped processing for a program, which did something illegal",
    45: "preemptive cleanup of a program that was ended or failed before",
    48: "double-bit ECC error: memory of the GPU is corrupted",
    61: "internal microcontroller breakpoint or warning",
    62: "internal microcontroller halt",
    63: "a page or row of the GPU's memory was retired or remapped",
    64: "a page or row of the GPU's memory could not be retired or remapped",
    68: "video processor exception",
    69: "graphics engine class error",
    74: "NVLink error",
    79: "the GPU has fallen off the bus: power, heat, or the slot",
    92: "high rate of single-bit ECC errors",
    94: "contained ECC error: the program that it befell is ended",
    95: "uncontained ECC error: all programs on the GPU are affected",
    109: "context switch timeout",
    119: "the GPU's system processor (GSP) does not answer",
    120: "error of the GPU's system processor (GSP)",
    140: "ECC error that was not recovered from",
}


def describe_xid(number: int) -> str:
    """Describe an XID; uncommon numbers refer to NVIDIA's list."""
    return COMMON.get(number, "see docs.nvidia.com/deploy/xid-errors for its meaning")


MIG_PREFIX: Final = "MIG-"
"""Prefix of the uuid of a MIG instance."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Mean and peak of a value over a number of samples."""

    mean: float
    peak: float
    samples: int

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Spread | None:
        """Sum up the known values; None if all are unknown."""
        known = [value for value in values if value is not None]
        if not known:
            return None
        # Rounding must not put a mean above the peak.
        return cls(min(sum(known) / len(known), max(known)), max(known), len(known))

    @classmethod
    def merged(cls, parts: Iterable[Spread | None]) -> Spread | None:
        """Combine stretches, weighted by their samples; None if all are unknown."""
        known = [part for part in parts if part is not None]
        if not known:
            return None
        samples, peak = sum(part.samples for part in known), max(part.peak for part in known)
        mean = sum(part.mean * part.samples for part in known) / samples
        return cls(min(mean, peak), peak, samples)


@dataclass(frozen=True, slots=True)
class GpuTelemetry:
    """Telemetry of one GPU in a stretch of time; units as in `pytest_gpuserve.device.sample.GpuSample`.

    Args:
        uuid: UUID of the GPU or MIG instance. All values except memory are the whole GPU's, other instances included.
        gpu_utilisation: Share of the time when a kernel ran.
        memory_used_bytes: Allocated memory.
        sm_clock_mhz: Clock of the multiprocessors.
        busy_sm_clock_mhz: Clock without the samples of an idle GPU, according to the clock-event reasons; None if it
            was always idle. Only this value shows how fast a GPU is.
        joules: Energy by the GPU's own counter, without host and cooling; None if it has no counter, or the samples do
            not cover the stretch.
        clock_reasons: Number of samples with each bit of the mask of clock-event reasons; None if unknown.
        clock_reasons_samples: Number of samples with a mask.
    """

    uuid: str
    gpu_utilisation: Spread | None = None
    memory_used_bytes: Spread | None = None
    sm_clock_mhz: Spread | None = None
    busy_sm_clock_mhz: Spread | None = None
    joules: float | None = None
    clock_reasons: Mapping[int, int] | None = None
    clock_reasons_samples: int = 0


@dataclass(frozen=True, slots=True)
class Telemetry:
    """Telemetry in a stretch of time.

    Args:
        seconds: Length of the stretch.
        samples: Number of samples in it.
        covered: Whether no part of it lies in a gap between samples; otherwise the values are those of the rest.
        gpus: Telemetry of each GPU by its uuid; empty without a GPU.
    """

    seconds: float
    samples: int = 0
    covered: bool = False
    gpus: Mapping[str, GpuTelemetry] = field(default_factory=dict)

    @property
    def joules(self) -> float | None:
        """Energy of all GPUs together; None without GPUs, or if that of one is unknown.

        For a MIG instance it is unknown: NVML's value is the whole GPU's, and includes other instances.
        """
        if any(is_instance(uuid) for uuid in self.gpus):
            return None
        return _sum([gpu.joules for gpu in self.gpus.values()])


def is_instance(uuid: str) -> bool:
    """Whether it is a MIG instance, which has no energy and utilisation of its own."""
    return uuid.startswith(MIG_PREFIX)


def merged(parts: Iterable[Telemetry]) -> Telemetry | None:
    """Combine stretches; None for none.

    A sum is None if a part's is, because an unknown part is not zero. Means and peaks are those of the known parts.
    """
    known = list(parts)
    if not known:
        return None
    seconds = sum(part.seconds for part in known)
    uuids = dict.fromkeys(uuid for part in known for uuid in part.gpus)
    return Telemetry(
        seconds,
        sum(part.samples for part in known),
        all(part.covered for part in known),
        {uuid: _merged_gpu(uuid, [part.gpus.get(uuid) for part in known]) for uuid in uuids},
    )


def _merged_gpu(uuid: str, parts: Sequence[GpuTelemetry | None]) -> GpuTelemetry:
    known = [part for part in parts if part is not None]
    told = [part.clock_reasons for part in known if part.clock_reasons is not None]
    bits = sorted({bit for reasons in told for bit in reasons})
    return GpuTelemetry(
        uuid,
        gpu_utilisation=Spread.merged(part.gpu_utilisation for part in known),
        memory_used_bytes=Spread.merged(part.memory_used_bytes for part in known),
        sm_clock_mhz=Spread.merged(part.sm_clock_mhz for part in known),
        busy_sm_clock_mhz=Spread.merged(part.busy_sm_clock_mhz for part in known),
        joules=_sum([None if part is None else part.joules for part in parts]),
        clock_reasons={bit: sum(reasons.get(bit, 0) for reasons in told) for bit in bits} if told else None,
        clock_reasons_samples=sum(part.clock_reasons_samples for part in known),
    )


def as_plain(telemetry: Telemetry) -> dict[str, Any]:
    """Convert to a plain dict of JSON values, by the names of the attributes; an unknown value is None."""
    plain = asdict(telemetry)
    plain["joules"] = telemetry.joules
    for gpu in plain["gpus"].values():
        if gpu["clock_reasons"] is not None:
            gpu["clock_reasons"] = {f"{bit:#x}": count for bit, count in gpu["clock_reasons"].items()}
    return plain


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None


NS: Final = 1_000_000_000

Point = tuple[int, float]
"""Time of a sample, in ns, and its value."""


def covers(times_ns: Sequence[int], begin_ns: int, end_ns: int, gap_ns: int) -> bool:
    """Whether every moment of a stretch lies between two times, in order, that are at most a gap apart."""
    first, last = bisect_right(times_ns, begin_ns) - 1, bisect_left(times_ns, end_ns)
    if first < 0 or last == len(times_ns):
        return False
    return all(later - earlier <= gap_ns for earlier, later in pairwise(times_ns[first : last + 1]))


def rise_between(seen: Sequence[Point], begin_ns: int, end_ns: int, gap_ns: int) -> float | None:
    """Return the rise of a counter, with linear interpolation of its values at both ends.

    None if an end does not lie between two points at most ``gap_ns`` apart, or the counter fell meanwhile.
    """
    begin, end = value_at(seen, begin_ns, gap_ns), value_at(seen, end_ns, gap_ns)
    if begin is None or end is None:
        return None
    # It may have been reset between the last point in the stretch and the first one after it, too.
    first, last = bisect_right(seen, begin_ns, key=_when) - 1, bisect_left(seen, end_ns, key=_when)
    if any(later < earlier for (_, earlier), (_, later) in pairwise(seen[first : last + 1])):
        return None
    return max(0.0, end - begin)


def value_at(seen: Sequence[Point], at_ns: int, gap_ns: int) -> float | None:
    """Interpolate a value linearly; None if the two nearest points are too far apart or missing."""
    index = bisect_left(seen, at_ns, key=_when)
    if index == len(seen):
        return None
    later_ns, later = seen[index]
    if later_ns == at_ns:
        return later
    if index == 0:
        return None
    earlier_ns, earlier = seen[index - 1]
    if later_ns - earlier_ns > gap_ns:
        return None
    return earlier + (later - earlier) * ((at_ns - earlier_ns) / (later_ns - earlier_ns))


def _when(point: Point) -> int:
    return point[0]


FAST_GAP_NS: Final = NS // 2
"""Longest gap between two samples of values that are read ten times a second; a longer gap makes them unknown."""

GPU_IDLE: Final = 0x1
"""Clock-event reason of an idle GPU, nvml.h's nvmlClocksEventReasonGpuIdle: its clocks fall then."""


def between(samples: Sequence[TelemetrySample], begin_ns: int, end_ns: int) -> Sequence[TelemetrySample]:
    """Samples in a stretch from ``begin_ns`` to before ``end_ns``, by the clock of the load's ticks."""
    first = bisect_left(samples, begin_ns, key=_at_ns)
    return samples[first : bisect_left(samples, end_ns, key=_at_ns)]


def telemetry_between(samples: Sequence[TelemetrySample], begin_ns: int, end_ns: int) -> Telemetry:
    """Sum up a stretch of time from samples, which include those before and after it.

    The energy counter at its ends is interpolated from the samples before and after them, so that neighbouring
    stretches add up to the whole. If these are missing or too far away, the energy is None. A stretch between two
    neighbouring samples, such as the last one of a load, has the other values of these two.
    """
    inside = between(samples, begin_ns, end_ns)
    # The farthest samples that are used for interpolation.
    first = bisect_left(samples, begin_ns - FAST_GAP_NS, key=_at_ns)
    around = samples[first : bisect_right(samples, end_ns + FAST_GAP_NS, key=_at_ns)]
    seconds = (end_ns - begin_ns) / NS

    uuids = dict.fromkeys(gpu.uuid for sample in around for gpu in sample.gpus)
    nearest = inside or _neighbours(around, begin_ns)
    return Telemetry(
        seconds,
        len(inside),
        covers([sample.at_ns for sample in around], begin_ns, end_ns, FAST_GAP_NS),
        {uuid: _gpu(uuid, nearest, around, begin_ns, end_ns) for uuid in uuids},
    )


def _neighbours(samples: Sequence[TelemetrySample], at_ns: int) -> Sequence[TelemetrySample]:
    """Find the samples just before and after a moment; none if they are too far apart."""
    after = bisect_left(samples, at_ns, key=_at_ns)
    found = samples[max(0, after - 1) : after + 1]
    return found if after and len(found) > 1 and found[1].at_ns - found[0].at_ns <= FAST_GAP_NS else ()


def _gpu(
    uuid: str, inside: Sequence[TelemetrySample], around: Sequence[TelemetrySample], begin_ns: int, end_ns: int
) -> GpuTelemetry:
    seen = [gpu for gpu in (gpu_of(sample, uuid) for sample in inside) if gpu is not None]
    masks = [gpu.clock_reasons for gpu in seen if gpu.clock_reasons is not None]
    bits = {bit for mask in masks for bit in _bits(mask)}
    busy = [gpu for gpu in seen if gpu.clock_reasons is None or not gpu.clock_reasons & GPU_IDLE]
    counted = [
        (sample.at_ns, gpu.energy_joules)
        for sample in around
        if (gpu := gpu_of(sample, uuid)) is not None and gpu.energy_joules is not None
    ]
    return GpuTelemetry(
        uuid,
        gpu_utilisation=Spread.of(gpu.gpu_utilisation for gpu in seen),
        memory_used_bytes=Spread.of(gpu.memory_used_bytes for gpu in seen),
        sm_clock_mhz=Spread.of(gpu.sm_clock_mhz for gpu in seen),
        busy_sm_clock_mhz=Spread.of(gpu.sm_clock_mhz for gpu in busy),
        joules=rise_between(counted, begin_ns, end_ns, FAST_GAP_NS),
        clock_reasons={bit: sum(bool(mask & bit) for mask in masks) for bit in sorted(bits)} if masks else None,
        clock_reasons_samples=len(masks),
    )


def gpu_of(sample: TelemetrySample, uuid: str) -> GpuSample | None:
    """Find a GPU's values in a sample; None if absent."""
    return next((gpu for gpu in sample.gpus if gpu.uuid == uuid), None)


def _bits(mask: int) -> Iterable[int]:
    while mask:
        bit = mask & -mask
        yield bit
        mask ^= bit


def _at_ns(sample: TelemetrySample) -> int:
    return sample.at_ns
