"""What a search for a capacity came to: probes of rates, and between which of them the highest good one lies."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pytest_gpuserve.measure.window import Session, Start

NEAR: Final = 1.5
"""Ratio of a probe's rate to the end of the interval, up to which it tells something of the share within."""

FIRST_SLOPE: Final = 10.0
MOST_STEPS: Final = 100
SMALL_STEP: Final = 1e-10
FARTHEST: Final = 500.0
"""Of the regression: where it begins and ends, and beyond which log odds are all the same."""


class Finding(str, Enum):
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
    finding: Finding
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
        missed = self._rates(Finding.MISSED)
        return max((rate for rate in self._rates(Finding.MET) if rate < min(missed, default=math.inf)), default=None)

    @property
    def high(self) -> float | None:
        """The lowest rate that was shown to miss the objective, above all that were shown to meet it; None for none."""
        met = self._rates(Finding.MET)
        return min((rate for rate in self._rates(Finding.MISSED) if rate > max(met, default=0.0)), default=None)

    @property
    def value(self) -> float | None:
        """The capacity, requests a second; None where an end of its interval is not known.

        Within the interval, where the share of slow requests is what the objective allows, by a regression of the share
        on the log rate in which the probes of the interval and those around it take part.
        """
        low, high = self.low, self.high
        if low is None or high is None:
            return None
        near = [probe for probe in self.probes if low / NEAR <= probe.rate <= high * NEAR]
        points = [(math.log(probe.rate), probe.share, probe.effective) for probe in near]
        found = crossing(points, self.objective.allowed)
        if found is None:
            return math.sqrt(low * high)
        # Twice, for the exponential of neither end is the very end.
        within = math.exp(min(max(found, math.log(low)), math.log(high)))
        return min(max(within, low), high)

    def at(self, rate: float | None, finding: Finding) -> list[Probe]:
        """The probes of a rate that showed this."""
        return [probe for probe in self.probes if probe.rate == rate and probe.finding is finding]

    def with_probe(self, probe: Probe) -> Search:
        """The search with one probe more."""
        return Search(self.objective, (*self.probes, probe))

    def _rates(self, finding: Finding) -> list[float]:
        return [probe.rate for probe in self.probes if probe.finding is finding]


def crossing(points: Sequence[tuple[float, float, float]], wanted: float) -> float | None:
    """Return where a share that rises with x is the wanted one, by logistic regression; None where it does not rise.

    It is how a dose is found (J. Berkson, "Application of the logistic function to bio-assay", Journal of the American
    Statistical Association 39, 1944, 357-365; D. J. Finney, "Probit Analysis", 3rd ed. 1971), with effective counts
    because requests cluster (P. McCullagh and J. A. Nelder, "Generalized Linear Models", 2nd ed. 1989, 4.5).

    Args:
        points: Each an x, the share there, and of how many independent requests.
        wanted: Inside (0, 1).
    """
    known = [(x, (weight * share + wanted) / (weight + 1), weight + 1) for x, share, weight in points]
    middle = math.fsum(x * weight for x, _, weight in known) / math.fsum(weight for _, _, weight in known)
    height, slope = math.log(wanted / (1 - wanted)), FIRST_SLOPE
    for _ in range(MOST_STEPS):
        # Newton's method for the log likelihood, whose only maximum it is.
        gradient, curvature = [0.0, 0.0], [0.0, 0.0, 0.0]
        for x, share, weight in known:
            away = x - middle
            fitted = 1 / (1 + math.exp(-max(-FARTHEST, min(FARTHEST, height + slope * away))))
            missing, spread = weight * (share - fitted), weight * fitted * (1 - fitted)
            gradient[0] += missing
            gradient[1] += missing * away
            curvature[0] += spread
            curvature[1] += spread * away
            curvature[2] += spread * away**2
        determinant = curvature[0] * curvature[2] - curvature[1] ** 2
        if determinant <= 0:
            return None
        up = (curvature[2] * gradient[0] - curvature[1] * gradient[1]) / determinant
        steeper = (curvature[0] * gradient[1] - curvature[1] * gradient[0]) / determinant
        # Far from it a whole step leads too far.
        part = min(1.0, 1.0 / max(abs(up), 1e-300), max(1.0, abs(slope)) / max(abs(steeper), 1e-300))
        height, slope = height + part * up, slope + part * steeper
        if abs(up) + abs(steeper) < SMALL_STEP * (1 + abs(slope)):
            break
    return middle + (math.log(wanted / (1 - wanted)) - height) / slope if slope > 0 else None


def searches_of(sessions: Sequence[Session]) -> list[Search]:
    """The searches of the starts of some sessions, in order."""
    return [start.search for session in sessions for start in session.starts if start.search is not None]


def is_searched(starts: Iterable[Start]) -> bool:
    """Whether starts were searched for their capacity, at many rates, so that no other number of a load holds."""
    return any(start.search is not None for start in starts)
