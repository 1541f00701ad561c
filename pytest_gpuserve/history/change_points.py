"""Where the level of a series changed: PELT on the log of its values, by the library ruptures.

The optimal partition of Killick, Fearnhead and Eckley (JASA 107, 2012, 1590-1598) minimises the squared distance to
each segment's mean, in units of the noise, plus a penalty a segment. The noise is estimated from the differences of
neighbours (Rice, Annals of Statistics 12, 1984, 1215-1230), which a few changes of level hardly touch.

The penalty was chosen by counting, on series without any change (4000 of each kind, 1500 from 100 points on), those in
which one was found, in percent; and on series with one change, those in which it was found within a point of where it
was (600 of each kind, normal noise), for changes of so many standard deviations of the noise:

    points                                   8    12    20    50   100   200
    flat, normal noise                     1.2   0.8   1.0   0.3   0.1   0.3
    flat, Student's t, 4 degrees           0.8   0.8   0.7   0.5   0.5   2.3
    flat, neighbours correlated by .3      4.0   6.8   8.8  12.5  13.4  18.5

    points, of which at the new level     8: 4  12: 3  20: 10  20: 3  50: 25  50: 3
    a change of 3                           43     52      94     65      97     75
    a change of 5                           80     95     100     99     100     99

So the rate holds where each point is a measurement by itself, as one a commit is. A slow drift of the machine is found
as changes of level, because it is nothing else.
"""

from __future__ import annotations

import importlib
import math
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.errors import UsageProblem

if TYPE_CHECKING:
    from collections.abc import Sequence

FEWEST_POINTS: Final = 8
"""With fewer, even a change of five times the noise would mostly be overlooked."""

SHORTEST: Final = 3
"""Points of a level; one odd value is none."""

PENALTY: Final = 11.0
PENALTY_GROWTH: Final = 1.5
"""The penalty is the first of them, plus the second times the log of the number of points."""

EXTRA: Final = "pip install 'pytest-gpuserve[history]'"


@dataclass(frozen=True, slots=True)
class Change:
    """A new level.

    Args:
        point: Position of its first point.
        before: The level before it, as geometric mean.
        after: The new level, likewise.
    """

    point: int
    before: float
    after: float

    @property
    def fraction(self) -> float:
        """The change as a fraction, by the sign of the value."""
        return self.after / self.before - 1


def demand_library() -> None:
    """See that what finds change points is installed.

    Raises:
        UsageProblem: It is not.
    """
    try:
        importlib.import_module("ruptures")
        importlib.import_module("numpy")
    except ImportError as problem:
        raise UsageProblem(
            "change points are found by the library ruptures, which is not installed",
            found=str(problem),
            remedies=[EXTRA, "draw the lines without them: --no-change-points"],
        ) from None


def changes_of(values: Sequence[float], *, smallest_sd: float) -> tuple[Change, ...]:
    """Find the points with which a new level begins.

    Args:
        values: Positive, oldest first.
        smallest_sd: Standard deviation of log values below which none is believed.

    Returns:
        The changes, in order; none where there are fewer than `FEWEST_POINTS` values.

    Raises:
        UsageProblem: The library is not installed.
    """
    if len(values) < FEWEST_POINTS:
        return ()
    logs = [math.log(value) for value in values]
    noise = max(noise_sd(logs), smallest_sd)
    # About the middle, because the library squares what it is given.
    middle = median(logs)
    ends = _segment_ends([(y - middle) / noise for y in logs], penalty(len(logs)))
    means = [math.exp(fmean(logs[begin:end])) for begin, end in pairwise([0, *ends])]
    return tuple(Change(end, *levels) for end, levels in zip(ends, pairwise(means), strict=False))


def noise_sd(logs: Sequence[float]) -> float:
    """Standard deviation about a level that may change now and then, from differences of neighbours."""
    squares = [(after - before) ** 2 for before, after in pairwise(logs)]
    return math.sqrt(fmean(squares) / 2)


def penalty(points: int) -> float:
    """What another level must gain, in squares of the noise's standard deviation."""
    return PENALTY + PENALTY_GROWTH * math.log(points)


def _segment_ends(scaled: Sequence[float], penalty_each: float) -> list[int]:
    demand_library()
    array = importlib.import_module("numpy").asarray(scaled, dtype=float).reshape(-1, 1)
    detector = importlib.import_module("ruptures").KernelCPD(kernel="linear", min_size=SHORTEST)
    return [int(end) for end in detector.fit_predict(array, pen=penalty_each)]
