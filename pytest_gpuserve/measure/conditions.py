"""Conditions of a measurement: reasons to measure a window again, and reasons why a run proves nothing.

A window is rejected for a disturbance of the GPU or the client, never for the numbers measured in it. To throw away
slow windows for being slow would hide the very regression that the test looks for. So this module never sees a
throughput.

Rules of a window and of a run take samples of the GPU and return reasons; none means that nothing is wrong. A window
of which nothing is known is rejected. A value that the GPU does not have leaves its rule out: `unknown_text` says so
beside the verdict. Use of the GPU in a window comes from the samples in and around it; an unknown value is None, never
zero. Times are those of the load's ticks, in ns.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.device.gpu_probe import GpuSample
from pytest_gpuserve.measure.window import GpuUse
from pytest_gpuserve.units import format_fraction
from pytest_gpuserve.verdict.reason import Reason, ReasonKind

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from pytest_gpuserve.device.gpu_probe import GpuProcess

NS: Final = 1_000_000_000

GAP_NS: Final = NS
"""Longest gap between two samples; what happened in a longer one is unknown."""

GPU_IDLE: Final = 0x1
"""Clock-event reason of an idle GPU, nvml.h's nvmlClocksEventReasonGpuIdle: its clocks fall then."""

MIB: Final = 1 << 20

LEAST_CLOCK_SHARE: Final = 0.95
"""Smallest share of the baseline's SM clock; below it the GPU was a slower one, for any reason."""

MOST_REJECTED_SHARE: Final = 1 / 3
"""Largest share of rejected windows; the rest of a run that loses more is its lucky part."""

MEMORY_TOLERANCE_BYTES: Final = 64 * MIB
"""Memory that a driver may keep of a process that has ended: the most seen on any GPU, with a margin."""

MOST_UNSEEN_BYTES: Final = 1024 * MIB
"""Memory in use without a process; a driver keeps up to half of it for itself."""

SLOWDOWNS: Final = {
    0x8: "hardware slowdown (HW_SLOWDOWN)",
    0x20: "thermal slowdown by the driver (SW_THERMAL_SLOWDOWN)",
    0x40: "thermal slowdown by the hardware (HW_THERMAL_SLOWDOWN)",
    0x80: "external power brake (HW_POWER_BRAKE_SLOWDOWN)",
}
"""Clock-event reasons that disturb a window, as nvml.h documents them under nvmlClocksEventReasons.

The other reasons do not disturb. Idle (0x1) means a server without work, which is a result. Application clocks (0x2),
sync boost (0x10) and display clocks (0x100) are settings, the same in every window. The power cap (0x4) does not
disturb either. Most GPUs work at their power limit under full load, also when the baseline was recorded. A change that
draws more power for the same work is a regression to be found. If the cap takes the clock below the baseline's, the
rule on the clock finds it.
"""

APPLICATION_XIDS: Final = frozenset({13, 31, 43, 45, 68, 109})
"""XIDs that do not tell about the GPU's health: the list that NVIDIA's device plugin ignores. The driver may log 45,
and sometimes others, for a healthy server that pytest-gpuserve ends."""

_REMEDIES: Final = {
    ReasonKind.THROTTLED: (
        "; let it cool, see to its fans, its airflow and its power supply (`nvidia-smi -q -d PERFORMANCE`); or lock the"
        " clocks: `nvidia-smi --lock-gpu-clocks=MHZ`, and record the baseline with them"
    ),
    ReasonKind.GPU_UNKNOWN: (
        "; check that `nvidia-smi -q -d CLOCK` shows the GPU, and run `python -m pytest_gpuserve.doctor`"
    ),
}

_NEEDED: Final = {
    "memory_bytes": "memory",
    "clock_reasons": "clock-event reasons",
    "processes": "processes",
    "xids": "XIDs",
}
"""Values that a rule rests on, and their names for people. Memory errors are not among them: many GPUs have no ECC."""


# -- use of the GPU in a window


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


# -- a window


