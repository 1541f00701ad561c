"""What disturbed the turns of two servers side by side: what is measured again, and when that is too much."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.gate.sequential import BLOCKS
from pytest_gpuserve.measure.conditions import MOST_REJECTED_SHARE, WindowCondition, judge_windows

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytest_gpuserve.gate.reason import Reason
    from pytest_gpuserve.measure.rounds import Arm

MOST_AGAIN: Final = round(BLOCKS * MOST_REJECTED_SHARE / (1 - MOST_REJECTED_SHARE))
"""Blocks of a round that are measured again; with more of them too large a share of a whole round is lost."""


@dataclass
class Disturbed:
    """How the cards and the client were in the turns of a round.

    Args:
        conditions: In all turns, and whose they were; those of a block that is measured again for one of them have its
            reasons.
        again: How often was measured again.
    """

    conditions: list[tuple[Arm, WindowCondition]] = field(default_factory=list)
    again: int = 0

    def add(self, found: Iterable[tuple[Arm, WindowCondition]]) -> bool:
        """Take in the turns of a block, or one alone; whether they have to be measured again."""
        turns = list(found)
        rejected = tuple(dict.fromkeys(text for _, condition in turns for text in condition.rejected))
        client = tuple(dict.fromkeys(reason for _, condition in turns for reason in condition.client))
        self.conditions += [(arm, replace(condition, rejected=rejected, client=client)) for arm, condition in turns]
        again = bool(rejected or client)
        self.again += again
        return again

    def invalid(self) -> tuple[Reason, ...]:
        """Why they prove nothing, where all was never well for long."""
        if self.again <= MOST_AGAIN:
            return ()
        return judge_windows([condition for _, condition in self.conditions]).invalid

    def unknown(self) -> tuple[str, ...]:
        """What could not be seen."""
        return judge_windows([condition for _, condition in self.conditions]).unknown

    def reasons(self, of: Arm) -> tuple[str, ...]:
        """Why windows of a server were measured again, a text for each."""
        return tuple("; ".join(condition.again) for arm, condition in self.conditions if arm == of and condition.again)
