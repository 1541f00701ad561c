"""Metrics of which a start has one number, its time and its capacity: how often the gate is wrong, by counting."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from functools import partial
from random import Random
from typing import TYPE_CHECKING

import pytest

from pytest_gpuserve.gate.metric import METRICS
from pytest_gpuserve.gate.paired import default_prior, paired_verdict
from pytest_gpuserve.gate.sequential import LOOKS, first_look, levels
from pytest_gpuserve.gate.stored import LOOKS as SESSIONS
from pytest_gpuserve.gate.stored import SessionPoint, judge_stored, own_error, withstand_drift
from pytest_gpuserve.gate.verdict import Verdict
from pytest_gpuserve.measure.capacity import SAMPLES, Objective, Probe, ProbeOutcome, Search
from pytest_gpuserve.measure.points import NotMeasured, point, pooled_value
from pytest_gpuserve.measure.rounds import ArmResult, paired_value, round_point
from tests.fakes.scripted_pairing import ScriptedPairing, a_comparison, round_of
from tests.support.builders import session, start
from tests.support.counting import short_and_long
from tests.support.reasons import said

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytest_gpuserve.gate.metric import Metric
    from pytest_gpuserve.gate.paired import RoundPoint
    from pytest_gpuserve.measure.rounds import Arm, Round
    from pytest_gpuserve.measure.window import Session

    Court = Callable[[float, int], Verdict]

COLD_START = METRICS["cold_start"]
START_SD = 0.05
"""Spread of log seconds between the starts of one build."""

FROM_DISK = 2.0
"""How many times as long the first start of all takes whose files nobody has read yet."""

EMPTY = round_of([0.0])

CAPACITY = METRICS["capacity"]
TOLERANCE = CAPACITY.default_tolerance
SEARCH_SD = 0.045
"""Spread of the log capacity between searches of one build, as the simulated queues have it; all of it is their own."""

SLOPE = 5.0
"""Of the log odds of a slow request on the log rate."""

P99 = Objective(0.99, 0.050)

ALIKE = (0.05, -0.05) * (SAMPLES // 2)
"""By how much the log capacity of a sample differs, of a search that knows itself well."""

WRONG = 0.05
"""Most claims that chance may make, and most passes at the edge of the tolerance."""


def beside(metric: Metric, measured: Callable[[int], Round], *, left_out: int = 0) -> Verdict:
    """What a comparison comes to that measures on until it is decided.

    Args:
        metric: What is compared, within its own tolerance.
        measured: Measures the round of this number.
        left_out: So many of the first rounds do not count.
    """
    points: list[RoundPoint] = []
    for look, (rounds, _) in enumerate(LOOKS):
        if len(points) < rounds:
            points.append(round_point(metric, measured(len(points)), metric.default_tolerance))
        if look < first_look(metric):
            continue
        verdict, _, _ = paired_verdict(
            metric,
            points[left_out:],
            default_prior(metric),
            most_growth=metric.growth(metric.default_tolerance),
            level=levels()[look],
        )
        if verdict is not Verdict.INCONCLUSIVE:
            return verdict
    return Verdict.INCONCLUSIVE


def against_three(metric: Metric, measured: Callable[[float], Session], change: float) -> Verdict:
    """What the gate says of a build's sessions of two starts each, against three recorded ones of another.

    Args:
        metric: What is gated, within its own tolerance.
        measured: Measures a session of a build, by how much it differs from the recorded one, as a fraction.
        change: By how much it does.
    """

    def reduced(each: float) -> SessionPoint:
        found = point(metric, measured(each), metric.default_tolerance)
        return SessionPoint("host-a", found.y, found.u, 2)

    stored = [reduced(0.0) for _ in range(3)]
    now: list[SessionPoint] = []
    while len(now) < SESSIONS:
        now.append(reduced(change))
        result = withstand_drift(
            judge_stored(metric, stored, now, most_growth=metric.growth(metric.default_tolerance)),
            {"then": [known.y for known in stored]},
        )
        if result.verdict is not Verdict.INCONCLUSIVE:
            return result.verdict
    return Verdict.INCONCLUSIVE


def shares(court: Court, change: float, count: int) -> dict[Verdict, float]:
    """How often each verdict comes of a build that differs so much, in runs with seeds from 0 on."""
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

    def measured(number: int) -> Round:
        seconds = [10.0 * math.exp(random.gauss(0.0, START_SD)) for _ in range(2)]
        seconds[1] *= 1 + change
        if number == 0:
            seconds[random.randrange(2)] *= first
        return replace(EMPTY, sides={"base": ArmResult((seconds[0],)), "candidate": ArmResult((seconds[1],))})

    return beside(COLD_START, measured, left_out=1)


start_from_disk = partial(start_side_by_side, first=FROM_DISK)
"""The same where one of the two finds its files on the disk at the first start of all."""


def start_by_baseline(change: float, seed: int) -> Verdict:
    """What the gate says of sessions of two starts each, against three recorded ones."""
    random = Random(f"stored {change} {seed}")

    def measured(growth: float) -> Session:
        seconds = [10.0 * (1 + growth) * math.exp(random.gauss(0.0, START_SD)) for _ in range(2)]
        return session(*(start(cold_start_seconds=each) for each in seconds))

    return against_three(COLD_START, measured, change)


def search(capacity: float, luck: Sequence[float] = ALIKE) -> Search:
    """A search that found this, each of its samples by so much more, on the log scale."""

    def probe(finding: ProbeOutcome, away: float, *, rate: float, seconds: float) -> Probe:
        share = 1 / (1 + 99 * math.exp(-SLOPE * away))
        return Probe(capacity * rate, finding, seconds, 100_000, round(100_000 * share), 2000.0, 0.050)

    ends = (
        probe(ProbeOutcome.MET, math.log(1 / 1.5), rate=1 / 1.5, seconds=9.6),
        probe(ProbeOutcome.MISSED, math.log(1.5), rate=1.5, seconds=2.4),
    )
    return Search(P99, (*ends, *(probe(ProbeOutcome.UNDECIDED, -each, rate=1.0, seconds=6.0) for each in luck)))


def drawn(random: Random, change: float) -> Search:
    """A search of a build whose true capacity is ``1000 * (1 + change)``."""
    return search(1000.0 * (1 + change), [random.gauss(0.0, SEARCH_SD * math.sqrt(SAMPLES)) for _ in range(SAMPLES)])


def a_round(base: Search, candidate: Search) -> Round:
    """A round with a search of either."""
    sides: dict[Arm, ArmResult] = {
        "base": ArmResult((1.0,), searches=(base,)),
        "candidate": ArmResult((1.0,), searches=(candidate,)),
    }
    return replace(round_of([0.0], by_turns=True), sides=sides)


def capacity_side_by_side(change: float, seed: int) -> Verdict:
    """What a comparison comes to that measures on until it is decided."""
    random = Random(f"beside {change} {seed}")
    return beside(CAPACITY, lambda _: a_round(drawn(random, 0.0), drawn(random, change)))


def capacity_by_baseline(change: float, seed: int) -> Verdict:
    """What the gate says of sessions of two starts each, against three recorded ones."""
    random = Random(f"stored {change} {seed}")

    def measured(each: float) -> Session:
        return session(*(replace(start(), search=drawn(random, each)) for _ in range(2)))

    return against_three(CAPACITY, measured, change)


@short_and_long(60, 300)
@pytest.mark.parametrize(
    ("court", "passes"),
    [
        (start_side_by_side, 0.9),
        (start_from_disk, 0.9),
        (start_by_baseline, 0.8),
        (capacity_side_by_side, 0.65),
        (capacity_by_baseline, 0.65),
    ],
)
def test_an_identical_build_is_hardly_ever_called_changed(court: Court, passes: float, count: int) -> None:
    """And most of them pass."""
    found = shares(court, 0.0, count)
    assert found[Verdict.REGRESSED] + found[Verdict.IMPROVED] <= WRONG
    assert found[Verdict.PASS] >= passes


@short_and_long(60, 300)
@pytest.mark.parametrize(
    ("court", "change", "least"),
    [
        (start_side_by_side, 0.5, 0.99),
        (start_from_disk, 0.5, 0.99),
        (start_by_baseline, 0.5, 0.8),
        (capacity_side_by_side, -1 / 3, 0.95),
        (capacity_by_baseline, -1 / 3, 0.95),
    ],
)
def test_what_is_much_worse_is_found_and_never_passes(court: Court, change: float, least: float, count: int) -> None:
    """A start that takes half as long again, also where the first start of all would hide it, and a third less."""
    found = shares(court, change, count)
    assert found[Verdict.PASS] + found[Verdict.IMPROVED] == 0
    assert found[Verdict.REGRESSED] >= least


@short_and_long(60, 300)
@pytest.mark.parametrize(
    ("court", "change"),
    [
        (start_side_by_side, COLD_START.default_tolerance),
        (start_from_disk, COLD_START.default_tolerance),
        (capacity_side_by_side, -TOLERANCE),
        (capacity_by_baseline, -TOLERANCE),
    ],
)
def test_what_is_too_much_hardly_ever_passes(court: Court, change: float, count: int) -> None:
    """At the edge of the tolerance."""
    found = shares(court, change, count)
    assert found[Verdict.PASS] + found[Verdict.IMPROVED] <= WRONG + 0.02


def test_one_round_decides_nothing() -> None:
    """However large the difference: half of those two starts may be that one read from the disk."""
    comparison = a_comparison(ScriptedPairing())
    found: list[Verdict] = []
    while not found or found[-1] is Verdict.INCONCLUSIVE:
        comparison.more()
        found.append(comparison.judge(COLD_START, COLD_START.default_tolerance).verdict)
    assert found[:2] == [Verdict.INCONCLUSIVE, Verdict.INCONCLUSIVE]
    assert found[-1] is Verdict.PASS
    assert 2 <= len(comparison.rounds) <= 3


def test_memory_of_servers_that_shared_the_card_is_invalid_and_says_what_helps() -> None:
    """Side by side it is neither passed nor measured on."""
    comparison = a_comparison(ScriptedPairing())
    comparison.more()
    judged = comparison.judge(METRICS["gpu_memory"], 0.02)
    assert judged.verdict is Verdict.INVALID
    assert "gpuserve(one_at_a_time=True)" in " ".join(said(judged.reasons))


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
    with pytest.raises(NotMeasured, match=r"(?s)capacity is not known.*load\.capacity\("):
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
