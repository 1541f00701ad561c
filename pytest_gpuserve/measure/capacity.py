"""What a search for a capacity came to: probes of rates, and between which of them the highest good one lies."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.measure.crossing import Crossing, SharePoint, crossing

if TYPE_CHECKING:
    from collections.abc import Sequence


SAMPLES: Final = 8
"""The last probes of a search, all of one length, where the capacity was thought to lie: by them it is known."""

ALIKE: Final = 0.1
"""By so much their measured times may differ: ticks do not end to the microsecond."""

ENDS: Final = 2
"""Probes that a search has at least before them: one of a rate that met the objective, and one that missed it."""

NEAR: Final = 2.0
"""Ratio of a probe's rate to those of the samples, up to which it tells something of the share there."""

FULL: Final = 0.5
FULL_WORTH: Final = 2.0
"""Of a probe of which more requests than this were slow the queue only grew: it tells on which side the capacity lies,
and how slow a longer look would have found them to be nobody knows. It counts for no more requests than the second."""

LEAST_SD: Final = 0.002
"""Of the log of a capacity: samples that agree better do so by chance."""


class ProbeOutcome(str, Enum):
    """What a probe showed of its rate."""

    MET = "met"
    MISSED = "missed"
    UNDECIDED = "undecided"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, slots=True)
class Objective:
    """What a latency has to be: at most ``1 - quantile`` of the requests may take longer than ``seconds``, or fail.

    Args:
        quantile: Inside (0, 1).
        seconds: Above 0.
    """

    quantile: float
    seconds: float

    @property
    def allowed(self) -> float:
        """The share of the requests that may take longer."""
        # Rounded: 1 - 0.99 is not quite 0.01.
        return round(1 - self.quantile, 12)

    @property
    def name(self) -> str:
        """``p99``."""
        return f"p{round(100 * self.quantile, 6):g}"


@dataclass(frozen=True, slots=True)
class Probe:
    """A rate that was tried.

    Args:
        rate: Requests a second that were due.
        finding: What it showed.
        seconds: Measured time.
        requests: Requests that were answered or failed in it.
        slow: Those of them that took longer than the objective allows, or failed.
        effective: Independent requests that would have told as much; see ``gate.share``.
        latency: The objective's quantile in seconds; None where too few were answered.
        reason: What else than latencies decided it, or kept it from being decided; empty for nothing.
        client: Why the client may have been what was measured; empty where it was not.
    """

    rate: float
    finding: ProbeOutcome
    seconds: float
    requests: int
    slow: int
    effective: float
    latency: float | None
    reason: str = ""
    client: str = ""

    @property
    def share(self) -> float:
        """Of slow requests; 1 where nothing was answered at all."""
        return self.slow / self.requests if self.requests else 1.0


@dataclass(frozen=True, slots=True)
class Search:
    """The probes of one start of a server, in the order in which they were made.

    Args:
        objective: What was asked of each.
        probes: What was tried.
    """

    objective: Objective
    probes: tuple[Probe, ...] = ()

    @property
    def low(self) -> float | None:
        """The highest rate that was shown to meet the objective, below all that were shown to miss it; None for none.

        A rate that met it above one that missed it contradicts that one: neither is believed, and the interval is that
        around both.
        """
        missed = self._rates(ProbeOutcome.MISSED)
        return max(
            (rate for rate in self._rates(ProbeOutcome.MET) if rate < min(missed, default=math.inf)), default=None
        )

    @property
    def high(self) -> float | None:
        """The lowest rate that was shown to miss the objective, above all that were shown to meet it; None for none."""
        met = self._rates(ProbeOutcome.MET)
        return min((rate for rate in self._rates(ProbeOutcome.MISSED) if rate > max(met, default=0.0)), default=None)

    @property
    def samples(self) -> tuple[Probe, ...]:
        """The last probes, where the capacity was thought to lie; none where the search did not come so far."""
        last = self.probes[-SAMPLES:]
        if len(self.probes) < SAMPLES + ENDS:
            return ()
        seconds = [probe.seconds for probe in last]
        return last if max(seconds) <= (1 + ALIKE) * min(seconds) else ()

    @property
    def value(self) -> float | None:
        """The capacity, requests a second; None where an end of its interval is not known.

        Within the interval, where the share of slow requests is what the objective allows, by a regression of the share
        on the log rate in which the samples take part, and the probes around them.
        """
        low, high = self.low, self.high
        if low is None or high is None:
            return None
        found = self._crossing(low, high)
        if found is None:
            return math.sqrt(low * high)
        # Twice, for the exponential of neither end is the very end.
        within = math.exp(min(max(found.x, math.log(low)), math.log(high)))
        return min(max(within, low), high)

    @property
    def parts(self) -> tuple[float, ...]:
        """The log of the capacity as each sample has it; their mean is that of `value`. Empty where nobody knows.

        Each has moved the crossing by its influence; that of all samples together is theirs in common. They are what a
        jackknife calls pseudo-values (R. G. Miller, "The jackknife -- a review", Biometrika 61, 1974, 1-15).
        """
        samples, low, high, value = self.samples, self.low, self.high, self.value
        if not samples or low is None or high is None or value is None or not _worth(samples):
            return ()
        found = self._crossing(low, high)
        if found is None:
            return ()
        influences = found.influences[-len(samples) :]
        common = statistics.fmean(influences)
        return tuple(math.log(value) + len(samples) * (each - common) for each in influences)

    @property
    def squared_error(self) -> float | None:
        """Squared standard error of the log of `value`, by the spread of the samples; None where it is not known.

        Where they say that the capacity lies outside the interval, what they are off by is added.
        """
        parts, low, high, value = self.parts, self.low, self.high, self.value
        if not parts or low is None or high is None or value is None:
            return None
        found = self._crossing(low, high)
        off = 0.0 if found is None else found.x - math.log(value)
        return max(statistics.variance(parts) / len(parts), LEAST_SD**2) + off**2

    def at(self, rate: float | None, finding: ProbeOutcome) -> list[Probe]:
        """The probes of a rate that showed this."""
        return [probe for probe in self.probes if probe.rate == rate and probe.finding is finding]

    def with_probe(self, probe: Probe) -> Search:
        """The search with one probe more."""
        return Search(self.objective, (*self.probes, probe))

    def _rates(self, finding: ProbeOutcome) -> list[float]:
        return [probe.rate for probe in self.probes if probe.finding is finding]

    def _crossing(self, low: float, high: float) -> Crossing | None:
        """Where the share is what is allowed; the samples are the last of its points."""
        samples = self.samples
        if samples:
            middle = math.exp(statistics.fmean(math.log(probe.rate) for probe in samples))
            low = high = middle
        others = self.probes[: len(self.probes) - len(samples)]
        points = [
            SharePoint(
                math.log(probe.rate), probe.share, min(probe.effective, FULL_WORTH if probe.share > FULL else math.inf)
            )
            for probe in others
            if low / NEAR <= probe.rate <= high * NEAR
        ]
        # Alike as they are, so are their clusters. Weighed by its own, a sample with many slow requests, which cluster
        # more, would count for less, and the capacity be too high.
        worth = _worth(samples)
        points += [SharePoint(math.log(probe.rate), probe.share, worth * probe.requests) for probe in samples]
        return crossing(points, self.objective.allowed)


def _worth(samples: Sequence[Probe]) -> float:
    """Independent requests that a request of these is worth, on average; 0 where one does not know it."""
    if not samples or any(probe.effective <= 0 for probe in samples):
        return 0.0
    return 1 / statistics.fmean(probe.requests / probe.effective for probe in samples)
