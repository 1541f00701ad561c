"""ConvNeXt-tiny by itself: pictures a second of the model without a server.

The published baseline is always in fp32, even for servers in half precision; here each precision has its own.
"""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING

import pytest

from suites.catdog.experiments import BATCH_SIZES
from suites.catdog.model_process import model_process
from suites.published import LEAST, published

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_benchmark.fixture import BenchmarkFixture

    from pytest_gpuserve.device import Device
    from suites.catdog.model_process import ModelProcess

ROUNDS = 10
"""Timed runs of a batch, after one without a clock, as published."""

EVERYWHERE = (1, 8, 32)
"""Measured batch sizes without ``--gpuserve-full``."""

HALF = [pytest.param("fp16", marks=pytest.mark.gpuserve_full), pytest.param("bf16", marks=pytest.mark.gpuserve_full)]


@pytest.fixture(scope="module", params=["fp32", *HALF])
def precision(request: pytest.FixtureRequest) -> str:
    """Type of weights and activations."""
    return str(request.param)


@pytest.fixture(scope="module")
def model(device: Device, accelerator: str, size: str, precision: str) -> Iterator[ModelProcess]:
    """The model on the device, in a process that ends before a server is measured."""
    with model_process(device.environment(), size=size, precision=precision, device=accelerator) as process:
        yield process


@pytest.mark.parametrize(
    "pictures",
    [pytest.param(size, marks=() if size in EVERYWHERE else pytest.mark.gpuserve_full) for size in BATCH_SIZES],
    ids=lambda number: f"batch{number}",
)
def test_model_only(
    benchmark: BenchmarkFixture,
    model: ModelProcess,
    precision: str,
    pictures: int,
    model_rates: dict[tuple[str, int], float],
) -> None:
    """Ten runs of a batch after one warm-up; the mean of pictures a second is kept for the server's efficiency."""
    model.prepare(pictures)
    benchmark.pedantic(  # type: ignore[no-untyped-call] # pytest-benchmark's own
        model.run, rounds=ROUNDS, iterations=1, warmup_rounds=1
    )
    if benchmark.stats is None:
        pytest.skip("pytest-benchmark is disabled")
    seconds = benchmark.stats.stats.data
    assert len(seconds) == ROUNDS
    rate = fmean(pictures / run_seconds for run_seconds in seconds)
    benchmark.extra_info["pictures_per_second"] = rate
    model_rates[precision, pictures] = rate


@pytest.mark.gpuserve_full
@pytest.mark.parametrize("pictures", BATCH_SIZES, ids=lambda number: f"batch{number}")
def test_model_only_as_published(device: Device, model_rates: dict[tuple[str, int], float], pictures: int) -> None:
    """In fp32 the model by itself is within a tenth of the published speed; the file has batches a second."""
    printed = published(device.name, "catdog", record_kind="baseline", experiment=1, run=1, batch=pictures)
    if ("fp32", pictures) not in model_rates:
        pytest.skip(f"the model by itself was not measured at batch {pictures} in this run")
    assert model_rates["fp32", pictures] >= LEAST * pictures * printed["throughput"]
