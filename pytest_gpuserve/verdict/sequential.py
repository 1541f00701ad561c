"""Looks of a paired comparison and their levels, which together keep the level of the whole comparison.

The levels of the looks spend ``alpha * sqrt(t)`` of the error by the time a share t of the planned rounds is measured
(K. K. G. Lan and D. L. DeMets, Biometrika 70, 1983, 659-663). The levels are fixed numbers. A look that is not taken
loses its share and gives it to no other, so no observation can move a level. Other comparisons of the run cannot
either.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from pytest_gpuserve.verdict.metric import COLD_START

if TYPE_CHECKING:
    from pytest_gpuserve.verdict.metric import Metric


class Levels(NamedTuple):
    """One-sided levels of one look.

    Attributes:
        within: Level of a PASS.
        claim: Level of REGRESSED, and of IMPROVED.
    """

    within: float
    claim: float


PASS_ALPHA: Final = 0.05
"""Largest share of wrong PASSes over all looks of one comparison."""

CLAIM_ALPHA: Final = 0.025
"""Largest share of wrong claims of one kind over all looks of one comparison, for any number of comparisons in a
run."""

BLOCKS: Final = 6
"""Blocks of a full round."""

FIRST_BLOCKS: Final = 3
"""Blocks of the first round before the first look."""

FIRST_WORTH: Final = 2.0
"""Round 1 ends with its first look if the optimal number of blocks per start is at most this.

The optimal number is `paired.blocks_worth_a_start`. This limit is below the measured blocks, because so few blocks tell
little of their own spread.
"""

LOOKS: Final[tuple[tuple[int, int], ...]] = ((1, FIRST_BLOCKS), *((rounds, BLOCKS) for rounds in range(1, 9)))
"""Looks, as (rounds begun, blocks measured of the last round); round 1 may end with the first look."""

LEVELS: Final[tuple[Levels, ...]] = tuple(
    map(
        Levels,
        (0.01289, 0.01073, 0.01114, 0.01091, 0.01118, 0.01111, 0.01217, 0.01219, 0.01249),
        (0.00633, 0.00475, 0.00506, 0.00504, 0.00496, 0.00531, 0.00574, 0.00531, 0.00605),
    )
)
"""Levels of each look: shares of `PASS_ALPHA` and of `CLAIM_ALPHA`."""

_TAIL_FROM: Final = 0.99

_SECOND_ROUND: Final = LOOKS.index((2, BLOCKS))


def look_index(rounds: int, blocks_in_last_round: int) -> int | None:
    """Index of the look that is due after so many rounds and blocks of the last round; None between looks."""
    place = (rounds, blocks_in_last_round)
    return LOOKS.index(place) if place in LOOKS else None


def first_look(metric: Metric) -> int:
    """The first look that a metric takes part in.

    A p99 of three blocks rests on too few requests. A cold start takes two rounds, because the first start of all may
    read its files from disk while the other server finds them in memory. So the first of two rounds is left out
    (`compare.side_by_side.judged_rounds`).
    """
    if metric.name == COLD_START:
        return _SECOND_ROUND
    return 1 if metric.quantile is not None and metric.quantile >= _TAIL_FROM else 0
