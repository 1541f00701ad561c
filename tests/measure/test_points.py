"""From windows to points: by numbers that a reader can recompute, and refused where too little was measured."""

from __future__ import annotations

import math
import re
import statistics
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_gpuserve.gate.metric import METRICS, Metric
from pytest_gpuserve.measure.points import (
    NotMeasured,
    TooFewRequests,
    batch_totals,
    mean_sm_clock_mhz,
    point,
    pooled_value,
    too_few_requests,
    value_of,
)
from pytest_gpuserve.measure.window import CardUse
from tests.support.builders import session, start, window

if TYPE_CHECKING:
    from pytest_gpuserve.measure.window import Window

UNHURRIED = settings(deadline=None, max_examples=50)  # a busy machine may stall any example

THROUGHPUT = METRICS["throughput"]
BATCHING = METRICS["batching_ratio"]
P50, P99 = METRICS["latency.p50"], METRICS["latency.p99"]
ENERGY, MEMORY = METRICS["energy_per_inference"], METRICS["gpu_memory"]
UTILISATION, COLD_START = METRICS["gpu_utilisation"], METRICS["cold_start"]
OF_CARDS = pytest.mark.parametrize("metric", [ENERGY, MEMORY, UTILISATION], ids=lambda metric: metric.name)
ALL = pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS)
OF_REQUESTS = [metric for metric in METRICS.values() if metric.is_of_requests]
OF_WINDOWS = [metric for metric in METRICS.values() if metric.name != "cold_start"]

FAST = (0.010,) * 30
SLOW = (0.020,) * 20


def test_throughput_is_requests_by_measured_time() -> None:
    """50 requests in 0.5 s and 20 in 0.3 s are 87.5 a second, not the mean of 100 and 66.7."""
    measured = session(start(window(FAST + SLOW)), start(window(SLOW, seconds=0.3)))
    assert pooled_value(THROUGHPUT, [measured]) == pytest.approx(70 / 0.8)


def test_batching_ratio_is_a_ratio_of_totals() -> None:
    """40 items in 10 batches and 60 in 30 are 2.5 a batch, not the mean of 4 and 2."""
    measured = session(start(window(items=40, batches=10)), start(window(items=60, batches=30)))
    assert pooled_value(BATCHING, [measured]) == 2.5
    assert batch_totals(measured.windows) == (100, 40)


def test_a_quantile_is_that_of_all_latencies() -> None:
    """The median of 30 fast and 20 slow answers is fast, their p99 slow, in whichever windows they were."""
    measured = session(start(window(FAST[:5] + SLOW)), start(window(FAST[5:])))
    assert pooled_value(P50, [measured]) == pytest.approx(0.010, rel=0.0006)
    assert pooled_value(P99, [measured]) == pytest.approx(0.020, rel=0.0006)


def test_several_sessions_are_pooled() -> None:
    """A plain limit is compared with everything that was measured."""
    one, other = session(start(window(FAST)), start(window(FAST))), session(start(window(SLOW)), start(window(SLOW)))
    assert pooled_value(THROUGHPUT, [one, other]) == pytest.approx(100 / 2.0)


def test_a_point_is_the_mean_log_cost_of_its_starts() -> None:
    """Starts of 100/s and 400/s make the geometric mean of 200/s; their windows agree, so the error within is 0."""
    slow = start(*[window((0.01,) * 50)] * 4)
    fast = start(*[window((0.01,) * 200)] * 4)
    found = point(THROUGHPUT, session(slow, fast), 0.05)
    assert THROUGHPUT.value_at(found.y) == pytest.approx(200)
    assert found.u == 0


def test_the_error_of_a_point_comes_from_its_windows() -> None:
    """Windows of 100/s and 200/s in two starts: the variance of their log costs, over 2 windows and 2 starts."""
    uneven = start(window((0.01,) * 50), window((0.01,) * 100))
    variance = statistics.variance([-math.log(100), -math.log(200)])
    assert point(THROUGHPUT, session(uneven, uneven), 0.05).u == pytest.approx(variance / 2 / 2)


def test_the_point_of_a_batching_ratio_is_that_of_its_totals() -> None:
    """Starts with many and with few batches weigh by their batches."""
    many = start(window(FAST * 2, items=400, batches=100))
    few = start(window(FAST * 2, items=10, batches=10))
    assert BATCHING.value_at(point(BATCHING, session(many, few), 0.05).y) == pytest.approx(410 / 110)


