"""A window of measurement, and combinations of windows: a server start, a session of fresh starts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping  # noqa: TC003 -- msgspec reads the annotations
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeVar

from pytest_gpuserve.measure.counters import Counters, ServerSetting, added
from pytest_gpuserve.measure.histogram import Histogram, merge
from pytest_gpuserve.verdict.reason import Reason  # noqa: TC001 -- msgspec reads the annotations

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

N = TypeVar("N", int, float)

SERVER: Final = "server"
"""Stage, counted by request: from its arrival at the server to its answer."""

QUEUE: Final = "queue"
"""Stage, counted by request: its wait in the server until its computation begins."""

FORMATION: Final = "formation"
"""Stage, counted by batch: from its first item until it is complete; a part of what its requests wait."""

COMPUTE: Final = "compute"
"""Stage, counted by batch: the work of the batching stage, with transfers of data there and back. It may be counted by
request instead, because each request takes as long as its batch."""

OTHER_COMPUTE: Final = "compute."
"""Prefix for the names of the pipeline's other stages: ``compute.Preprocess_1``."""

COMPILING: Final = "compiling"
"""Stage, counted by execution: executions that compiled the model, and so took that much longer."""

PER_REQUEST: Final = "request."
"""Prefix for stages that Triton counts by request: ``request.input``, ``request.infer``, ``request.output``.

Each request is charged the whole time of its batch. These stages add up to a request's latency, but do not tell how
long the device was busy; see `COMPUTE`."""

PROMPT_TOKENS: Final = "prompt_tokens"
"""Tally of a server of language models: tokens of prompts, including those from its prefix cache."""

CACHED_TOKENS: Final = "cached_tokens"
"""Prompt tokens that came from the prefix cache."""

PREEMPTIONS: Final = "preemptions"
"""Number of times that a full KV cache took a sequence's memory back, so that it was computed anew later."""

TALLIES: Final = (PROMPT_TOKENS, CACHED_TOKENS, PREEMPTIONS)


@dataclass(frozen=True, slots=True)
class GpuUse:
    """Use of the GPU in a window; an unknown value is None, never zero.

    Args:
        joules: Energy; None for a MIG instance, like the utilisation, because NVML has only that of the whole GPU.
        memory_bytes: Most allocated memory.
        utilisation: Share of the time when a kernel ran, as a mean.
        sm_clock_mhz: Clock of computing multiprocessors, as a mean.
    """

    joules: float | None = None
    memory_bytes: float | None = None
    utilisation: float | None = None
    sm_clock_mhz: float | None = None

    @classmethod
    def pooled(cls, windows: Sequence[Window]) -> GpuUse | None:
        """Combine several windows; None if none of them has values.

        An idle GPU has no clock, so the others' clocks count. Any other value that one window lacks is unknown.
        """

        def values(field: str, *, needed: bool = True) -> list[tuple[float, float]]:
            found = [(window.seconds, getattr(window.gpus, field, None)) for window in windows]
            known = [(seconds, value) for seconds, value in found if value is not None]
            return [] if needed and len(known) < len(found) else known

        def mean(found: list[tuple[float, float]]) -> float | None:
            return math.fsum(s * value for s, value in found) / math.fsum(s for s, _ in found) if found else None

        use = cls(
            joules=math.fsum(joules) if (joules := [value for _, value in values("joules")]) else None,
            memory_bytes=max((value for _, value in values("memory_bytes")), default=None),
            utilisation=mean(values("utilisation")),
            sm_clock_mhz=mean(values("sm_clock_mhz", needed=False)),
        )
        return None if use == cls() else use


_NO_TIMES: Final = Histogram()


