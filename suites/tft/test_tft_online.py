"""Online: requests of 16 examples over HTTP from 8 to 256 users, which Triton batches dynamically.

A GPU runs the published points, by the published rule. The CPU runs one of them, with a smaller network for one data
set. ``TFT_SLOWDOWN=1.0`` makes every batch take twice as long.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from suites import charts
from suites.published import LEAST, MOST, published
from suites.tft.apps.tft.contract import DATASETS, INSTANCES, MAX_BATCH_SIZE
from suites.tft.gathered import BACKENDS, Gathered, check_identities, wanted_points
from suites.tft.published_rules import online_plan, until_stable
from suites.tft.table import AVERAGE, CONCURRENCY, THROUGHPUT, components_of
from suites.tolerances import CPU_TOLERANCES

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

    from pytest_gpuserve.compare.assertions import Baseline, Run
    from pytest_gpuserve.device import Device
    from suites.tft.conftest import Tft

pytestmark = CPU_TOLERANCES

PLAN = online_plan(MAX_BATCH_SIZE, instances=INSTANCES)

EVERYWHERE = (("electricity", 4),)
"""Data set and concurrency that are measured on a CPU, too; the plan does not have 4."""

LEAST_REQUESTS = 500
"""Requests of a published window."""

LATENCIES_LONG = 20
"""Fewest rounds of all users. The published windows of 500 requests had two at 256 users, and lost up to a quarter of
the throughput at their ends."""


@pytest.fixture(scope="module")
def gathered(artifacts: Path) -> Generator[Gathered, None, None]:
    """The rows of this file; the tables are written at its end, complete or not."""
    rows = Gathered(artifacts / "tft", "online", CONCURRENCY)
    yield rows
    rows.save()


@pytest.mark.parametrize(("dataset", "concurrency"), wanted_points(PLAN.concurrencies, EVERYWHERE))
def test_online(
    *,
    deploy: Callable[..., Tft],
    load: Callable[..., Run],
    baseline: Baseline,
    gathered: Gathered,
    device: Device,
    full_size: bool,
    dataset: str,
    concurrency: int,
) -> None:
    """Users get answers as fast as in the baseline, in batches as large, and the components of the time add up."""
    run = load(
        deploy(dataset).batch(PLAN.batch),
        concurrency=concurrency,
        seconds=20 if full_size else 3,
        requests=max(LEAST_REQUESTS, LATENCIES_LONG * concurrency) if full_size else None,
        timeout=60,
    )
    gathered.add(run, dataset=dataset, batch=PLAN.batch, concurrency=concurrency)
    assert run.throughput >= baseline.throughput
    assert run.latency.p50 <= baseline.latency.p50
    if device.is_gpu:
        assert run.latency.p90 <= baseline.latency.p90
    assert run.batching_ratio >= baseline.batching_ratio
    check_identities(run, batch=PLAN.batch, concurrency=concurrency)


@pytest.mark.gpuserve_full
def test_until_stable(deploy: Callable[..., Tft], load: Callable[..., Run], baseline: Baseline) -> None:
    """Measured until three windows agree within 10 %, as perf_analyzer does, throughput is that of the baseline."""
    run = load(deploy("electricity").batch(PLAN.batch), concurrency=128, until=until_stable, timeout=60)
    assert run.throughput >= baseline.throughput


@pytest.mark.gpuserve_full
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dataset", DATASETS)
@pytest.mark.parametrize("concurrency", [8, 128, 256])
def test_published_online(
    *,
    deploy: Callable[..., Tft],
    load: Callable[..., Run],
    device: Device,
    backend: str,
    dataset: str,
    concurrency: int,
) -> None:
    """A trace in fp16 does what was published for this GPU, or more; published throughputs are known to be low.

    The glue is another: the published server had the PyTorch backend, this one has the Python backend, in the wheel.
    """
    printed = published(
        device.name,
        "tft",
        scenario="online",
        backend=backend,
        dataset=dataset,
        batch=PLAN.batch,
        concurrency=concurrency,
    )
    run = load(deploy(dataset, TFT_FORMAT="ts-trace").batch(PLAN.batch), concurrency=concurrency, timeout=60)
    assert run.throughput >= LEAST * printed["throughput"]
    assert run.latency.p99 <= MOST * printed["latency.p99"]


@pytest.mark.gpuserve_full
def test_knee(gathered: Gathered) -> None:
    """More users wait longer; the most that is done within each point's own p99 is written down.

    The chart is the published one: what latency is made of, and throughput, by concurrency.
    """
    found = gathered.points((dataset, users) for dataset in DATASETS for users in PLAN.concurrencies)
    gathered.save_knees(found)
    for dataset, points in found.items():
        users = {point.at for point in points}
        rows = [row for row in gathered.table(dataset) if row[CONCURRENCY] in users]
        parts = [components_of(row) for row in rows]
        charts.stacked(
            gathered.folder / f"online_{dataset}.svg",
            [row[CONCURRENCY] for row in rows],
            {name: [part[name] for part in parts] for name in parts[0]},
            [row[THROUGHPUT] for row in rows],
            "Concurrency",
            line_label="Throughput (inferences/s)",
        )
        averages = [row[AVERAGE] for row in rows]
        assert averages[-1] > averages[0]
        assert len(points) == len(rows)
