"""Rules by which other tools call a build slower, on the log costs of single windows of each side.

None knows which windows share a server start. All that test "no change" do so one-sided at .05.
"""

from __future__ import annotations

import math
from functools import partial
from statistics import NormalDist
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
from pytest_benchmark.utils import PercentageRegressionCheck

from pytest_gpuserve.verdict.student import t_upper_tail

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Numbers: TypeAlias = NDArray[np.float64]
    Rule: TypeAlias = Callable[[Numbers, Numbers], bool]
    """Whether a candidate is called slower, by log costs of the base's and of its windows in the order of time."""

ALPHA: Final = 0.05
ASV_P: Final = 0.002
RESAMPLES: Final = 400
RUN: Final = 4
"""Neighbouring windows that a block bootstrap keeps together."""


def mean_worse(base: Numbers, candidate: Numbers, *, growth: float) -> bool:
    """pytest-benchmark's ``--benchmark-compare-fail=mean:5%``, by its own code: the means' ratio and nothing else."""
    check = PercentageRegressionCheck("mean", 100 * growth)  # type: ignore[no-untyped-call]
    now, then = ({"mean": float(np.exp(costs).mean())} for costs in (candidate, base))
    return check.fails(now, then) is not None  # type: ignore[no-untyped-call]


def mann_whitney(base: Numbers, candidate: Numbers) -> bool:
    """The candidate's windows rank higher than the base's."""
    return mann_whitney_p(base, candidate) < ALPHA


def asv(base: Numbers, candidate: Numbers, *, growth: float) -> bool:
    """asv's: the medians differ by more than a factor, and Mann-Whitney says so at p < .002, two-sided."""
    beyond = np.median(candidate) - np.median(base) > math.log1p(growth)
    return bool(beyond) and 2 * mann_whitney_p(base, candidate) < ASV_P


def welch(base: Numbers, candidate: Numbers) -> bool:
    """The candidate's mean is higher, by Welch's t-test."""
    return welch_p(base, candidate) < ALPHA


def block_bootstrap(base: Numbers, candidate: Numbers) -> bool:
    """The candidate's mean is higher in 95 of 100 resamples, in which neighbouring windows stay together."""
    random = np.random.default_rng(0)
    return bool(np.mean(_resampled_means(random, candidate) <= _resampled_means(random, base)) < ALPHA)


def _resampled_means(random: np.random.Generator, values: Numbers) -> Numbers:
    length = min(RUN, len(values))
    runs = math.ceil(len(values) / length)
    starts = random.integers(0, len(values) - length + 1, (RESAMPLES, runs, 1))
    places = (starts + np.arange(length)).reshape(RESAMPLES, -1)[:, : len(values)]
    means: Numbers = values[places].mean(axis=1)
    return means


def mann_whitney_p(base: Numbers, candidate: Numbers) -> float:
    """One-sided p-value that the candidate's values are no larger, by the normal approximation corrected for ties."""
    count, other = len(candidate), len(base)
    total = count + other
    _, place, ties = np.unique(np.concatenate([candidate, base]), return_inverse=True, return_counts=True)
    ranks = (np.cumsum(ties) - (ties - 1) / 2)[place]
    u = ranks[:count].sum() - count * (count + 1) / 2
    variance = count * other / 12 * (total + 1 - (ties**3 - ties).sum() / (total * (total - 1)))
    if variance <= 0:
        return 1.0
    return NormalDist().cdf(-(u - count * other / 2 - 0.5) / math.sqrt(variance))


def welch_p(base: Numbers, candidate: Numbers) -> float:
    """One-sided p-value that the candidate's mean is no larger (B. L. Welch, Biometrika 34, 1947, 28-35)."""
    parts = [float(values.var(ddof=1)) / len(values) for values in (base, candidate)]
    variance = sum(parts)
    difference = float(candidate.mean() - base.mean())
    if variance <= 0:
        return 0.0 if difference > 0 else 1.0
    df = variance**2 / sum(part**2 / (len(values) - 1) for part, values in zip(parts, (base, candidate), strict=True))
    return t_upper_tail(difference / math.sqrt(variance), df)


def rules(growth: float) -> dict[str, Rule]:
    """All of them by their names, for a largest acceptable growth of the cost."""
    return {
        f"pytest-benchmark, mean:{100 * growth:g}%": partial(mean_worse, growth=growth),
        "Mann-Whitney, p < .05": mann_whitney,
        f"asv, factor {1 + growth:g}, p < .002": partial(asv, growth=growth),
        "Welch, p < .05": welch,
        "block bootstrap, 95 %": block_bootstrap,
    }
