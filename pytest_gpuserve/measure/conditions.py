"""Whether all was in a state to be measured: which windows to measure again, and which runs prove nothing.

A window is rejected for what disturbed the GPU or the client while it was measured, never for what was measured in it:
to throw away slow windows for being slow would hide the very regression that is looked for. So nothing here sees a
throughput.

There are three answers: all well, something wrong, and not known. What is not known is shown beside the verdict:
many GPUs do not have every value. Only where nothing at all is known of a GPU, or not the clock that its baseline
has, does a run prove nothing.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.device.sample import MOST_FAILURES, GpuSample
from pytest_gpuserve.measure.telemetry import Spread, describe_xid, is_instance
from pytest_gpuserve.units import format_fraction
from pytest_gpuserve.verdict.reason import Reason, ReasonKind

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from pytest_gpuserve.device.sample import DeviceProcess, GpuEvent, TelemetrySample
    from pytest_gpuserve.measure.telemetry import GpuTelemetry, Telemetry

MIB: Final = 1 << 20

LEAST_CLOCK_SHARE: Final = 0.95
"""Of the baseline's SM clock; below it the GPU was a slower one, whatever the reason."""

MOST_REJECTED_SHARE: Final = 1 / 3
"""Of the windows; what is left of a run that loses more is its lucky part."""

MEMORY_TOLERANCE_BYTES: Final = 64 * MIB
"""Memory that a driver may keep of a process that has ended, on any GPU seen so far, with room to spare."""

MOST_UNSEEN_BYTES: Final = 1024 * MIB
"""Memory in use without a process; a driver keeps up to half of it for itself."""

SLOWDOWNS: Final = {
    0x8: "hardware slowdown (HW_SLOWDOWN)",
    0x20: "thermal slowdown by the driver (SW_THERMAL_SLOWDOWN)",
    0x40: "thermal slowdown by the hardware (HW_THERMAL_SLOWDOWN)",
    0x80: "external power brake (HW_POWER_BRAKE_SLOWDOWN)",
}
"""Clock-event reasons that disturb a window, as nvml.h documents them under nvmlClocksEventReasons.

The others do not: idle (0x1) is a server that has nothing to do, which is a result; application clocks (0x2), sync
boost (0x10) and display clocks (0x100) are settings, the same in every window. Neither does the power cap (0x4): a GPU
at its power limit is how most GPUs work under full load, it was so when the baseline was recorded, and a change that
makes it draw more for the same work is a regression to be found. Where the cap takes the clock below the baseline's,
the clock itself says so.
"""

APPLICATION_XIDS: Final = frozenset({13, 31, 43, 45, 68, 109})
"""XIDs that say nothing of the GPU's health: the list that NVIDIA's device plugin ignores. The driver logs 45, and
sometimes another of them, of a server that works while pytest-gpuserve ends it."""

_COOL: Final = "let it cool, see to its fans, its airflow and its power supply (`nvidia-smi -q -d PERFORMANCE`)"

_LOCK: Final = "lock the clocks: `nvidia-smi --lock-gpu-clocks=MHZ`, and record the baseline with them"

_NOT_FOR_SPEED: Final = "windows are rejected for what disturbed them, never for how fast they were"


@dataclass(frozen=True, slots=True)
class WindowCondition:
    """The condition of a window.

    Args:
        rejected: The disturbances of the GPUs in it; if there are any, it is measured again.
        unknown: What could not be seen.
        client: What disturbed the client in it; likewise.
    """

    rejected: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    client: tuple[Reason, ...] = ()

    @property
    def again(self) -> tuple[str, ...]:
        """Why it is to be measured again, in words; empty if it is not."""
        return (*self.rejected, *map(str, self.client))

    @property
    def good(self) -> bool:
        """Whether all was seen, and all was well."""
        return not self.again and not self.unknown


