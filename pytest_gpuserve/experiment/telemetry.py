"""Telemetry of the GPUs around a start of one server or of two side by side, and whether it allows a measurement."""

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
"""A number by itself, and no part of a name such as a GPU's."""


RELEASE_NS: Final = 5 * NS
"""How long a driver may take to give back the memory of a server that has ended."""

NOT_SUPPORTED: Final = "Not Supported"
"""NVML's word for a value that a GPU does not have; it does not mean a failure."""

ECC_ERRORS: Final = "uncorrected ECC errors"

NEEDED: Final = frozenset({"NVML", "the GPU", "XID events", "memory", "clock-event reasons", "processes", ECC_ERRORS})
"""Values that a rule rests on: that one is not there has to be said, whatever the reason."""

SAMPLE_NS: Final = NS // SAMPLES_A_SECOND

LOOK_NS: Final = (SLOW_EVERY + 1) * SAMPLE_NS
"""Within so long the processes on a GPU are seen once."""


class GpuSampler(Protocol):
    """A sampler of GPUs and processes; `pytest_gpuserve.device.telemetry.Sampling` is one."""

    def watch(self, servers: Iterable[int]) -> None:
        """Take these pids, and all below them, for ours from the next sample on."""

    def seen(self) -> SamplerOutput:
        """Return everything that has been seen."""

    def seen_until(self, at_ns: int, timeout_seconds: float = SILENCE_SECONDS) -> SamplerOutput:
        """Wait for the first sample at or after a moment, and return everything."""

    def forget_before(self, at_ns: int) -> None:
        """Hear that what was seen before a moment is needed no more, but for the last sample before it."""

    def close(self) -> None:
        """Look no more."""


class NoSampler:
    """A sampler for machines without a GPU: it reads nothing."""

    def watch(self, servers: Iterable[int]) -> None:
        """There is nothing to tell them from."""

    def seen(self) -> SamplerOutput:
        """Nothing was."""
        return SamplerOutput()

    def seen_until(self, at_ns: int, timeout_seconds: float = SILENCE_SECONDS) -> SamplerOutput:
        """Nothing will be."""
        del at_ns, timeout_seconds
        return SamplerOutput()

    def forget_before(self, at_ns: int) -> None:
        """There is nothing to forget."""

    def close(self) -> None:
        """There is nothing to close."""


