"""End of a server's warm-up: the truncation rule MSER-5, with a check that the kept part is steady.

MSER: K. P. White, "An effective truncation heuristic for bias reduction in simulation output", Simulation 69 (1997).
The "5" is the batch: five sub-windows of 0.1 s make one window of 0.5 s, and whole windows are cut.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpuserve.verdict.student import t_upper_tail

if TYPE_CHECKING:
    from collections.abc import Sequence

TREND_LEVEL = 0.02
"""Confidence in a change before a start is called unsteady (two-sided)."""

MATERIAL_CHANGE = 0.05
"""Changes below this share of the mean are never called unsteady.

Neighbouring windows of a busy machine resemble each other, so a test for independent ones sees small changes
everywhere. A very quiet machine shows real but tiny changes.
"""


@dataclass(frozen=True, slots=True)
class Truncation:
    """Number of windows to cut off the front, and whether the rest is steady."""

    discard: int
    steady: bool


def mser(values: Sequence[float]) -> int:
    """Return how many leading values to cut, at most half, for the most precise mean of the rest.

    Minimises ``sum((x_i - mean)**2) / (n - d)**2`` over the cut ``d``; the smallest of equal cuts.

    Raises:
        ValueError: There are fewer than two values, or one is not a number.
    """
    if len(values) < 2:
        raise ValueError("a truncation needs at least two windows")
    if not all(map(math.isfinite, values)):
        raise ValueError("a truncation needs numbers, not NaN or infinity")
    best, best_score = 0, math.inf
    for cut in range(len(values) // 2 + 1):
        kept = values[cut:]
        mean = statistics.fmean(kept)
        score = math.fsum((value - mean) ** 2 for value in kept) / len(kept) ** 2
        if score < best_score:
            best, best_score = cut, score
    return best


def truncate(values: Sequence[float]) -> Truncation:
    """Cut the warm-up off a series of window throughputs.

    A series is not steady if MSER would have cut more than half, because the discarded half differs from the kept one
    (Welch's t). It is not steady either if the kept part still rises or falls (t of its regression on time). To reach
    the cap is not enough: with few windows, one of six stationary series does.

    Raises:
        ValueError: There are fewer than two values, or one is not a number.
    """
    cut = mser(values)
    kept = values[cut:]
    at_cap = cut == len(values) // 2
    mean = statistics.fmean(kept)
    # As shares of the mean, because the limit of a change is one.
    trend = mean != 0 and drifts([value / mean for value in kept])
    return Truncation(cut, steady=not (trend or (at_cap and _differ(values[:cut], kept))))


def drifts(values: Sequence[float]) -> bool:
    """Whether logs, or shares of a mean, drift materially and by more than chance (t of their regression on time)."""
    count = len(values)
    if count < 3:
        return False
    slope, intercept = statistics.linear_regression(range(count), values)
    if abs(slope * (count - 1)) <= MATERIAL_CHANGE:
        return False
    left = math.fsum((value - intercept - slope * i) ** 2 for i, value in enumerate(values))
    spread = (count**3 - count) / 12
    return _sure(slope, left / (count - 2) / spread, count - 2)


def _differ(first: Sequence[float], second: Sequence[float]) -> bool:
    gap = statistics.fmean(first) - statistics.fmean(second)
    if len(first) < 2 or not _material(gap, second):
        return False
    parts = [statistics.variance(half) / len(half) for half in (first, second)]
    total = sum(parts)
    if total == 0:
        return True
    dof = total**2 / sum(part**2 / (len(half) - 1) for part, half in zip(parts, (first, second), strict=True))
    return _sure(gap, total, dof)


def _material(change: float, values: Sequence[float]) -> bool:
    return abs(change) > MATERIAL_CHANGE * abs(statistics.fmean(values))


def _sure(change: float, variance: float, dof: float) -> bool:
    """Whether a change is more than chance, by Student's t."""
    return variance <= 0 or 2 * t_upper_tail(abs(change) / math.sqrt(variance), dof) < TREND_LEVEL
