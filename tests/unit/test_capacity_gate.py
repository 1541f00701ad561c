"""Capacities are gated by one number a start: how often that is wrong, and what it finds, by counting."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

import pytest

from pytest_gpuserve.gate.metric import METRICS
from pytest_gpuserve.gate.occasions import withstand_drift
from pytest_gpuserve.gate.paired import default_prior, paired_verdict
from pytest_gpuserve.gate.sequential import LOOKS, first_look, levels
from pytest_gpuserve.gate.stored import LOOKS as SESSIONS
from pytest_gpuserve.gate.stored import SessionPoint, judge_stored
from pytest_gpuserve.gate.verdict import Verdict
from pytest_gpuserve.measure.capacity import Finding, Objective, Probe, Search
from pytest_gpuserve.measure.pairs import paired_value, round_point
from pytest_gpuserve.measure.points import NotMeasured, point, pooled_value
from pytest_gpuserve.measure.rounds import Side
from tests.fakes.scripted_pairing import round_of
from tests.unit.builders import session, start

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpuserve.gate.paired import RoundPoint
    from pytest_gpuserve.measure.rounds import Round

CAPACITY = METRICS["capacity"]
TOLERANCE = CAPACITY.default_tolerance
SEARCH_SD = 0.05
"""Spread of the log capacity between searches of one build, as the simulated queues have it."""

RUNS = 150
WRONG = 0.05
"""Most claims that chance may make, and most passes at the edge of the tolerance."""

P99 = Objective(0.99, 0.050)


def search(capacity: float) -> Search:
    """A search that found this."""
    return Search(
        P99,
        (
            Probe(capacity * 0.98, Finding.MET, 9.6, 10_000, 50, 10_000.0, 0.049),
            Probe(capacity * 1.02, Finding.MISSED, 9.6, 10_000, 200, 10_000.0, 0.051),
        ),
    )


def drawn(random: Random, change: float) -> float:
    """The capacity that a search finds of a build whose true one is ``1000 * (1 + change)``."""
    return 1000.0 * (1 + change) * math.exp(random.gauss(0.0, SEARCH_SD))


def a_round(random: Random, change: float) -> Round:
    """A round with a search of either."""
    base, candidate = (Side((1.0,), searches=(search(drawn(random, each)),)) for each in (0.0, change))
    return replace(round_of([0.0], by_turns=True), sides={"base": base, "candidate": candidate})


def side_by_side(change: float, seed: int) -> Verdict:
    """What a comparison comes to that measures on until it is decided."""
    random = Random(f"beside {change} {seed}")
    points: list[RoundPoint] = []
    for look, (rounds, _) in enumerate(LOOKS):
        if len(points) < rounds:
            points.append(round_point(CAPACITY, a_round(random, change), TOLERANCE))
        if look < first_look(CAPACITY):
            continue
        verdict, _, _ = paired_verdict(
            CAPACITY, points, default_prior(CAPACITY), tolerance=TOLERANCE, level=levels()[look]
        )
        if verdict is not Verdict.INCONCLUSIVE:
            return verdict
    return Verdict.INCONCLUSIVE


def by_baseline(change: float, seed: int) -> Verdict:
    """What the gate says of sessions of two starts each, against three recorded ones."""
    random = Random(f"stored {change} {seed}")

    def measured(each: float) -> SessionPoint:
        starts = (replace(start(), search=search(drawn(random, each))) for _ in range(2))
        reduced = point(CAPACITY, session(*starts), TOLERANCE)
        return SessionPoint("host-a", reduced.y, reduced.u, 2)

    stored = [measured(0.0) for _ in range(3)]
    now: list[SessionPoint] = []
    while len(now) < SESSIONS:
        now.append(measured(change))
        result = withstand_drift(
            judge_stored(CAPACITY, stored, now, tolerance=TOLERANCE), {"then": [known.y for known in stored]}
        )
        if result.verdict is not Verdict.INCONCLUSIVE:
            return result.verdict
    return Verdict.INCONCLUSIVE


def shares(judge: Callable[[int], Verdict]) -> dict[Verdict, float]:
    """How often each verdict came."""
    counted = Counter(judge(seed) for seed in range(RUNS))
    return {verdict: counted[verdict] / RUNS for verdict in Verdict}


@pytest.mark.parametrize("court", [side_by_side, by_baseline])
def test_an_identical_build_is_hardly_ever_called_changed(court: Callable[[float, int], Verdict]) -> None:
    """And most of them pass."""
    found = shares(lambda seed: court(0.0, seed))
    assert found[Verdict.REGRESSED] + found[Verdict.IMPROVED] <= WRONG
    assert found[Verdict.PASS] >= 0.75


@pytest.mark.parametrize("court", [side_by_side, by_baseline])
def test_a_third_less_is_found_and_never_passes(court: Callable[[float, int], Verdict]) -> None:
    """A build that can do a third less is REGRESSED, nearly always."""
    found = shares(lambda seed: court(-1 / 3, seed))
    assert found[Verdict.PASS] + found[Verdict.IMPROVED] == 0
    assert found[Verdict.REGRESSED] >= 0.95


@pytest.mark.parametrize("court", [side_by_side, by_baseline])
def test_what_is_too_much_hardly_ever_passes(court: Callable[[float, int], Verdict]) -> None:
    """At the edge of the tolerance: a tenth more time for the same load."""
    found = shares(lambda seed: court(1 / (1 + TOLERANCE) - 1, seed))
    assert found[Verdict.PASS] + found[Verdict.IMPROVED] <= WRONG + 0.02


def test_a_capacity_is_the_mean_of_the_starts() -> None:
    """Of two starts it is their mean; a session's point that of their log costs."""
    starts = [replace(start(), search=search(value)) for value in (900.0, 1100.0)]
    assert pooled_value(CAPACITY, [session(*starts)]) == pytest.approx(1000, rel=1e-3)
    assert point(CAPACITY, session(*starts), 0.1).y == pytest.approx(-math.log(math.sqrt(900 * 1100)), rel=1e-4)
    assert point(CAPACITY, session(*starts), 0.1).u == 0.0


def test_a_start_without_a_capacity_leaves_it_unknown() -> None:
    """One of two is not enough, and a load that was no search has none."""
    known = replace(start(), search=search(900.0))
    for other in (replace(start(), search=Search(P99)), start()):
        with pytest.raises(NotMeasured, match="capacity is not known"):
            pooled_value(CAPACITY, [session(known, other)])


@pytest.mark.parametrize("name", [name for name in METRICS if name not in {"capacity", "cold_start"}])
def test_a_search_has_no_other_number(name: str) -> None:
    """Throughput and latencies of a search are those of no load, alone or side by side."""
    searched = replace(start(), search=search(900.0))
    with pytest.raises(NotMeasured, match="search for a capacity"):
        point(METRICS[name], session(searched, searched), 10.0)
    with pytest.raises(NotMeasured, match="search for a capacity"):
        round_point(METRICS[name], a_round(Random(0), 0.0), 10.0)
    with pytest.raises(NotMeasured, match="search for a capacity"):
        paired_value(METRICS[name], [a_round(Random(0), 0.0)], "base")


def test_a_round_of_loads_has_no_capacity() -> None:
    """Side by side too."""
    with pytest.raises(NotMeasured, match="capacity is not known"):
        round_point(CAPACITY, round_of([0.0]), 0.1)
