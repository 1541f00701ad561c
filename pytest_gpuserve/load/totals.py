"""Adds up what the engines of a load report: over engines, over time, and for each worker."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, TypedDict

import msgspec

from pytest_gpuserve.load.durations import Durations
from pytest_gpuserve.load.wire import AnswerCount, Tick

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


def merge_ticks(ticks: Sequence[Tick]) -> Tick:
    """Make one tick of those that the engines of a load report for the same time; exact, whatever their order.

    It is as long as they are on average: where clocks went apart, what engines did is still that of one tick each, and
    not of the time from the first one's begin to the last one's end. Only at the end of a load it lasts as long as the
    longest. Only of an error's sample the first engine's is kept.

    Raises:
        ValueError: There are none, or their numbers differ.
    """
    if len(ticks) == 1:
        return ticks[0]
    numbers = {tick.number for tick in ticks}
    if len(numbers) != 1:
        raise ValueError(f"ticks of one number belong together, not of {sorted(numbers)}")
    ends = [tick.end_ns for tick in ticks]
    samples: dict[str, str] = {}
    for tick in ticks:
        for kind, sample in tick.error_samples.items():
            samples.setdefault(kind, sample)
    return Tick(
        number=ticks[0].number,
        begin_ns=sum(tick.begin_ns for tick in ticks) // len(ticks),
        end_ns=max(ends) if any(tick.last for tick in ticks) else sum(ends) // len(ends),
        requests=sum(tick.requests for tick in ticks),
        latency=Durations.pooled(tick.latency for tick in ticks),
        service=Durations.pooled(tick.service for tick in ticks),
        lag=Durations.pooled(tick.lag for tick in ticks),
        ttft=Durations.pooled(tick.ttft for tick in ticks),
        itl=Durations.pooled(tick.itl for tick in ticks),
        tpot=Durations.pooled(tick.tpot for tick in ticks),
        chunks=sum(tick.chunks for tick in ticks),
        tokens_beyond_chunks=sum(tick.tokens_beyond_chunks for tick in ticks),
        with_usage=sum(tick.with_usage for tick in ticks),
        usage_tokens=sum(tick.usage_tokens for tick in ticks),
        good=sum(tick.good for tick in ticks),
        unjudged=sum(tick.unjudged for tick in ticks),
        due=sum(tick.due for tick in ticks),
        sent=sum(tick.sent for tick in ticks),
        resent=sum(tick.resent for tick in ticks),
        held=sum(tick.held for tick in ticks),
        errors=added(tick.errors for tick in ticks),
        error_samples=samples,
        answers=_joined(answer for tick in ticks for answer in tick.answers),
        unchecked=sum(tick.unchecked for tick in ticks),
        in_flight=sum(tick.in_flight for tick in ticks),
        in_flight_ns=sum(tick.in_flight_ns for tick in ticks),
        untimed_ns=sum(tick.untimed_ns for tick in ticks),
        opening=sum(tick.opening for tick in ticks),
        oldest_opening_ns=max(tick.oldest_opening_ns for tick in ticks),
        cpu_ns=sum(tick.cpu_ns for tick in ticks),
        oldest_ns=max(tick.oldest_ns for tick in ticks),
        bytes_received=sum(tick.bytes_received for tick in ticks),
        sending_ns=sum_if_known(tick.sending_ns for tick in ticks),
        receiving_ns=sum_if_known(tick.receiving_ns for tick in ticks),
        late_beats=sum(tick.late_beats for tick in ticks),
        late_beats_ns=sum(tick.late_beats_ns for tick in ticks),
        users=sum(tick.users for tick in ticks),
        host_cores=max(tick.host_cores for tick in ticks),
        last=all(tick.last for tick in ticks),
    )


def together(ticks: Mapping[str, Tick]) -> Tick:
    """Make one tick of those of several workers for the same time; it keeps what each of them did.

    Args:
        ticks: By the workers' names, in the order of their parts. Of one that is itself of several workers these count.

    Raises:
        ValueError: There are none, or their numbers differ.
    """
    workers: dict[str, Tick] = {}
    for name, tick in ticks.items():
        workers.update(tick.workers or {name: msgspec.structs.replace(tick, answers=[])})
    return msgspec.structs.replace(merge_ticks(list(ticks.values())), workers=workers)


def added(parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Add up counts by kind."""
    counts: dict[str, int] = {}
    for part in parts:
        for kind, count in part.items():
            counts[kind] = counts.get(kind, 0) + count
    return counts


def sum_if_known(parts: Iterable[int | None]) -> int | None:
    """Return the sum; None where one part is not known."""
    whole = 0
    for part in parts:
        if part is None:
            return None
        whole += part
    return whole


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


