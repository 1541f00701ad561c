"""Windows, one type for a tick, a measured window and a whole load; server starts, and sessions of them."""

from __future__ import annotations

import math
from collections.abc import Mapping  # noqa: TC003 -- msgspec reads the annotations
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgspec

from pytest_gpuserve.measure.counters import Counters, ServerSetting, added
from pytest_gpuserve.measure.histogram import Histogram, merge
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
        silent_chunks: Sum of the chunks of requests that report none.
    """

    ttft: Histogram = _NO_TIMES
    itl: Histogram = _NO_TIMES
    tpot: Histogram = _NO_TIMES
    tokens: int = 0
    with_usage: int = 0
    usage_tokens: int = 0
    silent_chunks: int = 0

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
            silent_chunks=sum(part.silent_chunks for part in known),
        )


class AnswerCount(msgspec.Struct, frozen=True):
    """A distinct good answer of a tick, and how often it came.

    Args:
        index: Index of its payload.
        body: The answer.
        count: Number of occurrences.
        number: The first request with this answer.
    """

    index: int
    body: bytes
    count: int
    number: int


class Window(msgspec.Struct, tag=True, omit_defaults=True, forbid_unknown_fields=True):
    """Counts and times of a stretch of load: a tick of one engine, a measured window, or the total of several.

    In ``a + b``, ``a`` is the earlier one. A sum does not keep answers and single workers, so that its size does not
    grow with its length. Only the engine's ``TickCounters`` changes a tick, and only until it ends. Its tick has 0 for
    ``good``, ``sending_ns`` and ``receiving_ns`` if they are not counted; a measured window has None.

    The window of a baseline has the length of its start, the fields of ``StartRecord``, and nothing else.

    Args:
        number: Number of a tick from 0; ticks of several engines with the same number belong together. A sum has that
            of its last tick. An engine that paused skips numbers: its tick covers those that ended meanwhile too.
        begin_ns: Begin by the monotonic clock; 0 in a baseline.
        end_ns: End, which is the next tick's begin.
        gaps_ns: Time between a sum's begin and end that its parts do not cover.
        requests: Requests answered well.
        latency: Their latencies: in a closed loop from the send, in an open loop from the intended send; for a stream
            to its last chunk with content.
        service: Their latencies from the actual send in an open loop; empty for a closed loop, where they are the same.
        lag: Delays of sends, counted at the send; a wait for ``max_in_flight`` is not included.
        streams: Answers that are streams, and their chunks; None without any. An answer that began before this time and
            ends in it contributes only the correction to its tokens, so these may be below 0.
        good: Answers that met all of the load's objectives; None if it has none.
        unjudged: Answers whose objectives could not be checked because they told no token count.
        due: Requests that became due; in a closed loop those that were sent.
        sent: Requests that were sent.
        resent: Requests that were sent again on a new connection, because the server had closed the kept-open one. They
            count as sent once, and their clocks run from the first send.
        held: Requests that had to wait for ``max_in_flight`` before they were sent.
        errors: Failed requests by kind (``status 503``, ``timeout``, ``reset`` ...).
        error_samples: Text of the first error of each kind.
        answers: Distinct good answers of a tick, up to a bound.
        unchecked: Good answers beyond that bound, which are not among ``answers``.
        sized: Good answers of a load without ``expect=``; 0 if the load has it.
        sized_bytes: Sum of their sizes.
        under_way: Requests in flight at its end.
        in_flight_ns: Sum over all requests of their time in flight within it. Divided by its length it is the average
            number in flight.
        untimed_ns: Part of that sum without a latency: requests that failed, and for streams the time from the last
            chunk with content to the end.
        opening: Slots that were being opened at its end.
        oldest_opening_ns: Time since the oldest of these began to open.
        cpu_ns: CPU time of the load engines.
        oldest_ns: Longest wait of a request in flight at its end.
        sending_ns: Sum over the requests whose last byte the kernel took, from the begin of their send until then; 0
            for a small request that it took at once (see ``engine.http1``). None if the protocol does not time it.
        receiving_ns: Sum over the answers that were completed, from their first bytes until their last; 0 for an answer
            in one piece. None likewise.
        late_beats: Readings of the clock, one each ``BEAT_NS``, that came later than the engine's timers and its own
            work explain. Their share is the share of the time when the engine was paused.
        late_beats_ns: Sum of their delays; an answer at a random time waits as long as the average delay.
        last: Whether the load has ended with it.
        workers: Tick of each worker, in the order of their parts and without answers; read by ``shares``. It is packed,
            because a load keeps its ticks, and unpacked they take ten times the memory.
        counters: The server's counts; None if it does not count.
        gpus: Use of the GPU; None without one.
    """

    number: int = 0
    begin_ns: int = 0
    end_ns: int = 0
    gaps_ns: int = 0
    requests: int = 0
    latency: Histogram = Histogram()
    service: Histogram = Histogram()
    lag: Histogram = Histogram()
    streams: Streams | None = None
    good: int | None = None
    unjudged: int = 0
    due: int = 0
    sent: int = 0
    resent: int = 0
    held: int = 0
    errors: dict[str, int] = {}
    error_samples: dict[str, str] = {}
    answers: list[AnswerCount] = []
    unchecked: int = 0
    sized: int = 0
    sized_bytes: int = 0
    under_way: int = 0
    in_flight_ns: int = 0
    untimed_ns: int = 0
    opening: int = 0
    oldest_opening_ns: int = 0
    cpu_ns: int = 0
    oldest_ns: int = 0
    sending_ns: int | None = None
    receiving_ns: int | None = None
    late_beats: int = 0
    late_beats_ns: int = 0
    last: bool = False
    workers: bytes = b""
    counters: Counters | None = None
    gpus: GpuUse | None = None

    def __add__(self, later: Window) -> Window:
        return total([self, later])

    @property
    def nanoseconds(self) -> int:
        """Length by the client's clock: time that its parts cover, overlaps once."""
        return self.end_ns - self.begin_ns - self.gaps_ns

    @property
    def seconds(self) -> float:
        """Length in seconds."""
        return self.nanoseconds / 1e9

    @property
    def error_count(self) -> int:
        """Failed requests of all kinds."""
        return sum(self.errors.values())

    @property
    def throughput(self) -> float:
        """Requests answered well a second; 0 for no time."""
        return self.requests / self.seconds if self.nanoseconds else 0.0

    @property
    def mean(self) -> float:
        """Mean latency in seconds, exact; not a number without answers."""
        return math.nan if self.latency.mean is None else self.latency.mean

    @property
    def max(self) -> float:
        """Largest latency in seconds, exact; 0 without answers."""
        return self.latency.max_seconds

    def quantile(self, q: float) -> float:
        """Nearest-rank quantile of the latency in seconds. Raises ValueError without answers, or if not 0 < q <= 1."""
        return self.latency.quantile(q)

    @property
    def in_flight(self) -> float:
        """Average requests in flight; 0 for no time."""
        return self.in_flight_ns / self.nanoseconds if self.nanoseconds else 0.0

    @property
    def cpu_seconds(self) -> float:
        """CPU time of the load engines."""
        return self.cpu_ns / 1e9

    @classmethod
    def pooled(cls, windows: Sequence[Window]) -> Window:
        """Sum of windows of any starts: unlike in ``total``, all their lengths count, even if their times overlap."""
        if len(windows) == 1:
            return windows[0]
        whole = total(windows)
        whole.gaps_ns = whole.end_ns - whole.begin_ns - sum(window.nanoseconds for window in windows)
        return whole


