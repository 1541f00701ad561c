"""Comparisons of simulated builds, judged look by look as the gate does, on machines whose noise is a seeded model.

On the scale of log cost every server start has an offset. What is left of a window is drift, in which neighbours in
time are alike (AR(1)), the window's own noise, both with the heavy tails of Student's t with 4 degrees of freedom, and
now and then a stall, of exponential size. Servers that alternate share the drift, not the starts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pytest
from numpy.typing import NDArray

from pytest_gpuserve.verdict.evidence import (
    BLOCKS,
    FIRST_BLOCKS,
    FIRST_WORTH,
    LEVELS,
    LOOKS,
    Levels,
    Prior,
    RoundPoint,
    blocks_worth_a_start,
    default_prior,
    learn_prior,
    paired_evidence,
)
from pytest_gpuserve.verdict.metric import METRICS, Growth
from pytest_gpuserve.verdict.verdict import Verdict

Differences = Sequence[Sequence[float]]
Numbers = NDArray[np.float64]


THROUGHPUT: Final = METRICS["throughput"]
GROWTH: Final = Growth(0.05)
ROUNDS: Final = LOOKS[-1][0]
WINDOWS_OF_A_BLOCK: Final = 4
WINDOWS_OF_A_ROUND_START: Final = 20
"""Cost of starting both servers and warming them up, in windows."""

PRIOR_DOF: Final = 12


@dataclass(frozen=True)
class Comparison:
    """A comparison that has not begun: all that its rounds would measure, and what is believed before."""

    differences: Differences
    prior: Prior

    def slowed(self, slowdown: float) -> Comparison:
        """The same with a candidate whose cost is higher by this fraction."""
        added = math.log1p(slowdown)
        return Comparison([[each + added for each in round_] for round_ in self.differences], self.prior)

    def looks(self) -> Iterator[tuple[tuple[RoundPoint, ...], Levels]]:
        """Points that are known at each look, with the look's levels."""
        full: list[RoundPoint] = []
        for (rounds, blocks), levels in zip(LOOKS, LEVELS, strict=True):
            point = RoundPoint(tuple(self.differences[rounds - 1][:blocks]))
            if blocks == BLOCKS:
                full.append(point)
            yield (tuple(full) if blocks == BLOCKS else (*full, point)), levels


@dataclass(frozen=True)
class End:
    """How a comparison ended.

    Attributes:
        verdict: The outcome.
        slower: Whether it was shown to be slower: REGRESSED, or PASS with the remark that it is within the tolerance.
        windows: Length of the comparison in windows.
    """

    verdict: Verdict
    slower: bool
    windows: int


def comparisons(noise: Noise, count: int, *, believed: Noise | None = None) -> list[Comparison]:
    """Comparisons of identical builds, the same on every call.

    Args:
        noise: The machine.
        count: How many.
        believed: The machine that the priors were learned on, by default the same.
    """
    random = np.random.default_rng(20240501)
    differences = noise.block_differences(random, count, rounds=ROUNDS, blocks=BLOCKS).tolist()
    true = (believed or noise).start_pair_variance
    variances = true * random.chisquare(PRIOR_DOF, count) / PRIOR_DOF
    return [
        Comparison(rounds, Prior(variance, PRIOR_DOF))
        for rounds, variance in zip(differences, variances.tolist(), strict=True)
    ]


def by_default(noise: Noise, count: int) -> list[Comparison]:
    """The same where nothing was learned."""
    return [replace(each, prior=default_prior(THROUGHPUT)) for each in comparisons(noise, count)]


def with_history(noise: Noise, count: int, *, sessions: int, past: int) -> list[Comparison]:
    """Comparisons of identical builds whose priors were learned on the same machine.

    Args:
        noise: The machine.
        count: How many.
        sessions: Stored sessions of two starts each.
        past: Past comparisons of two rounds each.
    """
    random = np.random.default_rng(20240502)
    stored = random.normal(0.0, noise.start_sd, (count, sessions, 2)).tolist()
    before = noise.block_differences(random, count * past, rounds=2, blocks=BLOCKS).reshape(count, past, 2, BLOCKS)
    return [
        replace(comparison, prior=learn_prior(THROUGHPUT, costs, [[RoundPoint(tuple(r)) for r in c] for c in rounds]))
        for comparison, costs, rounds in zip(comparisons(noise, count), stored, before.tolist(), strict=True)
    ]