COURSE_LENGTH: Final = 256


@dataclass(frozen=True, slots=True)
class Totals:
    """What happened in a stretch of ticks: sums alone, so that its size does not grow with its length.

    Fields that are not described here are those of ``wire.Tick``, added up over the stretch; ``opening``, ``users`` and
    what is called oldest are those of its last tick.

    Args:
        nanoseconds: Length of the stretch; what two ticks cover is counted once, what none covers not at all.
        end_ns: End of its last tick by the monotonic clock.
        in_flight_course: Requests under way at the end of every ``course_every``-th tick in which something was due;
            ``course_every`` doubles as the stretch gets long.
        host_cores: The most that an engine's host had for it; 0 where none has said.
        sending_ns: None where the protocol does not time it, as ``receiving_ns``.
    """

    nanoseconds: int = 0
    end_ns: int = 0
    requests: int = 0
    errors: Mapping[str, int] = field(default_factory=dict)
    error_samples: Mapping[str, str] = field(default_factory=dict)
    latency: Durations = field(default_factory=Durations)
    service: Durations = field(default_factory=Durations)
    lag: Durations = field(default_factory=Durations)
    ttft: Durations = field(default_factory=Durations)
    itl: Durations = field(default_factory=Durations)
    tpot: Durations = field(default_factory=Durations)
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
    unchecked: int = 0
    in_flight_ns: int = 0
    untimed_ns: int = 0
    in_flight_course: tuple[int, ...] = ()
    course_every: int = 1
    opening: int = 0
    oldest_opening_ns: int = 0
    oldest_ns: int = 0
    late_beats: int = 0
    late_beats_ns: int = 0
    users: int = 0
    host_cores: int = 0
    cpu_ns: int = 0
    bytes_received: int = 0
    sending_ns: int | None = 0
    receiving_ns: int | None = 0

    @property
    def seconds(self) -> float:
        """Length of the stretch."""
        return self.nanoseconds / 1e9

    @property
    def error_count(self) -> int:
        """Failed requests of all kinds."""
        return sum(self.errors.values())

    @property
    def throughput(self) -> float | None:
        """Requests answered well, a second; None of a stretch without length."""
        return _over(self.requests, self.seconds)

    @property
    def tokens(self) -> int:
        """Tokens that arrived where every answer said how many it has, else chunks.

        Of an answer that began before this stretch, and ends in it, only the correction is in it.
        """
        return max(0, self.chunks + self.tokens_beyond_chunks) if self.tokens_from_usage else self.chunks

    @property
    def output_tokens_per_second(self) -> float | None:
        """Tokens that arrived, a second; None of a stretch without length, or where only chunks are known."""
        return _over(self.tokens, self.seconds) if self.tokens_from_usage and self.tokens else None

    @property
    def tokens_from_usage(self) -> bool:
        """Whether every answer said how many tokens it has; else ``tokens`` are chunks."""
        return self.with_usage >= self.requests > 0

    @property
    def in_flight(self) -> float | None:
        """Requests under way, on average; None of a stretch without length."""
        return _over(self.in_flight_ns, self.nanoseconds)

    @property
    def cpu_seconds(self) -> float:
        """CPU time of all engines."""
        return self.cpu_ns / 1e9


_HISTOGRAMS: Final = ("latency", "service", "lag", "ttft", "itl", "tpot")


class _Course(TypedDict):
    in_flight_course: tuple[int, ...]
    course_every: int


class RunningTotals:
    """Adds up ticks as they come; cheap, because it shares a machine with what is measured."""

    def __init__(self) -> None:
        self._sums = Totals()
        self._counts: dict[str, Counter[int]] = {name: Counter() for name in _HISTOGRAMS}
        self._sums_ns = dict.fromkeys(_HISTOGRAMS, 0)
        self._maxima_ns = dict.fromkeys(_HISTOGRAMS, 0)

    def add(self, tick: Tick) -> None:
        """Add the tick that came next, of all engines together.

        Raises:
            ValueError: The tick ends before it begins.
        """
        if tick.end_ns < tick.begin_ns:
            raise ValueError(f"tick {tick.number} ends before it begins")
        self._sums = _add_sums(self._sums, tick)
        for name in _HISTOGRAMS:
            more: Durations = getattr(tick, name)
            if more.counts:
                self._counts[name].update(more.counts)
                self._sums_ns[name] += more.sum_ns
                self._maxima_ns[name] = max(self._maxima_ns[name], more.max_ns)

    @property
    def seconds(self) -> float:
        """Length of the stretch."""
        return self._sums.seconds

    def totals(self) -> Totals:
        """Return the sums of all ticks."""
        return replace(
            self._sums,
            latency=self._durations("latency"),
            service=self._durations("service"),
            lag=self._durations("lag"),
            ttft=self._durations("ttft"),
            itl=self._durations("itl"),
            tpot=self._durations("tpot"),
        )

    def _durations(self, name: str) -> Durations:
        return Durations(dict(self._counts[name]), self._sums_ns[name], self._maxima_ns[name])


