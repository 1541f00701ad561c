"""Conditions of a measurement: which windows to measure again, and which runs prove nothing.

A window is rejected for a disturbance of the GPU or the client, never for the numbers measured in it. To throw away
slow windows for being slow would hide the very regression that the test looks for. So this module never sees a
throughput.

A condition is good, bad or unknown. Unknown conditions are shown beside the verdict, because many GPUs do not have
every value. A run proves nothing if its GPU has no known value at all, or lacks the clock that its baseline has.
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

_COOL: Final = "let it cool, see to its fans, its airflow and its power supply (`nvidia-smi -q -d PERFORMANCE`)"

_LOCK: Final = "lock the clocks: `nvidia-smi --lock-gpu-clocks=MHZ`, and record the baseline with them"

_NOT_FOR_SPEED: Final = "windows are rejected for what disturbed them, never for how fast they were"


@dataclass(frozen=True, slots=True)
class WindowCondition:
    """The condition of a window.

    Args:
        rejected: Disturbances of the GPUs; a window with any is measured again.
        unknown: Values that could not be read.
        client: Disturbances of the client; likewise.
    """

    rejected: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    client: tuple[Reason, ...] = ()

    @property
    def again(self) -> tuple[str, ...]:
        """Reasons to measure it again, in words; empty if it is good."""
        return (*self.rejected, *map(str, self.client))

    @property
    def good(self) -> bool:
        """Whether all values were read, and all are good."""
        return not self.again and not self.unknown


@dataclass(frozen=True, slots=True)
class RunCondition:
    """The condition of a run.

    Args:
        invalid: Reasons why the run proves nothing, with a remedy.
        unknown: Values that could not be read. They are shown, and do not fail the run.
    """

    invalid: tuple[Reason, ...] = ()
    unknown: tuple[str, ...] = ()

    @classmethod
    def together(cls, parts: Iterable[RunCondition]) -> RunCondition:
        """Combine the results of several rules, each reason once."""
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
    """Judge whether the GPUs were undisturbed in a window.

    Args:
        telemetry: Telemetry of the window.
        uuids: GPUs of the server; without any, no rule applies.
        baseline_clocks_mhz: Mean SM clock of each computing GPU, under the same load when the baseline was recorded. A
            GPU without an entry, or without work in the window, is not compared.
        least_clock_share: Smallest share of the baseline's clock.
    """
    rejected: list[str] = []
    unknown: list[str] = []
    for uuid in uuids:
        gpu = telemetry.gpus.get(uuid)
        if gpu is None or not telemetry.covered:
            unknown.append(f"{uuid}: no telemetry of the whole window")
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
    """Judge whether too many of all measured windows were disturbed, so that the rest proves nothing."""
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
    """Judge whether enough values of the GPUs were read in a run.

    Args:
        samples: Samples of the run; without any, all is unknown.
        uuids: The GPUs.
        needs_clock: Whether the baseline has an SM clock to compare with.
    """
    known = list(samples)
    invalid = []
    for uuid in uuids:
        seen = [gpu for sample in known for gpu in sample.gpus if gpu.uuid == uuid]
        if all(gpu == GpuSample(uuid) for gpu in seen):
            text = (
                f"no value of {uuid} is known: NVML reported none during this run, so the GPU may have been slow, hot"
                " or shared; check that `nvidia-smi -q` shows it, and run `python -m pytest_gpuserve.doctor`"
            )
            invalid.append(Reason(ReasonKind.GPU_UNKNOWN, text, about=uuid))
        elif needs_clock and _longest_gap(gpu.sm_clock_mhz for gpu in seen) >= MOST_FAILURES:
            text = (
                f"SM clock of {uuid} unknown: the baseline has one, but this GPU may have been slower; check that"
                " `nvidia-smi -q -d CLOCK` shows it, or record a baseline without one: --baseline-update"
            )
            invalid.append(Reason(ReasonKind.GPU_UNKNOWN, text, about=f"SM clock of {uuid}"))
    return RunCondition(tuple(invalid))


def _longest_gap(values: Iterable[object]) -> int:
    """Largest number of unknown values in a row."""
    return max((len(list(run)) for unknown, run in groupby(values, lambda value: value is None) if unknown), default=0)


def judge_processes(
    samples: Iterable[TelemetrySample],
    uuids: Iterable[str],
    *,
    server_began_ns: int,
) -> RunCondition:
    """Judge whether other processes computed on the GPUs.

    Within a container NVML may list pids of another namespace, so that no process of the server is found. The owner of
    those pids is then unknown. But a process that was there before the server's start cannot be ours.

    Args:
        samples: Samples of the run, and of a second or more before the server's start.
        uuids: The GPUs.
        server_began_ns: Time of the server's start, by the samples' clock.
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
    """Foreign processes, each once, as last seen: a process that ends loses its parents before it leaves the GPU."""
    seen = [process for processes in lists for process in processes]
    ours = {process.pid for process in seen if process.ours}
    found = {process.pid: process for process in seen if process.pid not in ours}
    return list(found.values())