@dataclass(frozen=True, slots=True)
class RunCondition:
    """The condition of a run.

    Args:
        invalid: Why it proves nothing, with what helps.
        unknown: What could not be seen; it is shown, and by itself does not fail the run.
    """

    invalid: tuple[Reason, ...] = ()
    unknown: tuple[str, ...] = ()

    @classmethod
    def together(cls, parts: Iterable[RunCondition]) -> RunCondition:
        """Put together what several rules say; each once."""
        known = list(parts)
        return cls(
            tuple(dict.fromkeys(reason for part in known for reason in part.invalid)),
            tuple(dict.fromkeys(text for part in known for text in part.unknown)),
        )


def judge_window(
    telemetry: Telemetry,
    uuids: Iterable[str],
    *,
    baseline_clocks_mhz: Mapping[str, float] | None = None,
    least_clock_share: float = LEAST_CLOCK_SHARE,
) -> WindowCondition:
    """Judge whether GPUs were undisturbed in a window.

    Args:
        telemetry: Of the window.
        uuids: The GPUs that the server runs on; without one nothing is asked.
        baseline_clocks_mhz: Mean SM clock of each while it computed, under the same load when the baseline was
            recorded. It is not compared where there is none, or where the GPU had nothing to do in the window.
        least_clock_share: Of it.
    """
    rejected: list[str] = []
    unknown: list[str] = []
    for uuid in uuids:
        gpu = telemetry.gpus.get(uuid)
        if gpu is None or not telemetry.covered:
            unknown.append(f"{uuid}: no telemetry of all of the window")
        else:
            found = _judge_gpu(gpu, (baseline_clocks_mhz or {}).get(uuid), least_clock_share)
            rejected.extend(found.rejected)
            unknown.extend(found.unknown)
    return WindowCondition(tuple(rejected), tuple(unknown))


def _judge_gpu(gpu: GpuTelemetry, baseline_mhz: float | None, least_share: float) -> WindowCondition:
    rejected: list[str] = []
    unknown: list[str] = []
    if gpu.clock_reasons is None:
        unknown.append(f"{gpu.uuid}: its clock-event reasons")
    else:
        rejected += [
            f"{gpu.uuid}: {text} in {gpu.clock_reasons[bit]} of {gpu.clock_reasons_samples} samples"
            for bit, text in SLOWDOWNS.items()
            if gpu.clock_reasons.get(bit)
        ]
    if baseline_mhz is not None and gpu.sm_clock_mhz is None:
        unknown.append(f"{gpu.uuid}: its SM clock")
    elif baseline_mhz is not None and gpu.busy_sm_clock_mhz is not None:
        share = gpu.busy_sm_clock_mhz.mean / baseline_mhz
        if share < least_share:
            rejected.append(
                f"{gpu.uuid}: SM clock {gpu.busy_sm_clock_mhz.mean:.0f} MHz, {format_fraction(share)} of the"
                f" baseline's {baseline_mhz:.0f} MHz (at least {format_fraction(least_share)})"
            )
    return WindowCondition(tuple(rejected), tuple(unknown))


def judge_windows(conditions: Sequence[WindowCondition]) -> RunCondition:
    """Judge whether so many of all measured windows were disturbed that the rest proves nothing."""
    count = len(conditions)
    rejected = [condition for condition in conditions if condition.again]
    blind = [condition for condition in conditions if condition.unknown]
    unknown: tuple[str, ...] = ()
    if blind:
        unknown = (f"telemetry unknown in {len(blind)} of {count} windows, first: {'; '.join(blind[0].unknown)}",)
    if len(rejected) <= MOST_REJECTED_SHARE * count:
        return RunCondition(unknown=unknown)
    share = f"{len(rejected)} of {count} windows, more than {format_fraction(MOST_REJECTED_SHARE)} of them"
    throttled = [condition for condition in rejected if condition.rejected]
    if throttled:
        text = f"throttled: {share}; first: {'; '.join(throttled[0].again)} ({_NOT_FOR_SPEED}); {_COOL}; or {_LOCK}"
        return RunCondition((Reason(ReasonKind.THROTTLED, text),), unknown)
    first = rejected[0].client
    text = f"{'; '.join(map(str, first))}; disturbed were {share} ({_NOT_FOR_SPEED})"
    return RunCondition((first[0].with_text(text),), unknown)


