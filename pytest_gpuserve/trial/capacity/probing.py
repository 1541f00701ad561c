"""What a try of one rate shows: looked at ever more rarely, until it is shown that the objective is met, or missed.

Both are shown by the share of the requests that took longer than the objective allows, or failed; each request's time
counts from when it was due.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.gate.share import Batch, requests_to_show, share_of
from pytest_gpuserve.load.validity import ReasonKind
from pytest_gpuserve.measure.capacity import Finding, Probe
from pytest_gpuserve.measure.histogram import Histogram, bucket_of, merge
from pytest_gpuserve.trial.contender import OVERLOADED_SHARE
from pytest_gpuserve.trial.shape import TICK_SECONDS
from pytest_gpuserve.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pytest_gpuserve.load.totals import Totals
    from pytest_gpuserve.load.validity import Reason
    from pytest_gpuserve.load.wire import Tick
    from pytest_gpuserve.measure.capacity import Objective

ERROR: Final = 0.05
"""Chance that the capacity of a start lies outside of its interval; shared out over sides, probes and looks."""

NEXT_PROBES: Final = 4
"""Probes that are so near to the capacity that chance can show the contrary of the truth."""

BATCHES: Final = 24
"""Of a probe, at every look; the first look is after as many ticks, and each other one after a multiple of it."""

LOWER_QUANTILE: Final = 0.9
"""Of the latencies: what is beyond it tells how slow requests cluster."""

SECONDS: Final = 19.2
"""Measured time of a probe at most, unless its objective or a low rate needs more, or its test says otherwise."""

MOST_SECONDS: Final = 76.8
"""Of a probe whose low rate needs that, unless its test says more."""

OBJECTIVES_LONG: Final = 40
"""So many times the objective a probe may last at least, which is some queues' memory."""

SPARE: Final = 1.5
"""Times the requests that show a share of 0 to be low enough: the true one is above 0."""

SETTLE_SECONDS: Final = 0.5
SETTLE_OBJECTIVES: Final = 10
LONGEST_SETTLE_SECONDS: Final = 2.0
"""A probe begins with an empty queue: of it is thrown away the first of these, or so many times the objective between
it and the last; and the objective itself at least, before which a good answer need not have come."""

STUCK_SECONDS: Final = 1.0
"""A request that has waited for so long, and for twice as long as any other took, is stuck."""

LATE_SHARE: Final = 0.1
"""Of the objective: a send lag p99 below it is not why requests miss it that miss it from their sends on."""

_CLIENT: Final = frozenset({ReasonKind.SATURATED, ReasonKind.LATE, ReasonKind.UNKNOWN})


@dataclass(frozen=True, slots=True)
class Looks:
    """When a probe is looked at.

    Args:
        ticks: After how many ticks each look is: twice as many as the one before, but for the last.
    """

    ticks: tuple[int, ...]

    @classmethod
    def within(cls, seconds: float) -> Looks:
        """As many as there are within a time, the last at its end; one at least."""
        last = max(1, math.floor(seconds / (BATCHES * TICK_SECONDS) + 1e-9))
        doubled = (1 << number for number in range(last.bit_length()))
        return cls(tuple(BATCHES * times for times in (*(each for each in doubled if each < last), last)))

    @classmethod
    def at(cls, rate: float, objective: Objective, seconds: float | None = None) -> Looks:
        """As many as it takes at a rate to show that an objective is met.

        Args:
            rate: Requests a second.
            objective: The objective.
            seconds: For how long to look where neither a low rate nor the objective takes longer; None where no test
                says so.
        """
        usual = SECONDS if seconds is None else seconds
        wanted = max(usual, OBJECTIVES_LONG * objective.seconds)
        level = cls.within(max(wanted, MOST_SECONDS)).level
        needed = SPARE * requests_to_show(objective.allowed, level, BATCHES) / rate
        # Rounded up: what is too short by a little decides nothing.
        longer = BATCHES * TICK_SECONDS * math.ceil(needed / (BATCHES * TICK_SECONDS))
        return cls.within(max(wanted, min(MOST_SECONDS, longer)))

    @property
    def level(self) -> float:
        """Error rate of a look, of either side."""
        return ERROR / 2 / NEXT_PROBES / len(self.ticks)


def least_rate(objective: Objective, seconds: float | None) -> float:
    """The lowest rate at which an objective can be shown to be met.

    Args:
        objective: The objective.
        seconds: See ``Looks.at``.
    """
    looks = Looks.within(max(MOST_SECONDS, OBJECTIVES_LONG * objective.seconds, seconds or 0.0))
    return requests_to_show(objective.allowed, looks.level, BATCHES) / (looks.ticks[-1] * TICK_SECONDS)


def seconds_to_show(probe: Probe, objective: Objective) -> float:
    """How long to look at a rate to show that it meets an objective, if a probe of it has not decided that.

    Twice as long as the probe, or what it takes where requests are worth as much as in it.
    """
    looks = Looks.within(2 * probe.seconds)
    worth = probe.requests / probe.effective if probe.effective > 0 else 1.0
    needed = SPARE * worth * requests_to_show(objective.allowed, looks.level, BATCHES) / probe.rate
    return max(2 * probe.seconds, needed)


def settle_seconds(objective: Objective) -> float:
    """Time of a probe that is thrown away."""
    usual = min(max(SETTLE_SECONDS, SETTLE_OBJECTIVES * objective.seconds), LONGEST_SETTLE_SECONDS)
    return max(usual, objective.seconds)


