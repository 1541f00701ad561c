"""The counts of load engines: one type for a tick, a window of ticks and a whole load; they add up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from pytest_gpuserve.measure.histogram import Histogram, merge

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


class AnswerCount(msgspec.Struct, frozen=True):
    """A distinct good answer of a tick, and how often it came.

    Args:
        index: The payload that it answers.
        body: The answer.
        count: How often.
        number: The first request that it came to.
    """

    index: int
    body: bytes
    count: int
    number: int


class Tick(msgspec.Struct, tag=True):
    """Counts of one engine in a tick, or of all engines of a load in some time; in ``a + b``, ``a`` is the earlier one.

    A sum keeps no answers and nothing of single workers, so that its size does not grow with its length. Only the
    engine's ``TickCounters`` changes a tick, and only until it ends.

    Args:
        number: From 0; ticks of the same number of several engines belong together. Of a sum that of its last tick.
        begin_ns: Its begin by the monotonic clock.
        end_ns: Its end, which is the next one's begin.
        gaps_ns: Of a sum, what no tick covers between its begin and its end.
        requests: Requests answered well.
        latency: Their latencies: of a closed loop from the send, of an open loop from the intended send; of a stream to
            its last chunk with content.
        service: Of an open loop, their latencies from the actual send; of a closed loop empty, being the same.
        lag: How late requests were sent, counted when they are sent; waiting for ``max_in_flight`` is none of it.
        ttft: Of streams that ended well, time to the first chunk with content; to the end where there was none.
        itl: Of streams, the gaps between such chunks; those of chunks that came in one read are 0.
        tpot: Of streams that ended well and say that they have two tokens or more, the time from the first chunk with
            content to the last one, over the tokens but the first.
        chunks: Of streams, chunks with content that arrived.
        tokens_beyond_chunks: Of answers that ended, how many tokens they say that they have
            (``usage.completion_tokens``), less their chunks; it may be below 0.
        with_usage: Answers with ``usage.completion_tokens``.
        usage_tokens: The sum of these.
        good: Answers that met all of the plan's objectives; 0 where it has none.
        unjudged: Answers of which that is not known, for they do not say how many tokens they have.
        due: Requests that were due in it; of a closed loop those that were sent.
        sent: Requests that were sent in it.
        resent: Requests that were sent once more, on a new connection, for the server had closed the one that it had
            kept open; they are counted as sent once, and their clocks run from the first send.
        held: Requests that had to wait for ``max_in_flight`` before they were sent.
        errors: Failed requests by kind.
        error_samples: For each kind, the first sight of it in this tick, in words.
        answers: Distinct good answers, up to a bound.
        unchecked: Good answers beyond that bound, which are not among ``answers``.
        under_way: Requests under way at its end.
        in_flight_ns: Sum over all requests of how long they were under way within the tick, so that divided by the
            tick's length it is the average number under way.
        untimed_ns: Of that sum, what no latency has: requests that failed in it, and of streams the time from the last
            chunk with content to the end.
        opening: Slots that were being opened at its end.
        oldest_opening_ns: How long the oldest of them had been.
        cpu_ns: CPU time that the engine used in it.
        oldest_ns: How long the oldest of the requests under way had waited at its end.
        sending_ns: Sum over the requests whose last byte the kernel took in it, from the begin of their send until
            then; of a small request that it took at once (see ``engine.http1``) 0. None where the protocol's slots do
            not time it.
        receiving_ns: Sum over the answers that were complete in it, from their first bytes seen until their last; of
            one that came in one piece 0. None as above.
        late_beats: Of the engine's looks at the clock, one each ``BEAT_NS``, those that came later than its timers and
            its own work explain: for as large a share of the time it did not run, though it had something to do.
        late_beats_ns: By how much, in sum; an answer that comes at any time waits for the engine as long as a beat is
            late on average.
        users: Of a closed loop how many users there were at its end.
        host_cores: That the engine may use, with all others on its host; 0 where it does not say.
        last: Whether the load has ended with it.
        course: Of a sum, ``under_way`` of every ``course_every``-th tick in which something was due;
            ``course_every`` doubles as the sum gets long.
        workers: Of a tick of several workers, what each of them did, in the order of their parts and without answers;
            read by ``shares``. It is packed, for a load keeps its ticks, and unpacked they take ten times the memory.
    """

    number: int = 0
    begin_ns: int = 0
    end_ns: int = 0
    gaps_ns: int = 0
    requests: int = 0
    latency: Histogram = Histogram()
    service: Histogram = Histogram()
    lag: Histogram = Histogram()
    ttft: Histogram = Histogram()
    itl: Histogram = Histogram()
    tpot: Histogram = Histogram()
    chunks: int = 0
    tokens_beyond_chunks: int = 0
    with_usage: int = 0
    usage_tokens: int = 0
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
    sending_ns: int | None = 0
    receiving_ns: int | None = 0
    late_beats: int = 0
    late_beats_ns: int = 0
    users: int = 0
    host_cores: int = 0
    last: bool = False
    course: tuple[int, ...] = ()
    course_every: int = 1
    workers: bytes = b""

    def __add__(self, later: Tick) -> Tick:
        return total([self, later])

    @property
    def nanoseconds(self) -> int:
        """Time that ticks cover, once."""
        return self.end_ns - self.begin_ns - self.gaps_ns

    @property
    def seconds(self) -> float:
        """Time that ticks cover, once; in seconds."""
        return self.nanoseconds / 1e9

    @property
    def error_count(self) -> int:
        """Failed requests of all kinds."""
        return sum(self.errors.values())

    @property
    def throughput(self) -> float | None:
        """Requests answered well, a second; None without length."""
        return _over(self.requests, self.seconds)

    @property
    def tokens(self) -> int:
        """Tokens that arrived where every answer said how many it has, else chunks.

        Of an answer that began before this time, and ends in it, only the correction is in it.
        """
        return max(0, self.chunks + self.tokens_beyond_chunks) if self.tokens_from_usage else self.chunks

    @property
    def output_tokens_per_second(self) -> float | None:
        """Tokens that arrived, a second; None without length, or where only chunks are known."""
        return _over(self.tokens, self.seconds) if self.tokens_from_usage and self.tokens else None

    @property
    def tokens_from_usage(self) -> bool:
        """Whether every answer said how many tokens it has; else ``tokens`` are chunks."""
        return self.with_usage >= self.requests > 0

    @property
    def in_flight(self) -> float | None:
        """Requests under way, on average; None without length."""
        return _over(self.in_flight_ns, self.nanoseconds)

    @property
    def cpu_seconds(self) -> float:
        """CPU time of all engines."""
        return self.cpu_ns / 1e9


COURSE_LENGTH: Final = 256

HISTOGRAMS: Final = tuple(name for name, kind in Tick.__annotations__.items() if kind == "Histogram")

_AT_THE_END: Final = ("under_way", "opening", "oldest_opening_ns", "oldest_ns", "users")
"""Said of the end of a tick: over engines they add up, of several ticks the last one's counts."""

