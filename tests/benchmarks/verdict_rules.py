"""Rules by which other tools call a build slower, on the log costs of single windows of each side.

None knows which windows share a server start. All that test "no change" do so one-sided at .05.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np
from pytest_benchmark.utils import PercentageRegressionCheck

from pytest_gpuserve.gate.student import t_upper_tail

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = NDArray[np.float64]

ALPHA: Final = 0.05
ASV_P: Final = 0.002
RESAMPLES: Final = 400
RUN: Final = 4
"""Neighbouring windows that a block bootstrap keeps together."""


class Rule(Protocol):
    """Tells from windows whether a candidate is slower."""

    @property
    def name(self) -> str:
        """For tables."""

    def alarms(self, base: Numbers, candidate: Numbers) -> bool:
        """Whether the candidate is called slower.

        Args:
            base: Log costs of the base's windows, in the order of time.
            candidate: Those of the candidate.
        """


@dataclass(frozen=True)
class MeanWorse:
    """pytest-benchmark's ``--benchmark-compare-fail=mean:5%``, by its own code: the means' ratio and nothing else."""

    growth: float

    @property
    def name(self) -> str:
        """For tables."""
        return f"pytest-benchmark, mean:{100 * self.growth:g}%"

    def alarms(self, base: Numbers, candidate: Numbers) -> bool:
        """See `Rule`."""
        check = PercentageRegressionCheck("mean", 100 * self.growth)  # type: ignore[no-untyped-call]
        now, then = ({"mean": float(np.exp(costs).mean())} for costs in (candidate, base))
        return check.fails(now, then) is not None  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class MannWhitney:
    """The candidate's windows rank higher than the base's."""

    name: str = "Mann-Whitney, p < .05"

    def alarms(self, base: Numbers, candidate: Numbers) -> bool:
        """See `Rule`."""
        return mann_whitney_p(base, candidate) < ALPHA


@dataclass(frozen=True)
class Asv:
    """asv's: the medians differ by more than a factor, and Mann-Whitney says so at p < .002, two-sided."""

    growth: float

    @property
    def name(self) -> str:
        """For tables."""
        return f"asv, factor {1 + self.growth:g}, p < .002"

    def alarms(self, base: Numbers, candidate: Numbers) -> bool:
        """See `Rule`."""
        beyond = np.median(candidate) - np.median(base) > math.log1p(self.growth)
        return bool(beyond) and 2 * mann_whitney_p(base, candidate) < ASV_P


@dataclass(frozen=True)
class Welch:
    """The candidate's mean is higher, by Welch's t-test."""

    name: str = "Welch, p < .05"

    def alarms(self, base: Numbers, candidate: Numbers) -> bool:
        """See `Rule`."""
        return welch_p(base, candidate) < ALPHA


@dataclass(frozen=True)
class BlockBootstrap:
    """The candidate's mean is higher in 95 of 100 resamples, in which neighbouring windows stay together."""

    name: str = "block bootstrap, 95 %"

    def alarms(self, base: Numbers, candidate: Numbers) -> bool:
        """See `Rule`."""
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


def rules(growth: float) -> tuple[Rule, ...]:
    """All of them, for a largest acceptable growth of the cost."""
    return MeanWorse(growth), MannWhitney(), Asv(growth), Welch(), BlockBootstrap()
