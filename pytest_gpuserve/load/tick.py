"""Counts of load engines: one type for a tick, a window of ticks and a whole load; they add up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from pytest_gpuserve.measure.histogram import Histogram, merge
from pytest_gpuserve.measure.window import Streams

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence


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


class Tick(msgspec.Struct, tag=True):
    """Counts of one engine in a tick, or of all engines of a load in some time; in ``a + b``, ``a`` is the earlier one.

    A sum does not keep answers and single workers, so that its size does not grow with its length. Only the engine's
    ``TickCounters`` changes a tick, and only until it ends.

    Args:
        number: Number from 0; ticks of several engines with the same number belong together. A sum has that of its last
            tick. Numbers are left out if an engine paused: its tick is also those whose ends are past then.
        begin_ns: Begin by the monotonic clock.
        end_ns: End, which is the next tick's begin.
        gaps_ns: Time between a sum's begin and end that its ticks do not cover.
        requests: Requests answered well.
        latency: Their latencies: in a closed loop from the send, in an open loop from the intended send; for a stream
            to its last chunk with content.
        service: Their latencies from the actual send in an open loop; empty for a closed loop, where they are the same.
        lag: Delays of sends, counted at the send; a wait for ``max_in_flight`` is not included.
        streams: Answers that are streams, and their chunks; None without any. An answer that began before this time and
            ends in it contributes only the correction to its tokens, so these may be below 0.
        good: Answers that met all of the plan's objectives; 0 without objectives.
        unjudged: Answers whose objectives could not be checked because they told no token count.
        due: Requests that became due; in a closed loop those that were sent.
        sent: Requests that were sent.
        resent: Requests that were sent again on a new connection, because the server had closed the kept-open one. They
            count as sent once, and their clocks run from the first send.
        held: Requests that had to wait for ``max_in_flight`` before they were sent.
        errors: Failed requests by kind.
        error_samples: Text of the tick's first error of each kind.
        answers: Distinct good answers, up to a bound.
        unchecked: Good answers beyond that bound, which are not among ``answers``.
        under_way: Requests in flight at its end.
        in_flight_ns: Sum over all requests of their time in flight within the tick. Divided by the tick's length it is
            the average number in flight.
        untimed_ns: Part of that sum without a latency: requests that failed, and for streams the time from the last
            chunk with content to the end.
        opening: Slots that were being opened at its end.
        oldest_opening_ns: Time since the oldest of these began to open.
        cpu_ns: CPU time of the engine.
        oldest_ns: Longest wait of a request in flight at its end.
        sending_ns: Sum over the requests whose last byte the kernel took, from the begin of their send until then; 0
            for a small request that it took at once (see ``engine.http1``). Only for HTTP without streams.
        receiving_ns: Sum over the answers that were completed, from their first bytes until their last; 0 for an answer
            in one piece. Only for HTTP without streams.
        late_beats: Readings of the clock, one each ``BEAT_NS``, that came later than the engine's timers and its own
            work explain. Their share is the share of the time when the engine was paused.
        late_beats_ns: Sum of their delays; an answer at a random time waits as long as the average delay.
        last: Whether the load has ended with it.
        workers: Tick of each worker, in the order of their parts and without answers; read by ``shares``. It is packed,
            because a load keeps its ticks, and unpacked they take ten times the memory.
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
    good: int = 0
    unjudged: int = 0
    due: int = 0
    sent: int = 0
    resent: int = 0
    held: int = 0
    errors: dict[str, int] = {}
    error_samples: dict[str, str] = {}
    answers: list[AnswerCount] = []
    unchecked: int = 0
    under_way: int = 0
    in_flight_ns: int = 0
    untimed_ns: int = 0
    opening: int = 0
    oldest_opening_ns: int = 0
    cpu_ns: int = 0
    oldest_ns: int = 0
    sending_ns: int = 0
    receiving_ns: int = 0
    late_beats: int = 0
    late_beats_ns: int = 0
    last: bool = False
    workers: bytes = b""

    def __add__(self, later: Tick) -> Tick:
        return total([self, later])

    @property
    def nanoseconds(self) -> int:
        """Time that the ticks cover, overlaps once."""
        return self.end_ns - self.begin_ns - self.gaps_ns

    @property
    def seconds(self) -> float:
        """Time that the ticks cover, overlaps once; in seconds."""
        return self.nanoseconds / 1e9

    @property
    def error_count(self) -> int:
        """Failed requests of all kinds."""
        return sum(self.errors.values())

    @property
    def throughput(self) -> float | None:
        """Requests answered well a second; None for a zero length."""
        return _over(self.requests, self.seconds)

    @property
    def in_flight(self) -> float | None:
        """Average requests in flight; None for a zero length."""
        return _over(self.in_flight_ns, self.nanoseconds)

    @property
    def cpu_seconds(self) -> float:
        """CPU time of all engines."""
        return self.cpu_ns / 1e9


HISTOGRAMS: Final = tuple(name for name, kind in Tick.__annotations__.items() if kind == "Histogram")

