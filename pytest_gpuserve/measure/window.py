"""One short measurement, and what is made of several: a server start, a session of fresh starts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping  # noqa: TC003 -- msgspec reads the annotations
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.measure.counters import Counters, ServerSetting, StageTime
from pytest_gpuserve.measure.histogram import Histogram, merge
from pytest_gpuserve.measure.streams import Streams
from pytest_gpuserve.measure.telemetry import Telemetry  # noqa: TC001 -- msgspec reads the annotations
from pytest_gpuserve.verdict.reason import Reason  # noqa: TC001 -- msgspec reads the annotations

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

SERVER: Final = "server"
"""Stage, counted by request: from its arrival at the server to its answer."""

QUEUE: Final = "queue"
"""Stage, counted by request: its wait in the server until its computation begins."""

FORMATION: Final = "formation"
"""Stage, counted by batch: from its first item until it is complete; a part of what its requests wait."""

COMPUTE: Final = "compute"
"""Stage, counted by batch (or by request, each of which takes as long as its batch): the work of the stage that
batches, with what carries data there and back."""

OTHER_COMPUTE: Final = "compute."
"""What the names of the pipeline's other stages begin with: ``compute.Preprocess_1``."""

COMPILING: Final = "compiling"
"""Stage, counted by execution: those in which the model was compiled, and which took as long as that."""

PER_REQUEST: Final = "request."
"""What the names of stages begin with that Triton counts by request, where each request of a batch is charged the whole
time of its batch: ``request.input``, ``request.infer``, ``request.output``. They make up a request's latency, and say
nothing of how long the device was busy; that is `COMPUTE`."""

PROMPT_TOKENS: Final = "prompt_tokens"
"""Tally of a server of language models: tokens of prompts, those that it did not have to compute among them."""

CACHED_TOKENS: Final = "cached_tokens"
"""Those of them that it had in its prefix cache."""

PREEMPTIONS: Final = "preemptions"
"""How often it took a sequence's memory back and computed it anew later, for its KV cache was full."""

TALLIES: Final = (PROMPT_TOKENS, CACHED_TOKENS, PREEMPTIONS)


@dataclass(frozen=True, slots=True)
class GpuUse:
    """Telemetry of all GPUs together in a window; an unknown value is None, never zero.

    Args:
        joules: Energy that they took up.
        memory_bytes: The most memory that was allocated on them.
        utilisation: Share of the time in which a kernel ran, as their mean.
        sm_clock_mhz: Clock of the multiprocessors while they computed, as their mean.
    """

    joules: float | None = None
    memory_bytes: float | None = None
    utilisation: float | None = None
    sm_clock_mhz: float | None = None

    @classmethod
    def pooled(cls, windows: Sequence[Window]) -> GpuUse | None:
        """Those of several windows; None where none knows anything.

        A GPU at rest has no clock, so that of the others counts; what else a window does not know is not known.
        """

        def values(field: str) -> list[tuple[float, float]]:
            found = [(window.seconds, getattr(window.gpus, field, None)) for window in windows]
            return [(seconds, value) for seconds, value in found if value is not None]

        def known(field: str) -> list[tuple[float, float]]:
            found = values(field)
            return found if len(found) == len(windows) else []

        def mean(found: list[tuple[float, float]]) -> float | None:
            return math.fsum(s * value for s, value in found) / math.fsum(s for s, _ in found) if found else None

        joules, memory = known("joules"), known("memory_bytes")
        use = cls(
            joules=math.fsum(value for _, value in joules) if joules else None,
            memory_bytes=max((value for _, value in memory), default=None),
            utilisation=mean(known("utilisation")),
            sm_clock_mhz=mean(values("sm_clock_mhz")),
        )
        return None if use == cls() else use


@dataclass(frozen=True, slots=True)
class Window:
    """What happened in a stretch of continuous load, about half a second.

    Args:
        seconds: Its length by the client's monotonic clock.
        requests: Requests that were answered well within it.
        errors: Failed requests by kind (``status 503``, ``timeout``, ``reset`` ...).
        latency: Latencies of the answered requests.
        items: Items that the server's batching stage executed within it; None where the server does not count.
        batches: Batches that they were executed in; None where the server does not count.
        client_cpu_seconds: CPU time that the load engine used.
        stages: Where the server's time went within it, by stage; empty where the server does not count.
        gpus: Telemetry of the GPUs; None without a GPU or without a sample.
        streams: What came of the answers that were streams; None where none was.
        good: Answers that met all objectives of the load; None where it has none.
        unjudged: Answers of which that is not known.
        tallies: What else the server counted within it, by name; empty where it does not count.
        begin_ns: When it began, by the load's clock, for who looks up what else was seen then; not kept in baselines.
        end_ns: When it ended.
    """

    seconds: float
    requests: int
    errors: Mapping[str, int]
    latency: Histogram
    items: int | None = None
    batches: int | None = None
    client_cpu_seconds: float = 0.0
    stages: Mapping[str, StageTime] = field(default_factory=dict)
    gpus: GpuUse | None = None
    streams: Streams | None = None
    good: int | None = None
    unjudged: int = 0
    tallies: Mapping[str, int] = field(default_factory=dict)
    begin_ns: int = field(default=0, compare=False)
    end_ns: int = field(default=0, compare=False)

    @property
    def throughput(self) -> float:
        """Requests answered a second."""
        return self.requests / self.seconds

    @classmethod
    def total(cls, windows: Sequence[Window]) -> Window:
        """One window of several; what one of them does not know is not known. Raises ValueError of none."""
        if not windows:
            raise ValueError("no window was measured")
        errors, tallies = Counter[str](), Counter[str]()
        stages: dict[str, StageTime] = {}
        for window in windows:
            errors.update(window.errors)
            tallies.update(window.tallies)
            for name, time in window.stages.items():
                stages[name] = stages.get(name, StageTime(0.0, 0)) + time
        return cls(
            seconds=math.fsum(window.seconds for window in windows),
            requests=sum(window.requests for window in windows),
            errors=errors,
            latency=merge(window.latency for window in windows),
            items=_total(window.items for window in windows),
            batches=_total(window.batches for window in windows),
            client_cpu_seconds=math.fsum(window.client_cpu_seconds for window in windows),
            stages=stages,
            gpus=GpuUse.pooled(windows),
            streams=Streams.pooled(window.streams for window in windows),
            good=_total(window.good for window in windows),
            unjudged=sum(window.unjudged for window in windows),
            tallies=tallies,
            begin_ns=windows[0].begin_ns,
            end_ns=windows[-1].end_ns,
        )


