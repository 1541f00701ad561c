"""DistilBERT behind mosec: one sentence over 50 and 80 connections, to one and two inference processes.

A GPU runs the published setting (full size, batches of at most 32, 10 ms of waiting). The CPU runs a smaller model of
the same architecture. ``DISTILBERT_SLOWDOWN=1.0`` makes every batch take twice as long.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from suites.distilbert.payload import FOX
from suites.distilbert.settings import EQUALISED, FULL_SECONDS, MAX_BATCH_SIZE
from suites.tolerances import CPU_TOLERANCES

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpuserve.compare.assertions import Baseline
    from pytest_gpuserve.device import Device
    from pytest_gpuserve.experiment.handle import ServerHandle
    from pytest_gpuserve.fixture_types import Load

# Tokenizing and sending are half of a request's time here: a model that is 50 % slower costs 20 % of the throughput.
pytestmark = [pytest.mark.gpuserve(gpu="cpu", throughput=0.15), CPU_TOLERANCES]


@pytest.mark.parametrize(
    ("workers", "concurrency", "least_batch"),
    [
        # A full batch leaves 18 of 50 users over, so at worst each second batch consists of these.
        pytest.param(1, 50, 18, id="workers1-connections50"),
        # When a batch ends, 48 others wait, so all batches are full unless the client is late.
        pytest.param(1, 80, 30, id="workers1-connections80", marks=pytest.mark.gpuserve_full),
        pytest.param(2, 50, 18, id="workers2-connections50", marks=pytest.mark.gpuserve_full),
        # Two full batches leave 16 over.
        pytest.param(2, 80, 16, id="workers2-connections80", marks=pytest.mark.gpuserve_full),
    ],
)
def test_distilbert(
    *,
    mosec_distilbert: Callable[..., ServerHandle],
    label: bytes,
    load: Load,
    baseline: Baseline,
    keep: Callable[..., None],
    device: Device,
    workers: int,
    concurrency: int,
    least_batch: int,
    full_size: bool,
) -> None:
    """A closed loop over the fox sentence is as fast, as even and as well batched as the baseline."""
    server = mosec_distilbert(EQUALISED, workers=workers)
    run = load(
        server.post("/inference", body=FOX, expect=label),
        concurrency=concurrency,
        seconds=FULL_SECONDS if full_size else 3,
    )
    keep(run, system="mosec", variant=EQUALISED, workers=workers, concurrency=concurrency)
    assert run.batching_ratio >= baseline.batching_ratio
    assert run.throughput >= baseline.throughput
    assert run.latency.p50 <= baseline.latency.p50
    if device.is_gpu:
        # Tails of a shared CPU decide nothing.
        assert run.latency.p99 <= baseline.latency.p99
    assert len(label) == 8
    # The batch that users fill together, which the published text infers from uneven latencies. A GPU may be faster
    # than the tokenizing processes.
    assert (1 if device.is_gpu else least_batch) <= run.batching_ratio.value <= MAX_BATCH_SIZE
    # Actual settings of the server: those of the two published servers differed from their text.
    settings = {name: setting.used for name, setting in run.settings.items()}
    assert settings["Inference_2.max_batch_size"] == str(MAX_BATCH_SIZE)
    assert settings["Inference_2.max_wait_time"] == "10"