def judge_known(samples: Iterable[TelemetrySample], uuids: Iterable[str], *, needs_clock: bool) -> RunCondition:
    """Judge whether enough was seen of the GPUs in the samples of a run.

    Args:
        samples: Without one nothing is known.
        uuids: The GPUs.
        needs_clock: Whether the baseline has an SM clock, with which this run's is compared.
    """
    known = list(samples)
    invalid = []
    for uuid in uuids:
        seen = [gpu for sample in known for gpu in sample.gpus if gpu.uuid == uuid]
        if all(gpu == GpuSample(uuid) for gpu in seen):
            text = (
                f"nothing is known of {uuid}: NVML told none of its values during this run, so it may have been slow,"
                " hot or shared; see that `nvidia-smi -q` shows it, and `python -m pytest_gpuserve.doctor`"
            )
            invalid.append(Reason(ReasonKind.GPU_UNKNOWN, text, about=uuid))
        elif needs_clock and _longest_gap(gpu.sm_clock_mhz for gpu in seen) >= MOST_FAILURES:
            text = (
                f"SM clock of {uuid} unknown: the baseline has one, and whether this GPU was a slower one cannot be"
                " said; see that `nvidia-smi -q -d CLOCK` shows it, or record a baseline without: --baseline-update"
            )
            invalid.append(Reason(ReasonKind.GPU_UNKNOWN, text, about=f"SM clock of {uuid}"))
    return RunCondition(tuple(invalid))


def _longest_gap(values: Iterable[object]) -> int:
    """How many values in a row are not known, at most."""
    return max((len(list(run)) for unknown, run in groupby(values, lambda value: value is None) if unknown), default=0)


def judge_processes(
    samples: Iterable[TelemetrySample],
    uuids: Iterable[str],
    *,
    server_began_ns: int,
) -> RunCondition:
    """Judge whether others computed on the GPUs.

    Within a container NVML may list pids of another namespace, in which none of the server's is found. Then nobody
    knows their owner; but before the server was started no process there can have been ours.

    Args:
        samples: Of the run, and of a second or more before the server's start.
        uuids: The GPUs.
        server_began_ns: When the server was started, by the samples' clock.
    """
    looked: dict[str, list[tuple[int, Sequence[DeviceProcess]]]] = {uuid: [] for uuid in uuids}
    for sample in samples:
        for gpu in sample.gpus:
            if gpu.uuid in looked and gpu.processes is not None:
                looked[gpu.uuid].append((sample.at_ns, gpu.processes))
    return RunCondition.together(_judge_looks(uuid, looks, server_began_ns) for uuid, looks in looked.items())


def _judge_looks(
    uuid: str,
    looks: Sequence[tuple[int, Sequence[DeviceProcess]]],
    server_began_ns: int,
) -> RunCondition:
    if not looks:
        return RunCondition(unknown=(f"{uuid}: its processes",))
    others = _others(processes for _, processes in looks)
    if not others:
        return RunCondition()
    shown = ", ".join(map(_shown, others))
    before = _others(processes for at_ns, processes in looks if at_ns < server_began_ns)
    if before or any(process.ours for _, processes in looks for process in processes):
        text = f"foreign process on {uuid}: {shown}; end it, or measure on another GPU: --gpu=NAME"
        return RunCondition((Reason(ReasonKind.FOREIGN_PROCESS, text, about=uuid),))
    text = (
        f"{uuid}: whose processes are on it ({shown}): the server's are not among them, as in a container without the"
        " host's pids (docker run --pid=host)"
    )
    return RunCondition(unknown=(text,))


