"""Telemetry of the GPUs around a start of one or two servers, and whether it allows a measurement."""

from __future__ import annotations

import re
import time
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Protocol

from pytest_gpuserve.device.sample import SAMPLES_A_SECOND, SLOW_EVERY
from pytest_gpuserve.device.telemetry import SILENCE_SECONDS, SamplerOutput
from pytest_gpuserve.measure.conditions import (
    RunCondition,
    WindowCondition,
    judge_ecc,
    judge_events,
    judge_known,
    judge_memory,
    judge_processes,
    judge_rest,
    judge_use,
    judge_window,
)
from pytest_gpuserve.measure.telemetry import FAST_GAP_NS, NS, between, gpu_of, is_instance, merged, telemetry_between
from pytest_gpuserve.measure.window import GpuUse
from pytest_gpuserve.servers.instance import gpu_remedy
from pytest_gpuserve.verdict.reason import Reason, ReasonKind

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from pytest_gpuserve.device.sample import TelemetrySample, Unknown
    from pytest_gpuserve.measure.rounds import ArmResult
    from pytest_gpuserve.measure.telemetry import Spread, Telemetry
    from pytest_gpuserve.measure.window import Window
    from pytest_gpuserve.servers.instance import Instance

_COUNT: Final = re.compile(r"(?<![\w-])\d+(?![\w-])")
"""A number by itself, not a part of a name such as a GPU's."""


RELEASE_NS: Final = 5 * NS
"""Time in which a driver may give back the memory of a server that has ended."""

NOT_SUPPORTED: Final = "Not Supported"
"""NVML's word for a value that a GPU does not have, which is not a failure."""

ECC_ERRORS: Final = "uncorrected ECC errors"

NEEDED: Final = frozenset({"NVML", "the GPU", "XID events", "memory", "clock-event reasons", "processes", ECC_ERRORS})
"""Values that a rule rests on: their absence is always reported."""

SAMPLE_NS: Final = NS // SAMPLES_A_SECOND

LOOK_NS: Final = (SLOW_EVERY + 1) * SAMPLE_NS
"""Time in which the processes on a GPU are seen at least once."""


class GpuSampler(Protocol):
    """A sampler of GPUs and processes; `pytest_gpuserve.device.telemetry.Sampling` is one."""

    def watch(self, servers: Iterable[int]) -> None:
        """Treat these pids and their descendants as ours from the next sample on."""

    def seen(self) -> SamplerOutput:
        """Return all samples so far."""

    def seen_until(self, at_ns: int, timeout_seconds: float = SILENCE_SECONDS) -> SamplerOutput:
        """Wait for the first sample at or after a moment, and return all samples."""

    def forget_before(self, at_ns: int) -> None:
        """Allow the sampler to forget all samples before a moment, except the last one of them."""

    def close(self) -> None:
        """Stop sampling."""


class NoSampler:
    """Sampler for machines without a GPU, which reads nothing."""

    def watch(self, servers: Iterable[int]) -> None:
        """Ignore the pids."""

    def seen(self) -> SamplerOutput:
        """Return no samples."""
        return SamplerOutput()

    def seen_until(self, at_ns: int, timeout_seconds: float = SILENCE_SECONDS) -> SamplerOutput:
        """Return no samples, without a wait."""
        del at_ns, timeout_seconds
        return SamplerOutput()

    def forget_before(self, at_ns: int) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


