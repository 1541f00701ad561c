"""Eyes that see a GPU as a script says, ten times a second of a clock that only they and the test move."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pytest_gpuserve.device.sample import GpuSample, TelemetrySample
from pytest_gpuserve.device.telemetry import SILENCE_SECONDS, SamplerOutput

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from pytest_gpuserve.device.sample import GpuEvent, Unknown

UUID: Final = "GPU-1"

SAMPLE_NS: Final = 100_000_000

LATE_NS: Final = 50_000_000
"""So long after its time a sample is seen."""

MIB: Final = 1 << 20

QUIET: Final = {
    "gpu_utilisation": 0.5,
    "memory_used_bytes": 400 * MIB,
    "sm_clock_mhz": 1500,
    "clock_reasons": 0,
    "uncorrected_ecc": 0,
    "processes": (),
}
"""A GPU that is well; it draws 100 W."""


@dataclass
class ScriptedEyes:
    """See the module.

    Args:
        gpu: What is otherwise than of a GPU that is well, by the time in seconds.
        events: What befalls it.
        unknown: What cannot be seen.
        problem: Why nothing more is seen.
        now_ns: The time.
        watched: The pids that the last order named; without any the GPU is at rest.
        orders: All of them.
        closed: How often they were closed.
        needed_ns: What was seen before is needed no more.
    """

    gpu: Callable[[float], Mapping[str, Any]] = lambda _: {}
    events: list[GpuEvent] = field(default_factory=list)
    unknown: list[Unknown] = field(default_factory=list)
    problem: str = ""
    now_ns: int = 0
    watched: tuple[int, ...] = ()
    orders: list[tuple[int, ...]] = field(default_factory=list)
    closed: int = 0
    needed_ns: int = 0
    _samples: list[TelemetrySample] = field(default_factory=list)

    def clock(self) -> int:
        """The time."""
        return self.now_ns

    def live_until(self, at_ns: int) -> None:
        """Let time pass."""
        self.now_ns = max(self.now_ns, at_ns)
        while not self.problem and len(self._samples) * SAMPLE_NS <= self.now_ns:
            self._look()

    def pass_tick(self) -> int:
        """Let a tenth of a second pass; when it began."""
        begin_ns = self.now_ns
        self.live_until(begin_ns + SAMPLE_NS)
        return begin_ns

    def watch(self, servers: Iterable[int]) -> None:
        """See `GpuSampler`."""
        self.watched = tuple(servers)
        self.orders.append(self.watched)

    def seen(self) -> SamplerOutput:
        """See `GpuSampler`."""
        happened = tuple(event for event in self.events if event.at_ns <= self.now_ns)
        # The last sample before is kept, as nothing could be interpolated without it.
        begin_ns = self.needed_ns - SAMPLE_NS
        samples = tuple(sample for sample in self._samples if begin_ns <= sample.at_ns <= self.now_ns - LATE_NS)
        return SamplerOutput(samples, happened, tuple(self.unknown), self.problem)

    def seen_until(self, at_ns: int, timeout_seconds: float = SILENCE_SECONDS) -> SamplerOutput:
        """See `GpuSampler`."""
        del timeout_seconds
        self.live_until(-(-at_ns // SAMPLE_NS) * SAMPLE_NS + LATE_NS)
        return self.seen()

    def forget_before(self, at_ns: int) -> None:
        """See `GpuSampler`."""
        self.needed_ns = max(self.needed_ns, at_ns)

    def close(self) -> None:
        """See `GpuSampler`."""
        self.closed += 1

    def _look(self) -> None:
        at_ns = len(self._samples) * SAMPLE_NS
        rest = {} if self.watched else {"gpu_utilisation": 0.0}
        gpu = GpuSample(UUID, **{"energy_joules": 100 * at_ns / 1e9, **QUIET, **rest, **self.gpu(at_ns / 1e9)})
        self._samples.append(TelemetrySample(at_ns, (gpu,)))