@dataclass(frozen=True, slots=True)
class Streams:
    """Streams of a window: a request counts in the window of its end, a chunk in that of its arrival.

    Args:
        ttft: Time to the first chunk with content, for each request; to the end if it had none.
        itl: Gaps between such chunks.
        tpot: For each request that reports two tokens or more: the time from the first such chunk to the last one, over
            the number of later tokens.
        tokens: Chunks that arrived, corrected by the reported token counts. In a short window it may be below 0.
        with_usage: Requests that report their token count (``usage.completion_tokens``).
        usage_tokens: Sum of the reported counts.
    """

    ttft: Histogram = _NO_TIMES
    itl: Histogram = _NO_TIMES
    tpot: Histogram = _NO_TIMES
    tokens: int = 0
    with_usage: int = 0
    usage_tokens: int = 0

    @property
    def has_usage(self) -> bool:
        """Whether every request reports its token count."""
        return self.with_usage == self.ttft.total > 0

    @classmethod
    def pooled(cls, parts: Iterable[Streams | None]) -> Streams | None:
        """Add up the streams of several windows; None without streams."""
        known = [part for part in parts if part is not None]
        if not known:
            return None
        return cls(
            ttft=merge(part.ttft for part in known),
            itl=merge(part.itl for part in known),
            tpot=merge(part.tpot for part in known),
            tokens=sum(part.tokens for part in known),
            with_usage=sum(part.with_usage for part in known),
            usage_tokens=sum(part.usage_tokens for part in known),
        )


@dataclass(frozen=True, slots=True)
class Window:
    """Counts and times of a stretch of load: 0.5 s of a start alone, 0.4 s in a block, or the total of several.

    Args:
        seconds: Length by the client's monotonic clock.
        requests: Well answered requests.
        errors: Failed requests by kind (``status 503``, ``timeout``, ``reset`` ...).
        latency: Latencies of the answered requests.
        counters: The server's counts; None if it does not count.
        client_cpu_seconds: CPU time of the load engine.
        lag: Delays of sends. This and the next four fields are not kept in baselines.
        service: Latencies of an open loop from the actual send; empty for a closed loop, whose latencies these are.
        resent: Requests that were sent again because the server had closed a kept-open connection.
        sending_seconds: Total time from the begin of a send until its last byte was handed to the kernel; small
            requests count as zero. None if the protocol does not time it.
        receiving_seconds: Total time from the first byte of an answer until its last; likewise.
        gpus: Use of the GPU; None without one.
        streams: Token streams; None if no answer was a stream.
        good: Answers that met all objectives of the load; None if it has no objectives.
        unjudged: Answers whose objectives could not be checked because they told no token count.
        begin_ns: Begin by the load's clock, for other samples of that time; not kept in baselines.
        end_ns: End by the load's clock.
    """

    seconds: float
    requests: int
    errors: Mapping[str, int]
    latency: Histogram
    counters: Counters | None = None
    client_cpu_seconds: float = 0.0
    lag: Histogram = _NO_TIMES
    service: Histogram = _NO_TIMES
    resent: int = 0
    sending_seconds: float | None = None
    receiving_seconds: float | None = None
    gpus: GpuUse | None = None
    streams: Streams | None = None
    good: int | None = None
    unjudged: int = 0
    begin_ns: int = field(default=0, compare=False)
    end_ns: int = field(default=0, compare=False)

    @property
    def throughput(self) -> float:
        """Requests answered a second; 0 for no time."""
        return self.requests / self.seconds if self.seconds else 0.0

    @property
    def error_count(self) -> int:
        """Failed requests of all kinds."""
        return sum(self.errors.values())

    @property
    def mean(self) -> float:
        """Mean latency in seconds, exact; not a number without answers."""
        return math.nan if self.latency.mean is None else self.latency.mean

    @property
    def max(self) -> float:
        """Largest latency in seconds, exact; 0 without answers."""
        return self.latency.max_seconds

    @property
    def in_flight(self) -> float:
        """Mean number of requests in flight, by Little's law: throughput times mean latency.

        For a closed loop without pauses it is the number of users, up to the requests in flight at the ends.
        """
        return self.throughput * self.mean

    def quantile(self, q: float) -> float:
        """Nearest-rank quantile of the latency in seconds. Raises ValueError without answers, or if not 0 < q <= 1."""
        return self.latency.quantile(q)

    @classmethod
    def total(cls, windows: Sequence[Window]) -> Window:
        """Sum of several windows; a value that one of them lacks is unknown."""
        if len(windows) == 1:
            return windows[0]
        errors = Counter[str]()
        for window in windows:
            errors.update(window.errors)
        counters = [window.counters for window in windows if window.counters is not None]
        return cls(
            seconds=math.fsum(window.seconds for window in windows),
            requests=sum(window.requests for window in windows),
            errors=errors,
            latency=merge(window.latency for window in windows),
            counters=added(counters) if len(counters) == len(windows) else None,
            client_cpu_seconds=math.fsum(window.client_cpu_seconds for window in windows),
            lag=merge(window.lag for window in windows),
            service=merge(window.service for window in windows),
            resent=sum(window.resent for window in windows),
            sending_seconds=_total((window.sending_seconds for window in windows), math.fsum),
            receiving_seconds=_total((window.receiving_seconds for window in windows), math.fsum),
            gpus=GpuUse.pooled(windows),
            streams=Streams.pooled(window.streams for window in windows),
            good=_total((window.good for window in windows), sum),
            unjudged=sum(window.unjudged for window in windows),
            begin_ns=windows[0].begin_ns if windows else 0,
            end_ns=windows[-1].end_ns if windows else 0,
        )