_SUMS: Final = tuple(
    name
    for name, kind in Tick.__annotations__.items()
    if kind == "int"
    and name not in ("number", "begin_ns", "end_ns", "gaps_ns", "host_cores", "course_every", *_AT_THE_END)
)

_NOTHING: Final = Tick()


def total(ticks: Iterable[Tick]) -> Tick:
    """Add up ticks, or sums of them, oldest first.

    Engines end a tick not quite together: the longest one's end is in the next one's time, or even beyond it. So time
    that two of them cover counts once.

    Raises:
        ValueError: One ends before it begins.
    """
    parts = [tick for tick in ticks if tick != _NOTHING]
    if not parts:
        return Tick()
    gaps_ns, end_ns = 0, parts[0].begin_ns
    for part in parts:
        if part.end_ns < part.begin_ns:
            raise ValueError(f"tick {part.number} ends before it begins")
        gaps_ns += part.gaps_ns + max(0, part.begin_ns - end_ns)
        end_ns = max(end_ns, part.end_ns)
    course, every = _course(parts)
    return Tick(
        begin_ns=parts[0].begin_ns,
        end_ns=end_ns,
        gaps_ns=gaps_ns,
        course=course,
        course_every=every,
        **{name: getattr(parts[-1], name) for name in ("number", "last", *_AT_THE_END)},
        **_added(parts),
    )


def _course(parts: Sequence[Tick]) -> tuple[tuple[int, ...], int]:
    every = max(part.course_every for part in parts)
    course: list[int] = []
    for part in parts:
        if part.course:
            step = every // part.course_every
            course += part.course[step - 1 :: step]
        elif part.due and (part.number + 1) % every == 0:
            course.append(part.under_way)
    # When it gets long, every second one is kept.
    while len(course) > COURSE_LENGTH:
        course, every = course[1::2], 2 * every
    return tuple(course), every


def together(ticks: Mapping[str, Tick]) -> Tick:
    """Make one tick of those of several workers for the same time; exact, and it keeps what each of them did.

    It is as long as they are on average: where clocks went apart, what engines did is still that of one tick each, and
    not of the time from the first one's begin to the last one's end. Only at the end of a load it lasts as long as the
    longest.

    Args:
        ticks: By the workers' names, in the order of their parts.

    Raises:
        ValueError: There are none, or their numbers differ.
    """
    parts = list(ticks.values())
    numbers = {tick.number for tick in parts}
    if len(numbers) != 1:
        raise ValueError(f"ticks of one number belong together, not of {sorted(numbers)}")
    ends = [tick.end_ns for tick in parts]
    alone = {name: msgspec.structs.replace(tick, answers=[]) for name, tick in ticks.items()}
    last = any(tick.last for tick in parts)
    return Tick(
        number=parts[0].number,
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


def shares(ticks: Iterable[Tick], before: Mapping[str, Tick] | None = None) -> dict[str, Tick]:
    """Add up what each worker did in ticks, oldest first; empty where one engine alone is at work.

    Args:
        ticks: As the engines of a load report them.
        before: Each worker's sum before these.

    Raises:
        ValueError: A tick ends before it begins.
    """
    found = dict(before or {})
    for tick in ticks:
        if tick.workers:
            for name, part in msgspec.msgpack.decode(tick.workers, type=dict[str, Tick]).items():
                found[name] = found.get(name, _NOTHING) + part
    return found


def _added(parts: Sequence[Tick]) -> dict[str, Any]:
    """Add up all that adds up in the same way over engines and over time."""
    errors: dict[str, int] = {}
    samples: dict[str, str] = {}
    for part in parts:
        for kind, count in part.errors.items():
            errors[kind] = errors.get(kind, 0) + count
        # The first sight of each kind is kept.
        samples = {**part.error_samples, **samples}
    return {
        **{name: sum(getattr(part, name) for part in parts) for name in _SUMS},
        **{name: merge(getattr(part, name) for part in parts) for name in HISTOGRAMS},
        **{name: _sum_if_known([getattr(part, name) for part in parts]) for name in ("sending_ns", "receiving_ns")},
        "errors": errors,
        "error_samples": samples,
        "host_cores": max(part.host_cores for part in parts),
    }


def _sum_if_known(parts: Sequence[int | None]) -> int | None:
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == len(parts) else None


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
