"""When a paired comparison is looked at, and how strict its looks and a run's claims are, so that the level is kept.

The levels of the looks spend ``alpha * sqrt(t)`` of the error by the time a share t of the planned rounds is measured
(K. K. G. Lan and D. L. DeMets, Biometrika 70, 1983, 659-663). They are fixed numbers: a look that is not taken loses
its share and gives it to no other, so nothing that was seen can move a level.

The more a run compares, the surer each REGRESSED has to be. A test's outcome is due when the test ends, so a claim
cannot wait for the claims after it as in Holm's step-down (Scandinavian Journal of Statistics 6, 1979, 65-70). `Family`
gives his thresholds in the order of time: with M planned comparisons and r claims already upheld, the next one is
upheld if its p-value is at most ``alpha / (M - r)``. Until the first wrong claim all r upheld ones are right, so M - r
counts at least the comparisons that can still be claimed wrongly; with n of these, a wrong claim takes a p-value of at
most ``alpha / n`` among n, whatever the order. So it upholds all that Bonferroni does and nothing that Holm does not,
and it upholds just what Holm does if claims that were not upheld are asked again.

A claim that is not upheld yet is no PASS: it is measured on. A regression is upheld at a later look, chance goes away.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.gate.metric import COLD_START

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_gpuserve.gate.metric import Metric
    from pytest_gpuserve.gate.verdict import Evidence


ALPHA: Final = 0.05
"""Most false claims of one kind over all looks of one comparison."""

BLOCKS: Final = 6
"""Blocks of a full round."""

FIRST_BLOCKS: Final = 3
"""Blocks of the first round before the first look."""

FIRST_WORTH: Final = 2.0
"""The first round ends with its first look where at most so many blocks are worth a start.

See `paired.blocks_worth_a_start`. Fewer than were measured, for so few tell little of their own spread.
"""

LOOKS: Final[tuple[tuple[int, int], ...]] = ((1, FIRST_BLOCKS), *((rounds, BLOCKS) for rounds in range(1, 9)))
"""Each look, as the rounds begun and the blocks measured of the last; the first round may end with the first look."""

_LEVELS: Final[Mapping[float, tuple[float, ...]]] = {
    0.05: (0.01289, 0.01073, 0.01114, 0.01091, 0.01118, 0.01111, 0.01217, 0.01219, 0.01249),
    0.025: (0.00633, 0.00475, 0.00506, 0.00504, 0.00496, 0.00531, 0.00574, 0.00531, 0.00605),
    0.01: (0.00264, 0.00164, 0.00192, 0.00190, 0.00184, 0.00178, 0.00200, 0.00183, 0.00209),
}

_TAIL_FROM: Final = 0.99

_SECOND_ROUND: Final = LOOKS.index((2, BLOCKS))


@dataclass(frozen=True)
class LookResult:
    """One look that was taken.

    Attributes:
        look: Its place in `LOOKS`.
        p_regressed: Of the evidence that a claim rests on at that look.
        p_pass: See `Evidence`.
        p_improved: As ``p_regressed``.

    Raises:
        ValueError: There is no such look, or a p-value lies outside 0 to 1.
    """

    look: int
    p_regressed: float
    p_pass: float
    p_improved: float

    def __post_init__(self) -> None:
        if not 0 <= self.look < len(LOOKS):
            raise ValueError(f"there are {len(LOOKS)} looks, and none is number {self.look}")
        for name in ("p_regressed", "p_pass", "p_improved"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must lie between 0 and 1, not {getattr(self, name)}")

    @classmethod
    def of(cls, look: int, evidence: Evidence, claim: Evidence) -> LookResult:
        """What a look keeps: of the plain evidence how well it passes, of a claim's evidence the rest."""
        return cls(look, claim.p_regressed, evidence.p_pass, claim.p_improved)