def window_reasons(
    seen: Sequence[GpuSample], clock_mhz: float | None, *, baseline_mhz: float | None
) -> tuple[Reason, ...]:
    """Reasons to measure a window again: a GPU that was slowed down, or was not seen.

    Args:
        seen: Samples that tell of the window.
        clock_mhz: Mean SM clock of the computing GPU in it; None if it did not compute, or the clock is unknown.
        baseline_mhz: The same under this load when the baseline was recorded; None if unknown.
    """
    if all(sample == GpuSample(sample.at_ns) for sample in seen):
        return (Reason(ReasonKind.GPU_UNKNOWN, "the GPU was not seen: NVML reported no value of it"),)
    masks = [sample.clock_reasons for sample in seen if sample.clock_reasons is not None]
    counts = {text: sum(bool(mask & bit) for mask in masks) for bit, text in SLOWDOWNS.items()}
    found = [
        Reason(ReasonKind.THROTTLED, f"{text} in {count} of {len(masks)} samples")
        for text, count in counts.items()
        if count
    ]
    if baseline_mhz is not None and all(sample.sm_clock_mhz is None for sample in seen):
        found.append(Reason(ReasonKind.GPU_UNKNOWN, "the SM clock is unknown, but the baseline has one"))
    if baseline_mhz is not None and clock_mhz is not None and clock_mhz / baseline_mhz < LEAST_CLOCK_SHARE:
        text = (
            f"SM clock {clock_mhz:.0f} MHz, {format_fraction(clock_mhz / baseline_mhz)} of the baseline's"
            f" {baseline_mhz:.0f} MHz (at least {format_fraction(LEAST_CLOCK_SHARE)})"
        )
        found.append(Reason(ReasonKind.THROTTLED, text))
    return tuple(found)


def too_many_rejected(windows: Sequence[Sequence[Reason]]) -> list[Reason]:
    """Reason why the rest of the windows proves nothing, by the first rejected one; empty if few were rejected.

    Args:
        windows: Reasons to measure each window again; none for a good window.
    """
    rejected = [reasons for reasons in windows if reasons]
    if len(rejected) <= MOST_REJECTED_SHARE * len(windows):
        return []
    first = rejected[0]
    text = (
        f"{'; '.join(map(str, first))}; {len(rejected)} of {len(windows)} windows were disturbed, more than"
        f" {format_fraction(MOST_REJECTED_SHARE)} of them (windows are rejected for a disturbance, never for their"
        f" speed){_REMEDIES.get(first[0].kind, '')}"
    )
    return [first[0].with_text(text)]


# -- a run


def error_reasons(samples: Sequence[GpuSample], *, load_ns: tuple[int, int]) -> list[Reason]:
    """Errors of the GPU in a run: XIDs of the driver, uncorrected memory errors, or its loss.

    Args:
        samples: Samples of the run.
        load_ns: Begin and end of the measured load; the XIDs of an application count only within it.
    """
    begin_ns, end_ns = load_ns
    xids = Counter(
        xid
        for sample in samples
        for xid in sample.xids or ()
        if xid not in APPLICATION_XIDS or begin_ns <= sample.at_ns <= end_ns
    )
    found = [
        Reason(
            ReasonKind.GPU_ERROR,
            f"the driver reported XID {xid}{f' {count} times' if count > 1 else ''}: see `dmesg | grep -i xid`, and"
            " docs.nvidia.com/deploy/xid-errors for its meaning",
            about=f"XID {xid}",
        )
        for xid, count in xids.items()
    ]
    if any(sample.lost for sample in samples):
        text = "GPU lost: it no longer answers (GPU is lost); see `dmesg | grep -i xid`, and restart the machine"
        found.append(Reason(ReasonKind.GPU_ERROR, text, about="lost"))
    counts = [sample.uncorrected_ecc for sample in samples if sample.uncorrected_ecc is not None]
    if counts and max(counts) > counts[0]:
        text = (
            f"uncorrected ECC errors: {max(counts) - counts[0]} in this run ({max(counts)} since the driver was"
            " loaded). Results cannot be trusted. Reset the GPU (`nvidia-smi --gpu-reset`), and replace it if the"
            " errors come again"
        )
        found.append(Reason(ReasonKind.GPU_ERROR, text, about="ECC"))
    return found


def process_reasons(samples: Sequence[GpuSample], ours: Collection[int], *, server_began_ns: int) -> list[Reason]:
    """Processes of others that computed on the GPU.

    Within a container NVML may list pids of another namespace, so that no process of the server is found. The owner of
    those pids is then unknown. But a process that was there before the server's start cannot be ours.

    Args:
        samples: Samples of the run, and of a second or more before the server's start.
        ours: Pids of the session and of its servers, whose descendants are ours too.
        server_began_ns: Time of the server's start, by the samples' clock.
    """
    others = _others(samples, ours)
    before = _others([sample for sample in samples if sample.at_ns < server_began_ns], ours)
    if not others or not (before or _is_seen(samples, ours)):
        return []
    text = (
        f"foreign process on the GPU: {', '.join(map(_shown, others))}; end it, or measure on another GPU: --gpu=NAME"
    )
    return [Reason(ReasonKind.FOREIGN_PROCESS, text)]


