"""The cold start, which has one number a start: the gate's errors, by counting."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from functools import partial
from random import Random
from typing import TYPE_CHECKING

import pytest

from pytest_gpuserve.measure.rounds import ArmResult, round_point
from pytest_gpuserve.verdict.metric import METRICS
from pytest_gpuserve.verdict.paired import default_prior, paired_evidence
from pytest_gpuserve.verdict.sequential import LEVELS, LOOKS, first_look
from pytest_gpuserve.verdict.verdict import Verdict
from tests.support.counting import short_and_long
from tests.support.rounds import round_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpuserve.measure.rounds import Arm
    from pytest_gpuserve.verdict.paired import RoundPoint

    Court = Callable[[float, int], Verdict]

COLD_START = METRICS["cold_start"]
START_SD = 0.05
"""Spread of log seconds between the starts of one build."""

FROM_DISK = 2.0
"""How many times as long the first start of all takes whose files nobody has read yet."""

EMPTY = round_of([0.0])

WRONG = 0.05
"""Most claims that chance may make, and most passes at the edge of the tolerance."""


def shares(court: Court, change: float, count: int) -> dict[Verdict, float]:
    """Share of each verdict for a build with this change, in runs with seeds from 0 on."""
    counted = Counter(court(change, seed) for seed in range(count))
    return {verdict: counted[verdict] / count for verdict in Verdict}


def start_side_by_side(change: float, seed: int, first: float = 1.0) -> Verdict:
    """What a comparison comes to that measures on until it is decided; its first round is left out.

    Args:
        change: Of the candidate's cold start against the base's, as a fraction.
        seed: Its luck, also of the order of the two.
        first: How many times as long the first start of all takes.
    """
    random = Random(f"cold {change} {first} {seed}")
    tolerance = COLD_START.default_tolerance
    prior, growth = default_prior(COLD_START), COLD_START.growth(tolerance)
    points: list[RoundPoint] = []
    for (rounds, _), levels in zip(LOOKS[first_look(COLD_START) :], LEVELS[first_look(COLD_START) :], strict=True):
        while len(points) < rounds:
            seconds = [10.0 * math.exp(random.gauss(0.0, START_SD)) for _ in range(2)]
            seconds[1] *= 1 + change
            if not points:
                seconds[random.randrange(2)] *= first
            sides: dict[Arm, ArmResult] = {"base": ArmResult((seconds[0],)), "candidate": ArmResult((seconds[1],))}
            points.append(round_point(COLD_START, replace(EMPTY, sides=sides), tolerance))
        verdict = paired_evidence(COLD_START, points[1:], prior, most_growth=growth, levels=levels).verdict
        if verdict is not Verdict.INCONCLUSIVE:
            return verdict
    return Verdict.INCONCLUSIVE


start_from_disk = partial(start_side_by_side, first=FROM_DISK)
"""The same where one of the two finds its files on the disk at the first start of all."""


@short_and_long(60, 300)
@pytest.mark.parametrize("court", [start_side_by_side, start_from_disk])
def test_the_gate_is_hardly_ever_wrong(court: Court, count: int) -> None:
    """Identical builds pass, 50 % slower ones are found, few pass at the edge, also if the first start reads a disk."""
    same, worse, edge = (shares(court, change, count) for change in (0.0, 0.5, COLD_START.default_tolerance))
    assert same[Verdict.REGRESSED] + same[Verdict.IMPROVED] <= WRONG
    assert same[Verdict.PASS] >= 0.9
    assert worse[Verdict.PASS] + worse[Verdict.IMPROVED] == 0
    assert worse[Verdict.REGRESSED] >= 0.99
    assert edge[Verdict.PASS] + edge[Verdict.IMPROVED] <= WRONG + 0.02
