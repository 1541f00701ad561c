"""The plan of a search, and what its probes come to together."""

from __future__ import annotations

import math
import re
import statistics
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuserve.experiment.capacity.outcome import problem_of
from pytest_gpuserve.experiment.capacity.planning import ABOVE, BELOW, MOST_PROBES, Planner, Try, search_for
from pytest_gpuserve.gate.reason import ReasonKind
from pytest_gpuserve.measure.capacity import SAMPLES, Objective, Probe, ProbeOutcome, Search
from tests.comparison.vocabulary import cases

if TYPE_CHECKING:
    from collections.abc import Callable

P99 = Objective(0.99, 0.050)
MET, MISSED, UNDECIDED = ProbeOutcome.MET, ProbeOutcome.MISSED, ProbeOutcome.UNDECIDED
SHARES = {MET: 0.001, UNDECIDED: 0.01, MISSED: 0.2}


def probe(
    rate: float, finding: ProbeOutcome, *, share: float | None = None, client: str = "", reason: str = ""
) -> Probe:
    """A probe with a share of slow requests as its finding has."""
    slow = round(10_000 * (SHARES[finding] if share is None else share))
    return Probe(rate, finding, 10.0, 10_000, slow, 5000.0, 0.040, reason=reason, client=client)


def found(*probes: Probe) -> Search:
    """A search of these probes."""
    return Search(P99, probes)


def told(search: Search) -> tuple[ReasonKind, str]:
    """Why it has found no capacity, or one that may be the client's."""
    reason = problem_of(search)
    assert reason is not None
    return reason.kind, reason.text


def ends(search: Search) -> tuple[float, float, float]:
    """What it has found: the interval, and the value within it."""
    assert search.low is not None
    assert search.high is not None
    assert search.value is not None
    return search.low, search.value, search.high


def oracle(capacity: float, undecided: float = 0.0) -> Callable[[Try, Search], Probe]:
    """Probes of who knows the capacity, but for rates so close to it."""

    def take(which: Try, _: Search) -> Probe:
        distance = math.log(which.rate / capacity)
        if abs(distance) < undecided or which.sample is not None:
            return probe(which.rate, UNDECIDED, share=min(1.0, 0.01 * math.exp(10 * distance)))
        return probe(which.rate, MET if distance < 0 else MISSED)

    return take


@given(capacity=st.floats(10, 1e5), guess=st.floats(0.05, 20), precision=st.floats(0.01, 0.3))
def test_a_search_ends_around_the_capacity(capacity: float, guess: float, precision: float) -> None:
    """From whatever first guess, the interval holds the capacity, and its ends are as close as was asked."""
    search = search_for(P99, Planner(guess * capacity, precision, 1.0), oracle(capacity))
    low, value, high = ends(search)
    assert low < capacity <= high
    assert low <= value <= high
    assert high / low <= (1 + precision) * (1 + 1e-9)
    assert problem_of(search) is None


def test_where_nothing_is_decided_samples_are_taken() -> None:
    """One rate within the interval that time does not decide is enough: the rest is spent where the capacity is."""
    search = search_for(P99, Planner(400.0, 0.05, 1.0), oracle(500.0, undecided=0.15))
    seeking = search.probes[:-SAMPLES]
    assert sum(each.finding is UNDECIDED for each in seeking) == 1
    assert search.samples == search.probes[-SAMPLES:]
    low, value, high = ends(search)
    assert low < 500.0 * math.exp(-0.15)
    assert high > 500.0 * math.exp(0.15)
    assert value == pytest.approx(500.0, rel=0.02)
    assert [each.rate for each in search.samples[2:]] == pytest.approx([500.0] * (SAMPLES - 2), rel=0.05)


@pytest.mark.parametrize("change", [0.4, 0.7, 1.0, 1.3, 3.0])
def test_what_is_known_only_changes_where_it_begins(change: float) -> None:
    """A search around the capacity of an earlier start finds that of this one, also where it has changed much."""
    planner = Planner.beginning(guess=1.0, known=500.0, precision=0.05, least=1.0)
    search = search_for(P99, planner, oracle(500.0 * change))
    tried = [each.rate for each in search.probes]
    assert search.value == pytest.approx(500.0 * change, rel=0.03)
    assert tried[0] == pytest.approx(500.0 / BELOW)
    if change in {0.7, 1.0, 1.3}:
        assert tried[1] == pytest.approx(500.0 * ABOVE)


