"""Compiled against eager, two threads against one, and the published load: everything queued at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpuserve.load import Burst
from suites.resnet.formulas import published_throughput, samples_per_second
from suites.resnet.rows import columns
from suites.tolerances import CPU_TOLERANCES

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpuserve.compare.assertions import Baseline, Duel, Run
    from pytest_gpuserve.experiment.handle import ServerHandle, Target
    from suites.sweep import Sweep

pytestmark = [CPU_TOLERANCES, pytest.mark.gpuserve_full]

BATCH = 32


def test_compiled_is_no_slower_than_eager(
    worker: Callable[..., ServerHandle], requests_to: Callable[..., Target], duel: Callable[..., Duel]
) -> None:
    """Side by side and warm, the compiled model is not slower; its gain depends on the device and the batch."""
    compiled = requests_to(worker(compile=True), BATCH)
    result = duel(compiled, requests_to(worker(), BATCH), concurrency=2, timeout=60)
    assert result.throughput >= 0.95


def test_two_threads_overlap(
    worker: Callable[..., ServerHandle], requests_to: Callable[..., Target], duel: Callable[..., Duel]
) -> None:
    """Two threads answer no fewer requests than one, with work for both.

    On a GPU each has its own stream and pinned memory, so that one's copies to the GPU and back go on while the other
    computes. Later versions of the benchmark used threads for copies instead. On the CPU each has a core.
    """
    two = requests_to(worker(workers=2), BATCH)
    result = duel(two, requests_to(worker(), BATCH), concurrency=4, timeout=60)
    assert result.throughput >= 0.95


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_workers(
    *,
    worker: Callable[..., ServerHandle],
    requests_to: Callable[..., Target],
    load: Callable[..., Run],
    baseline: Baseline,
    table: Sweep,
    workers: int,
) -> None:
    """Without torch.compile one to four threads execute the model, as fast as in the baseline."""
    run = load(requests_to(worker(workers=workers), BATCH), concurrency=2 * workers, seconds=8, timeout=60)
    table.add(run, experiment=f"{workers} workers", compile=False, batch=BATCH, **columns(run, BATCH))
    assert run.settings["workers"].used == str(workers)
    assert run.throughput >= baseline.throughput


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "eager"])
def test_queued_at_once(
    *,
    worker: Callable[..., ServerHandle],
    requests_to: Callable[..., Target],
    load: Callable[..., Run],
    baseline: Baseline,
    table: Sweep,
    full_size: bool,
    compiled: bool,
) -> None:
    """The published load: after one warm-up request all are queued at once, and latencies are mostly waiting.

    A request's clock starts when it is due, and all were made before the load began. The benchmark made each in its
    turn, so that larger batches made a slower load. Its printed formula is off by half the number of requests here, and
    its mean latency shows the queue's length; only the throughput is gated. The worker holds all waiting requests: 24
    GB of memory with the published thousand on a GPU.
    """
    number = 1000 if full_size else 100
    run = load(requests_to(worker(compile=compiled), BATCH), schedule=Burst(requests=number), timeout=600)
    table.add(run, experiment="queued at once", compile=compiled, batch=BATCH, **columns(run, BATCH))
    assert run.counters.batches == run.summary.requests
    rate = samples_per_second(run.summary.throughput, BATCH)
    assert rate > number / 4 * published_throughput(run.summary.mean, BATCH)
    assert run.throughput >= baseline.throughput