@dataclass
class TelemetryMonitor:
    """Monitor of the GPUs from before a server's start until after its end. Without a GPU it finds no problem.

    Args:
        sampler: Samples the GPUs and the processes on them.
        uuids: UUIDs of the GPUs that the server may use; empty without a GPU.
        since_ns: Begin of the samples that belong to this start.
        server_began_ns: Time of the server's start.
        note: Called with each value that could not be read.
        clock: Clock of the samples, in ns.
        alone: Whether no other server of the session ran when this one was started.
        without_ecc: UUIDs of the GPUs that do not count memory errors.
        baseline_clock_mhz: Mean SM clock of computing GPUs under the same load when the baseline was recorded; None if
            unknown.
        free_ns: Time when the server's memory was given back; later samples belong to the next start. None until then.
    """

    sampler: GpuSampler
    uuids: tuple[str, ...]
    since_ns: int
    server_began_ns: int
    note: Callable[[str], None]
    clock: Callable[[], int]
    alone: bool = True
    without_ecc: Collection[str] = ()
    baseline_clock_mhz: float | None = None
    free_ns: int | None = None
    _memory_before: Mapping[str, int | None] = field(default_factory=dict)
    _up_ns: int | None = None
    _load_ns: tuple[int, int] = (0, 0)
    _use_remedy: str = ""
    _reported: set[tuple[ReasonKind, str]] = field(default_factory=set)
    _problems: list[Reason] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._memory_before = self._memory(self.sampler.seen())

    def up(self, *instances: Instance) -> None:
        """Note that the server answers, and which processes are its own.

        If the server was not started here, its GPU is unknown, and the monitor stops watching.
        """
        if not self.uuids:
            return
        if any(instance.process is None for instance in instances):
            self.note("telemetry absent: the server was not started here, so its GPU is not known")
            self.uuids = ()
            return
        pids = [
            pid
            for instance in instances
            for pid in (*((instance.process.pid,) if instance.process is not None else ()), *instance.members())
        ]
        self._use_remedy = "; ".join(dict.fromkeys(gpu_remedy(instance.kind) for instance in instances))
        self.sampler.watch(pids)
        # A container's processes were not known as ours until now; a sample may have been under way then.
        self._up_ns = self.clock() + 2 * SAMPLE_NS
        self.sampler.seen_until(self._up_ns)

    def judge(self, windows: Sequence[Window], *, wait: bool) -> list[WindowCondition]:
        """Judge the GPUs in windows, and look for problems that make the whole run invalid.

        Args:
            windows: Windows in order of time.
            wait: Whether to wait a tenth of a second for the samples that cover the last window. Otherwise the last
                windows may not be judged yet.

        Returns:
            Conditions of the first windows, one each.
        """
        if not self.uuids:
            return [WindowCondition()] * len(windows)
        if windows:
            self._load_ns = self._load_ns[0] or windows[0].begin_ns, windows[-1].end_ns
        seen = self.sampler.seen_until(windows[-1].end_ns) if wait and windows else self.sampler.seen()
        self._check(seen)
        last_ns = seen.samples[-1].at_ns if seen.samples else self.since_ns
        ready = [window for window in windows if wait or window.end_ns <= last_ns]
        clocks = None if self.baseline_clock_mhz is None else dict.fromkeys(self.uuids, self.baseline_clock_mhz)
        return [
            judge_window(_telemetry(seen.samples, window), self.uuids, baseline_clocks_mhz=clocks) for window in ready
        ]

    def problems(self) -> list[Reason]:
        """Reasons why the run proves nothing. Each reason is returned once, to the first caller."""
        found, self._problems = self._problems, []
        return found

    def look_past(self) -> None:
        """Go on sampling after a load until rare samples have come once, because those belong to the load."""
        if self.uuids:
            self._check(self.sampler.seen_until(self.clock() + LOOK_NS))

    def with_gpus(self, windows: Iterable[Window]) -> tuple[Window, ...]:
        """Add the GPUs' state to windows, as far as it was sampled."""
        if not self.uuids:
            return tuple(windows)
        samples = self.sampler.seen().samples
        return tuple(replace(window, gpus=gpu_use(_telemetry(samples, window))) for window in windows)

    def telemetry(self, windows: Iterable[Window]) -> Telemetry | None:
        """Sum up the samples of windows; None without samples or windows."""
        if not self.uuids:
            return None
        samples = self.sampler.seen().samples
        return merged(_telemetry(samples, window) for window in windows)

    def down(self) -> None:
        """Note that the server has ended: it must have given back its memory, or do so soon.

        Then watch processes and memory errors for a second more. Both are sampled rarely, and may come from the load's
        last moments.
        """
        if not self.uuids:
            return
        # The pids of a server that has ended may be reused by any process.
        self.sampler.watch(())
        ended_ns = self.clock()
        while True:
            seen = self.sampler.seen_until(self.clock() + SAMPLE_NS)
            after = self._memory(seen)
            memory = RunCondition.together(
                judge_memory(uuid, self._memory_before.get(uuid), after.get(uuid)) for uuid in self.uuids
            )
            if not memory.invalid or seen.problem or self.clock() - ended_ns > RELEASE_NS:
                break
        self.free_ns = self.clock()
        if not seen.problem:
            seen = self.sampler.seen_until(self.free_ns + LOOK_NS)
        self._check(seen)
        self._report((*memory.invalid, *self._known(seen.samples).invalid))
        parts = memory, self._processes(seen.samples), self._ecc(seen.samples), self._use(seen.samples)
        for text in RunCondition.together(parts).unknown:
            self.note(f"telemetry unknown: {text}")
        for unknown in seen.unknown:
            if unknown.why != NOT_SUPPORTED or (unknown.what in NEEDED and not self._lacks_ecc(unknown)):
                self.note(f"telemetry unknown: {unknown}")

    def _check(self, seen: SamplerOutput) -> None:
        """Look for problems that make the run invalid, in all samples so far."""
        parts = [
            judge_events(
                [event for event in seen.events if event.at_ns >= self.since_ns],
                self.uuids,
                load_ns=(self._up_ns or 0, self._load_ns[1]),
            ),
            self._ecc(seen.samples),
            self._processes(seen.samples),
            self._rest(seen.samples),
            self._use(seen.samples),
            *([self._known(seen.samples)] if seen.samples else []),
        ]
        found = RunCondition.together(parts).invalid
        blind = (Reason(ReasonKind.GPU_UNKNOWN, seen.problem),) if seen.problem else ()
        self._report((*found, *blind))

    def _report(self, problems: Iterable[Reason]) -> None:
        for problem in problems:
            which = problem.kind, problem.about
            if which not in self._reported:
                self._reported.add(which)
                self._problems.append(problem)

    def _ecc(self, samples: Sequence[TelemetrySample]) -> RunCondition:
        return judge_ecc(self._own(samples), self.uuids, without_ecc=self.without_ecc)

    def _processes(self, samples: Sequence[TelemetrySample]) -> RunCondition:
        if self._up_ns is None:
            return RunCondition()
        looks = [
            sample
            for sample in self._own(samples)
            if sample.at_ns < self.server_began_ns or sample.at_ns >= self._up_ns
        ]
        return judge_processes(looks, self.uuids, server_began_ns=self.server_began_ns)

    def _rest(self, samples: Sequence[TelemetrySample]) -> RunCondition:
        # The utilisation is an average over the last second, during which a server may have ended.
        seen = between(samples, self.since_ns + NS, self.server_began_ns) if self.alone else ()
        return judge_rest(seen, self.uuids)

    def _use(self, samples: Sequence[TelemetrySample]) -> RunCondition:
        # Another server of the session, running or ending beside this one, is on the same GPU.
        seen = between(samples, *self._load_ns) if self.alone else ()
        return judge_use(seen, self.uuids, before_bytes=self._memory_before, remedy=self._use_remedy)

    def _known(self, samples: Sequence[TelemetrySample]) -> RunCondition:
        return judge_known(self._own(samples), self.uuids, needs_clock=self.baseline_clock_mhz is not None)

    def _lacks_ecc(self, unknown: Unknown) -> bool:
        return unknown.what == ECC_ERRORS and unknown.uuid in self.without_ecc

    def _own(self, samples: Sequence[TelemetrySample]) -> Sequence[TelemetrySample]:
        return between(samples, self.since_ns, samples[-1].at_ns + 1) if samples else ()

    def _memory(self, seen: SamplerOutput) -> dict[str, int | None]:
        gpus = {uuid: gpu_of(seen.samples[-1], uuid) if seen.samples else None for uuid in self.uuids}
        return {uuid: None if gpu is None else gpu.memory_used_bytes for uuid, gpu in gpus.items()}


