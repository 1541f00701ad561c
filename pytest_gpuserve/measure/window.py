"""A window of measurement, and combinations of windows: a server start, a session of fresh starts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping  # noqa: TC003 -- msgspec reads the annotations
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.measure.counters import Counters, ServerSetting, StageTime
from pytest_gpuserve.measure.histogram import Histogram, merge
from pytest_gpuserve.measure.streams import Streams
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
    """Counts and times of a stretch of continuous load, usually 0.3 to 0.5 s.

    Args:
        seconds: Length by the client's monotonic clock.
        requests: Well answered requests.
        errors: Failed requests by kind (``status 503``, ``timeout``, ``reset`` ...).
        latency: Latencies of the answered requests.
        items: Items that the server's batching stage executed; None if not counted.
        batches: Batches that it executed; None if not counted.
        client_cpu_seconds: CPU time of the load engine.
        stages: Time of the server by stage; empty if not counted.
        gpus: Use of the GPU; None without one.
        streams: Token streams; None if no answer was a stream.
        good: Answers that met all objectives of the load; None if it has no objectives.
        unjudged: Answers whose objectives could not be checked because they told no token count.
        tallies: Further counts of the server, by name; empty if not counted.
        begin_ns: Begin by the load's clock, for other samples of that time; not kept in baselines.
        end_ns: End by the load's clock.
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
        """Sum of several windows; a value that one of them lacks is unknown. Raises ValueError for none."""
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
    """The sum; None if a value is unknown."""
    found = list(counts)
    return None if None in found else sum(count or 0 for count in found)


@dataclass(frozen=True, slots=True)
class Client:
    """Observations of the load engine besides the latencies; not kept in baselines.

    Args:
        lag: Delays of sends.
        service: Latencies of an open loop from the actual send; empty for a closed loop, whose latencies these are.
        resent: Requests that were sent again because the server had closed a kept-open connection.
        sending_seconds: Total time from the begin of a send until its last byte was handed to the kernel; small
            requests count as zero. None if the protocol does not time it.
        receiving_seconds: Total time from the first byte of an answer until its last; likewise.
    """

    lag: Histogram = field(default_factory=lambda: Histogram({}))
    service: Histogram = field(default_factory=lambda: Histogram({}))
    resent: int = 0
    sending_seconds: float | None = None
    receiving_seconds: float | None = None

    @classmethod
    def pooled(cls, parts: Iterable[Client]) -> Client:
        """Add up several starts."""
        known = list(parts)
        return cls(
            lag=merge(part.lag for part in known),
            service=merge(part.service for part in known),
            resent=sum(part.resent for part in known),
            sending_seconds=_sum_if_known(part.sending_seconds for part in known),
            receiving_seconds=_sum_if_known(part.receiving_seconds for part in known),
        )


def _sum_if_known(values: Iterable[float | None]) -> float | None:
    """The sum; None if a value is unknown or the list is empty."""
    found = list(values)
    known = [value for value in found if value is not None]
    return math.fsum(known) if found and len(known) == len(found) else None


@dataclass(frozen=True, slots=True)
class Start:
    """The measured part of one fresh start of a server.

    Args:
        windows: The windows after the warm-up, in order.
        cold_start_seconds: From the launch of the process to its first answer; None if it was not started by us.
        discarded: Number of windows that were cut off the front because the server was not steady yet.
        steady: Whether a steady state was found.
        foreign_cores: Mean number of cores that other processes, or other guests of the hypervisor, took.
        cpu_share: Share of the host's cores that were busy; None if not sampled. Not kept in baselines.
        client: Observations of the load engine besides the latencies.
        cold_start_parts: Parts of the cold start in seconds, as the server reports them.
        settings: Actual settings of the server, with the requested values.
        counters: The server's counts within the windows; None if it does not count.
        rejected: Reasons of repeated windows, one text each: disturbances of GPU or client.
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
    """Two or more fresh starts of one server under one load: the unit of a stored baseline.

    Args:
        starts: The starts, in order.
        at: Begin, ISO 8601 in UTC.
        problems: Reasons why the session proves nothing; empty if it is valid.
        batch_sizes: Executions by batch size, by the upper edge of the server's own buckets.
        answers: Answers received; ``answers_checked`` of them were compared with the test's expectation.
        answers_checked: See ``answers``.
        host_reading: Speed of the host before the session: log of the seconds of fixed work; None if not read.
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
        """Observations of the load engine in all starts."""
        return Client.pooled(start.client for start in self.starts)

    @property
    def windows(self) -> tuple[Window, ...]:
        """The windows of all starts."""
        return tuple(window for start in self.starts for window in start.windows)