@pytest.mark.parametrize("undecided", [False, True])
def test_the_upper_end_is_tried_once_more(undecided: bool) -> None:  # noqa: FBT001 -- a parameter
    """A moment in which the machine stood still, and a good rate missed, does not become the capacity.

    Nor where a rate below it was given up undecided.
    """
    disturbed: list[float] = []

    def take(which: Try, _: Search) -> Probe:
        rate = which.rate
        if which.sample is not None or (undecided and 500 < rate < 600):
            return probe(rate, UNDECIDED)
        if 600 < rate < 700 and not disturbed:
            disturbed.append(rate)
            return probe(rate, MISSED)
        return probe(rate, MET if rate < 1000 else MISSED)

    search = search_for(P99, Planner(450.0, 0.05, 1.0), take)
    low, _, high = ends(search)
    # Its own rate is believed in neither way.
    assert low < disturbed[0]
    assert high >= 1000


@cases(
    "probes, low, high",
    {
        "a higher rate met it": ([(100, MET), (110, MISSED), (120, MET), (130, MISSED)], 100, 130),
        "the same rate met it": ([(100, MET), (110, MISSED), (110, MET), (121, MISSED)], 100, 121),
        "all rates met it": ([(100, MET)], 100, None),
        "all rates missed it": ([(100, MISSED)], None, 100),
        "none was decided, or tried": ([(100, UNDECIDED)], None, None),
    },
)
def test_rates_that_contradict_each_other_lie_within_the_interval(
    probes: list[tuple[float, ProbeOutcome]], low: float | None, high: float | None
) -> None:
    """Neither is believed; and without an end there is no capacity, for nothing is made up."""
    search = found(*(probe(rate, finding) for rate, finding in probes))
    assert (search.low, search.high) == (low, high)
    if low is None or high is None:
        assert search.value is None
    else:
        assert low < (search.value or 0) < high


@pytest.mark.parametrize(
    ("met", "missed", "least", "most"),
    [(0.009, 0.5, 100, 101), (0.0001, 0.011, 109, 110), (0.2, 0.001, 104.87, 104.89)],
    ids=["near the low end", "near the high end", "shares that do not rise leave the middle of the log rate"],
)
def test_the_value_is_where_the_share_is_the_allowed_one(met: float, missed: float, least: float, most: float) -> None:
    """Within the interval it is nearer to the rate whose share is nearer to what is allowed."""
    assert least <= (found(probe(100, MET, share=met), probe(110, MISSED, share=missed)).value or 0) <= most


@given(
    probes=st.lists(
        st.tuples(st.sampled_from([100.0, 110, 121, 133, 146]), st.sampled_from(list(ProbeOutcome))), max_size=9
    )
)
def test_whatever_was_found_the_interval_is_one(probes: list[tuple[float, ProbeOutcome]]) -> None:
    """Ends are in order, the value between them, and everything below or above them agrees with them."""
    search = found(*(probe(rate, finding) for rate, finding in probes))
    if search.low is None or search.high is None:
        assert search.value is None
        return
    low, value, high = ends(search)
    assert low < high
    assert low <= value <= high
    assert not any(finding is MISSED and rate <= low for rate, finding in probes)
    assert not any(finding is MET and rate >= high for rate, finding in probes)


@given(
    findings=st.lists(
        st.sampled_from(list(ProbeOutcome)), min_size=MOST_PROBES + SAMPLES, max_size=MOST_PROBES + SAMPLES
    )
)
def test_a_search_always_ends(findings: list[ProbeOutcome]) -> None:
    """Whatever its probes show, after so many it is over, and says why where it found nothing."""
    left = iter(findings)
    search = search_for(P99, Planner(100.0, 0.05, 10.0), lambda which, _: probe(which.rate, next(left)))
    assert 1 <= len(search.probes) <= MOST_PROBES + SAMPLES
    assert (search.value is None) <= bool(problem_of(search))


def test_an_objective_that_is_never_met_is_told_with_its_rate() -> None:
    """At the lowest rate that can be decided the search ends, and says what was seen there.

    It is the last resort, so that its probe alone is not given up.
    """
    tried: list[Try] = []

    def take(which: Try, _: Search) -> Probe:
        tried.append(which)
        return probe(which.rate, MISSED)

    kind, text = told(search_for(P99, Planner(100.0, 0.05, 20.0), take))
    assert [each.is_last_resort for each in tried] == [False] * (len(tried) - 1) + [True]
    assert tried[-1].rate == 20.0
    assert kind is ReasonKind.OBJECTIVE_MISSED
    assert text.startswith("objective missed: at 20.0/s, the lowest rate that was tried, p99 is 40.0 ms")
    assert "p99 <= 50.0 ms" in text
    assert "allow more time" not in text