def no_monitor() -> TelemetryMonitor:
    """Monitor that watches nothing, for a load outside a session."""
    return TelemetryMonitor(NoSampler(), (), 0, 0, lambda _: None, lambda: 0)


def gpu_use(telemetry: Telemetry) -> GpuUse:
    """Sum over all GPUs in a stretch of time. A value that is unknown for one GPU is unknown for the sum.

    A MIG instance has only its memory for itself, and shares the clock: its energy and utilisation are unknown.
    """
    gpus = list(telemetry.gpus.values())
    memory = [gpu.memory_used_bytes for gpu in gpus]
    return GpuUse(
        joules=telemetry.joules,
        memory_bytes=_sum([None if spread is None else spread.peak for spread in memory]),
        utilisation=_mean([None if is_instance(gpu.uuid) else _mean_of(gpu.gpu_utilisation) for gpu in gpus]),
        sm_clock_mhz=_mean([_mean_of(gpu.busy_sm_clock_mhz) for gpu in gpus]),
    )


def _telemetry(samples: Sequence[TelemetrySample], window: Window) -> Telemetry:
    return telemetry_between(samples, window.begin_ns, window.end_ns)


def _mean_of(spread: Spread | None) -> float | None:
    return None if spread is None else spread.mean


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None


def _mean(values: Sequence[float | None]) -> float | None:
    total = _sum(values)
    return None if total is None else total / len(values)


