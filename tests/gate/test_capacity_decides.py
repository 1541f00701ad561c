"""What the gate comes to of searches of a simulated queue within ten minutes, by counting."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from dataclasses import replace
from functools import cache, partial
from random import Random
from typing import TYPE_CHECKING, Final

import pytest

from pytest_gpuserve.gate.metric import METRICS
from pytest_gpuserve.gate.paired import default_prior, paired_verdict
from pytest_gpuserve.gate.sequential import LOOKS, first_look, levels
from pytest_gpuserve.gate.stored import SessionPoint, judge_stored
from pytest_gpuserve.gate.verdict import Verdict
from pytest_gpuserve.measure.capacity import Objective, Search
from pytest_gpuserve.measure.rounds import ArmResult, round_point
from tests.fakes.scripted_pairing import round_of
from tests.fakes.simulated_queue import capacity_of_exponential, exponential, loaded_seconds, search_queue
from tests.support.counting import chance

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pytest_gpuserve.gate.paired import RoundPoint
    from pytest_gpuserve.measure.rounds import Arm

CAPACITY = METRICS["capacity"]
TOLERANCE = CAPACITY.default_tolerance
P95 = Objective(0.95, 0.060)
RATE = 150.0
"""Of a queue that can do 100 a second."""

BUDGET: Final = 600.0
OTHERWISE: Final = 7.0
FOR_EACH_RATE: Final = 0.4
"""Seconds of a start beside its loads, and of each load before its first tick and after its last."""

POOL: Final = 40
RUNS: Final = 400


@cache
def searched(rate: float, seed: int, arrivals: int) -> Search:
    """A search of a queue with this rate of service, around what that of a build before it was found to do."""
    known = capacity_of_exponential(RATE, P95)
    return search_queue(exponential(rate), P95, rate, Random(f"{rate} {seed} {arrivals}"), known=known, seed=arrivals)


def seconds_of(search: Search) -> float:
    """How long a start takes that is searched so."""
    return OTHERWISE + loaded_seconds(search) + FOR_EACH_RATE * len(search.probes)


@cache
def a_round(rate: float, number: int) -> tuple[RoundPoint, float]:
    """A round of two builds with the same arrivals, and how long it takes."""
    found: dict[Arm, Search] = {
        "base": searched(RATE, -1, number),
        "candidate": searched(rate, -2, number),
    }
    sides: dict[Arm, ArmResult] = {arm: ArmResult((1.0,), searches=(search,)) for arm, search in found.items()}
    measured = replace(round_of([0.0], by_turns=True), sides=sides)
    return round_point(CAPACITY, measured, TOLERANCE), sum(map(seconds_of, found.values()))


def session(rate: float, random: Random) -> tuple[SessionPoint, float]:
    """Two starts, whose arrivals are those of all sessions, and how long they take."""
    starts = [searched(rate, random.randrange(POOL), -1) for _ in range(2)]
    costs = [-math.log(search.value or math.nan) for search in starts]
    own = statistics.fmean(search.squared_error or math.nan for search in starts) / 2
    return SessionPoint("host-a", statistics.fmean(costs), own, 2), sum(map(seconds_of, starts))


def by_sessions(rate: float, random: Random) -> Iterator[tuple[Verdict, float]]:
    """What the gate says after each session, against three recorded ones."""
    stored = [session(RATE, random)[0] for _ in range(3)]
    now: list[SessionPoint] = []
    while len(now) < 6:
        point, seconds = session(rate, random)
        now.append(point)
        yield judge_stored(CAPACITY, stored, now, most_growth=CAPACITY.growth(TOLERANCE)).verdict, seconds


def by_rounds(rate: float, random: Random, pool: int = POOL) -> Iterator[tuple[Verdict, float]]:
    """What it says after each round side by side."""
    points: list[RoundPoint] = []
    for look in range(first_look(CAPACITY), len(LOOKS)):
        point, seconds = a_round(rate, random.randrange(pool))
        points.append(point)
        prior, level = default_prior(CAPACITY), levels()[look]
        yield paired_verdict(CAPACITY, points, prior, most_growth=CAPACITY.growth(TOLERANCE), level=level)[0], seconds


def shares(
    court: Callable[[float, Random], Iterator[tuple[Verdict, float]]], rate: float, runs: int = RUNS
) -> dict[Verdict, float]:
    """How often each verdict is reached within the budget."""
    counted: Counter[Verdict] = Counter()
    for seed in range(runs):
        spent, reached = 0.0, Verdict.INCONCLUSIVE
        for verdict, seconds in court(rate, Random(seed)):
            spent += seconds
            if spent > BUDGET:
                break
            reached = verdict
            if verdict is not Verdict.INCONCLUSIVE:
                break
        counted[reached] += 1
    return {verdict: counted[verdict] / runs for verdict in Verdict}


@pytest.mark.slow
@pytest.mark.parametrize(("court", "least"), [(by_sessions, 0.6), (by_rounds, 0.5)])
def test_most_identical_builds_pass_within_ten_minutes(
    court: Callable[[float, Random], Iterator[tuple[Verdict, float]]], least: float
) -> None:
    """Of a queue whose service times are all chance, the least regular server there is; hardly any is called worse."""
    found = shares(court, RATE)
    assert found[Verdict.PASS] >= least
    assert found[Verdict.REGRESSED] <= 0.05


@pytest.mark.slow
@pytest.mark.parametrize("court", [by_sessions, by_rounds])
def test_a_quarter_less_never_passes(court: Callable[[float, Random], Iterator[tuple[Verdict, float]]]) -> None:
    """And is called worse within ten minutes, nearly always."""
    found = shares(court, 0.75 * capacity_of_exponential(RATE, P95) + RATE - capacity_of_exponential(RATE, P95))
    assert found[Verdict.PASS] + found[Verdict.IMPROVED] == 0
    assert found[Verdict.REGRESSED] >= 0.9


EDGE_POOL: Final = 1000


@pytest.mark.slow
def test_a_loss_at_the_edge_hardly_ever_passes_side_by_side() -> None:
    """Of a thousand rounds at the edge of the tolerance, combined to comparisons, at most 5 of 100 PASS.

    Fewer rounds tell nothing of it: pools of 40 give .00 to .09.
    """
    # Of such a queue what is left of the rate of service at a latency is the same at every rate.
    rate = RATE - TOLERANCE * capacity_of_exponential(RATE, P95)
    assert capacity_of_exponential(rate, P95) == pytest.approx((1 - TOLERANCE) * capacity_of_exponential(RATE, P95))
    found = shares(partial(by_rounds, pool=EDGE_POOL), rate, runs=4 * EDGE_POOL)
    rounds_of_a_comparison = 2
    assert found[Verdict.PASS] + found[Verdict.IMPROVED] <= 0.05 + chance(0.05, EDGE_POOL // rounds_of_a_comparison)