@dataclass
class Probing:
    """A probe, tick by tick.

    Args:
        objective: What is asked of it.
        rate: Requests a second that are due.
        looks: When it is looked at.
        allowed_errors: Share of the requests that may fail.
    """

    objective: Objective
    rate: float
    looks: Looks
    allowed_errors: float = 0.0
    _requests: list[int] = field(default_factory=list)
    _failed: list[int] = field(default_factory=list)
    _latencies: list[Mapping[int, int]] = field(default_factory=list)

    def add(self, tick: Tick) -> bool:
        """Add the tick that came next; whether it is time for a look."""
        failed = sum(tick.errors.values())
        self._requests.append(tick.requests + failed)
        self._failed.append(failed)
        self._latencies.append(tick.latency.counts)
        return len(self._requests) in self.looks.ticks

    def look(self, totals: Totals, reasons: Iterable[Reason]) -> Probe | None:
        """Say what has been shown so far; None where it is to go on.

        Args:
            totals: Of its ticks.
            reasons: Why nothing could be concluded from these, if they were a load by itself.
        """
        found = {reason.kind: str(reason) for reason in reversed(list(reasons))}
        last = len(self._requests) >= self.looks.ticks[-1]
        share = share_of(self._batches(), self.looks.level)
        overload = self._overload(totals, found)
        unsound = overload or self._unsound(totals, found)
        allowed = self.objective.allowed
        if self._fails(totals):
            finding, reason = Finding.MISSED, found.get(ReasonKind.ERRORS, "")
        # What grows for a moment near the capacity is not yet too much for the server.
        elif overload and last:
            finding, reason = Finding.MISSED, overload
        elif share.chance_of_so_many(allowed) <= self.looks.level:
            finding, reason = Finding.MISSED, ""
        elif not unsound and share.chance_of_so_few(allowed) <= self.looks.level:
            finding, reason = Finding.MET, ""
        elif last:
            finding, reason = Finding.UNDECIDED, unsound
        else:
            return None
        if finding is Finding.MISSED and not self._may_be_lateness(totals):
            found.pop(ReasonKind.LATE, None)
        client = [text for kind, text in found.items() if kind in _CLIENT]
        if ReasonKind.RATE in found and not totals.held:
            client.append(found[ReasonKind.RATE])
        requests = sum(self._requests)
        return Probe(
            rate=self.rate,
            finding=finding,
            seconds=totals.seconds,
            requests=requests,
            slow=round(share.value * requests),
            effective=share.effective,
            latency=totals.latency.quantile(self.objective.quantile),
            reason=reason,
            client="; ".join(client),
        )

    def _parts(self) -> list[slice]:
        """The ticks so far, in equal parts; a look is only after as many as that takes."""
        size = len(self._requests) // BATCHES
        return [slice(number * size, (number + 1) * size) for number in range(BATCHES)]

    def _batches(self) -> list[Batch]:
        limit = _first_beyond(self.objective.seconds)
        pooled = merge(Histogram(counts) for counts in self._latencies)
        lower = min(limit, bucket_of(round(pooled.quantile(LOWER_QUANTILE) * 1e9)) + 1) if pooled.counts else limit
        batches = []
        for part in self._parts():
            failed, latencies = sum(self._failed[part]), self._latencies[part]
            beyond, beyond_lower = failed + _beyond(latencies, limit), failed + _beyond(latencies, lower)
            batches.append(Batch(sum(self._requests[part]), beyond, beyond_lower))
        return batches

    def _fails(self, totals: Totals) -> bool:
        """Whether more requests fail than may, and that is shown."""
        if not self.allowed_errors or not totals.error_count:
            return totals.error_count > 0
        counts = [(sum(self._requests[part]), sum(self._failed[part])) for part in self._parts()]
        share = share_of([Batch(requests, failed, failed) for requests, failed in counts], self.looks.level)
        return share.value > self.allowed_errors and share.chance_of_so_many(self.allowed_errors) <= self.looks.level

    def _overload(self, totals: Totals, found: Mapping[ReasonKind, str]) -> str:
        """Why the rate is over what the server can, as far as the queue shows it."""
        if ReasonKind.GROWING in found:
            return found[ReasonKind.GROWING]
        if ReasonKind.RATE in found and totals.held:
            return found[ReasonKind.RATE]
        answered = totals.requests + totals.error_count
        if answered >= OVERLOADED_SHARE * totals.due - 3 * math.sqrt(totals.due):
            return ""
        return f"overloaded: only {answered} of {totals.due} requests were answered in the time in which they were due"

    def _may_be_lateness(self, totals: Totals) -> bool:
        """Whether requests may be slow because they were sent late, and not by what they took from then on."""
        lag, service = totals.lag.quantile(0.99), totals.service.quantile(self.objective.quantile)
        if lag is None or service is None:
            return True
        return lag > LATE_SHARE * self.objective.seconds or service <= self.objective.seconds

    def _unsound(self, totals: Totals, found: Mapping[ReasonKind, str]) -> str:
        """Why it cannot be said that the objective is met, whatever the latencies are.

        That the client was late is no reason: what it is late by is a part of the latencies.
        """
        worse = [text for kind, text in found.items() if kind is not ReasonKind.LATE]
        oldest, slowest = totals.oldest_ns / 1e9, totals.latency.maximum or 0.0
        if oldest > max(STUCK_SECONDS, 2 * slowest):
            worse.append(
                f"stuck requests: at the end one had waited {format_seconds(oldest)} for its answer, while the slowest"
                f" that was answered took {format_seconds(slowest)}"
            )
        return "; ".join(worse)


def _first_beyond(seconds: float) -> int:
    """The first bucket of a histogram whose latencies count as longer than this: those in its own are as long."""
    return bucket_of(round(seconds * 1e9)) + 1


def _beyond(latencies: Sequence[Mapping[int, int]], limit: int) -> int:
    return sum(count for counts in latencies for bucket, count in counts.items() if bucket >= limit)