def side_with_telemetry(side: ArmResult, monitor: TelemetryMonitor, windows: Iterable[Window]) -> ArmResult:
    """Add the GPUs' state to a server's windows."""
    return replace(side, telemetry=monitor.telemetry(windows))


class TelemetrySource:
    """The session's view of its GPUs.

    The device ``cpu`` has neither samples nor telemetry: a sampler would use part of the CPU that is measured.

    Args:
        uuids: UUIDs of the measured GPUs; empty without a GPU.
        open_sampler: Starts the sampler when it is first needed.
        note: Called with each value that could not be read; of texts that differ only in counts, only with the first.
        without_ecc: UUIDs of the GPUs that do not count memory errors.
        clock: Clock of the samples, in ns.
    """

    def __init__(
        self,
        uuids: Iterable[str] = (),
        open_sampler: Callable[[], GpuSampler] = NoSampler,
        note: Callable[[str], None] = lambda _: None,
        *,
        without_ecc: Collection[str] = (),
        clock: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self._uuids = tuple(uuids)
        self._open_sampler = open_sampler
        self._note = note
        self._without_ecc = without_ecc
        self._clock = clock
        self._sampler: GpuSampler | None = None
        self._free_ns = 0
        self._noted: set[str] = set()
        self._open: list[TelemetryMonitor] = []

    @contextmanager
    def monitor(self, *, baseline_clock_mhz: float | None = None) -> Iterator[TelemetryMonitor]:
        """Watch the GPUs around a start of a server, which begins and ends within the block.

        Args:
            baseline_clock_mhz: As for `TelemetryMonitor`.

        Raises:
            ServerFailed: The sampler could not be started: no more processes, or no temporary files.
        """
        if self._sampler is None:
            self._sampler = self._open_sampler() if self._uuids else NoSampler()
            self._free_ns = self._clock()
        sampler = self._sampler
        # Long enough to see foreign processes on the GPU while none of ours is there.
        sampler.seen_until(self._free_ns + LOOK_NS)
        needed_ns = min((self._free_ns, *(monitor.since_ns for monitor in self._open)))
        sampler.forget_before(needed_ns - FAST_GAP_NS)
        server_began_ns = self._clock()
        sampler.seen_until(server_began_ns)
        monitor = TelemetryMonitor(
            sampler,
            self._uuids,
            since_ns=self._free_ns,
            server_began_ns=server_began_ns,
            note=self._note_once,
            clock=self._clock,
            alone=not self._open,
            without_ecc=self._without_ecc,
            baseline_clock_mhz=baseline_clock_mhz,
        )
        self._open.append(monitor)
        try:
            yield monitor
            monitor.down()
        finally:
            self._open.remove(monitor)
            self._free_ns = self._clock() if monitor.free_ns is None else monitor.free_ns

    def _note_once(self, text: str) -> None:
        kind = _COUNT.sub("#", text)
        if kind not in self._noted:
            self._noted.add(kind)
            self._note(text)

    def close(self) -> None:
        """Stop the sampler.

        Raises:
            ServerFailed: The sampler survives SIGKILL.
        """
        sampler, self._sampler = self._sampler, None
        if sampler is not None:
            sampler.close()


NO_TELEMETRY = TelemetrySource()
"""Source without GPUs, whose monitors watch nothing."""
