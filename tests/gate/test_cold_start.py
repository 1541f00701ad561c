"""Cold starts are gated by one number a start: how often that is wrong, and what it finds, by counting."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from random import Random
from typing import TYPE_CHECKING

import pytest

from pytest_gpuserve.gate.metric import METRICS
from pytest_gpuserve.gate.verdict import Verdict
from pytest_gpuserve.measure.rounds import Side
from tests.fakes.scripted_pairing import ScriptedPairing, a_comparison, round_of
from tests.gate.counted_verdicts import against_three, beside, shares
from tests.support.builders import session, start

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpuserve.measure.rounds import Round
    from pytest_gpuserve.measure.window import Session

COLD_START = METRICS["cold_start"]
TOLERANCE = COLD_START.default_tolerance
START_SD = 0.05
"""Spread of log seconds between the starts of one build."""

RUNS = 300
WRONG = 0.05
"""Most claims that chance may make, and most passes at the edge of the tolerance."""

FROM_DISK = 2.0
"""How many times as long the first start of all takes whose files nobody has read yet."""

EMPTY = round_of([0.0])


def side_by_side(change: float, seed: int, first: float = 1.0) -> Verdict:
    """What a comparison comes to that measures on until it is decided; its first round is left out.

    Args:
        change: Of the candidate's cold start against the base's, as a fraction.
        seed: Its luck, also of the order of the two.
        first: How many times as long the first start of all takes.
    """
    random = Random(f"cold {change} {first} {seed}")

    def measured(number: int) -> Round:
        seconds = [10.0 * math.exp(random.gauss(0.0, START_SD)) for _ in range(2)]
        seconds[1] *= 1 + change
        if number == 0:
            seconds[random.randrange(2)] *= first
        return replace(EMPTY, sides={"base": Side((seconds[0],)), "candidate": Side((seconds[1],))})

    return beside(COLD_START, measured, left_out=1)


from_disk = partial(side_by_side, first=FROM_DISK)
"""The same where one of the two finds its files on the disk at the first start of all."""


def by_baseline(change: float, seed: int) -> Verdict:
    """What the gate says of sessions of two starts each, against three recorded ones."""
    random = Random(f"stored {change} {seed}")

    def measured(growth: float) -> Session:
        seconds = [10.0 * (1 + growth) * math.exp(random.gauss(0.0, START_SD)) for _ in range(2)]
        return session(*(start(cold_start_seconds=each) for each in seconds))

    return against_three(COLD_START, measured, change)


@pytest.mark.parametrize(("court", "passes"), [(side_by_side, 0.9), (from_disk, 0.9), (by_baseline, 0.8)])
def test_an_identical_build_is_hardly_ever_called_changed(
    court: Callable[[float, int], Verdict], passes: float
) -> None:
    """And most of them pass."""
    found = shares(lambda seed: court(0.0, seed), RUNS)
    assert found[Verdict.REGRESSED] + found[Verdict.IMPROVED] <= WRONG
    assert found[Verdict.PASS] >= passes


@pytest.mark.parametrize(("court", "least"), [(side_by_side, 0.99), (from_disk, 0.99), (by_baseline, 0.8)])
def test_a_start_that_takes_half_as_long_again_never_passes(
    court: Callable[[float, int], Verdict], least: float
) -> None:
    """It is found, also where the first start of all would hide it: that round is left out."""
    found = shares(lambda seed: court(0.5, seed), RUNS)
    assert found[Verdict.PASS] + found[Verdict.IMPROVED] == 0
    assert found[Verdict.REGRESSED] >= least


@pytest.mark.parametrize("court", [side_by_side, from_disk])
def test_side_by_side_what_is_too_much_hardly_ever_passes(court: Callable[[float, int], Verdict]) -> None:
    """At the edge of the tolerance."""
    found = shares(lambda seed: court(TOLERANCE, seed), RUNS)
    assert found[Verdict.PASS] + found[Verdict.IMPROVED] <= WRONG + 0.02


def test_one_round_decides_nothing() -> None:
    """However large the difference: half of those two starts may be that one read from the disk."""
    comparison = a_comparison(ScriptedPairing())
    found: list[Verdict] = []
    while not found or found[-1] is Verdict.INCONCLUSIVE:
        comparison.more()
        found.append(comparison.judge(COLD_START, TOLERANCE).verdict)
    assert found[:2] == [Verdict.INCONCLUSIVE, Verdict.INCONCLUSIVE]
    assert found[-1] is Verdict.PASS
    assert 2 <= len(comparison.rounds) <= 3


def test_memory_of_servers_that_shared_the_card_is_invalid_and_says_what_helps() -> None:
    """Side by side it is neither passed nor measured on."""
    comparison = a_comparison(ScriptedPairing())
    comparison.more()
    judged = comparison.judge(METRICS["gpu_memory"], 0.02)
    assert judged.verdict is Verdict.INVALID
    assert "gpuserve(one_at_a_time=True)" in " ".join(judged.reasons)
