"""The plan of a search, and what its probes come to together."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_gpuserve.measure.capacity import Finding, Objective, Probe, Search, crossing
from pytest_gpuserve.trial.capacity.outcome import problem_of
from pytest_gpuserve.trial.capacity.planning import MOST_PROBES, MOST_UNDECIDED, Planner, search_for

P99 = Objective(0.99, 0.050)
UNHURRIED = settings(deadline=None)
SHARES = {Finding.MET: 0.001, Finding.UNDECIDED: 0.01, Finding.MISSED: 0.2}


def probe(rate: float, finding: Finding, *, share: float | None = None, client: str = "", reason: str = "") -> Probe:
    """A probe with a share of slow requests as its finding has."""
    slow = round(10_000 * (SHARES[finding] if share is None else share))
    return Probe(rate, finding, 10.0, 10_000, slow, 5000.0, 0.040, reason=reason, client=client)


def found(*probes: Probe) -> Search:
    """A search of these probes."""
    return Search(P99, probes)


def searched(capacity: float, first: float, *, precision: float = 0.05, undecided: float = 0.0) -> Search:
    """A search by an oracle that knows the capacity, but for rates so close to it."""

    def take(rate: float, _: Search) -> Probe:
        distance = math.log(rate / capacity)
        if abs(distance) < undecided:
            return probe(rate, Finding.UNDECIDED, share=0.01 * math.exp(distance))
        return probe(rate, Finding.MET if distance < 0 else Finding.MISSED)

    return search_for(P99, Planner(first, precision, 1.0), take)


@UNHURRIED
@given(capacity=st.floats(10, 1e5), guess=st.floats(0.05, 20), precision=st.floats(0.01, 0.3))
def test_a_search_ends_around_the_capacity(capacity: float, guess: float, precision: float) -> None:
    """From whatever first guess, the interval holds the capacity, and its ends are as close as was asked."""
    search = searched(capacity, guess * capacity, precision=precision)
    assert search.low is not None
    assert search.high is not None
    assert search.value is not None
    assert search.low < capacity <= search.high
    assert search.low <= search.value <= search.high
    assert search.high / search.low <= (1 + precision) * (1 + 1e-9)
    assert problem_of(search) == ""


def test_undecided_rates_are_not_gone_into_for_ever() -> None:
    """Where time decides nothing near the capacity, a few rates there are tried, and the interval lies around them."""
    search = searched(500.0, 400.0, undecided=0.15)
    assert sum(each.finding is Finding.UNDECIDED for each in search.probes) <= MOST_UNDECIDED
    assert search.low is not None
    assert search.high is not None
    assert search.low < 500.0 * math.exp(-0.15)
    assert search.high > 500.0 * math.exp(0.15)
    assert search.value == pytest.approx(500.0, rel=0.05)


def test_the_upper_end_is_tried_once_more() -> None:
    """A moment in which the machine stood still, and a good rate missed, does not become the capacity."""
    disturbed: list[float] = []

    def take(rate: float, _: Search) -> Probe:
        if 600 < rate < 700 and not disturbed:
            disturbed.append(rate)
            return probe(rate, Finding.MISSED)
        return probe(rate, Finding.MET if rate < 1000 else Finding.MISSED)

    search = search_for(P99, Planner(450.0, 0.05, 1.0), take)
    assert disturbed
    assert search.high is not None
    assert search.high >= 1000
    assert search.low is not None
    # Its own rate is believed in neither way.
    assert search.low < disturbed[0]


def test_a_higher_rate_that_met_it_widens_the_interval() -> None:
    """Of rates that contradict each other neither is believed: the interval is that around them."""
    met, missed = Finding.MET, Finding.MISSED
    search = found(probe(100, met), probe(110, missed), probe(120, met), probe(130, missed))
    assert (search.low, search.high) == (100, 130)
    assert search.value is not None
    assert 100 < search.value < 130


def test_the_same_rate_that_met_and_missed_is_neither_end() -> None:
    """A rate that was tried twice with two outcomes lies within the interval."""
    met, missed = Finding.MET, Finding.MISSED
    search = found(probe(100, met), probe(110, missed), probe(110, met), probe(121, missed))
    assert (search.low, search.high) == (100, 121)


def test_without_an_end_there_is_no_capacity() -> None:
    """Where all rates met the objective, or none, nothing is made up."""
    assert found(probe(100, Finding.MET)).value is None
    assert found(probe(100, Finding.MISSED)).value is None
    assert found(probe(100, Finding.UNDECIDED)).value is None
    assert found().value is None


def test_the_value_is_where_the_share_is_the_allowed_one() -> None:
    """Within the interval it is nearer to the rate whose share is nearer to what is allowed."""
    near_low = found(probe(100, Finding.MET, share=0.009), probe(110, Finding.MISSED, share=0.5)).value
    near_high = found(probe(100, Finding.MET, share=0.0001), probe(110, Finding.MISSED, share=0.011)).value
    assert near_low is not None
    assert near_high is not None
    assert 100 <= near_low < 101
    assert 109 < near_high <= 110


def test_shares_that_do_not_rise_leave_the_middle() -> None:
    """Where they say nothing of the capacity, it is the middle of the interval, on the scale of the log rate."""
    odd = found(probe(100, Finding.MET, share=0.2), probe(121, Finding.MISSED, share=0.001)).value
    assert odd == pytest.approx(110)


@UNHURRIED
@given(slope=st.floats(3, 200), place=st.floats(-1, 1), wanted=st.sampled_from([0.5, 0.1, 0.05, 0.01]))
def test_the_regression_finds_what_it_was_made_of(slope: float, place: float, wanted: float) -> None:
    """Of points on a logistic curve it finds where that crosses, but for the one request that is added to each."""
    height = math.log(wanted / (1 - wanted))
    points = [
        (x, 1 / (1 + math.exp(-(height + slope * (x - place)))), 1e7)
        for x in (place + step / slope for step in (-2.0, -0.5, 1.0, 2.0))
    ]
    assert crossing(points, wanted) == pytest.approx(place, abs=0.01 / slope + 1e-6)


@UNHURRIED
@given(
    points=st.lists(st.tuples(st.floats(0, 12), st.floats(0, 1), st.floats(0, 1e6)), min_size=1, max_size=12),
    wanted=st.sampled_from([0.5, 0.1, 0.05, 0.01]),
)
def test_the_regression_is_a_number_or_nothing(points: list[tuple[float, float, float]], wanted: float) -> None:
    """Whatever the points are: separated, falling, or all at one place."""
    where = crossing(points, wanted)
    assert where is None or not math.isnan(where)


@UNHURRIED
@given(
    probes=st.lists(st.tuples(st.sampled_from([100.0, 110, 121, 133, 146]), st.sampled_from(list(Finding))), max_size=9)
)
def test_whatever_was_found_the_interval_is_one(probes: list[tuple[float, Finding]]) -> None:
    """Ends are in order, the value between them, and everything below or above them agrees with them."""
    search = found(*(probe(rate, finding) for rate, finding in probes))
    if search.low is None or search.high is None:
        assert search.value is None
        return
    assert search.low < search.high
    assert search.value is not None
    assert search.low <= search.value <= search.high
    assert not any(finding is Finding.MISSED and rate <= search.low for rate, finding in probes)
    assert not any(finding is Finding.MET and rate >= search.high for rate, finding in probes)


@UNHURRIED
@given(findings=st.lists(st.sampled_from(list(Finding)), min_size=MOST_PROBES, max_size=MOST_PROBES))
def test_a_search_always_ends(findings: list[Finding]) -> None:
    """Whatever its probes show, after so many it is over, and says why where it found nothing."""
    left = iter(findings)
    search = search_for(P99, Planner(100.0, 0.05, 10.0), lambda rate, _: probe(rate, next(left)))
    assert 1 <= len(search.probes) <= MOST_PROBES
    assert (search.value is None) <= bool(problem_of(search))


def test_an_objective_that_is_never_met_is_told_with_its_rate() -> None:
    """At the lowest rate that can be decided the search ends, and says what was seen there."""
    search = search_for(P99, Planner(100.0, 0.05, 20.0), lambda rate, _: probe(rate, Finding.MISSED))
    assert min(each.rate for each in search.probes) == 20.0
    text = problem_of(search)
    assert text.startswith("objective missed: at 20.0/s, the lowest rate that was tried, p99 is 40.0 ms")
    assert "p99 <= 50.0 ms" in text
    assert "allow more time" not in text


def test_an_objective_that_is_not_shown_is_told_how_long_it_takes() -> None:
    """With a number of seconds that is longer than what did not do."""
    text = problem_of(found(probe(20, Finding.UNDECIDED, share=0.0)))
    assert text.startswith("objective not shown to be met: at 20.0/s")
    (seconds,) = re.findall(r"load\.capacity\(\.\.\., seconds=(\d+)\)", text)
    assert int(seconds) >= 20
    contradictory = problem_of(found(probe(20, Finding.MISSED), probe(30, Finding.MET), probe(40, Finding.MISSED)))
    assert contradictory.startswith("contradictory: ")
    assert "seconds=20)" in contradictory


def test_a_client_at_the_upper_end_is_told() -> None:
    """Where the client was saturated whenever the lowest bad rate was tried, the limit may be its own."""
    alone = found(
        probe(100, Finding.MET), probe(105, Finding.MISSED, client="client saturated: it used 99 % of a core")
    )
    text = problem_of(alone)
    assert text.startswith("client saturated: it used 99 % of a core; so it was at 105/s")
    assert "processes=" in text
    # Once more without it, the rate is the server's.
    assert problem_of(alone.with_probe(probe(105, Finding.MISSED))) == ""


def test_a_client_below_the_capacity_does_no_harm() -> None:
    """Lateness is a part of the latencies: a rate that met the objective in spite of it did."""
    assert problem_of(found(probe(100, Finding.MET, client="client late"), probe(105, Finding.MISSED))) == ""


def test_a_client_at_an_undecided_rate_is_told() -> None:
    """A rate within the interval that was not decided because of the client makes it the client's."""
    undecided = probe(102, Finding.UNDECIDED, client="client late: by 3 ms")
    assert problem_of(found(probe(100, Finding.MET), undecided, probe(105, Finding.MISSED))).startswith("client late")