def test_a_quiet_window_does_not_unmake_a_start() -> None:
    """A window without any answer has no latency, but the start's latencies are still known."""
    quiet = start(window(FAST * 3), window(()), window(FAST * 3))
    assert P50.value_at(point(P50, session(quiet, quiet), 0.05).y) == pytest.approx(0.010, rel=0.0006)


@pytest.mark.parametrize("metric", OF_REQUESTS, ids=lambda metric: metric.name)
def test_too_few_requests_are_refused_with_what_helps(metric: Metric) -> None:
    """The refusal names needed and found, and a ``seconds=`` in which the slowest start would have had enough."""
    tolerance = 0.05
    quick = start(window((0.01,) * 30, seconds=0.2))
    slow = start(window((0.01,) * 20, seconds=0.9))
    with pytest.raises(TooFewRequests) as caught:
        point(metric, session(quick, slow), tolerance)
    text = str(caught.value)
    needed = int(re.search(r"needs (\d+) requests", text)[1])  # type: ignore[index]
    seconds = int(re.search(r"seconds=(\d+)\)", text)[1])  # type: ignore[index]
    assert f"{metric.name} at a tolerance of 5 %" in text
    assert "found: 20 requests in 900 ms" in text
    assert f"gpuserve({metric.option}=...)" in text
    assert needed <= seconds * 20 / 0.9 <= 1.5 * needed + 20 / 0.9


def test_the_fewest_requests_that_suffice_are_enough() -> None:
    """At a tolerance of 20 %, 1000 requests of each start gate p99, and 999 do not."""
    exact = start(window((0.01,) * 1000, seconds=4))
    assert P99.value_at(point(P99, session(exact, exact), 0.20).y) == pytest.approx(0.010, rel=0.0006)
    with pytest.raises(NotMeasured, match="needs 1000 requests"):
        point(P99, session(exact, start(window((0.01,) * 999, seconds=4))), 0.20)


def test_no_answers_at_all_still_name_a_time() -> None:
    """A start without any answer is refused like one with too few, not by a division by zero."""
    with pytest.raises(NotMeasured, match="found: 0 requests"):
        point(THROUGHPUT, session(start(window(())), start(window(FAST))), 0.05)


@pytest.mark.parametrize("metric", OF_WINDOWS, ids=lambda metric: metric.name)
def test_nothing_measured_has_no_value(metric: Metric) -> None:
    """No session, and windows without answers, are never 0."""
    idle = session(*[start(window((), items=0, batches=0))] * 2)
    for sessions in ([], [idle]):
        with pytest.raises(NotMeasured, match="is not known"):
            pooled_value(metric, sessions)


@ALL
def test_a_session_without_starts_has_no_point(metric: Metric) -> None:
    """A session that ended before its first start is refused in words."""
    with pytest.raises(NotMeasured, match="no server start"):
        point(metric, session(start()).__class__((), "2025-01-02T03:04:05+00:00"), 0.05)


@pytest.mark.parametrize("counted", [(None, None), (None, 3), (3, None)])
def test_a_server_that_does_not_count_has_no_batching_ratio(counted: tuple[int | None, int | None]) -> None:
    """One unread counter makes the ratio unknown, not that of the other windows."""
    unread = window(FAST * 2, items=counted[0], batches=counted[1])
    with pytest.raises(NotMeasured, match="nothing counts this server's batches"):
        point(BATCHING, session(start(window(FAST * 2), unread), start(window(FAST * 2))), 0.05)


@pytest.mark.parametrize(("items", "batches"), [(0, 0), (0, 3), (3, 0)])
def test_a_start_without_batches_has_no_batching_ratio(items: int, batches: int) -> None:
    """Every start has to have batched; the error says how a stage is named."""
    with pytest.raises(NotMeasured, match="stage="):
        point(BATCHING, session(start(window(FAST * 2, items=items, batches=batches)), start(window(FAST * 2))), 0.05)


# -- what the cards did


def used(
    joules: float | None = 5.0,
    memory: float | None = 1e9,
    utilisation: float | None = 0.5,
    *,
    seconds: float = 0.5,
    requests: int = 50,
    clock: float | None = None,
) -> Window:
    """A window in which the cards did so."""
    cards = CardUse(joules, memory, utilisation, clock)
    return replace(window((0.01,) * requests, seconds=seconds), cards=cards)


def test_energy_per_inference_is_a_ratio_of_totals() -> None:
    """30 J for 100 requests and 20 J for 400 are 100 mJ each, not the mean of 300 and 50 mJ."""
    measured = session(start(used(30.0, requests=100)), start(used(20.0, requests=400)))
    assert pooled_value(ENERGY, [measured]) == pytest.approx(0.1)


