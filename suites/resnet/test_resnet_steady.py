"""ResNet-18 in the torch worker, compiled and not, over batch sizes: two users, and the model by itself.

A GPU gets the published images (250 x 250), the CPU a smaller model of the same architecture. The smallest batch is
measured with and without ``torch.compile``. The first start on a machine compiles for some 20 s. Later ones find its
kernels in inductor's cache, in torch's default place. ``--gpuserve-full`` measures the published sweep, batches of 1 to
256, with ten repetitions of the published 100 requests. The time of starts is not in these numbers: see
test_resnet_cold_start.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpuserve.measure.window import COMPILING
from suites.charts import latency_and_throughput, panels
from suites.resnet.formulas import published_throughput, samples_per_second
from suites.resnet.points import BATCHES, wanted_points
from suites.resnet.rows import columns, number
from suites.tolerances import CPU_TOLERANCES

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pytest_gpuserve.compare.assertions import Baseline, Run
    from pytest_gpuserve.device import Device
    from pytest_gpuserve.experiment.handle import ServerHandle, Target
    from suites.sweep import Row, Sweep

pytestmark = CPU_TOLERANCES

EXPERIMENT = "closed loop"
"""Columns of this file's rows in the table."""

PANELS = {
    "Throughput (images/s)": "samples_per_second",
    "Mean latency (s)": "mean_seconds",
    "First request (s)": "first_request_seconds",
    "GPU utilisation (share)": "gpu_utilisation",
}
"""Columns of the table that are drawn over the batch size, by title."""

USERS = 2
"""One user's request is executed while the other's waits, so that the worker always has work."""


@pytest.mark.parametrize(("batch", "compiled"), wanted_points())
def test_steady(
    *,
    worker: Callable[..., ServerHandle],
    requests_to: Callable[..., Target],
    load: Callable[..., Run],
    baseline: Baseline,
    table: Sweep,
    device: Device,
    full_size: bool,
    batch: int,
    compiled: bool,
) -> None:
    """A batch takes as long as in the baseline, and is executed as requested: by itself, compiled or not."""
    run = load(
        requests_to(worker(compile=compiled), batch),
        concurrency=USERS,
        seconds=20 if full_size else 6 if device.is_gpu else 3,
        requests=100 if full_size else None,
        starts=10 if full_size else 2,
        timeout=60,
    )
    table.add(run, experiment=EXPERIMENT, compile=compiled, batch=batch, **columns(run, batch))

    # By dynamo's own counters: the published benchmark believed its command line, and compiled what it called eager.
    assert run.settings["compile"].used == str(compiled)
    # All of it happened before the measured time: a stage without work in that time is left out.
    assert COMPILING not in run.counters.stages
    assert run.counters.items == batch * run.counters.batches
    assert run.summary.error_count == 0
    # Two requests are under way, and the published formula counts the time of both: it gives half of the rate.
    rate = samples_per_second(run.summary.throughput, batch)
    assert rate > 1.5 * published_throughput(run.summary.mean, batch)

    assert run.throughput >= baseline.throughput
    assert run.latency.p50 <= baseline.latency.p50
    if device.is_gpu and batch == 1:
        assert run.latency.p99 <= baseline.latency.p99
    elif device.is_gpu:
        # A few seconds bring too few large requests for a 99th percentile.
        assert run.latency.p90 <= baseline.latency.p90


def test_table(table: Sweep, artifacts: Path) -> None:
    """If both kinds of workers were measured over the published batches, larger ones give no fewer images a second.

    The charts show all measured points.
    """
    kinds = {"eager": False, "compiled": True}
    rows = [row for row in table.rows if row["experiment"] == EXPERIMENT]
    if not rows:
        pytest.skip("no point was measured in this run")
    folder = artifacts / "resnet"
    labels = [f"{'compiled' if row['compile'] else 'eager'}, {row['batch']}" for row in rows]
    latency_and_throughput(
        folder / "steady.svg",
        labels,
        {name: [number(row, f"{name}_seconds") for row in rows] for name in ("p50", "p90", "p99")},
        [number(row, "samples_per_second") for row in rows],
        throughput_label="Throughput (images/s)",
    )
    batches = sorted({int(number(row, "batch")) for row in rows})
    panels(
        folder / "batches.svg",
        batches,
        "Batch size",
        {
            title: {
                kind: [_at(rows, column, batch, compiled=compiled) for batch in batches]
                for kind, compiled in kinds.items()
            }
            for title, column in PANELS.items()
        },
        log_x=True,
    )

    for compiled in kinds.values():
        wanted: list[Row] = [{"experiment": EXPERIMENT, "compile": compiled, "batch": batch} for batch in BATCHES]
        rates = [number(row, "samples_per_second") for row in table.points(wanted)]
        assert max(rates) > rates[0]


def _at(rows: list[Row], column: str, batch: int, *, compiled: bool) -> float | None:
    found = [row[column] for row in rows if (row["batch"], row["compile"]) == (batch, compiled)]
    return float(found[0]) if found and found[0] is not None else None
