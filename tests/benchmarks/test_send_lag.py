"""How late an open loop sends."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

import pytest

from pytest_gpuserve.units import format_rate, format_seconds
from tests.benchmarks import ours
from tests.benchmarks.rows import Row

if TYPE_CHECKING:
    from tests.benchmarks.rows import Table

pytestmark = [pytest.mark.slow, pytest.mark.alone]

RATE = 10_000
SECONDS = 10
LOADS = 5


def test_ten_thousand_a_second(nginx_url: str, table: Table) -> None:
    """At 10 000 requests a second the median send is at most 50 us late, and the 99th percentile 300 us."""
    argv = ours.command(nginx_url, rate=RATE, arrivals="constant", duration=SECONDS)
    reports = [ours.load(argv) for _ in range(LOADS)]
    assert min(report.throughput for report in reports) >= 0.99 * RATE, reports
    limits = {"p50": 50e-6, "p99": 300e-6}
    lags = {"p50": [each.send_lag_p50 for each in reports], "p99": [each.send_lag_p99 for each in reports]}
    medians = {name: statistics.median(values) for name, values in lags.items()}
    for name, values in lags.items():
        spread = f"{format_seconds(min(values))} to {format_seconds(max(values))}, {LOADS} loads"
        limit = f"<= {format_seconds(limits[name])}"
        kept = medians[name] <= limits[name]
        table.add(
            Row(f"send lag {name} at {format_rate(RATE)}", format_seconds(medians[name]), "", "", spread, limit, kept)
        )
    assert all(medians[name] <= limits[name] for name in limits), lags