@dataclass(frozen=True, slots=True)
class RestState:
    """Use of a GPU before any process of the session runs on it.

    Args:
        busy: Highest utilisation; None for a MIG instance, which has only that of its whole GPU.
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
        """Whether other processes use it, visibly or not."""
        return bool(self.busy) or (self.used_bytes or 0) > MOST_UNSEEN_BYTES

    def __str__(self) -> str:
        busy = "utilisation unknown" if self.busy is None else f"{format_fraction(self.busy)} busy"
        used = "memory unknown" if self.used_bytes is None else f"{self.used_bytes / MIB:.0f} MiB in use"
        return f"{busy}, {used}"


def judge_rest(samples: Iterable[TelemetrySample], uuids: Iterable[str]) -> RunCondition:
    """Judge whether other processes, visible or not, used the GPUs before the server's start.

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
        before_bytes: Memory in use before the server's start; None if unknown.
        after_bytes: Memory in use some time after the server's end; None if unknown.
        tolerance_bytes: Memory that the driver may keep.
    """
    if before_bytes is None or after_bytes is None:
        return RunCondition(unknown=(f"{uuid}: whether the server gave its memory back",))
    kept = after_bytes - before_bytes
    if kept <= tolerance_bytes:
        return RunCondition()
    text = (
        f"memory not given back: {uuid} had {kept / MIB:.0f} MiB more in use after the server's end"
        f" ({after_bytes / MIB:.0f} MiB) than before its start ({before_bytes / MIB:.0f} MiB), over"
        f" {tolerance_bytes / MIB:.0f} MiB; find the holder with `nvidia-smi` and `fuser -v /dev/nvidia*`"
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

    A process of its own, utilisation, or memory: each shows use. Memory also tells in a container whose processes NVML
    does not list, and under a load too light for 1 % of utilisation. A CUDA context takes 100 MiB or more.

    Args:
        samples: Samples under load; an empty list means none yet.
        before_bytes: Memory in use on each GPU before the server's start; None if unknown.
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
        load_ns: Begin and end of the measured load; the XIDs of an application count only within it.
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
                f"GPU lost: {event.uuid} no longer answers (GPU is lost); see `dmesg | grep -i xid`, and restart the"
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
            " loaded). Results cannot be trusted. Reset the GPU (`nvidia-smi --gpu-reset`), and replace it if the"
            " errors come again",
            about=f"ECC of {uuid}",
        )
        for uuid, seen in counts.items()
        if seen and max(seen) > seen[0]
    ]
    unknown = [f"{uuid}: its ECC errors" for uuid, seen in counts.items() if not seen and uuid not in without_ecc]
    return RunCondition(tuple(invalid), tuple(unknown))
