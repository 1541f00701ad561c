"""Where a share that rises with x is the wanted one, by logistic regression, and what each point has to do with that.

It is how a dose is found (J. Berkson, "Application of the logistic function to bio-assay", Journal of the American
Statistical Association 39, 1944, 357-365; D. J. Finney, "Probit Analysis", 3rd ed. 1971), with effective counts because
requests cluster (P. McCullagh and J. A. Nelder, "Generalized Linear Models", 2nd ed. 1989, 4.5). What a point has to do
with it is its influence: by how much the crossing moves with it, as far as a straight line tells (F. R. Hampel, "The
influence curve and its role in robust estimation", Journal of the American Statistical Association 69, 1974, 383-393).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

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
    """A share that was seen.

    Args:
        x: Where.
        share: From 0 to 1.
        weight: Of how many independent requests.
    """

    x: float
    share: float
    weight: float


@dataclass(frozen=True, slots=True)
class Crossing:
    """Where the share is the wanted one.

    Args:
        x: Where.
        influences: By how much each point, in their order, has moved it away from where the others would have it.
    """

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
    """Return where the share is the wanted one; None where it does not rise.

    Args:
        points: What was seen; at least one.
        wanted: Inside (0, 1).
    """
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