def _total(counts: Iterable[int | None]) -> int | None:
    """The sum; None where one is not known."""
    found = list(counts)
    return None if None in found else sum(count or 0 for count in found)


@dataclass(frozen=True, slots=True)
class Client:
    """What the load engine saw beside the latencies; not kept in baselines.

    Args:
        lag: How late requests were sent.
        service: Latencies from the actual send, of an open loop; of a closed loop empty, being the latencies.
        resent: Requests that were sent once more, for the server had closed a connection that it had kept open.
        sending_seconds: Over all requests, from the begin of a send until its last byte was handed to the kernel; small
            requests count nothing. None where the protocol's slots do not time it.
        receiving_seconds: Over all requests, from the first byte of an answer until its last; as above.
    """

    lag: Histogram = field(default_factory=lambda: Histogram({}))
    service: Histogram = field(default_factory=lambda: Histogram({}))
    resent: int = 0
    sending_seconds: float | None = None
    receiving_seconds: float | None = None

    @classmethod
    def pooled(cls, parts: Iterable[Client]) -> Client:
        """Add up what was seen in several starts."""
        known = list(parts)
        return cls(
            lag=merge(part.lag for part in known),
            service=merge(part.service for part in known),
            resent=sum(part.resent for part in known),
            sending_seconds=_sum_if_known(part.sending_seconds for part in known),
            receiving_seconds=_sum_if_known(part.receiving_seconds for part in known),
        )


def _sum_if_known(values: Iterable[float | None]) -> float | None:
    """The sum; None where one is not known, and of none."""
    found = list(values)
    known = [value for value in found if value is not None]
    return math.fsum(known) if found and len(known) == len(found) else None


@dataclass(frozen=True, slots=True)
class Start:
    """The measured part of one fresh start of a server.

    Args:
        windows: The windows after the warm-up, in order.
        cold_start_seconds: From the launch of its process to its first answer; None where it was not started by us.
        discarded: Windows that were cut off the front because the server was not steady yet.
        steady: Whether a steady state was found.
        foreign_cores: Cores that other processes, or other guests of the hypervisor, took meanwhile, on average.
        cpu_share: Share of the host's cores that were busy meanwhile; None where nobody looked.
            Not kept in baselines.
        client: What the load engine saw beside the latencies.
        cold_start_parts: What the server says that its cold start went to, in seconds.
        settings: How the server was really set up, beside what it was asked for.
        counters: What the server counted within the windows; None where it does not count.
        telemetry: Telemetry of the GPUs within the windows; None without a sampler. Not kept in baselines.
        rejected: Why windows were measured again, a text for each that was: what disturbed GPUs or client meanwhile.
    """

    windows: tuple[Window, ...]
    cold_start_seconds: float | None
    discarded: int = 0
    steady: bool = True
    foreign_cores: float = 0.0
    client: Client = field(default_factory=Client)
    cold_start_parts: Mapping[str, float] = field(default_factory=dict)
    settings: Mapping[str, ServerSetting] = field(default_factory=dict)
    counters: Counters | None = None
    telemetry: Telemetry | None = None
    rejected: tuple[str, ...] = ()
    cpu_share: float | None = None

    @property
    def seconds(self) -> float:
        """Measured time."""
        return sum(window.seconds for window in self.windows)

    @property
    def requests(self) -> int:
        """Answered requests."""
        return sum(window.requests for window in self.windows)

    @property
    def latency(self) -> Histogram:
        """Latencies of all windows."""
        return merge(window.latency for window in self.windows)


@dataclass(frozen=True, slots=True)
class Session:
    """Two or more fresh starts of one server under one load: the unit that a stored baseline is made of.

    Args:
        starts: The starts, in order.
        at: When it began, ISO 8601 in UTC.
        problems: Why nothing may be concluded from it; empty when all is well.
        batch_sizes: How often the server executed each batch size, by the upper edge of the server's own buckets.
        answers: Answers received; ``answers_checked`` of them were compared with what the test expects.
        answers_checked: See ``answers``.
        host_reading: How fast the host was before it: the log of the seconds of fixed work; None where nobody looked.
    """

    starts: tuple[Start, ...]
    at: str
    problems: tuple[Reason, ...] = ()
    batch_sizes: Mapping[str, int] = field(default_factory=dict)
    answers: int = 0
    answers_checked: int = 0
    host_reading: float | None = None

    @property
    def client(self) -> Client:
        """What the load engine saw in all starts."""
        return Client.pooled(start.client for start in self.starts)

    @property
    def windows(self) -> tuple[Window, ...]:
        """The windows of all starts."""
        return tuple(window for start in self.starts for window in start.windows)