@dataclass
class TelemetryMonitor:
    """Looks after the GPUs from before a server's start until after its end; where there is none, all is well.

    Args:
        sampler: Samples the GPUs and the processes on them.
        uuids: Of the GPUs that the server may use; none where there is none.
        since_ns: From when on what was seen belongs to this start.
        server_began_ns: When the server was started.
        note: Hears what could not be seen.
        clock: Of the samples, in ns.
        alone: Whether no other server of the session ran when this one was started.
        without_ecc: Those of the GPUs that count no memory errors.
        baseline_clock_mhz: Mean SM clock, while they computed, under the same load when the baseline was recorded; None
            if not known.
        free_ns: From when on the server's memory was given back, and what is seen belongs to the next start; None until
            then.
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
        """Hear that the server answers, and which processes are its own.

        The GPU of a server that somebody else runs is not known; then nothing is looked at.
        """
        if not self.uuids:
            return
        if any(instance.process is None for instance in instances):
            self.note("telemetry absent: on which GPU a server runs that was not started here is not known")
            self.uuids = ()
            return
        pids = [
            pid
            for instance in instances
            for pid in (*((instance.process.pid,) if instance.process is not None else ()), *instance.members())
        ]
        self._use_remedy = "; ".join(dict.fromkeys(gpu_remedy(instance.kind) for instance in instances))
        self.sampler.watch(pids)
        # A container's processes were not known for ours before they were told; a sample may have been under way then.
        self._up_ns = self.clock() + 2 * SAMPLE_NS
        self.sampler.seen_until(self._up_ns)

    def judge(self, windows: Sequence[Window], *, wait: bool) -> list[WindowCondition]:
        """Say how the GPUs were in windows, and look for what makes the whole run invalid.

        Args:
            windows: In time.
            wait: Whether to wait, a tenth of a second, until the last one was seen to its end; else of the last ones
                there may be no answer yet.

        Returns:
            Of the first windows one each.
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
        """Why nothing may be concluded from the run; each once, to whoever asks first."""
        found, self._problems = self._problems, []
        return found

    def look_past(self) -> None:
        """Look so long at what came after a load that what is seen only so often was seen once: it is that load's."""
        if self.uuids:
            self._check(self.sampler.seen_until(self.clock() + LOOK_NS))

    def with_gpus(self, windows: Iterable[Window]) -> tuple[Window, ...]:
        """Add to windows what the GPUs did in them, as far as it was seen."""
        if not self.uuids:
            return tuple(windows)
        samples = self.sampler.seen().samples
        return tuple(replace(window, gpus=gpu_use(_telemetry(samples, window))) for window in windows)

    def telemetry(self, windows: Iterable[Window]) -> Telemetry | None:
        """Sum up what was seen in windows; None where nobody looked, or there is no window."""
        if not self.uuids:
            return None
        samples = self.sampler.seen().samples
        return merged(_telemetry(samples, window) for window in windows)

    def down(self) -> None:
        """Hear that the server has ended: it must have given back its memory, or do so soon.

        Then for a second more it is looked who is there, and at memory errors: both are seen only so often, and may
        have come in the load's last moments.
        """
        if not self.uuids:
            return
        # The pids of a server that has ended may become anybody's.
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
        """Look for what makes the run invalid, in all that was seen of it so far."""
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
        # The utilisation is one of the last second, in which a server may have ended.
        seen = between(samples, self.since_ns + NS, self.server_began_ns) if self.alone else ()
        return judge_rest(seen, self.uuids)

    def _use(self, samples: Sequence[TelemetrySample]) -> RunCondition:
        # Another server of the session that runs, or ends, beside this one is on the same GPU.
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
    """Look after nothing, where a load is not a session's."""
    return TelemetryMonitor(NoSampler(), (), 0, 0, lambda _: None, lambda: 0)


def gpu_use(telemetry: Telemetry) -> GpuUse:
    """Say what the GPUs did in a stretch of time, all of them together; what is not known of one is not of them.

    Of a MIG instance only its memory is its own, and the clock the same for all: energy and utilisation are not known.
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
    """Add what the GPUs did in a server's windows."""
    return replace(side, telemetry=monitor.telemetry(windows))


class TelemetrySource:
    """The session's view of its GPUs.

    Without a GPU, as on the device ``cpu``, nothing is sampled: there its CPU is the device, and a sampler would use
    a part of what is measured. Telemetry is then absent.

    Args:
        uuids: Of the GPUs that are measured on; none where there is none.
        open_sampler: Starts what samples them, when it is first needed.
        note: Hears what could not be seen; of texts that differ in counts alone only the first.
        without_ecc: Those of the GPUs that count no memory errors.
        clock: Of the samples, in ns.
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
        """Look after the GPUs around a start of a server, which begins and ends within the block.

        Args:
            baseline_clock_mhz: As for `TelemetryMonitor`.

        Raises:
            ServerFailed: There can be no more processes, or no temporary files.
        """
        if self._sampler is None:
            self._sampler = self._open_sampler() if self._uuids else NoSampler()
            self._free_ns = self._clock()
        sampler = self._sampler
        # Long enough to see who else is on the GPU while nobody is who was started here.
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
        """End what looks.

        Raises:
            ServerFailed: It survives SIGKILL.
        """
        sampler, self._sampler = self._sampler, None
        if sampler is not None:
            sampler.close()


NO_TELEMETRY = TelemetrySource()
"""Looks at nothing."""