def test_items_do_not_divide_energy() -> None:
    """A request of eight items is one inference, as it is one request of the throughput."""
    many = replace(used(5.0, requests=50), items=400)
    assert value_of(ENERGY, [many]) == value_of(ENERGY, [used(5.0, requests=50)]) == pytest.approx(0.1)


def test_energy_of_a_window_without_answers_counts() -> None:
    """What a card takes up while the server answers nothing is paid by the answers of the other windows."""
    assert value_of(ENERGY, [used(5.0), used(5.0, requests=0)]) == pytest.approx(0.2)
    with pytest.raises(NotMeasured, match="no request was answered"):
        value_of(ENERGY, [used(5.0, requests=0)])


def test_memory_is_the_most_of_any_window() -> None:
    """A short peak is what decides whether it fits."""
    measured = session(start(used(memory=1e9), used(memory=3e9)), start(used(memory=2e9), used(memory=1e9)))
    assert pooled_value(MEMORY, [measured]) == 3e9


def test_utilisation_is_weighed_by_time() -> None:
    """90 % of 0.5 s and 30 % of 1.5 s are 45 %; a window in which the counter read 0 is like any other."""
    assert value_of(UTILISATION, [used(utilisation=0.9), used(utilisation=0.3, seconds=1.5)]) == pytest.approx(0.45)
    assert value_of(UTILISATION, [used(utilisation=0.9), used(utilisation=0.0)]) == pytest.approx(0.45)


@OF_CARDS
def test_a_point_of_the_cards_is_the_mean_log_cost_of_its_starts(metric: Metric) -> None:
    """Starts that differ by a factor of 4 make their geometric mean, whichever of them came first."""
    low, high = start(*[used(2.0, 1e9, 0.2)] * 2), start(*[used(8.0, 4e9, 0.8)] * 2)
    found = [metric.value_at(point(metric, session(*starts), 0.05).y) for starts in ((low, high), (high, low))]
    middle = {"energy_per_inference": 0.08, "gpu_memory": 2e9, "gpu_utilisation": 0.4}[metric.name]
    assert found == pytest.approx([middle] * 2)


def test_the_windows_of_a_maximum_say_nothing_of_its_error() -> None:
    """Memory that grows within a start is no noise of its most; energy and utilisation have theirs from the windows."""
    growing = start(used(4.0, 1e9, 0.4), used(5.0, 2e9, 0.5))
    assert point(MEMORY, session(growing, growing), 0.02).u == 0
    for metric, costs in ((ENERGY, (4.0, 5.0)), (UTILISATION, (0.4, 0.5))):
        variance = statistics.variance(map(math.log, costs))
        assert point(metric, session(growing, growing), 0.05).u == pytest.approx(variance / 2 / 2)


@OF_CARDS
@UNHURRIED
@given(
    values=st.lists(
        st.tuples(st.floats(0.1, 1e4), st.floats(1e6, 1e12), st.floats(0.01, 1), st.floats(0.1, 2)),
        min_size=1,
        max_size=4,
    ),
    factor=st.floats(0.001, 1000),
)
def test_what_the_cards_did_scales(metric: Metric, values: list[tuple[float, ...]], factor: float) -> None:
    """All joules, bytes or shares times a constant are the value times it, whatever the windows' lengths."""
    windows = [used(*cards, seconds=seconds) for *cards, seconds in values]
    scaled = [used(*(factor * value for value in cards), seconds=seconds) for *cards, seconds in values]
    assert value_of(metric, scaled) == pytest.approx(factor * value_of(metric, windows))


@OF_CARDS
@UNHURRIED
@given(known=st.integers(0, 3), after=st.integers(0, 3), is_watched=st.booleans())
def test_one_unknown_window_makes_a_start_unknown(metric: Metric, known: int, after: int, is_watched: bool) -> None:  # noqa: FBT001 -- drawn
    """No value is made of the windows that are known, wherever the other stands."""
    unknown = replace(used(), cards=CardUse() if is_watched else None)
    windows = (*[used()] * known, unknown, *[used()] * after)
    with pytest.raises(NotMeasured, match=f"{metric.name} is not known"):
        value_of(metric, windows)
    with pytest.raises(NotMeasured, match=f"{metric.name} is not known"):
        point(metric, session(start(used()), start(*windows)), 0.05)