_AT_THE_END: Final = ("under_way", "opening", "oldest_opening_ns", "oldest_ns")
"""Fields on the end of a tick: over engines they add up, over ticks the last one counts."""

_SUMS: Final = tuple(
    name
    for name, kind in Tick.__annotations__.items()
    if kind == "int" and name not in ("number", "begin_ns", "end_ns", "gaps_ns", *_AT_THE_END)
)

_NOTHING: Final = Tick()


def total(ticks: Iterable[Tick]) -> Tick:
    """Add up ticks, or sums of them, oldest first.

    Engines do not end a tick at the same instant: the longest one's end lies in the next one's time, or beyond. So time
    that two of them cover counts once.
    """
    parts = [tick for tick in ticks if tick != _NOTHING]
    if not parts:
        return Tick()
    gaps_ns, end_ns = 0, parts[0].begin_ns
    for part in parts:
        gaps_ns += part.gaps_ns + max(0, part.begin_ns - end_ns)
        end_ns = max(end_ns, part.end_ns)
    return Tick(
        begin_ns=parts[0].begin_ns,
        end_ns=end_ns,
        gaps_ns=gaps_ns,
        **{name: getattr(parts[-1], name) for name in ("number", "last", *_AT_THE_END)},
        **_added(parts),
    )


def together(ticks: Mapping[str, Tick]) -> Tick:
    """Combine the ticks of several workers for the same time; exact, and it keeps each worker's own.

    Its length is their average. If clocks drifted apart, each engine's counts still belong to one tick's time, not to
    the time from the first begin to the last end. Only the last tick of a load is as long as the longest one.

    Args:
        ticks: By the workers' names, in the order of their parts; `aligned`.
    """
    parts = list(ticks.values())
    ends = [tick.end_ns for tick in parts]
    alone = {name: msgspec.structs.replace(tick, answers=[]) for name, tick in ticks.items()}
    last = any(tick.last for tick in parts)
    return Tick(
        number=max(tick.number for tick in parts),
        begin_ns=sum(tick.begin_ns for tick in parts) // len(parts),
        end_ns=max(ends) if last else sum(ends) // len(ends),
        answers=_joined(answer for tick in parts for answer in tick.answers),
        last=all(tick.last for tick in parts),
        workers=msgspec.msgpack.encode(alone),
        **{
            name: (max if name.startswith("oldest") else sum)(getattr(tick, name) for tick in parts)
            for name in _AT_THE_END
        },
        **_added(parts),
    )


def aligned(ticks: Mapping[str, Tick], read: Callable[[Collection[str]], Mapping[str, Tick]]) -> dict[str, Tick]:
    """Read on until no worker is behind one that has paused, whose tick is several of the others'.

    Args:
        ticks: The next tick of each worker, by name.
        read: Reads the following tick of each worker with one of these names.
    """
    found = dict(ticks)
    while True:
        number = max(tick.number for tick in found.values())
        behind = [name for name, tick in found.items() if tick.number < number and not tick.last]
        if not behind:
            return found
        for name, tick in read(behind).items():
            answers = _joined([*found[name].answers, *tick.answers])
            found[name] = msgspec.structs.replace(found[name] + tick, answers=answers)


def shares(ticks: Iterable[Tick], before: Mapping[str, Tick] | None = None) -> dict[str, Tick]:
    """Add up each worker's ticks, oldest first; empty for a single engine.

    Args:
        ticks: Ticks from the engines of a load.
        before: Each worker's sum before these.
    """
    found = dict(before or {})
    for tick in ticks:
        if tick.workers:
            for name, part in msgspec.msgpack.decode(tick.workers, type=dict[str, Tick]).items():
                found[name] = found.get(name, _NOTHING) + part
    return found


def _added(parts: Sequence[Tick]) -> dict[str, Any]:
    """Add up all fields that add up both over engines and over time."""
    errors: dict[str, int] = {}
    samples: dict[str, str] = {}
    for part in parts:
        for kind, count in part.errors.items():
            errors[kind] = errors.get(kind, 0) + count
        # The first sample of each kind is kept.
        samples = {**part.error_samples, **samples}
    return {
        **{name: sum(getattr(part, name) for part in parts) for name in _SUMS},
        **{name: merge(getattr(part, name) for part in parts) for name in HISTOGRAMS},
        "streams": Streams.pooled(part.streams for part in parts),
        "errors": errors,
        "error_samples": samples,
    }


def _joined(answers: Iterable[AnswerCount]) -> list[AnswerCount]:
    same: dict[tuple[int, bytes], AnswerCount] = {}
    for answer in answers:
        key = (answer.index, answer.body)
        known = same.get(key)
        same[key] = (
            answer
            if known is None
            else AnswerCount(
                index=answer.index,
                body=answer.body,
                count=known.count + answer.count,
                number=min(known.number, answer.number),
            )
        )
    return list(same.values())


def _over(amount: float, whole: float) -> float | None:
    return amount / whole if whole else None
