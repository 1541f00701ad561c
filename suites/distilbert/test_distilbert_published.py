"""Published numbers for a T4, which a machine with one must reach. Skipped on any other device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpuserve.load.kserve import equal_to
from suites.distilbert.payload import FOX, HEADER_LENGTH, INFER_PATH, kserve_body
from suites.distilbert.settings import AS_PUBLISHED, FULL_SECONDS, PUBLISHED_REQUESTS
from suites.published import LEAST, MOST, published

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpuserve.device import Device
    from pytest_gpuserve.experiment.handle import ServerHandle, Target
    from pytest_gpuserve.fixture_types import Load

pytestmark = pytest.mark.gpuserve_full


@pytest.mark.parametrize(
    ("system", "workers", "concurrency"),
    [("mosec", 1, 50), ("mosec", 1, 80), ("mosec", 2, 80), ("pytriton", 1, 50)],
)
def test_not_below_what_was_published(
    *,
    device: Device,
    mosec_distilbert: Callable[..., ServerHandle],
    pytriton_distilbert: Callable[..., ServerHandle],
    label: bytes,
    load: Load,
    system: str,
    workers: int,
    concurrency: int,
) -> None:
    """With the published settings, requests and load it is as fast and as even as printed."""
    printed = published(device.name, "distilbert", system=system, concurrency=concurrency, workers=workers)
    target = (
        mosec_distilbert(AS_PUBLISHED, workers=workers).post("/inference", body=FOX, expect=label)
        if system == "mosec"
        else _kserve(pytriton_distilbert, label)
    )
    run = load(target, concurrency=concurrency, seconds=FULL_SECONDS, requests=PUBLISHED_REQUESTS)
    assert run.throughput >= LEAST * printed["throughput"]
    assert run.latency.p50 <= MOST * printed["latency.p50"]
    assert run.latency.p99 <= MOST * printed["latency.p99"]


def _kserve(pytriton_distilbert: Callable[..., ServerHandle], label: bytes) -> Target:
    body, header_length = kserve_body(FOX)
    return pytriton_distilbert(AS_PUBLISHED).post(
        INFER_PATH, body=body, headers={HEADER_LENGTH: str(header_length)}, expect=equal_to({"labels": [[label]]})
    )
