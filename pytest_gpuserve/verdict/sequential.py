"""When a paired comparison is looked at, and how strict each look is, so that the level of all looks is kept.

The levels of the looks spend ``alpha * sqrt(t)`` of the error by the time a share t of the planned rounds is measured
(K. K. G. Lan and D. L. DeMets, Biometrika 70, 1983, 659-663). They are fixed numbers: a look that is not taken loses
its share and gives it to no other, so nothing that was seen can move a level. Nor does what else a run compares.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from pytest_gpuserve.verdict.metric import COLD_START

if TYPE_CHECKING:
    from pytest_gpuserve.verdict.metric import Metric


class Levels(NamedTuple):
    """One-sided levels of one look.

    Attributes:
        within: Of a PASS.
        claim: Of REGRESSED, and of IMPROVED.
    """

    within: float
    claim: float


PASS_ALPHA: Final = 0.05
"""Most wrong PASSes over all looks of one comparison."""

CLAIM_ALPHA: Final = 0.025
"""Most wrong claims of one kind over all looks of one comparison, whatever else a run compares."""

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

LEVELS: Final[tuple[Levels, ...]] = tuple(
    map(
        Levels,
        (0.01289, 0.01073, 0.01114, 0.01091, 0.01118, 0.01111, 0.01217, 0.01219, 0.01249),
        (0.00633, 0.00475, 0.00506, 0.00504, 0.00496, 0.00531, 0.00574, 0.00531, 0.00605),
    )
)
"""Of each look: those of `PASS_ALPHA` and of `CLAIM_ALPHA`."""

_TAIL_FROM: Final = 0.99

_SECOND_ROUND: Final = LOOKS.index((2, BLOCKS))


def look_index(rounds: int, blocks_in_last_round: int) -> int | None:
    """Which look is due after so many rounds and so many blocks of the last one; None between looks."""
    place = (rounds, blocks_in_last_round)
    return LOOKS.index(place) if place in LOOKS else None


def first_look(metric: Metric) -> int:
    """The first look that a metric takes part in.

    A p99 of three blocks rests on too few requests. A cold start takes two rounds: the first
    start of all may find its files on the disk, which the other server then finds in memory, so the first round is left
    out where there is a second (`compare.side_by_side.judged_rounds`).
    """
    if metric.name == COLD_START:
        return _SECOND_ROUND
    return 1 if metric.quantile is not None and metric.quantile >= _TAIL_FROM else 0
