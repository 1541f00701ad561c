"""The published ensemble under load, by output length, over HTTP and gRPC.

A GPU runs the published model with the final number of users of each run. The CPU runs a smaller model of the same
architecture with eight users. ``CODEGEN_SLOWDOWN=1.0`` makes every batch take twice as long.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from suites.codegen.analysis import mean_batch, mean_queue_us, share_by_execution, share_by_request
from suites.codegen.reference import right_answer
from suites.codegen.repository import ENSEMBLE, GENERATION, POSTPROCESSING, PREPROCESSING, STEPS
from suites.codegen.request import PUBLISHED_USERS, request_tensors
from suites.sweep import Sweep
from suites.tolerances import CPU_TOLERANCES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pytest_gpuserve.compare.assertions import Baseline, Run
    from pytest_gpuserve.device import Device
    from pytest_gpuserve.experiment.handle import ServerHandle
    from pytest_gpuserve.measure.counters import Counters
    from suites.codegen.request import Protocol

pytestmark = CPU_TOLERANCES

USERS_ON_CPU = 8


FULL = pytest.mark.gpuserve_full

POINTS = [
    pytest.param(8, "http", id="len8-http"),
    pytest.param(8, "grpc", id="len8-grpc", marks=FULL),
    pytest.param(32, "http", id="len32-http", marks=FULL),
    pytest.param(32, "grpc", id="len32-grpc", marks=FULL),
    pytest.param(128, "http", id="len128-http", marks=FULL),
    pytest.param(128, "grpc", id="len128-grpc", marks=FULL),
    pytest.param(512, "http", id="len512-http", marks=FULL),
    pytest.param(512, "grpc", id="len512-grpc", marks=FULL),
]


@pytest.fixture(scope="module")
def sweep(tables: Path) -> Iterator[Sweep]:
    """The rows of this module, saved as a table."""
    rows = Sweep(tables / "lengths.csv")
    yield rows
    rows.save("protocol", "output_len")


def check_counted(counted: Counters, requests: int, users: int) -> None:
    """Check that the counts of a load add up, within the requests in flight at its ends.

    Args:
        counted: Counts within the measured windows of all starts.
        requests: Requests that were answered in them.
        users: Most requests in flight at the begin and at the end of each load together.
    """
    parts = counted.parts
    assert mean_batch(parts[ENSEMBLE]) == 1.0
    assert mean_batch(parts[GENERATION]) == mean_batch(counted) >= 1.0
    for model in (*STEPS, ENSEMBLE):
        assert abs((parts[model].requests or 0) - requests) <= users
    for model in (PREPROCESSING, POSTPROCESSING):
        assert mean_batch(parts[model]) == 1.0
        assert 0 < share_by_request(parts, model) < 1
        assert share_by_request(parts, model) <= share_by_execution(parts, model)
    assert 0 < mean_queue_us(parts) < 1e9


@pytest.mark.parametrize(("output_len", "protocol"), POINTS)
def test_codegen(
    codegen: ServerHandle,
    device: Device,
    size: str,
    load: Callable[..., Run],
    baseline: Baseline,
    *,
    sweep: Sweep,
    output_len: int,
    protocol: Protocol,
    full_size: bool,
) -> None:
    """The published prompt is answered as fast, as even and as well batched as in the baseline; counters add up."""
    users = PUBLISHED_USERS[output_len] if device.is_gpu else USERS_ON_CPU
    run = load(
        codegen.infer(
            request_tensors(output_len=output_len),
            grpc=protocol == "grpc",
            expect=right_answer(output_len, size=size),
        ),
        concurrency=users,
        seconds=10.0 if full_size else 3.0,
        timeout=60.0,
    )
    counted = run.counters
    sweep.add(
        run,
        output_len=output_len,
        protocol=protocol,
        users=users,
        preprocessing_share=share_by_request(counted.parts, PREPROCESSING),
        postprocessing_share=share_by_request(counted.parts, POSTPROCESSING),
        preprocessing_share_by_execution=share_by_execution(counted.parts, PREPROCESSING),
        postprocessing_share_by_execution=share_by_execution(counted.parts, POSTPROCESSING),
        mean_queue_us=mean_queue_us(counted.parts),
    )
    check_counted(counted, run.summary.requests, users * run.loads)
    assert run.throughput >= baseline.throughput
    assert run.latency.p50 <= baseline.latency.p50
    if device.is_gpu:
        assert run.latency.p90 <= baseline.latency.p90
    if device.is_gpu and output_len == min(PUBLISHED_USERS):
        # Longer answers are too few for a 99th percentile.
        assert run.latency.p99 <= baseline.latency.p99
    assert run.batching_ratio >= baseline.batching_ratio


@pytest.mark.parametrize(
    "points",
    [
        pytest.param([(8, "http"), (32, "grpc")], id="two", marks=FULL),
        pytest.param([(length, "http") for length in PUBLISHED_USERS], id="http", marks=FULL),
        pytest.param([(length, "grpc") for length in PUBLISHED_USERS], id="grpc", marks=FULL),
    ],
)
def test_longer_answers_cost_throughput_and_hide_preprocessing(sweep: Sweep, points: list[tuple[int, str]]) -> None:
    """With longer answers throughput falls, and the share of preprocessing falls about in proportion.

    Published: for four times the length the share is 2.6 to 4.7 times smaller.
    """
    rows = sweep.points({"output_len": length, "protocol": protocol} for length, protocol in points)
    for (short, _), (long, _), before, after in (
        (*lengths, *measured) for lengths, measured in zip(pairwise(points), pairwise(rows), strict=True)
    ):
        assert _number(after["throughput"]) < _number(before["throughput"])
        fall = _number(before["preprocessing_share"]) / _number(after["preprocessing_share"])
        assert 1 < fall < 4 * long / short


def _number(value: object) -> float:
    assert isinstance(value, float)
    return value
