"""What a search for a capacity came to: probes of rates, and between which of them the highest good one lies.

Within that interval it is where the share of slow requests, which rises with the rate, is the allowed one, by logistic
regression. It is how a dose is found (J. Berkson, "Application of the logistic function to bio-assay", Journal of the
American Statistical Association 39, 1944, 357-365; D. J. Finney, "Probit Analysis", 3rd ed. 1971), with effective
counts because requests cluster (P. McCullagh and J. A. Nelder, "Generalized Linear Models", 2nd ed. 1989, 4.5). What a
point contributes is its influence: by how much the crossing moves with it, as far as a straight line tells (F. R.
Hampel, "The influence curve and its role in robust estimation", Journal of the American Statistical Association 69,
1974, 383-393).
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

from pytest_gpuserve.measure.objectives import Objectives  # noqa: TC001 -- msgspec reads the annotations
from pytest_gpuserve.units import format_fraction, format_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

ADDED: Final = 1.0
"""Request, spread over all points, of which as large a part as is wanted is slow: without it shares that are all 0 or 1
have no slope."""

SLOPE: Final = 10.0
SLOPE_SD: Final = 5.0
"""What is believed of the slope beforehand: of queues that are two thirds busy it is 6 at a p95 and 9 at a p99, more of
busier ones. Points that lie close together, each where those before had the crossing, tell little of it."""

MOST_STEPS: Final = 100
SMALL_STEP: Final = 1e-10
FARTHEST: Final = 500.0
"""Of the regression: where it begins and ends, and beyond which log odds are all the same."""


class SharePoint(NamedTuple):
    """A share, from 0 to 1, of so many independent requests at x."""

    x: float
    share: float
    weight: float


@dataclass(frozen=True, slots=True)
class Crossing:
    """Where the share is the wanted one, and by how much each point moves it."""

    x: float
    influences: tuple[float, ...]


class _Curvature(NamedTuple):
    """The information about height and slope: of the height, of both together, of the slope."""

    height: float
    both: float
    slope: float

    @property
    def determinant(self) -> float:
        """Above 0 where both are known."""
        return self.height * self.slope - self.both**2

    def solve(self, height: float, slope: float) -> tuple[float, float]:
        """The step of height and slope that a gradient asks for."""
        return (
            (self.slope * height - self.both * slope) / self.determinant,
            (self.height * slope - self.both * height) / self.determinant,
        )


def crossing(points: Sequence[SharePoint], wanted: float) -> Crossing | None:
    """Return where the share is the ``wanted`` one, inside (0, 1); None where it does not rise."""
    added = ADDED / len(points)
    known = [
        SharePoint(x, (weight * share + added * wanted) / (weight + added), weight + added)
        for x, share, weight in points
    ]
    middle = math.fsum(x * weight for x, _, weight in known) / math.fsum(weight for _, _, weight in known)
    odds = math.log(wanted / (1 - wanted))
    height, slope = odds, SLOPE
    for _ in range(MOST_STEPS):
        # Newton's method for the log likelihood with what is believed, whose only maximum it is.
        missing = [(x - middle, weight * (share - _fitted(height, slope, x - middle))) for x, share, weight in known]
        curvature = _curvature(known, middle, height, slope)
        if curvature.determinant <= 0:
            return None
        up, steeper = curvature.solve(
            math.fsum(each for _, each in missing),
            math.fsum(away * each for away, each in missing) - (slope - SLOPE) / SLOPE_SD**2,
        )
        # Far from it a whole step leads too far.
        part = min(1.0, 1.0 / max(abs(up), 1e-300), max(1.0, abs(slope)) / max(abs(steeper), 1e-300))
        height, slope = height + part * up, slope + part * steeper
        if abs(up) + abs(steeper) < SMALL_STEP * (1 + abs(slope)):
            break
    curvature = _curvature(known, middle, height, slope)
    if slope <= 0 or curvature.determinant <= 0:
        return None
    away = (odds - height) / slope
    influences = []
    for x, share, weight in points:
        pull = weight * (share - _fitted(height, slope, x - middle))
        up, steeper = curvature.solve(pull, pull * (x - middle))
        influences.append(-(up + away * steeper) / slope)
    return Crossing(middle + away, tuple(influences))


def _fitted(height: float, slope: float, away: float) -> float:
    return 1 / (1 + math.exp(-max(-FARTHEST, min(FARTHEST, height + slope * away))))


def _curvature(known: Sequence[SharePoint], middle: float, height: float, slope: float) -> _Curvature:
    spreads = []
    for x, _, weight in known:
        fitted = _fitted(height, slope, x - middle)
        spreads.append((x - middle, weight * fitted * (1 - fitted)))
    return _Curvature(
        math.fsum(spread for _, spread in spreads),
        math.fsum(away * spread for away, spread in spreads),
        math.fsum(away**2 * spread for away, spread in spreads) + 1 / SLOPE_SD**2,
    )


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
    """At most ``1 - quantile`` of the requests may miss what is asked of each, or fail.

    Args:
        quantile: Share of the requests that have to meet it.
        seconds: The most that a request may take. Of ``each``, what a request takes that meets that: only for how long
            a rate is looked at, and how many requests may be under way, go by it.
        each: What each answer has to meet; None for its latency alone.
    """

    quantile: float
    seconds: float
    each: Objectives | None = None

    def __str__(self) -> str:
        """``p99 <= 50.0 ms``, or ``99 % with ttft <= 0.2 s, tpot <= 0.03 s``."""
        if self.each is None:
            return f"{self.name} <= {format_seconds(self.seconds)}"
        return f"{format_fraction(self.quantile)} with {self.each}"

    @property
    def allowed(self) -> float:
        """The share of the requests that may miss it."""
        # Rounded: 1 - 0.99 is not quite 0.01.
        return round(1 - self.quantile, 12)

    @property
    def name(self) -> str:
        """``p99``."""
        return f"p{round(100 * self.quantile, 6):g}"

    @property
    def limits(self) -> dict[str, float]:
        """What each request may take at most, in seconds by the names of the times."""
        return {"latency": self.seconds} if self.each is None else self.each.limits


@dataclass(frozen=True, slots=True)
class Probe:
    """A rate that was tried.

    Args:
        rate: Requests a second that were due.
        finding: What it showed.
        seconds: Measured time.
        requests: Requests that were answered or failed in it.
        slow: Those of them that missed what is asked of each, or failed.
        effective: Independent requests that would carry as much information; see ``gate.share``.
        latency: The objective's quantile in seconds; None where too few were answered, or it is not limited.
        reason: What else than these times decided it, or kept it from being decided; empty for nothing.
        client: Why the client may have been what was measured; empty where it was not.
        ttft: As the latency.
        tpot: As the latency.
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
    ttft: float | None = None
    tpot: float | None = None

    @property
    def share(self) -> float:
        """Of slow requests; 1 where nothing was answered at all."""
        return self.slow / self.requests if self.requests else 1.0


@dataclass(frozen=True, slots=True)
class Search:
    """The probes of one start of a server for an objective, in the order in which they were made."""

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