@OF_CARDS
def test_what_is_missing_is_told_with_what_helps(metric: Metric) -> None:
    """Without a card, ``--gpu=NAME``; with one that does not count, that it does not."""
    with pytest.raises(NotMeasured, match=r"(?s)no card was watched.*--gpu=NAME"):
        value_of(metric, [window(), window()])
    what = {"energy_per_inference": "energy", "gpu_memory": "memory", "gpu_utilisation": "utilisation"}[metric.name]
    with pytest.raises(NotMeasured, match=f"a card did not tell its {what} in every window"):
        value_of(metric, [used(), replace(used(), cards=CardUse())])


@OF_CARDS
def test_what_an_instance_has_not_is_told(metric: Metric) -> None:
    """Memory is its own; energy and utilisation are the whole card's, so that they are not known of it."""
    with pytest.raises(NotMeasured) as found:
        value_of(metric, [replace(used(), cards=CardUse())])
    assert ("MIG instance" in str(found.value)) is (metric.name != "gpu_memory")


@OF_CARDS
def test_a_card_that_did_nothing_has_no_value(metric: Metric) -> None:
    """Zero joules, bytes or utilisation under load are a server that is not on the card, never a perfect result."""
    with pytest.raises(NotMeasured, match="reads 0 under this load"):
        value_of(metric, [used(0.0, 0.0, 0.0)])
    with pytest.raises(NotMeasured, match="reads nan"):
        value_of(metric, [used(math.nan, math.nan, math.nan)])


def test_the_mean_clock_is_weighed_by_time_over_the_windows_that_know_it() -> None:
    """1000 MHz for 0.5 s and 1400 MHz for 1.5 s are 1300 MHz; what no window knows is None, not 0."""
    known = session(start(used(clock=1000.0)), start(used(clock=1400.0, seconds=1.5)))
    unknown = session(start(used()), start(window()))
    assert mean_sm_clock_mhz([known, unknown]) == pytest.approx(1300)
    assert mean_sm_clock_mhz([unknown]) is None
    assert mean_sm_clock_mhz([]) is None


# -- cold starts


def test_a_cold_start_is_known_once_a_start() -> None:
    """Limits are held against the mean of the starts; the point is their mean log cost, with no error inside one."""
    measured = session(start(cold_start_seconds=10.0), start(cold_start_seconds=40.0))
    assert pooled_value(COLD_START, [measured]) == 25.0
    found = point(COLD_START, measured, 0.2)
    assert COLD_START.value_at(found.y) == pytest.approx(20.0)
    assert found.u == 0


def test_windows_have_no_cold_start() -> None:
    """Asked of windows it is not measured, rather than something else's number."""
    with pytest.raises(NotMeasured, match="cold_start is not known of windows"):
        value_of(COLD_START, [window()])


def test_a_server_that_we_did_not_start_has_no_cold_start() -> None:
    """One unknown start is not left out of a mean."""
    remote = replace(start(), cold_start_seconds=None)
    for measured in (session(remote, remote), session(start(), remote)):
        with pytest.raises(NotMeasured, match=r"(?s)not started by this run.*a remote server has no cold start"):
            pooled_value(COLD_START, [measured])
        with pytest.raises(NotMeasured, match="not started by this run"):
            point(COLD_START, measured, 0.2)
    with pytest.raises(NotMeasured, match="no server start was measured"):
        pooled_value(COLD_START, [])


@pytest.mark.parametrize("metric", [MEMORY, UTILISATION, COLD_START], ids=lambda metric: metric.name)
def test_one_request_shows_that_there_was_load(metric: Metric) -> None:
    """What is not made of requests needs no more of them, at any tolerance; none at all is too few."""
    quick, idle = start(used(requests=1)), start(used(requests=0))
    assert point(metric, session(quick, quick), 0.001).u == 0
    with pytest.raises(TooFewRequests, match="needs 1 requests") as caught:
        point(metric, session(quick, idle), 0.001)
    assert "a wider tolerance" not in str(caught.value)


def test_a_pooled_quantile_tells_how_many_requests_it_lacks() -> None:
    """Requests of all starts and sessions count together, and what is no quantile needs none."""
    assert too_few_requests(P50, [session()], 0.04) == "latency.p50 needs 100 requests, there are 80"
    assert too_few_requests(P50, [session()], 0.05) == ""
    assert too_few_requests(P50, [session(), session()], 0.04) == ""
    assert too_few_requests(P50, [], 0.05) == "latency.p50 needs 80 requests, there are 0"
    assert too_few_requests(THROUGHPUT, [session()], 0.001) == ""