def test_an_objective_that_is_not_shown_is_told_how_long_it_takes() -> None:
    """With a number of seconds that is longer than what did not do."""
    kind, text = told(found(probe(20, UNDECIDED, share=0.0)))
    assert kind is ReasonKind.OBJECTIVE_NOT_SHOWN
    assert text.startswith("objective not shown to be met: at 20.0/s")
    (seconds,) = re.findall(r"load\.capacity\(\.\.\., seconds=(\d+)\)", text)
    assert int(seconds) >= 20
    kind, text = told(found(probe(20, MISSED), probe(30, MET), probe(40, MISSED)))
    assert kind is ReasonKind.CONTRADICTORY
    assert "seconds=20)" in text


def test_a_client_is_told_where_the_limit_may_be_its_own() -> None:
    """At the upper end whenever that was tried, and at an undecided rate; below, its lateness is in the latencies."""
    saturated = probe(105, MISSED, client="client saturated: it used 99 % of a core")
    alone = found(probe(100, MET), saturated)
    kind, text = told(alone)
    assert kind is ReasonKind.CAPACITY_OF_CLIENT
    assert text.startswith("client saturated: it used 99 % of a core; so it was at 105/s")
    assert "processes=" in text
    # Once more without it, the rate is the server's.
    assert problem_of(alone.with_probe(probe(105, MISSED))) is None
    undecided = probe(102, UNDECIDED, client="client late: by 3 ms")
    assert told(found(probe(100, MET), undecided, probe(105, MISSED)))[0] is ReasonKind.CAPACITY_OF_CLIENT
    assert problem_of(found(probe(100, MET, client="client late"), probe(105, MISSED))) is None


def sampled(shares: list[float], *, rate: float = 100.0, effective: float = 5000.0) -> Search:
    """A search with samples of these shares at a rate."""
    ends = (probe(rate / 1.5, MET), probe(1.5 * rate, MISSED))
    samples = (replace(probe(rate, UNDECIDED, share=share), effective=effective) for share in shares)
    return found(*ends, *samples)


def test_samples_are_the_last_probes_of_one_length() -> None:
    """Of a search that was cut short, or made without, there are none, and nobody knows how well it knows."""
    whole = sampled([0.01] * SAMPLES)
    assert whole.samples == whole.probes[-SAMPLES:]
    shorter = replace(whole.probes[-2], seconds=5.0)
    for other in (sampled([0.01] * (SAMPLES - 1)), replace(whole, probes=(*whole.probes[:-1], shorter))):
        assert other.samples == ()
        assert other.parts == ()
        assert other.squared_error is None
    unknown = sampled([0.01] * SAMPLES, effective=0.0)
    assert (unknown.parts, unknown.squared_error) == ((), None)


def test_a_capacity_is_the_mean_of_its_parts() -> None:
    """On the log scale; a sample with more slow requests has a lower one, and they tell how well it is known."""
    search = sampled([0.006, 0.008, 0.009, 0.01, 0.01, 0.011, 0.013, 0.014])
    assert statistics.fmean(search.parts) == pytest.approx(math.log(ends(search)[1]), abs=1e-9)
    assert list(search.parts) == sorted(search.parts, reverse=True)
    assert search.squared_error == pytest.approx(statistics.variance(search.parts) / SAMPLES)
    even = sampled([0.01] * SAMPLES).squared_error
    assert even is not None
    assert search.squared_error is not None
    assert 0 < even < search.squared_error


def test_a_search_knows_how_well_it_knows() -> None:
    """Over searches of a server whose shares are known, the values spread as the samples tell, by counting."""
    values, told = [], []
    for seed in range(80):
        random = Random(seed)

        def take(which: Try, _: Search, random: Random = random) -> Probe:
            share = 1 / (1 + math.exp(math.log(19) - 8 * math.log(which.rate / 100)))
            slow = sum(random.random() < share for _ in range(150))
            finding = UNDECIDED if which.sample is not None or 80 < which.rate < 130 else None
            finding = finding or (MET if which.rate < 100 else MISSED)
            return Probe(which.rate, finding, 10.0, 150, slow, 100.0, None)

        search = search_for(Objective(0.95, 0.05), Planner(70.0, 0.05, 1.0), take)
        assert search.squared_error is not None
        values.append(math.log(ends(search)[1] / 100))
        told.append(search.squared_error)
    assert abs(statistics.fmean(values)) < 0.02
    assert statistics.stdev(values) == pytest.approx(math.sqrt(statistics.fmean(told)), rel=0.25)