def look_index(rounds: int, blocks_in_last_round: int) -> int | None:
    """Which look is due after so many rounds and so many blocks of the last one; None between looks."""
    place = (rounds, blocks_in_last_round)
    return LOOKS.index(place) if place in LOOKS else None


def first_look(metric: Metric) -> int:
    """The first look that a metric takes part in.

    A p99 of three blocks rests on too few requests. A cold start takes two rounds: the first
    start of all may find its files on the disk, which the other server then finds in memory, so the first round is left
    out where there is a second (`comparison.side_by_side.judged_rounds`).
    """
    if metric.name == COLD_START:
        return _SECOND_ROUND
    return 1 if metric.quantile is not None and metric.quantile >= _TAIL_FROM else 0


def levels(alpha: float = ALPHA, looks: int = len(LOOKS)) -> tuple[float, ...]:
    """One-sided level of each look.

    Args:
        alpha: Most false claims of one kind over all looks.
        looks: How many there are; for any but the planned ones, as for any but the tabulated alphas (.05, .025, .01),
            each look has an equal share, which is valid whenever the looks are, and needs some 15 % more windows.

    Raises:
        ValueError: Alpha does not lie between 0 and 0.5, or there is no look.
    """
    _check_alpha(alpha)
    if looks < 1:
        raise ValueError(f"a sequence has at least one look, not {looks}")
    if looks == len(LOOKS) and alpha in _LEVELS:
        return _LEVELS[alpha]
    return (alpha / looks,) * looks


def adjusted_p(seen: Sequence[LookResult], *, improved: bool = False) -> float:
    """One p-value of REGRESSED for a whole sequence: the smallest alpha whose levels one of the looks was below.

    The levels of an alpha without a table are equal shares. To scale those of .05 down instead would not be valid:
    looks agree less about the far tail, and 32 exact nulls tested at .05/32 each would claim .07 of runs.

    Args:
        seen: The looks that were taken, in any order; none is a p-value of 1.
        improved: Whether it is that of IMPROVED.
    """
    found = [(look.look, look.p_improved if improved else look.p_regressed) for look in seen]
    equal_shares = (len(LOOKS) * p for _, p in found)
    tabulated = (alpha for alpha, at_most in _LEVELS.items() for look, p in found if p <= at_most[look])
    return min((1.0, *equal_shares, *tabulated))


@dataclass(frozen=True)
class Family:
    """The comparisons of one run that can claim a regression.

    Attributes:
        planned: How many there are, or may be; at least one. To be known before the first claim.
        upheld: How many claims were upheld so far.
        alpha: How likely any claim of the run may be wrong.

    Raises:
        ValueError: None is planned, more are upheld than planned, or alpha does not lie between 0 and 0.5.
    """

    planned: int
    upheld: int = 0
    alpha: float = ALPHA

    def __post_init__(self) -> None:
        if self.planned < 1:
            raise ValueError(f"a family has at least one comparison, not {self.planned}")
        if not 0 <= self.upheld <= self.planned:
            raise ValueError(f"of {self.planned} comparisons {self.upheld} cannot be upheld")
        _check_alpha(self.alpha)

    @property
    def threshold(self) -> float:
        """Largest adjusted p-value at which the next claim is upheld."""
        return self.alpha / max(1, self.planned - self.upheld)

    def upholds(self, adjusted_p: float) -> bool:
        """Whether a claim with this p-value, adjusted for its looks (`adjusted_p`), is upheld."""
        return adjusted_p <= self.threshold

    def with_claim(self) -> Family:
        """The family after one more upheld claim, which was planned or counts as if it had been."""
        return replace(self, planned=max(self.planned, self.upheld + 1), upheld=self.upheld + 1)

    def at_least(self, planned: int) -> Family:
        """The family when there turn out to be more comparisons; what was upheld before stays upheld."""
        return replace(self, planned=max(self.planned, planned))


def _check_alpha(alpha: float) -> None:
    if not 0 < alpha < 0.5:
        raise ValueError(f"alpha must lie between 0 and 0.5, not {alpha}")