def _others(lists: Iterable[Sequence[DeviceProcess]]) -> list[DeviceProcess]:
    """Foreign processes, each once, as last seen: an ended process loses its parents before it leaves the GPU."""
    seen = [process for processes in lists for process in processes]
    ours = {process.pid for process in seen if process.ours}
    found = {process.pid: process for process in seen if process.pid not in ours}
    return list(found.values())


@dataclass(frozen=True, slots=True)
class RestState:
    """The use of a GPU before anything of the session runs on it.

    Args:
        busy: Highest utilisation; of an instance None, for that is its whole GPU's.
        used_bytes: Most memory in use.
    """

    busy: float | None
    used_bytes: float | None

    @classmethod
    def of(cls, samples: Iterable[GpuSample]) -> RestState:
        """Sum up samples of one GPU at rest."""
        seen = list(samples)
        busy = Spread.of(each.gpu_utilisation for each in seen if not is_instance(each.uuid))
        used = Spread.of(each.memory_used_bytes for each in seen)
        return cls(None if busy is None else busy.peak, None if used is None else used.peak)

    @property
    def is_used(self) -> bool:
        """Whether somebody uses it, visibly or not."""
        return bool(self.busy) or (self.used_bytes or 0) > MOST_UNSEEN_BYTES

    def __str__(self) -> str:
        busy = "utilisation unknown" if self.busy is None else f"{format_fraction(self.busy)} busy"
        used = "memory unknown" if self.used_bytes is None else f"{self.used_bytes / MIB:.0f} MiB in use"
        return f"{busy}, {used}"


def judge_rest(samples: Iterable[TelemetrySample], uuids: Iterable[str]) -> RunCondition:
    """Judge whether others used the GPUs before the server's start, whose processes need not be visible.

    Since driver 535.113 NVML does not list the processes of other containers.
    """
    known = list(samples)
    invalid = []
    for uuid in uuids:
        rest = RestState.of(gpu for sample in known for gpu in sample.gpus if gpu.uuid == uuid)
        if rest.is_used:
            text = (
                f"foreign use of {uuid}: it was {rest} before the server's start, by processes that NVML does not list"
                " here, such as another container's; end them, or measure on another GPU: --gpu=NAME"
            )
            invalid.append(Reason(ReasonKind.FOREIGN_PROCESS, text, about=uuid))
    return RunCondition(tuple(invalid))


def _shown(process: DeviceProcess) -> str:
    memory = "unknown memory" if process.memory_bytes is None else f"{process.memory_bytes / MIB:.0f} MiB"
    return f"process {process.pid} ({process.name or 'of unknown name'}, {memory})"


def judge_memory(
    uuid: str,
    before_bytes: int | None,
    after_bytes: int | None,
    *,
    tolerance_bytes: int = MEMORY_TOLERANCE_BYTES,
) -> RunCondition:
    """Judge whether a server gave its memory back.

    Args:
        uuid: The GPU.
        before_bytes: Used on it before the server's start; None if not known.
        after_bytes: Used on it some time after the server's end; None if not known.
        tolerance_bytes: That the driver may keep.
    """
    if before_bytes is None or after_bytes is None:
        return RunCondition(unknown=(f"{uuid}: whether the server gave its memory back",))
    kept = after_bytes - before_bytes
    if kept <= tolerance_bytes:
        return RunCondition()
    text = (
        f"memory not given back: on {uuid} {kept / MIB:.0f} MiB more were in use after the server's end"
        f" ({after_bytes / MIB:.0f} MiB) than before its start ({before_bytes / MIB:.0f} MiB), over"
        f" {tolerance_bytes / MIB:.0f} MiB; see who holds it: `nvidia-smi`, `fuser -v /dev/nvidia*`"
    )
    return RunCondition((Reason(ReasonKind.MEMORY_NOT_GIVEN_BACK, text, about=uuid),))