def total(ticks: Iterable[Tick]) -> Totals:
    """Add up ticks, oldest first.

    Raises:
        ValueError: One ends before it begins.
    """
    running = RunningTotals()
    for tick in ticks:
        running.add(tick)
    return running.totals()


def _add_sums(totals: Totals, tick: Tick) -> Totals:
    """Add the sums of the next tick; durations are left as they are."""
    # Engines end a tick not quite together: the longest one's end is in the next one's time, or even beyond it.
    nanoseconds = max(0, tick.end_ns - max(tick.begin_ns, totals.end_ns))
    return Totals(
        nanoseconds=totals.nanoseconds + nanoseconds,
        end_ns=max(totals.end_ns, tick.end_ns),
        requests=totals.requests + tick.requests,
        errors=added([totals.errors, tick.errors]),
        error_samples={**tick.error_samples, **totals.error_samples},
        chunks=totals.chunks + tick.chunks,
        tokens_beyond_chunks=totals.tokens_beyond_chunks + tick.tokens_beyond_chunks,
        with_usage=totals.with_usage + tick.with_usage,
        usage_tokens=totals.usage_tokens + tick.usage_tokens,
        good=totals.good + tick.good,
        unjudged=totals.unjudged + tick.unjudged,
        due=totals.due + tick.due,
        sent=totals.sent + tick.sent,
        resent=totals.resent + tick.resent,
        held=totals.held + tick.held,
        unchecked=totals.unchecked + tick.unchecked,
        in_flight_ns=totals.in_flight_ns + tick.in_flight_ns,
        untimed_ns=totals.untimed_ns + tick.untimed_ns,
        **_course(totals, tick),
        opening=tick.opening,
        oldest_opening_ns=tick.oldest_opening_ns,
        oldest_ns=tick.oldest_ns,
        late_beats=totals.late_beats + tick.late_beats,
        late_beats_ns=totals.late_beats_ns + tick.late_beats_ns,
        users=tick.users,
        host_cores=max(totals.host_cores, tick.host_cores),
        cpu_ns=totals.cpu_ns + tick.cpu_ns,
        bytes_received=totals.bytes_received + tick.bytes_received,
        sending_ns=sum_if_known((totals.sending_ns, tick.sending_ns)),
        receiving_ns=sum_if_known((totals.receiving_ns, tick.receiving_ns)),
    )


def _course(totals: Totals, tick: Tick) -> _Course:
    """Add a number to the course; when it gets long, every second one is kept."""
    course, every = totals.in_flight_course, totals.course_every
    if tick.due and (tick.number + 1) % every == 0:
        course = (*course, tick.in_flight)
    if len(course) > COURSE_LENGTH:
        course, every = course[1::2], 2 * every
    return {"in_flight_course": course, "course_every": every}


def _over(amount: float, whole: float) -> float | None:
    return amount / whole if whole else None


def packed(tick: Tick) -> Tick:
    """Return a tick that can be kept for long: what each worker did in it takes a tenth of the memory, or less.

    ``RunningShares`` reads it as before. Each tick keeps its own, so that what is measured again, or cut off in the
    end, is in nobody's share.
    """
    if not tick.workers:
        return tick
    return msgspec.structs.replace(tick, workers={}, packed=msgspec.msgpack.encode(tick.workers))


def _workers(tick: Tick) -> dict[str, Tick]:
    return msgspec.msgpack.decode(tick.packed, type=dict[str, Tick]) if tick.packed else tick.workers


class RunningShares:
    """Adds up what each worker did, in the order of their parts; empty where one engine alone is at work."""

    def __init__(self) -> None:
        self._running: dict[str, RunningTotals] = {}

    def add(self, tick: Tick) -> None:
        """Add the tick that came next.

        Raises:
            ValueError: The tick of a worker ends before it begins.
        """
        for name, part in _workers(tick).items():
            self._running.setdefault(name, RunningTotals()).add(part)

    def totals(self) -> dict[str, Totals]:
        """Return the totals of each worker."""
        return {name: running.totals() for name, running in self._running.items()}


def shares(ticks: Iterable[Tick]) -> dict[str, Totals]:
    """Add up what each worker did in these ticks, oldest first; see ``RunningShares``.

    Raises:
        ValueError: A tick ends before it begins.
    """
    running = RunningShares()
    for tick in ticks:
        running.add(tick)
    return running.totals()
