"""Servers, load engines and a sampler of a GPU that are not there: no time passes but that of a clock of the test."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace, TracebackType
from typing import Any, Final, cast
from unittest import mock

import msgspec
import pytest
from typing_extensions import Self

from pytest_gpuserve.device.gpu_probe import GpuSample
from pytest_gpuserve.device.host import CpuReading
from pytest_gpuserve.device.sampler import SAMPLE_NS, SILENCE_SECONDS, SamplerProcess
from pytest_gpuserve.experiment.telemetry import TelemetrySource
from pytest_gpuserve.load.schedule import Steps
from pytest_gpuserve.load.wire import Plan
from pytest_gpuserve.measure.histogram import Histogram, bucket_of
from pytest_gpuserve.measure.window import Window
from pytest_gpuserve.servers.instance import Instance

TICK_REQUESTS: Final = 100
USERS: Final = 4


def stand_in(
    patch: pytest.MonkeyPatch, engines: Callable[..., ScriptedEngines], foreign: Callable[..., float] = lambda *_: 0.0
) -> None:
    """Take the place of all load engines and of looks at the host, of which others take so many cores."""
    from pytest_gpuserve.experiment import loaded

    patch.setattr(loaded, "Engines", engines)
    patch.setattr(loaded, "our_processes", lambda _: [])
    patch.setattr(loaded, "read_cpu", lambda _: CpuReading(0.0, 0.0, 0.0, 0.0))
    patch.setattr(loaded, "cores_taken_by_others", foreign)


def scripted_instance(port: int = 1, **values: Any) -> Instance:  # noqa: ANN401 -- whatever an instance has
    """A server of ours that lives and counts nothing, but for what is said of it."""
    site = SimpleNamespace(host="127.0.0.1", port=port, tls=False, ca_file="")
    known: dict[str, Any] = {
        "kind": SimpleNamespace(name="mosec"),
        "process": None,
        "members": tuple,
        "counters": lambda: None,
        "death": lambda **_: None,
        "shown": lambda text, _: text,
        "site": site,
        "cold_start_seconds": 1.0,
        "cold_start_parts": {},
        "settings": {},
    }
    return cast("Instance", SimpleNamespace(**known | values))


class ScriptedEngines:
    """Engines that have a hundred answers in each tenth of a second; a schedule of steps ends as it says.

    Args:
        plan: Plan of the load.
        passing: Lets a tenth of a second pass and returns when it began.
        asked: Hears what is asked of them: to be ``ready``, to ``begin``, to ``halt``, or for a ``tick``.
        pids: Pids of their processes.
        changed: Makes of a tick what is reported.
        seeds: Gets those of the loads to come.
    """

    def __init__(
        self,
        plan: Plan,
        passing: Callable[[], int],
        asked: Callable[[str], None] = lambda _: None,
        *,
        pids: tuple[int, ...] = (),
        changed: Callable[[Window], Window] = lambda tick: tick,
        seeds: list[int] | None = None,
    ) -> None:
        steps = plan.schedule.steps if isinstance(plan.schedule, Steps) else ()
        self.ticks = round(sum(seconds for _, seconds in steps) * 1e9) // TICK_NS
        self.number = 0
        self.pids = pids
        self._seeds = [] if seeds is None else seeds
        self._passing, self._asked, self._changed = passing, asked, changed
        asked("ready")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def begin(self) -> None:
        """See ``Engines``."""
        self._asked("begin")
        self.number = 0

    def halt(self, *, seed: int) -> None:
        """See ``Engines``."""
        self._seeds.append(seed)
        self._asked("halt")

    def next_tick(self) -> Window:
        """See ``Engines``."""
        self._asked("tick")
        begin_ns = self._passing()
        self.number += 1
        return self._changed(busy_tick(self.number - 1, begin_ns, last=self.number == self.ticks))


def busy_tick(
    number: int, begin_ns: int, requests: int = TICK_REQUESTS, *, users: int = USERS, last: bool = False
) -> Window:
    """A tick in which so many users had so many answers, each as soon as that takes."""
    latency_ns = users * TICK_NS // max(requests, 1)
    return tick_of(
        number,
        requests,
        latency_ns,
        begin_ns=begin_ns,
        end_ns=begin_ns + TICK_NS,
        service=alike(requests, latency_ns),
        lag=alike(requests, 1000),
        under_way=users,
        last=last,
    )


TICK_NS = 100_000_000


def taken(durations_ns: Iterable[int]) -> Histogram:
    """Histogram of these durations, as an engine counts them."""
    durations = list(durations_ns)
    return Histogram(dict(Counter(map(bucket_of, durations))), sum(durations), max(durations, default=0))


def alike(count: int, nanoseconds: int) -> Histogram:
    """Histogram of so many durations of one length, as an engine counts them."""
    return Histogram({bucket_of(nanoseconds): count}, count * nanoseconds, nanoseconds) if count else Histogram()


def tick_of(number: int, requests: int, latency_ns: int, **more: Any) -> Window:  # noqa: ANN401 -- of the tick
    """A tick in which so many requests were answered, each so long after it was sent, and nothing else is told."""
    sound = Window(
        number,
        number * TICK_NS,
        (number + 1) * TICK_NS,
        requests=requests,
        latency=alike(requests, latency_ns),
        sent=requests,
        due=requests,
        in_flight_ns=requests * latency_ns,
        cpu_ns=TICK_NS // 10,
    )
    return msgspec.structs.replace(sound, **more)


def reporting(monkeypatch: pytest.MonkeyPatch, reports: Sequence[Window | BaseException]) -> mock.MagicMock:
    """Let the engines of each load report these ticks, and raise what is among them; returns them."""
    from pytest_gpuserve.load import __main__ as command

    engines = mock.MagicMock()

    def begun(*_: object) -> mock.MagicMock:
        engines.__enter__.return_value.next_tick.side_effect = list(reports)
        return engines

    monkeypatch.setattr(command, "Engines", begun)
    return engines


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