def _total(values: Iterable[N | None], add: Callable[[Iterable[N]], N]) -> N | None:
    """The sum; None if a value is unknown, or there is none."""
    found = list(values)
    known = [value for value in found if value is not None]
    return add(known) if known and len(known) == len(found) else None


@dataclass(frozen=True, slots=True)
class Start:
    """The measured part of one fresh start of a server.

    Args:
        windows: The windows after the warm-up, in order.
        cold_start_seconds: From the launch of the process to its first answer; None if it was not started by us.
        discarded: Number of windows that were cut off the front because the server was not steady yet.
        foreign_cores: Cores that other processes, or other guests of the hypervisor, took: the mean, or side by side
            that of the worst block.
        cpu_share: Share of the host's cores that were busy; None if not sampled. Not kept in baselines.
        cold_start_parts: Parts of the cold start in seconds, as the server reports them.
        settings: Actual settings of the server, with the requested values.
        rejected: Reasons of repeated windows, one text each: disturbances of GPU or client.
        answers: Answers received; ``answers_checked`` of them were compared with the test's expectation.
        answers_checked: See ``answers``.
    """

    windows: tuple[Window, ...]
    cold_start_seconds: float | None
    discarded: int = 0
    foreign_cores: float = 0.0
    cpu_share: float | None = None
    cold_start_parts: Mapping[str, float] = field(default_factory=dict)
    settings: Mapping[str, ServerSetting] = field(default_factory=dict)
    rejected: tuple[str, ...] = ()
    answers: int = 0
    answers_checked: int = 0

    @property
    def total(self) -> Window:
        """Sum of the windows."""
        return Window.total(self.windows)


@dataclass(frozen=True, slots=True)
class Session:
    """Fresh starts of one server under one load; those of a stored baseline are at least two.

    Args:
        starts: The starts, in order.
        at: Begin, ISO 8601 in UTC.
        problems: Reasons why the session proves nothing; empty if it is valid.
        host_reading: Speed of the host before the session: log of the seconds of fixed work; None if not read.
    """

    starts: tuple[Start, ...]
    at: str
    problems: tuple[Reason, ...] = ()
    host_reading: float | None = None

    @property
    def windows(self) -> tuple[Window, ...]:
        """The windows of all starts."""
        return tuple(window for start in self.starts for window in start.windows)
