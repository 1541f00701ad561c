"""DistilBERT behind pytriton: the published request of 222 bytes over 50 connections, in both variants.

``as_published`` is the service of the published numbers, whose settings differ from its text. ``equalised`` has mosec's
settings. The app's docstring lists the differences.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpuserve.load.kserve import equal_to
from suites.distilbert.payload import FOX, HEADER_LENGTH, INFER_PATH, kserve_body
from suites.distilbert.settings import (
    AS_PUBLISHED,
    EQUALISED,
    FULL_SECONDS,
    MAX_BATCH_SIZE,
    PYTRITON,
)
from suites.tolerances import CPU_TOLERANCES

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpuserve.compare.assertions import Baseline
    from pytest_gpuserve.device import Device
    from pytest_gpuserve.experiment.handle import ServerHandle
    from pytest_gpuserve.fixture_types import Load

# Triton and pytriton's own processes are more than half of a request's time here: a batch that takes 50 % longer costs
# 19 % of the throughput.
pytestmark = [pytest.mark.gpuserve(gpu="cpu", throughput=0.15), CPU_TOLERANCES]


@pytest.mark.parametrize(
    ("variant", "least_batch"),
    [
        # Without a wait a batch consists of the requests that are there.
        pytest.param(AS_PUBLISHED, 1, marks=pytest.mark.gpuserve_full),
        pytest.param(EQUALISED, 18),
    ],
)
def test_distilbert(
    *,
    pytriton_distilbert: Callable[..., ServerHandle],
    label: bytes,
    load: Load,
    baseline: Baseline,
    keep: Callable[..., None],
    device: Device,
    variant: str,
    least_batch: int,
    full_size: bool,
) -> None:
    """A closed loop over the published request is as fast, as even and as well batched as the baseline."""
    body, header_length = kserve_body(FOX)
    assert (header_length, len(body) - header_length, len(body)) == (175, 47, 222)
    assert len(label) == 8
    server = pytriton_distilbert(variant)
    run = load(
        server.post(
            INFER_PATH,
            body=body,
            headers={HEADER_LENGTH: str(header_length)},
            expect=equal_to({"labels": [[label]]}),
        ),
        concurrency=50,
        seconds=FULL_SECONDS if full_size else 3,
    )
    keep(run, system="pytriton", variant=variant, workers=1, concurrency=50)
    assert run.batching_ratio >= baseline.batching_ratio
    assert run.throughput >= baseline.throughput
    assert run.latency.p50 <= baseline.latency.p50
    if device.is_gpu:
        assert run.latency.p99 <= baseline.latency.p99
    assert least_batch <= run.batching_ratio.value <= MAX_BATCH_SIZE
    # Triton reports microseconds too, so that they are not taken for milliseconds.
    settings = {name: setting.used for name, setting in run.settings.items()}
    assert settings["max_batch_size"] == str(MAX_BATCH_SIZE)
    assert settings["max_queue_delay_us"] == str(PYTRITON[variant]["max_queue_delay_us"])
    # The server's time of a request does not exceed the client's.
    parts = run.breakdown
    assert parts.queue + parts.compute_input + parts.compute_infer + parts.compute_output < 1.1 * run.summary.mean