def outcome(
    comparison: Comparison,
    growth: Growth = GROWTH,
    start_windows: int = WINDOWS_OF_A_ROUND_START,
    *,
    may_end_early: bool = False,
) -> End:
    """Look until it is decided.

    Args:
        comparison: Measurements of the rounds.
        growth: Growth of the cost that is tolerated.
        start_windows: Cost of starting both servers, in windows.
        may_end_early: Whether the first round ends early where another start tells more.
    """
    verdict, slower, windows = Verdict.INCONCLUSIVE, False, 0
    early: tuple[RoundPoint, ...] = ()
    for (rounds, blocks), (points, levels) in zip(LOOKS, comparison.looks(), strict=True):
        if may_end_early and (rounds, blocks) == (1, FIRST_BLOCKS):
            (first,) = points
            worth = blocks_worth_a_start(first, comparison.prior, start_in_blocks=start_windows / WINDOWS_OF_A_BLOCK)
            early = points if worth <= FIRST_WORTH else ()
        elif rounds == 1 and early:
            continue
        known = (*early, *points[1:]) if early else points
        measured = sum(len(point.differences) for point in known)
        windows = rounds * start_windows + measured * WINDOWS_OF_A_BLOCK
        evidence = paired_evidence(THROUGHPUT, known, comparison.prior, most_growth=growth, levels=levels)
        verdict = evidence.verdict
        if verdict is not Verdict.INCONCLUSIVE:
            slower = verdict is Verdict.REGRESSED or evidence.slower_within_tolerance
            break
    return End(verdict, slower, windows)


TAIL_DOF: Final = 4

TURNS: Final = 4
"""Windows of a block, ABBA or BAAB."""


@dataclass(frozen=True)
class Noise:
    """One kind of machine. Standard deviations are of log cost: .01 is 1 %.

    Attributes:
        name: For tests and tables.
        start_sd: Between server starts of one build.
        drift_sd: Standard deviation of the drift at any one window.
        drift_rho: Correlation of the drift of neighbouring windows.
        own_sd: Standard deviation of the noise that one window has alone.
        stall_share: Share of windows with a stall.
        stall_size: Mean size of a stall.
    """

    name: str
    start_sd: float
    drift_sd: float
    drift_rho: float
    own_sd: float
    stall_share: float
    stall_size: float

    @property
    def start_pair_variance(self) -> float:
        """Variance of the difference of two starts: what a prior is about."""
        return 2 * self.start_sd**2

    def with_start_sd(self, start_sd: float) -> Noise:
        """The same machine with another spread of starts."""
        return replace(self, start_sd=start_sd)

    def block_differences(self, random: np.random.Generator, comparisons: int, *, rounds: int, blocks: int) -> Numbers:
        """Block differences of log cost between two starts of one build, with a fair coin for ABBA or BAAB.

        Returns:
            Of shape (comparisons, rounds, blocks).
        """
        windows = self._windows(random, (comparisons, rounds), blocks * TURNS)
        windows = windows.reshape(comparisons, rounds, blocks, TURNS)
        inner_minus_outer = (windows[..., 1] + windows[..., 2] - windows[..., 0] - windows[..., 3]) / 2
        coins = random.choice((-1.0, 1.0), size=inner_minus_outer.shape)
        starts = random.normal(0.0, math.sqrt(self.start_pair_variance), (comparisons, rounds, 1))
        differences: Numbers = coins * inner_minus_outer + starts
        return differences

    def _windows(self, random: np.random.Generator, shape: tuple[int, int], count: int) -> Numbers:
        """Drift, own noise and stalls of ``count`` windows in a row."""
        innovations = self.drift_sd * _heavy_tailed(random, (count, *shape))
        drift = np.empty_like(innovations)
        drift[0] = innovations[0]
        fresh = math.sqrt(1 - self.drift_rho**2)
        for at in range(1, count):
            drift[at] = self.drift_rho * drift[at - 1] + fresh * innovations[at]
        own = self.own_sd * _heavy_tailed(random, (*shape, count))
        stalls = random.exponential(self.stall_size, (*shape, count)) * (
            random.random((*shape, count)) < self.stall_share
        )
        windows: Numbers = np.moveaxis(drift, 0, -1) + own + stalls
        return windows


def _heavy_tailed(random: np.random.Generator, shape: tuple[int, ...]) -> Numbers:
    """Student's t, scaled to a standard deviation of 1."""
    draws: Numbers = random.standard_t(TAIL_DOF, shape) / math.sqrt(TAIL_DOF / (TAIL_DOF - 2))
    return draws


QUIET: Final = Noise("quiet", 0.003, 0.01, 0.3, 0.005, 0.005, 0.10)
TYPICAL: Final = Noise("typical", 0.006, 0.02, 0.3, 0.01, 0.02, 0.15)
NOISY: Final = Noise("noisy", 0.01, 0.03, 0.8, 0.015, 0.04, 0.20)

NOISES: Final = (QUIET, TYPICAL, NOISY)


def short_and_long(short: int, long: int) -> pytest.MarkDecorator:
    """Run a test with a number of runs that takes a second, and by name with one that takes a minute."""
    return pytest.mark.parametrize(
        "count", [pytest.param(short, id="short"), pytest.param(long, id="long", marks=pytest.mark.slow)]
    )


def chance(rate: float, count: int) -> float:
    """Twice the standard error of a rate that was counted."""
    return 2 * math.sqrt(rate * (1 - rate) / count)
