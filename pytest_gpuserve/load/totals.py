"""Adds up over time what the engines of a load report together."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, TypedDict

import msgspec

from pytest_gpuserve.load.merging import added, sum_if_known
from pytest_gpuserve.load.wire import Latencies, Tick
from pytest_gpuserve.measure.histogram import Histogram, merge, seconds_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

COURSE_LENGTH: Final = 256


def requests_to_know(q: float) -> int:
    """Return from how many requests on a quantile is known: so many that one of them at least lies above it.

    With fewer the nearest rank is the last one, and the quantile the maximum under another name: 100 for p99.

    Raises:
        ValueError: ``q`` is outside of (0, 1).
    """
    if not 0 < q < 1:
        raise ValueError(f"a quantile that can be unknown lies in (0, 1), not at {q}")
    # Rounded first: 1 - 0.9 is not quite 0.1.
    return math.ceil(round(1 / (1 - q), 6))


@dataclass(frozen=True, slots=True)
class Durations:
    """Many durations, each known to 0.05 %, with their exact mean and maximum.

    Args:
        histogram: How many of each length.
        sum_ns: Their sum.
        max_ns: The longest.
    """

    histogram: Histogram = field(default_factory=lambda: Histogram({}))
    sum_ns: int = 0
    max_ns: int = 0

    @property
    def total(self) -> int:
        """How many there are."""
        return self.histogram.total

    @property
    def mean(self) -> float | None:
        """In seconds; None where there are none."""
        total = self.total
        return self.sum_ns / total / 1e9 if total else None

    @property
    def maximum(self) -> float | None:
        """In seconds; None where there are none."""
        return self.max_ns / 1e9 if self.total else None

    @property
    def minimum(self) -> float | None:
        """In seconds, within 0.05 % and never above the mean; None where there are none."""
        mean = self.mean
        return None if mean is None else min(seconds_of(min(self.histogram.counts)), mean)

    def quantile(self, q: float) -> float | None:
        """Return the nearest-rank quantile in seconds, never above the maximum.

        None where there are fewer than ``requests_to_know(q)``.

        Raises:
            ValueError: ``q`` is outside of (0, 1).
        """
        if self.total < requests_to_know(q):
            return None
        return min(self.histogram.quantile(q), self.max_ns / 1e9)

    def in_seconds(self) -> Histogram:
        """The same with sum and maximum in seconds."""
        return Histogram(self.histogram.counts, self.sum_ns / 1e9, self.max_ns / 1e9)

    def plus(self, more: Latencies) -> Durations:
        """Add what an engine counted."""
        if not more.counts:
            return self
        return Durations(
            merge([self.histogram, Histogram(more.counts)]),
            self.sum_ns + more.sum_ns,
            max(self.max_ns, more.max_ns),
        )


@dataclass(frozen=True, slots=True)
class Totals:
    """What happened in a stretch of ticks: sums alone, so that its size does not grow with its length.

    Of a field that is not described here, see ``wire.Tick``.

    Args:
        nanoseconds: Length of the stretch; what two ticks cover is counted once, what none covers not at all.
        end_ns: End of its last tick by the monotonic clock.
        requests: Requests answered well.
        errors: Failed requests by kind.
        error_samples: Of each kind the first sight, in words.
        latency: From the intended send in an open loop, else from the send.
        service: From the actual send; in a closed loop empty, being the same.
        lag: How late requests were sent.
        first_token: Of streams.
        between_tokens: Of streams.
        tokens: Of streams.
        due: Requests that were due.
        sent: Requests that were sent.
        held: Requests that had to wait for ``max_in_flight``.
        unchecked: Good answers whose bodies were not passed on.
        in_flight_ns: Sum over all requests of how long they were under way.
        failed_ns: Of that sum, what belongs to requests that failed.
        in_flight_course: Requests under way at the end of every ``course_every``-th tick in which something was due.
        course_every: See there; it doubles as the stretch gets long.
        opening: Connections that were being opened at the end.
        oldest_opening_ns: How long the oldest of them had been.
        oldest_ns: How long the oldest of the requests under way had waited at the end.
        late_beats: Of all engines.
        late_beats_ns: Of all engines.
        users: Users of a closed loop at the end.
        host_cores: The most that an engine's host had for it; 0 where none has said.
        cpu_ns: CPU time of all engines.
        bytes_received: Of all good answers' bodies.
        sending_ns: Of all sends that are timed; None where the protocol's lanes do not time them.
        receiving_ns: Of all answers in several pieces; None as above.
    """

    nanoseconds: int = 0
    end_ns: int = 0
    requests: int = 0
    errors: Mapping[str, int] = field(default_factory=dict)
    error_samples: Mapping[str, str] = field(default_factory=dict)
    latency: Durations = Durations()
    service: Durations = Durations()
    lag: Durations = Durations()
    first_token: Durations = Durations()
    between_tokens: Durations = Durations()
    tokens: int = 0
    due: int = 0
    sent: int = 0
    held: int = 0
    unchecked: int = 0
    in_flight_ns: int = 0
    failed_ns: int = 0
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
    def tokens_per_second(self) -> float | None:
        """Tokens that arrived, a second; None of a stretch without length, or without tokens."""
        return _over(self.tokens, self.seconds) if self.tokens else None

    @property
    def achieved(self) -> float | None:
        """Requests sent for each one due; None where none was due."""
        return _over(self.sent, self.due)

    @property
    def in_flight(self) -> float | None:
        """Requests under way, on average; None of a stretch without length."""
        return _over(self.in_flight_ns, self.nanoseconds)

    @property
    def cpu_seconds(self) -> float:
        """CPU time of all engines."""
        return self.cpu_ns / 1e9

    @property
    def cpu_seconds_a_request(self) -> float | None:
        """CPU time of the client for a request, answered well or failed; None without requests."""
        return _over(self.cpu_seconds, self.requests + self.error_count)

    def plus(self, tick: Tick) -> Totals:
        """Add the tick that came next, of all engines together (``merging.merge_ticks``).

        Raises:
            ValueError: The tick ends before it begins.
        """
        if tick.end_ns < tick.begin_ns:
            raise ValueError(f"tick {tick.number} ends before it begins")
        # Engines end a tick not quite together: the longest one's end is in the next one's time, or even beyond it.
        nanoseconds = max(0, tick.end_ns - max(tick.begin_ns, self.end_ns))
        return Totals(
            nanoseconds=self.nanoseconds + nanoseconds,
            end_ns=max(self.end_ns, tick.end_ns),
            requests=self.requests + tick.requests,
            errors=added([self.errors, tick.errors]),
            error_samples={**tick.error_samples, **self.error_samples},
            latency=self.latency.plus(tick.latency),
            service=self.service.plus(tick.service),
            lag=self.lag.plus(tick.lag),
            first_token=self.first_token.plus(tick.first_token),
            between_tokens=self.between_tokens.plus(tick.between_tokens),
            tokens=self.tokens + tick.tokens,
            due=self.due + tick.due,
            sent=self.sent + tick.sent,
            held=self.held + tick.held,
            unchecked=self.unchecked + tick.unchecked,
            in_flight_ns=self.in_flight_ns + tick.in_flight_ns,
            failed_ns=self.failed_ns + tick.failed_ns,
            **_course(self, tick),
            opening=tick.opening,
            oldest_opening_ns=tick.oldest_opening_ns,
            oldest_ns=tick.oldest_ns,
            late_beats=self.late_beats + tick.late_beats,
            late_beats_ns=self.late_beats_ns + tick.late_beats_ns,
            users=tick.users,
            host_cores=max(self.host_cores, tick.host_cores),
            cpu_ns=self.cpu_ns + tick.cpu_ns,
            bytes_received=self.bytes_received + tick.bytes_received,
            sending_ns=sum_if_known((self.sending_ns, tick.sending_ns)),
            receiving_ns=sum_if_known((self.receiving_ns, tick.receiving_ns)),
        )


_HISTOGRAMS: Final = ("latency", "service", "lag", "first_token", "between_tokens")


class _Course(TypedDict):
    in_flight_course: tuple[int, ...]
    course_every: int


class RunningTotals:
    """Adds ticks up as they come, cheaper than ``Totals.plus``: it shares a machine with what is measured."""

    def __init__(self) -> None:
        self._rest = Totals()
        self._counts: dict[str, Counter[int]] = {name: Counter() for name in _HISTOGRAMS}
        self._sums_ns = dict.fromkeys(_HISTOGRAMS, 0)
        self._maxima_ns = dict.fromkeys(_HISTOGRAMS, 0)

    def add(self, tick: Tick) -> None:
        """Add the tick that came next, of all engines together.

        Raises:
            ValueError: The tick ends before it begins.
        """
        self._rest = self._rest.plus(msgspec.structs.replace(tick, **_NO_HISTOGRAMS))
        for name in _HISTOGRAMS:
            more: Latencies = getattr(tick, name)
            if more.counts:
                self._counts[name].update(more.counts)
                self._sums_ns[name] += more.sum_ns
                self._maxima_ns[name] = max(self._maxima_ns[name], more.max_ns)

    @property
    def seconds(self) -> float:
        """Length of the stretch."""
        return self._rest.seconds

    def totals(self) -> Totals:
        """What the ticks came to."""
        return replace(
            self._rest,
            latency=self._durations("latency"),
            service=self._durations("service"),
            lag=self._durations("lag"),
            first_token=self._durations("first_token"),
            between_tokens=self._durations("between_tokens"),
        )

    def _durations(self, name: str) -> Durations:
        return Durations(Histogram(dict(self._counts[name])), self._sums_ns[name], self._maxima_ns[name])


_NO_HISTOGRAMS: Final = dict.fromkeys(_HISTOGRAMS, Latencies())


def total(ticks: Iterable[Tick]) -> Totals:
    """Add up ticks, oldest first.

    Raises:
        ValueError: One ends before it begins.
    """
    running = RunningTotals()
    for tick in ticks:
        running.add(tick)
    return running.totals()


def _course(totals: Totals, tick: Tick) -> _Course:
    """Note one more number; where there are many, every second one is as good."""
    course, every = totals.in_flight_course, totals.course_every
    if tick.due and (tick.number + 1) % every == 0:
        course = (*course, tick.in_flight)
    if len(course) > COURSE_LENGTH:
        course, every = course[1::2], 2 * every
    return {"in_flight_course": course, "course_every": every}


def _over(amount: float, whole: float) -> float | None:
    return amount / whole if whole else None
