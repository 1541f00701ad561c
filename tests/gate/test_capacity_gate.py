"""Capacities are gated by one number a start: how often that is wrong, and what it finds, by counting."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

import pytest

from pytest_gpuserve.gate.metric import METRICS
from pytest_gpuserve.gate.stored import SessionPoint, judge_stored, own_error
from pytest_gpuserve.gate.verdict import Verdict
from pytest_gpuserve.measure.capacity import SAMPLES, Finding, Objective, Probe, Search
from pytest_gpuserve.measure.pairs import paired_value, round_point
from pytest_gpuserve.measure.points import NotMeasured, point, pooled_value
from pytest_gpuserve.measure.rounds import Side
from tests.fakes.scripted_pairing import round_of
from tests.gate.counted_verdicts import against_three, beside, shares
from tests.support.builders import session, start

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytest_gpuserve.measure.rounds import Arm, Round
    from pytest_gpuserve.measure.window import Session

CAPACITY = METRICS["capacity"]
TOLERANCE = CAPACITY.default_tolerance
SEARCH_SD = 0.045
"""Spread of the log capacity between searches of one build, as the simulated queues have it; all of it is their own."""

SLOPE = 5.0
"""Of the log odds of a slow request on the log rate."""

RUNS = 100
WRONG = 0.05
"""Most claims that chance may make, and most passes at the edge of the tolerance."""

P99 = Objective(0.99, 0.050)


ALIKE = (0.05, -0.05) * (SAMPLES // 2)
"""By how much the log capacity of a sample differs, of a search that knows itself well."""


def search(capacity: float, luck: Sequence[float] = ALIKE) -> Search:
    """A search that found this, each of its samples by so much more, on the log scale."""

    def probe(finding: Finding, away: float, *, rate: float, seconds: float) -> Probe:
        share = 1 / (1 + 99 * math.exp(-SLOPE * away))
        return Probe(capacity * rate, finding, seconds, 100_000, round(100_000 * share), 2000.0, 0.050)

    ends = (
        probe(Finding.MET, math.log(1 / 1.5), rate=1 / 1.5, seconds=9.6),
        probe(Finding.MISSED, math.log(1.5), rate=1.5, seconds=2.4),
    )
    return Search(P99, (*ends, *(probe(Finding.UNDECIDED, -each, rate=1.0, seconds=6.0) for each in luck)))


def drawn(random: Random, change: float) -> Search:
    """A search of a build whose true capacity is ``1000 * (1 + change)``."""
    return search(1000.0 * (1 + change), [random.gauss(0.0, SEARCH_SD * math.sqrt(SAMPLES)) for _ in range(SAMPLES)])


def a_round(base: Search, candidate: Search) -> Round:
    """A round with a search of either."""
    sides: dict[Arm, Side] = {
        "base": Side((1.0,), searches=(base,)),
        "candidate": Side((1.0,), searches=(candidate,)),
    }
    return replace(round_of([0.0], by_turns=True), sides=sides)


def side_by_side(change: float, seed: int) -> Verdict:
    """What a comparison comes to that measures on until it is decided."""
    random = Random(f"beside {change} {seed}")
    return beside(CAPACITY, lambda _: a_round(drawn(random, 0.0), drawn(random, change)))


def by_baseline(change: float, seed: int) -> Verdict:
    """What the gate says of sessions of two starts each, against three recorded ones."""
    random = Random(f"stored {change} {seed}")

    def measured(each: float) -> Session:
        return session(*(replace(start(), search=drawn(random, each)) for _ in range(2)))

    return against_three(CAPACITY, measured, change)


@pytest.mark.parametrize("court", [side_by_side, by_baseline])
def test_an_identical_build_is_hardly_ever_called_changed(court: Callable[[float, int], Verdict]) -> None:
    """And most of them pass."""
    found = shares(lambda seed: court(0.0, seed), RUNS)
    assert found[Verdict.REGRESSED] + found[Verdict.IMPROVED] <= WRONG
    assert found[Verdict.PASS] >= 0.65


@pytest.mark.parametrize("court", [side_by_side, by_baseline])
def test_a_third_less_is_found_and_never_passes(court: Callable[[float, int], Verdict]) -> None:
    """A build that can do a third less is REGRESSED, nearly always."""
    found = shares(lambda seed: court(-1 / 3, seed), RUNS)
    assert found[Verdict.PASS] + found[Verdict.IMPROVED] == 0
    assert found[Verdict.REGRESSED] >= 0.95


@pytest.mark.parametrize("court", [side_by_side, by_baseline])
def test_what_is_too_much_hardly_ever_passes(court: Callable[[float, int], Verdict]) -> None:
    """At the edge of the tolerance: it can do a tenth less."""
    found = shares(lambda seed: court(-TOLERANCE, seed), RUNS)
    assert found[Verdict.PASS] + found[Verdict.IMPROVED] <= WRONG + 0.02


def test_a_session_knows_how_well_it_knows_a_capacity() -> None:
    """By the samples of its searches; not where one of them has none, of which the other says nothing."""
    well, badly = search(1000.0), search(1000.0, [3 * each for each in ALIKE])
    known, other = (replace(start(), search=each) for each in (well, badly))
    assert well.squared_error is not None
    assert badly.squared_error is not None
    assert well.squared_error < badly.squared_error
    assert point(CAPACITY, session(known, other), 0.1).u == pytest.approx(
        (well.squared_error + badly.squared_error) / 4
    )
    short = replace(start(), search=Search(P99, well.probes[:2]))
    assert point(CAPACITY, session(known, short), 0.1).u == 0.0


def test_what_sessions_know_of_themselves_is_pooled() -> None:
    """Over stored and new ones; with one that does not know it no less than is assumed; of others it is left out."""
    points = [SessionPoint("host-a", 0.0, u, 2) for u in (1e-4, 3e-4)]
    own = own_error(CAPACITY, points)
    assert own is not None
    assert own.value == pytest.approx(2e-4)
    assert own.df == 20
    assert CAPACITY.own_error is not None
    silent = SessionPoint("host-a", 0.0, 0.0, 2)
    believed = own_error(CAPACITY, [*points, silent])
    assert believed is not None
    assert believed.value + CAPACITY.own_error.beyond_sd**2 == pytest.approx(CAPACITY.default_sd**2)
    worse = own_error(CAPACITY, [SessionPoint("host-a", 0.0, 1e-2, 2), silent])
    assert worse is not None
    assert worse.value == pytest.approx(1e-2)
    assert own_error(CAPACITY, [silent]) is None
    assert own_error(METRICS["throughput"], points) is None


def test_a_search_that_knows_itself_well_decides_sooner() -> None:
    """Evidence rests on the own error of sessions where that is known, and on the default spread where it is not."""
    widths = []
    for own in (1e-5, 1e-3, 0.0):
        stored, now = ([SessionPoint("host-a", 0.0, own, 2)] * count for count in (3, 1))
        evidence = judge_stored(CAPACITY, stored, now, most_growth=CAPACITY.growth(TOLERANCE)).evidence
        assert evidence is not None
        widths.append(evidence.interval[1])
    assert widths[0] < widths[1] < widths[2]


def test_a_capacity_that_is_not_known_is_not_judged() -> None:
    """A search made before there were samples, or cut short, is one number without its error; a load has none."""
    short = Search(P99, search(1000.0).probes[:2])
    for pair in ((short, search(900.0)), (search(900.0), short)):
        with pytest.raises(NotMeasured, match="not known well enough"):
            round_point(CAPACITY, a_round(*pair), TOLERANCE)
    known = replace(start(), search=search(900.0))
    for other in (replace(start(), search=Search(P99)), start()):
        with pytest.raises(NotMeasured, match="capacity is not known"):
            pooled_value(CAPACITY, [session(known, other)])
    with pytest.raises(NotMeasured, match="capacity is not known"):
        round_point(CAPACITY, round_of([0.0]), 0.1)


@pytest.mark.parametrize("name", [name for name in METRICS if name not in {"capacity", "cold_start"}])
def test_a_search_has_no_other_number(name: str) -> None:
    """Throughput and latencies of a search are those of no load, alone or side by side."""
    searched = replace(start(), search=search(900.0))
    with pytest.raises(NotMeasured, match="search for a capacity"):
        point(METRICS[name], session(searched, searched), 10.0)
    with pytest.raises(NotMeasured, match="search for a capacity"):
        round_point(METRICS[name], a_round(search(900.0), search(900.0)), 10.0)
    with pytest.raises(NotMeasured, match="search for a capacity"):
        paired_value(METRICS[name], [a_round(search(900.0), search(900.0))], "base")
