"""Comparisons of simulated builds on the machines of `noise_model`, judged look by look as the gate does."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from pytest_gpuserve.verdict.evidence import (
    BLOCKS,
    FIRST_BLOCKS,
    FIRST_WORTH,
    LEVELS,
    LOOKS,
    Prior,
    RoundPoint,
    blocks_worth_a_start,
    default_prior,
    learn_prior,
    paired_evidence,
)
from pytest_gpuserve.verdict.metric import METRICS, Growth
from pytest_gpuserve.verdict.verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_gpuserve.verdict.evidence import Levels
    from tests.fakes.noise_model import Noise

    Differences = Sequence[Sequence[float]]

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