HISTOGRAMS: Final = tuple(name for name, kind in Window.__annotations__.items() if kind == "Histogram")

AT_THE_END: Final = ("under_way", "opening", "oldest_opening_ns", "oldest_ns")
"""Fields on the end of a tick: over engines they add up, over ticks the last one counts."""

_SUMS: Final = tuple(
    name
    for name, kind in Window.__annotations__.items()
    if kind in {"int", "int | None"} and name not in {"number", "begin_ns", "end_ns", "gaps_ns", *AT_THE_END}
)

_NOTHING: Final = Window()


def total(windows: Iterable[Window]) -> Window:
    """Add up ticks, or sums of them, oldest first.

    Engines do not end a tick at the same instant, so a tick may overlap with the next one. Time that both cover counts
    once.
    """
    parts = [window for window in windows if window != _NOTHING]
    if not parts:
        return Window()
    gaps_ns, end_ns = 0, parts[0].begin_ns
    for part in parts:
        gaps_ns += part.gaps_ns + max(0, part.begin_ns - end_ns)
        end_ns = max(end_ns, part.end_ns)
    return Window(
        begin_ns=parts[0].begin_ns,
        end_ns=end_ns,
        gaps_ns=gaps_ns,
        **{name: getattr(parts[-1], name) for name in ("number", "last", *AT_THE_END)},
        **sums(parts),
    )


def sums(parts: Sequence[Window]) -> dict[str, Any]:
    """Add up all fields that add up both over engines and over time; a value that one of them lacks is unknown."""
    errors: dict[str, int] = {}
    samples: dict[str, str] = {}
    for part in parts:
        for kind, count in part.errors.items():
            errors[kind] = errors.get(kind, 0) + count
        # The first sample of each kind is kept.
        samples = {**part.error_samples, **samples}
    counted = {name: [getattr(part, name) for part in parts] for name in _SUMS}
    counters = [part.counters for part in parts if part.counters is not None]
    return {
        **{name: None if None in counts else sum(counts) for name, counts in counted.items()},
        **{name: merge(getattr(part, name) for part in parts) for name in HISTOGRAMS},
        "streams": Streams.pooled(part.streams for part in parts),
        "errors": errors,
        "error_samples": samples,
        "counters": added(counters) if len(counters) == len(parts) else None,
        "gpus": GpuUse.pooled(parts),
    }


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
        return Window.pooled(self.windows)


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
