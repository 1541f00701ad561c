"""From windows to points: by numbers that a reader can recompute, and refused where too little was measured."""

from __future__ import annotations

import math
import re
import statistics

import pytest

from pytest_gpuserve.gate.metric import METRICS, Metric
from pytest_gpuserve.measure.points import NotMeasured, TooFewRequests, batch_totals, point, pooled_value
from tests.unit.builders import session, start, window

THROUGHPUT = METRICS["throughput"]
BATCHING = METRICS["batching_ratio"]
P50, P99 = METRICS["latency.p50"], METRICS["latency.p99"]
ALL = pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS)

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


@ALL
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


@ALL
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
