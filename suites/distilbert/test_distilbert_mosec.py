"""DistilBERT behind mosec: one sentence over 50 and 80 connections, to one and two inference processes.

On a GPU this is the setting of the published benchmark (full size, batches of at most 32, 10 ms of waiting); on the
CPU it is a smaller model of the same architecture. ``DISTILBERT_SLOWDOWN=1.0`` makes every batch take twice as long.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import pytest

from suites.distilbert.reference import expected_replies

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpuserve.trial.assertions import Baseline, Run
    from pytest_gpuserve.trial.handle import ServerHandle

    class Device(Protocol):
        """What this suite asks of the device under test."""

        @property
        def is_gpu(self) -> bool:
            """Whether it is a card, not the CPU."""


# On two shared cores one build moves by several percent from hour to hour: at 5 % half of its verdicts stay undecided.
pytestmark = pytest.mark.gpuserve(throughput=0.10, p50=0.10)

FOX = b"The quick brown fox jumps over the lazy dog"


@pytest.fixture(scope="module")
def size(device: Device) -> str:
    """Size of the model, which a CPU has to be spared."""
    return "full" if device.is_gpu else "small"


@pytest.fixture(scope="module")
def label(size: str) -> bytes:
    """The right answer, from the same model in this process."""
    return expected_replies([FOX], size=size)[0]


@pytest.fixture(scope="module", params=[1, 2], ids=lambda number: f"workers{number}")
def distilbert(request: pytest.FixtureRequest, mosec_server: Callable[..., ServerHandle], size: str) -> ServerHandle:
    """The deployment, with one or two inference processes."""
    return mosec_server("apps/distilbert_mosec.py", inference_workers=request.param, size=size)


@pytest.mark.parametrize("concurrency", [50, 80], ids=lambda number: f"connections{number}")
def test_distilbert(
    distilbert: ServerHandle, label: bytes, load: Callable[..., Run], baseline: Baseline, concurrency: int
) -> None:
    """A closed loop over the fox sentence is as fast, as even and as well batched as the baseline."""
    run = load(distilbert.post("/inference", body=FOX, expect=label), concurrency=concurrency)
    assert run.throughput >= baseline.throughput
    assert run.latency.p50 <= baseline.latency.p50
    assert run.latency.p99 <= baseline.latency.p99
    assert run.batching_ratio >= baseline.batching_ratio
