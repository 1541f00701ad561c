"""How far the metrics of a comparison side by side have come, and the rounds as each look sees them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.gate.metric import COLD_START
from pytest_gpuserve.gate.sequential import LOOKS, Seen, levels
from pytest_gpuserve.gate.verdict import Verdict
from pytest_gpuserve.measure.points import TooFewRequests
from pytest_gpuserve.measure.rounds import round_point

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpuserve.gate.metric import Metric
    from pytest_gpuserve.gate.paired import RoundPoint
    from pytest_gpuserve.measure.rounds import Round
    from pytest_gpuserve.store.sequence import KeptMetric

FIRST_BLOCKS: Final = LOOKS[0][1]
"""Blocks before the first look."""


@dataclass
class Course:
    """How far one metric has come.

    Args:
        tolerance: It was asked with.
        seen: Its looks so far.
        decision: What they decided; None for nothing yet.
        decided_at: The look that decided.
        is_kept: Whether an earlier try of the run decided.
        remark: What has to be told of it beside the verdict.
    """

    tolerance: float
    seen: list[Seen]
    decision: Verdict | None = None
    decided_at: int | None = None
    is_kept: bool = False
    remark: str = ""

    @classmethod
    def of(cls, kept: KeptMetric) -> Course:
        """How far an earlier try had come."""
        seen, remark = list(kept.looks), ""
        for look in seen:
            if kept.decision is not Verdict.REGRESSED and said_alone(look) is Verdict.REGRESSED:
                remark = f"REGRESSED by itself after {in_rounds(LOOKS[look.look][0])} of an earlier try, but not upheld"
        if kept.decision is None or not seen:
            return cls(kept.tolerance, seen, remark=remark)
        return cls(kept.tolerance, seen, kept.decision, seen[-1].look, is_kept=True, remark=remark)


def said_alone(look: Seen) -> Verdict:
    """What a look that decided nothing said by itself: it may have been a claim that was not upheld."""
    claims = look.p_regressed < levels()[look.look] <= look.p_pass
    return Verdict.REGRESSED if claims else Verdict.INCONCLUSIVE


def rounds_until(rounds: Sequence[Round], look: int) -> Sequence[Round]:
    """The rounds as they were at a look."""
    count, blocks = LOOKS[look]
    if look == 0:
        return [replace(rounds[0], blocks=rounds[0].blocks[:blocks])]
    return list(rounds[:count])


def judged_rounds(metric: Metric, rounds: Sequence[Round]) -> Sequence[Round]:
    """The rounds that a metric is judged by, and its values are of.

    Of cold starts the first round is left out where there is another: who starts first of all reads from the disk what
    the others find in memory.
    """
    return rounds[1:] if metric.name == COLD_START and len(rounds) > 1 else rounds


def points_of(metric: Metric, rounds: Sequence[Round], tolerance: float) -> list[RoundPoint]:
    """The rounds as they are judged.

    A first round that ended after three blocks, because its servers had to make room or the run ended, has too few
    requests for many a quantile; that must not keep all later rounds from being judged.
    """
    rounds = judged_rounds(metric, rounds)
    points = []
    for measured in rounds:
        try:
            points.append(round_point(metric, measured, tolerance))
        except TooFewRequests:
            if len(rounds) == 1 or len(measured.blocks) != FIRST_BLOCKS:
                raise
    return points


def windows_of(rounds: Sequence[Round]) -> int:
    """How many windows rounds have, of both servers together."""
    return sum(len(block.windows) for measured in rounds for block in measured.blocks)


def in_rounds(count: int) -> str:
    """A number of rounds in words: ``3 rounds``."""
    return f"{count} round{'s' if count != 1 else ''}"
