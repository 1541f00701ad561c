"""What is gated, and the scale on which it is judged."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_gpuserve.gate.metric import METRICS, Metric, log_cost, metric_by_option, requests_needed

ALL = pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS)
UNHURRIED = settings(deadline=None)  # a busy machine may stall any example
VALUES = st.floats(1e-9, 1e9)


def test_the_table_of_metrics_is_the_published_one() -> None:
    """Names, marker keys, tolerances and sd floors are those of the documentation, in report order.

    A suite that names none of those on request has no rows, no comparisons and no texts of them.
    """
    table = [
        (m.name, m.option, m.unit, m.default_tolerance, m.sd_floor, m.default_sd, m.on_request)
        for m in METRICS.values()
    ]
    assert table == [
        ("throughput", "throughput", "1/s", 0.05, 0.005, 0.02, False),
        ("latency.p50", "p50", "s", 0.05, 0.005, 0.02, False),
        ("latency.p90", "p90", "s", 0.10, 0.005, 0.02, False),
        ("latency.p95", "p95", "s", 0.10, 0.005, 0.02, False),
        ("latency.p99", "p99", "s", 0.20, 0.03, 0.03, False),
        ("batching_ratio", "batching_ratio", "", 0.05, 0.003, 0.02, False),
        ("energy_per_inference", "energy_per_inference", "J", 0.05, 0.005, 0.02, True),
        ("gpu_memory", "gpu_memory", "B", 0.02, 0.001, 0.005, True),
        ("gpu_utilisation", "gpu_utilisation", "", 0.05, 0.01, 0.02, True),
        ("cold_start", "cold_start", "s", 0.20, 0.02, 0.05, True),
        ("capacity", "capacity", "1/s", 0.10, 0.01, 0.04, True),
    ]


def test_a_metric_is_found_by_its_marker_key() -> None:
    """The marker's key leads back to the very metric; a misspelt one never selects anything."""
    assert [metric_by_option(metric.option) for metric in METRICS.values()] == list(METRICS.values())
    with pytest.raises(KeyError):
        metric_by_option("p999")


@ALL
@UNHURRIED
@given(value=VALUES, slowdown=st.floats(0.001, 10))
def test_worse_is_larger_by_the_log_of_the_slowdown(metric: Metric, value: float, slowdown: float) -> None:
    """A slowdown of r adds log(1 + r) to the log cost of every metric, whichever direction is better."""
    worse = value / (1 + slowdown) if metric.higher_is_better else value * (1 + slowdown)
    assert log_cost(metric, worse) - log_cost(metric, value) == pytest.approx(math.log1p(slowdown), abs=1e-9)


@ALL
def test_a_tolerance_is_told_as_it_was_written(metric: Metric) -> None:
    """No digit that nobody wrote gets into a file by the way to the cost and back."""
    tolerances = [percent / 100 for percent in range(1, 100)]
    assert [metric.loss(metric.growth(tolerance)) for tolerance in tolerances] == tolerances


def test_a_tolerance_is_one_that_can_be_decided() -> None:
    """Of what is better when more nothing falls by all of it, where a latency may well double; none is zero or less."""
    for tolerance in (1, 1.0, 7.5):
        with pytest.raises(ValueError, match="throughput cannot fall by"):
            METRICS["throughput"].growth(tolerance)
        assert METRICS["latency.p99"].growth(tolerance) == tolerance
    for tolerance in (0.0, -0.1, math.nan, math.inf):
        with pytest.raises(ValueError, match="positive fraction"):
            requests_needed(METRICS["throughput"], tolerance)


@ALL
def test_what_is_not_a_measurement_has_no_cost(metric: Metric) -> None:
    """Zero requests per second or a NaN latency is an error, never an infinitely good or bad number."""
    for value in (0.0, -1.0, math.nan, math.inf, -math.inf):
        with pytest.raises(ValueError, match="must be a positive number"):
            log_cost(metric, value)


@pytest.mark.parametrize(
    ("name", "tolerance", "requests"),
    [
        ("latency.p99", 0.20, 1000),
        ("latency.p99", 0.10, 2000),
        ("latency.p95", 0.10, 400),
        ("latency.p90", 0.10, 200),
        ("latency.p50", 0.05, 80),
        ("throughput", 0.05, 40),
        ("batching_ratio", 0.03, 67),
        ("energy_per_inference", 0.05, 40),
        ("gpu_memory", 0.001, 1),
        ("gpu_utilisation", 0.001, 1),
        ("cold_start", 0.001, 1),
    ],
)
def test_requests_needed_follow_the_published_rule(name: str, tolerance: float, requests: int) -> None:
    """p99 needs 1000 requests at 20 % and 2000 at 10 %, and no rounding of 1 - q adds one."""
    assert requests_needed(METRICS[name], tolerance) == requests
