"""A sampler of a GPU that does as a script says, ten times a second of a clock that only it and the test move."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, cast

from pytest_gpuserve.device.gpu_probe import GpuSample
from pytest_gpuserve.device.sampler import SAMPLE_NS, SILENCE_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pytest_gpuserve.device.sampler import SamplerProcess
    from pytest_gpuserve.experiment.telemetry import TelemetrySource

LATE_NS: Final = 50_000_000
"""So long after its time a sample is seen."""

MIB: Final = 1 << 20

QUIET: Final = {
    "utilisation": 0.5,
    "memory_bytes": 400 * MIB,
    "sm_clock_mhz": 1500,
    "clock_reasons": 0,
    "uncorrected_ecc": 0,
    "processes": (),
    "xids": (),
}
"""A GPU that is well under load; it draws 100 W, and computes only in the ticks of a load."""


@dataclass
class ScriptedEyes:
    """Stand for ``SamplerProcess``.

    Args:
        gpu: Differences from a GPU that is well, by the time in seconds.
        problem: Reason why nothing more is seen.
        now_ns: Time.
        loaded: Whether a tick of a load passes.
        closed: Number of calls of `close`.
    """

    gpu: Callable[[float], Mapping[str, Any]] = lambda _: {}
    problem: str = ""
    now_ns: int = 0
    loaded: bool = False
    closed: int = 0
    _samples: list[GpuSample] = field(default_factory=list)
    _forgotten: int = 0

    def source(self, notes: list[str]) -> TelemetrySource:
        """A session that looks with these eyes, and notes here."""
        from pytest_gpuserve.experiment.telemetry import TelemetrySource

        return TelemetrySource(lambda: cast("SamplerProcess", self), notes.append, clock=self.clock)

    @property
    def samples(self) -> list[GpuSample]:
        """See ``SamplerProcess``."""
        return [sample for sample in self._samples[self._forgotten :] if sample.at_ns <= self.now_ns - LATE_NS]

    def clock(self) -> int:
        """The time."""
        return self.now_ns

    def live_until(self, at_ns: int) -> None:
        """Let time pass."""
        self.now_ns = max(self.now_ns, at_ns)
        while not self.problem and len(self._samples) * SAMPLE_NS <= self.now_ns:
            self._look()

    def pass_tick(self) -> int:
        """Let a tenth of a second of a load pass; when it began."""
        begin_ns, self.loaded = self.now_ns, True
        self.live_until(begin_ns + SAMPLE_NS)
        self.loaded = False
        return begin_ns

    def read(self) -> None:
        """See ``SamplerProcess``."""

    def wait_until(self, at_ns: int, timeout_seconds: float = SILENCE_SECONDS) -> None:
        """See ``SamplerProcess``."""
        del timeout_seconds
        self.live_until(-(-at_ns // SAMPLE_NS) * SAMPLE_NS + LATE_NS)

    def forget_before(self, at_ns: int) -> None:
        """See ``SamplerProcess``; the last sample before is kept, as nothing could be interpolated without it."""
        self._forgotten = max(0, -(-at_ns // SAMPLE_NS) - 1)

    def close(self) -> None:
        """See ``SamplerProcess``."""
        self.closed += 1

    def _look(self) -> None:
        at_ns = len(self._samples) * SAMPLE_NS
        rest = {} if self.loaded else {"utilisation": 0.0}
        self._samples.append(
            GpuSample(at_ns, **{"joules": 100 * at_ns / 1e9, **QUIET, **rest, **self.gpu(at_ns / 1e9)})
        )
