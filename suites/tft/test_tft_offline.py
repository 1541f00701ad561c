"""Offline: one request at a time, of 1 to 1024 examples, its tensors in system shared memory.

On a GPU these are the published points; on the CPU one of them, of a smaller network for one data set.
``TFT_SLOWDOWN=1.0`` makes every batch take twice as long.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from suites import charts
from suites.published import LEAST, MOST, published
from suites.tft.apps.tft.contract import DATASETS
from suites.tft.gathered import BACKENDS, Gathered, check_identities, wanted_points
from suites.tft.published_rules import OFFLINE_BATCHES
from suites.tft.table import BATCH
from suites.tolerances import CPU_TOLERANCES

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

    from pytest_gpuserve.compare.assertions import Baseline, Run
    from pytest_gpuserve.device import Device
    from suites.tft.conftest import Tft

pytestmark = CPU_TOLERANCES

EVERYWHERE = (("electricity", 16),)
"""Data set and batch size that are measured on a CPU, too."""

REQUESTS = 500
"""Requests of a published window."""


@pytest.fixture(scope="module")
def gathered(artifacts: Path) -> Generator[Gathered, None, None]:
    """The rows of this file; the tables are written at its end, complete or not."""
    rows = Gathered(artifacts / "tft", "offline", BATCH)
    yield rows
    rows.save()


@pytest.fixture
def measured(
    deploy: Callable[..., Tft],
    load: Callable[..., Run],
    gathered: Gathered,
    full_size: bool,  # noqa: FBT001 -- a fixture
) -> Callable[[str, int], Run]:
    """Measure batches of one size of a data set, and add their row."""

    def measure(dataset: str, batch: int) -> Run:
        run = load(
            deploy(dataset).batch(batch, shared=True),
            concurrency=1,
            seconds=20 if full_size else 3,
            requests=REQUESTS if full_size else None,
            timeout=60,
        )
        gathered.add(run, dataset=dataset, batch=batch, concurrency=1)
        return run

    return measure


@pytest.mark.parametrize(("dataset", "batch"), wanted_points([1], ()))
def test_single(measured: Callable[[str, int], Run], baseline: Baseline, dataset: str, batch: int) -> None:
    """Single examples are answered as fast as the baseline says, the slowest of a hundred included."""
    run = measured(dataset, batch)
    assert run.throughput >= baseline.throughput
    assert run.latency.p50 <= baseline.latency.p50
    assert run.latency.p99 <= baseline.latency.p99
    check_identities(run, batch=batch, concurrency=1)


@pytest.mark.parametrize(("dataset", "batch"), wanted_points(OFFLINE_BATCHES[1:], EVERYWHERE))
def test_offline(
    measured: Callable[[str, int], Run], baseline: Baseline, device: Device, dataset: str, batch: int
) -> None:
    """Larger batches too; a GPU does a few of them a second, too few for a p99 that could be gated."""
    run = measured(dataset, batch)
    assert run.throughput >= baseline.throughput
    assert run.latency.p50 <= baseline.latency.p50
    if device.is_gpu:
        assert run.latency.p90 <= baseline.latency.p90
    check_identities(run, batch=batch, concurrency=1)


@pytest.mark.gpuserve_full
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("batch", [1, 1024])
def test_other_precisions(
    *,
    deploy: Callable[..., Tft],
    load: Callable[..., Run],
    baseline: Baseline,
    device: Device,
    precision: str,
    batch: int,
) -> None:
    """Beside the published fp16, a GPU does as well in fp32 and bf16 as it did, with right answers."""
    if not device.is_gpu:
        pytest.skip(f"{precision} beside the usual one is for a GPU")
    run = load(deploy("electricity", TFT_PRECISION=precision).batch(batch, shared=True), concurrency=1, timeout=60)
    assert run.throughput >= baseline.throughput
    assert run.latency.p90 <= baseline.latency.p90


@pytest.mark.gpuserve_full
def test_trace(deploy: Callable[..., Tft], load: Callable[..., Run], baseline: Baseline) -> None:
    """The published format, a TorchScript trace, is as fast as it was and answers as the network does."""
    run = load(deploy("electricity", TFT_FORMAT="ts-trace").batch(16, shared=True), concurrency=1, timeout=60)
    assert run.throughput >= baseline.throughput
    assert run.latency.p50 <= baseline.latency.p50


@pytest.mark.gpuserve_full
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dataset", DATASETS)
@pytest.mark.parametrize("batch", [1, 32, 1024])
def test_published_offline(
    *,
    deploy: Callable[..., Tft],
    load: Callable[..., Run],
    device: Device,
    backend: str,
    dataset: str,
    batch: int,
) -> None:
    """A trace in fp16 does what was published for this GPU, or more; the table's rows say what for which.

    The glue is another: the published server had the PyTorch backend, this one has the Python backend, in the wheel.
    """
    printed = published(
        device.name, "tft", scenario="offline", backend=backend, dataset=dataset, batch=batch, concurrency=1
    )
    run = load(deploy(dataset, TFT_FORMAT="ts-trace").batch(batch, shared=True), concurrency=1, timeout=60)
    assert run.throughput >= LEAST * printed["throughput"]
    if batch <= 32:
        # With larger batches a GPU does too few in the time for a p99.
        assert run.latency.p99 <= MOST * printed["latency.p99"]


@pytest.mark.gpuserve_full
def test_knee(gathered: Gathered) -> None:
    """Larger batches do more a second than single examples; the most within each point's own p99 is written down.

    The chart is the published one: p99 by throughput, labelled by the batch size.
    """
    found = gathered.points((dataset, batch) for dataset in DATASETS for batch in OFFLINE_BATCHES)
    charts.tradeoff(
        gathered.folder / "offline.svg",
        {name: [(point.throughput, point.p99_seconds, str(point.at)) for point in found[name]] for name in found},
        throughput_label="Throughput (inferences/s)",
    )
    gathered.save_knees(found)
    for points in found.values():
        assert max(point.throughput for point in points) > points[0].throughput
