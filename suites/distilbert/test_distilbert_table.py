"""Facts of several measurements of this suite together: their chart, the number of users, and the memory of a GPU.

These tests do not measure. They skip if their measurements are missing in the same run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from suites import charts
from suites.distilbert.settings import EQUALISED

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpuserve.device import Device
    from suites.sweep import Row, Sweep

PARAMETERS = 66_955_010
"""Bytes of the model in its full size, 4 for each parameter."""


def mosec_point(workers: int, concurrency: int) -> Row:
    """Properties that distinguish a measurement of mosec's from the others."""
    return {"system": "mosec", "variant": EQUALISED, "workers": workers, "concurrency": concurrency}


def number(row: Row, column: str) -> float:
    """A column's value, which must be known."""
    value = row[column]
    assert isinstance(value, (int, float)), f"{column} was not measured in {dict(row)}"
    return float(value)


def rows_of(sweep: Sweep) -> list[Row]:
    """All measurements of this run."""
    if not sweep.rows:
        pytest.skip("no test of this suite has measured in this run")
    return sweep.rows


def test_chart_of_latencies_and_throughput(sweep: Sweep, artifacts: Path) -> None:
    """All measurements are in one chart: p50, p90 and p99 as bars, throughput as a line."""
    rows = rows_of(sweep)
    file = artifacts / "distilbert" / "serving.svg"
    charts.latency_and_throughput(
        file,
        [f"{row['system']} {row['variant']}\n{row['workers']} x, {row['concurrency']} users" for row in rows],
        {name: [number(row, f"{name}_seconds") for row in rows] for name in ("p50", "p90", "p99")},
        [number(row, "throughput") for row in rows],
    )
    assert file.read_text(encoding="utf-8").count("mosec") + file.read_text(encoding="utf-8").count("pytriton") >= len(
        rows
    )


def test_requests_under_way_are_the_users(sweep: Sweep) -> None:
    """Throughput times mean latency is the number of users, for each server: users do not pause (Little's law)."""
    for row in rows_of(sweep):
        users = number(row, "throughput") * number(row, "mean_seconds")
        assert users == pytest.approx(number(row, "concurrency"), rel=0.1)


@pytest.mark.gpuserve_full
def test_users_who_fill_batches_bring_throughput(sweep: Sweep) -> None:
    """80 users get no less out of one process than 50: published are 2762.7568 to 2147.0514 requests/s, 29 % more.

    A second process brought 10 % more on the measured GPU. On another one it may bring nothing, so only the table has
    it.
    """
    fewer, more = sweep.points([mosec_point(1, 50), mosec_point(1, 80)])
    assert number(more, "throughput") >= 0.95 * number(fewer, "throughput")


def test_a_process_more_holds_a_model_more(sweep: Sweep, device: Device) -> None:
    """On a GPU each inference process holds the weights, and some kernel runs: published are 1043 and 2080 MiB."""
    if not device.is_gpu:
        pytest.skip("without a GPU, memory and utilisation are unknown, which is not the same as 0")
    one, two = sweep.points([mosec_point(1, 80), mosec_point(2, 80)])
    assert number(two, "gpu_memory_bytes") - number(one, "gpu_memory_bytes") >= 4 * PARAMETERS
    for row in (one, two):
        assert number(row, "gpu_memory_bytes") >= 4 * PARAMETERS * number(row, "workers")
        assert 0 < number(row, "gpu_utilisation") <= 1