def rest_reasons(samples: Sequence[GpuSample]) -> list[Reason]:
    """Use of the GPU by other processes, visible or not, in samples before the server's start.

    Since driver 535.113 NVML does not list the processes of other containers.
    """
    busy, used_bytes = _peaks(samples)
    if not busy and (used_bytes or 0) <= MOST_UNSEEN_BYTES:
        return []
    text = (
        f"foreign use of the GPU: it was {use_text(samples)} before the server's start, by processes that NVML does not"
        " list here, such as another container's; end them, or measure on another GPU: --gpu=NAME"
    )
    return [Reason(ReasonKind.FOREIGN_PROCESS, text)]


def use_reasons(
    samples: Sequence[GpuSample], ours: Collection[int], *, before_bytes: int | None, remedy: str
) -> list[Reason]:
    """A server that did not use its GPU under load.

    A process of its own, utilisation, or memory: each shows use. Memory also tells in a container whose processes NVML
    does not list, and under a load too light for 1 % of utilisation. A CUDA context takes 100 MiB or more.

    Args:
        samples: Samples under load; an empty list means none yet.
        ours: As for `process_reasons`.
        before_bytes: Memory in use before the server's start; None if unknown.
        remedy: The server's own setting that puts its model on the GPU.
    """
    memory = [sample.memory_bytes for sample in samples if sample.memory_bytes is not None]
    if _is_seen(samples, ours) or any(sample.utilisation for sample in samples) or before_bytes is None or not memory:
        return []
    if max(memory) - before_bytes > MEMORY_TOLERANCE_BYTES:
        return []
    text = (
        "GPU not used: under load the server had no memory and no process on the GPU, so its numbers are those of the"
        f" CPU; {remedy}; or measure the CPU: --gpu=cpu"
    )
    return [Reason(ReasonKind.GPU_UNUSED, text)]


def memory_reasons(before_bytes: int | None, after_bytes: int | None) -> list[Reason]:
    """Memory that a server did not give back.

    Args:
        before_bytes: Memory in use before the server's start; None if unknown.
        after_bytes: Memory in use some time after the server's end; None if unknown.
    """
    if before_bytes is None or after_bytes is None or after_bytes - before_bytes <= MEMORY_TOLERANCE_BYTES:
        return []
    text = (
        f"memory not given back: the GPU had {(after_bytes - before_bytes) / MIB:.0f} MiB more in use after the"
        f" server's end ({after_bytes / MIB:.0f} MiB) than before its start ({before_bytes / MIB:.0f} MiB), over"
        f" {MEMORY_TOLERANCE_BYTES / MIB:.0f} MiB; find the holder with `nvidia-smi` and `fuser -v /dev/nvidia*`"
    )
    return [Reason(ReasonKind.MEMORY_NOT_GIVEN_BACK, text)]


def unknown_text(samples: Sequence[GpuSample], ours: Collection[int]) -> str:
    """Values that no sample of a run has, so that their rules did not apply; empty if all were read."""
    unknown = [name for field, name in _NEEDED.items() if all(getattr(sample, field) is None for sample in samples)]
    if _others(samples, ours) and not _is_seen(samples, ours):
        unknown.append("owners of the processes, as in a container without the host's pids (docker run --pid=host)")
    return f"telemetry unknown: {', '.join(unknown)}" if unknown else ""


def use_text(samples: Sequence[GpuSample]) -> str:
    """Highest utilisation and most memory in use, for people."""
    busy, used_bytes = _peaks(samples)
    utilisation = "utilisation unknown" if busy is None else f"{format_fraction(busy)} busy"
    memory = "memory unknown" if used_bytes is None else f"{used_bytes / MIB:.0f} MiB in use"
    return f"{utilisation}, {memory}"


def _peaks(samples: Sequence[GpuSample]) -> tuple[float | None, int | None]:
    busy = max((sample.utilisation for sample in samples if sample.utilisation is not None), default=None)
    return busy, max((sample.memory_bytes for sample in samples if sample.memory_bytes is not None), default=None)


def _is_seen(samples: Sequence[GpuSample], ours: Collection[int]) -> bool:
    """Whether a process of ours was on the GPU."""
    return any(_is_ours(process, ours) for sample in samples for process in sample.processes or ())


def _others(samples: Sequence[GpuSample], ours: Collection[int]) -> list[GpuProcess]:
    """Foreign processes, each once, as last seen: a process that ends loses its parents before it leaves the GPU."""
    seen = [process for sample in samples for process in sample.processes or ()]
    own = {process.pid for process in seen if _is_ours(process, ours)}
    return list({process.pid: process for process in seen if process.pid not in own}.values())


def _is_ours(process: GpuProcess, ours: Collection[int]) -> bool:
    return process.pid in ours or any(pid in ours for pid in process.ancestors)


def _shown(process: GpuProcess) -> str:
    memory = "unknown memory" if process.memory_bytes is None else f"{process.memory_bytes / MIB:.0f} MiB"
    return f"process {process.pid} ({process.name or 'of unknown name'}, {memory})"
