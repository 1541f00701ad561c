"""What a try of one rate shows: looked at ever more rarely, until it is shown that the objective is met, or missed.

Both are shown by the share of the requests that took longer than the objective allows, or failed; each request's time
counts from when it was due. What of several objectives at once an answer meets, the engine has counted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.experiment.server_arm import OVERLOADED_SHARE
from pytest_gpuserve.gate.reason import ReasonKind
from pytest_gpuserve.gate.share import RequestCounts, share_of
from pytest_gpuserve.measure.capacity import Probe, ProbeOutcome
from pytest_gpuserve.measure.histogram import Histogram, bucket_of, merge
from pytest_gpuserve.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pytest_gpuserve.experiment.capacity.planning import Looks
    from pytest_gpuserve.gate.reason import Reason
    from pytest_gpuserve.gate.share import Share
    from pytest_gpuserve.load.totals import Totals
    from pytest_gpuserve.load.wire import Tick
    from pytest_gpuserve.measure.capacity import Objective

LOWER_QUANTILE: Final = 0.9
"""Of a time that is limited: what is beyond it tells how slow requests cluster."""

HOPE: Final = 2.0
"""Times as many independent requests as there were until now a probe may turn out to have, before it is given up."""

STUCK_SECONDS: Final = 1.0
"""A request that has waited for so long, and for twice as long as any other took, is stuck."""

LATE_SHARE: Final = 0.1
"""Of the objective: a send lag p99 below it is not why requests miss it that miss it from their sends on."""

FROM_DUE: Final = frozenset({"latency", "ttft"})
"""Times that count from when a request was due: the others are those that they are whenever it was sent."""

_CLIENT: Final = frozenset(
    {
        ReasonKind.CLIENT_SATURATED,
        ReasonKind.CLIENT_LATE,
        ReasonKind.CLIENT_HELD_UP,
        ReasonKind.NOT_COUNTED,
        ReasonKind.ANSWERS_UNCHECKED,
    }
)
_LATE: Final = frozenset({ReasonKind.CLIENT_LATE, ReasonKind.CLIENT_HELD_UP})


@dataclass
class Probing:
    """A probe, tick by tick.

    Args:
        objective: What is asked of it.
        rate: Requests a second that are due.
        looks: When it is looked at.
        allowed_errors: Share of the requests that may fail.
        is_sample: Whether it only tells how many are slow: what its latencies are decides nothing then.
        is_patient: Whether it goes on to its last look where it will decide nothing, as far as one sees.
    """

    objective: Objective
    rate: float
    looks: Looks
    allowed_errors: float = 0.0
    is_sample: bool = False
    is_patient: bool = False
    _requests: list[int] = field(default_factory=list)
    _failed: list[int] = field(default_factory=list)
    _slow: list[int] = field(default_factory=list)
    _times: dict[str, list[Mapping[int, int]]] = field(default_factory=dict)

    def add(self, tick: Tick) -> bool:
        """Add the tick that came next; whether it is time for a look."""
        failed = sum(tick.errors.values())
        self._requests.append(tick.requests + failed)
        self._failed.append(failed)
        if self.objective.each is None:
            slow = _beyond([tick.latency.counts], _first_beyond(self.objective.seconds))
        else:
            slow = tick.requests - tick.good
        self._slow.append(failed + slow)
        for name in self.objective.limits:
            self._times.setdefault(name, []).append(getattr(tick, name).counts)
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
            finding, reason = ProbeOutcome.MISSED, found.get(ReasonKind.REQUEST_ERRORS, "")
        # What grows for a moment near the capacity is not yet too much for the server.
        elif overload and last:
            finding, reason = ProbeOutcome.MISSED, overload
        elif self.is_sample:
            finding, reason = ProbeOutcome.UNDECIDED, unsound
        elif share.chance_of_so_many(allowed) <= self.looks.level:
            finding, reason = ProbeOutcome.MISSED, ""
        elif not unsound and share.chance_of_so_few(allowed) <= self.looks.level:
            finding, reason = ProbeOutcome.MET, ""
        # Where hardly anything is answered, only the last look tells that.
        elif last or (not overload and self._is_vain(share)):
            finding, reason = ProbeOutcome.UNDECIDED, unsound
        else:
            return None
        if not self._may_be_lateness(totals, finding):
            found = {kind: text for kind, text in found.items() if kind not in _LATE}
        client = [text for kind, text in found.items() if kind in _CLIENT]
        if ReasonKind.RATE_NOT_REACHED in found and not totals.held:
            client.append(found[ReasonKind.RATE_NOT_REACHED])
        requests = sum(self._requests)
        times = {name: getattr(totals, name).quantile(self.objective.quantile) for name in self.objective.limits}
        return Probe(
            rate=self.rate,
            finding=finding,
            seconds=totals.seconds,
            requests=requests,
            slow=round(share.value * requests),
            effective=share.effective,
            latency=times.get("latency"),
            reason=reason,
            client="; ".join(client),
            ttft=times.get("ttft"),
            tpot=times.get("tpot"),
        )

    def _parts(self) -> list[slice]:
        """The ticks so far, in equal parts; a look is only after as many as that takes."""
        batches = self.looks.batches
        size = len(self._requests) // batches
        return [slice(number * size, (number + 1) * size) for number in range(batches)]

    def _batches(self) -> list[RequestCounts]:
        times, lower = self._lower_limit()
        return [
            RequestCounts(
                sum(self._requests[part]), sum(self._slow[part]), sum(self._failed[part]) + _beyond(times[part], lower)
            )
            for part in self._parts()
        ]

    def _lower_limit(self) -> tuple[Sequence[Mapping[int, int]], int]:
        """Of the times that are nearest to their limit, the first bucket that a tenth of them exceeds, at most."""
        limits = self.objective.limits
        pooled = {name: merge(Histogram(counts) for counts in self._times[name]) for name in limits}
        reached = {name: times.quantile(LOWER_QUANTILE) if times.counts else 0.0 for name, times in pooled.items()}
        nearest = max(limits, key=lambda name: reached[name] / limits[name])
        return self._times[nearest], min(_first_beyond(limits[nearest]), bucket_of(round(reached[nearest] * 1e9)) + 1)

    def _fails(self, totals: Totals) -> bool:
        """Whether more requests fail than may, and that is shown."""
        if not self.allowed_errors or not totals.error_count:
            return totals.error_count > 0
        counts = [(sum(self._requests[part]), sum(self._failed[part])) for part in self._parts()]
        share = share_of([RequestCounts(requests, failed, failed) for requests, failed in counts], self.looks.level)
        return share.value > self.allowed_errors and share.chance_of_so_many(self.allowed_errors) <= self.looks.level

    def _is_vain(self, share: Share) -> bool:
        """Whether it would not be decided at the last look either, if the share stays about what it is."""
        if self.is_patient:
            return False
        longer = HOPE * self.looks.ticks[-1] / len(self._requests)
        then = replace(share, effective=longer * share.effective)
        chances = then.chance_of_so_few(self.objective.allowed), then.chance_of_so_many(self.objective.allowed)
        return min(chances) > self.looks.level

    def _overload(self, totals: Totals, found: Mapping[ReasonKind, str]) -> str:
        """Why the rate exceeds what the server can do, whatever the time for which it was measured."""
        # A growing queue does: that of a slow server grows and shrinks for seconds at any rate. One that grows on shows
        # in the latencies soon.
        if ReasonKind.RATE_NOT_REACHED in found and totals.held:
            return found[ReasonKind.RATE_NOT_REACHED]
        answered = totals.requests + totals.error_count
        if answered >= OVERLOADED_SHARE * totals.due - 3 * math.sqrt(totals.due):
            return ""
        return f"overloaded: only {answered} of {totals.due} requests were answered in the time in which they were due"

    def _may_be_lateness(self, totals: Totals, finding: ProbeOutcome) -> bool:
        """Whether requests may be slow because they were sent late, and not by what they took from then on."""
        q, limits = self.objective.quantile, self.objective.limits
        lag, latency, service = totals.lag.quantile(0.99), totals.latency.quantile(q), totals.service.quantile(q)
        if lag is None or latency is None or service is None:
            return True
        late = {name: latency - service if name in FROM_DUE else 0.0 for name in limits}
        taken = {name: (getattr(totals, name).quantile(q) or 0.0) - late[name] for name in limits}
        good = finding is ProbeOutcome.MISSED and all(taken[name] <= limit for name, limit in limits.items())
        return good or any(lag > LATE_SHARE * limit for name, limit in limits.items() if name in FROM_DUE)

    def _unsound(self, totals: Totals, found: Mapping[ReasonKind, str]) -> str:
        """Why it cannot be said that the objective is met, whatever the latencies are."""
        # That the client was late is no reason: what it is late by is a part of the latencies.
        worse = [text for kind, text in found.items() if kind not in _LATE]
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