def judge_use(
    samples: Iterable[TelemetrySample],
    uuids: Iterable[str],
    *,
    before_bytes: Mapping[str, int | None],
    remedy: str,
) -> RunCondition:
    """Judge whether a server used its GPUs under load.

    A process of its own, utilisation, or memory: each shows use. Memory tells also in a container whose processes NVML
    does not list, and under a load too light for 1 % of utilisation: a CUDA context takes 100 MiB or more.

    Args:
        samples: Under load; none is none yet.
        before_bytes: Memory in use on each before the server's start; None if not known.
        remedy: The server's own setting that puts its model on the GPU.
    """
    known = list(samples)
    invalid = []
    unknown = []
    for uuid in uuids:
        seen = [gpu for sample in known for gpu in sample.gpus if gpu.uuid == uuid]
        memory = [gpu.memory_used_bytes for gpu in seen if gpu.memory_used_bytes is not None]
        before = before_bytes.get(uuid)
        ours = any(process.ours for gpu in seen for process in gpu.processes or ())
        if not seen or ours or any(gpu.gpu_utilisation for gpu in seen):
            continue
        if before is None or not memory:
            unknown.append(f"{uuid}: whether the server uses it")
        elif max(memory) - before <= MEMORY_TOLERANCE_BYTES:
            text = (
                f"GPU not used: under load the server had no memory and no process on {uuid}, so its numbers are those"
                f" of the CPU; {remedy}; or measure the CPU: --gpu=cpu"
            )
            invalid.append(Reason(ReasonKind.GPU_UNUSED, text, about=uuid))
    return RunCondition(tuple(invalid), tuple(unknown))


def judge_events(events: Iterable[GpuEvent], uuids: Iterable[str], *, load_ns: tuple[int, int]) -> RunCondition:
    """Judge events of the GPUs: errors that the driver reports (XID), or their loss.

    Args:
        load_ns: From when to when a load is measured; the XIDs of an application count only then.
    """
    wanted = set(uuids)
    begin_ns, end_ns = load_ns
    invalid: Counter[Reason] = Counter()
    for event in events:
        elsewhen = event.number in APPLICATION_XIDS and not begin_ns <= event.at_ns <= end_ns
        if event.uuid not in wanted or elsewhen:
            continue
        if event.kind == "lost":
            about = f"{event.uuid} lost"
            text = (
                f"GPU lost: {event.uuid} answers no more (GPU is lost); see `dmesg | grep -i xid`, and restart the"
                " machine"
            )
        else:
            about = f"XID {event.number} on {event.uuid}"
            text = f"{about}: {describe_xid(event.number)}; see `dmesg | grep -i xid`"
        invalid[Reason(ReasonKind.GPU_ERROR, text, about=about)] += 1
    return RunCondition(
        tuple(
            reason if count == 1 else reason.with_text(f"{reason} ({count} times)") for reason, count in invalid.items()
        )
    )


def judge_ecc(
    samples: Iterable[TelemetrySample], uuids: Iterable[str], *, without_ecc: Collection[str] = ()
) -> RunCondition:
    """Judge whether GPUs had uncorrected memory errors in these samples; those ``without_ecc`` have no counter."""
    counts: dict[str, list[int]] = {uuid: [] for uuid in uuids}
    for sample in samples:
        for gpu in sample.gpus:
            if gpu.uuid in counts and gpu.uncorrected_ecc is not None:
                counts[gpu.uuid].append(gpu.uncorrected_ecc)
    invalid = [
        Reason(
            ReasonKind.GPU_ERROR,
            f"uncorrected ECC errors on {uuid}: {max(seen) - seen[0]} in this run ({max(seen)} since the driver was"
            " loaded); results cannot be trusted: reset the GPU (`nvidia-smi --gpu-reset`), and replace it if they"
            " come again",
            about=f"ECC of {uuid}",
        )
        for uuid, seen in counts.items()
        if seen and max(seen) > seen[0]
    ]
    unknown = [f"{uuid}: its ECC errors" for uuid, seen in counts.items() if not seen and uuid not in without_ecc]
    return RunCondition(tuple(invalid), tuple(unknown))
