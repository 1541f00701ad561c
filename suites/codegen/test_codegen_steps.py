"""The published load: users who come in steps, and the results of each step."""

from __future__ import annotations

import csv
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from pytest_gpuserve.load.schedule import Steps
from pytest_gpuserve.measure.points import NotMeasured
from suites.codegen.analysis import mean_queue_us, wanted_replicas
from suites.codegen.reference import right_answer
from suites.codegen.repository import ENSEMBLE
from suites.codegen.request import PUBLISHED_USERS, request_tensors
from suites.published import LEAST, published
from suites.tolerances import CPU_TOLERANCES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from pytest_gpuserve.compare.assertions import Baseline, Run
    from pytest_gpuserve.device import Device
    from pytest_gpuserve.experiment.handle import ServerHandle
    from pytest_gpuserve.experiment.observed import StepResult

pytestmark = CPU_TOLERANCES

SHORT = Steps(((1, 0.5), (10, 0.5), (20, 1.0)))

COLUMNS = (
    "users",
    "seconds",
    "requests",
    "errors",
    "throughput",
    "steady_throughput",
    "last_window_throughput",
    "mean_seconds",
    "min_seconds",
    "p50_seconds",
    "p90_seconds",
    "p99_seconds",
    "max_seconds",
)
"""Columns of the table of steps."""

PUBLISHED_STEP_SECONDS = 30.0
"""Approximate durations, because the users were stepped by hand."""


def published_steps(most: int) -> Steps:
    """A single user, and then 10 more at a time."""
    return Steps(tuple((users, PUBLISHED_STEP_SECONDS) for users in (1, *range(10, most + 1, 10))))


@pytest.mark.gpuserve_full
@pytest.mark.parametrize(
    ("output_len", "schedule"),
    [
        pytest.param(8, SHORT, id="len8-short"),
        *(pytest.param(length, published_steps(users), id=f"len{length}") for length, users in PUBLISHED_USERS.items()),
    ],
)
def test_stepped_users(
    codegen: ServerHandle,
    size: str,
    load: Callable[..., Run],
    baseline: Baseline,
    tables: Path,
    *,
    output_len: int,
    schedule: Steps,
) -> None:
    """More users get more answers in larger batches, as in the baseline; the server counts the requests."""
    run = load(
        codegen.infer(request_tensors(output_len=output_len), expect=right_answer(output_len, size=size)),
        schedule=schedule,
        timeout=60.0,
    )
    users = max(users for users, _ in schedule.steps) * run.loads
    parts = run.counters.parts
    # Requests in flight at the end are counted only by the server; it may not have counted the last answers yet.
    assert abs((parts[ENSEMBLE].requests or 0) - run.summary.requests) <= users
    assert run.summary.error_count == 0
    # Side by side a whole load is one window, whose steps are unknown.
    with suppress(NotMeasured):
        check_steps(run.steps, run.summary.requests, tables / f"steps_{output_len}.csv")
    queue_us = mean_queue_us(parts)
    assert queue_us > 0
    assert wanted_replicas(3, queue_us, target_us=queue_us / 2.5) == 8
    assert run.throughput >= baseline.throughput
    assert run.batching_ratio >= baseline.batching_ratio


def check_steps(steps: Sequence[StepResult], requests: int, file: Path) -> None:
    """Write the table of steps, and check that they add up, and that more users got more answers.

    Args:
        steps: Result of each step.
        requests: Requests that were answered in all of them.
        file: File of the table.
    """
    write_steps(file, steps)
    assert sum(step.total.requests for step in steps) == requests
    assert sum(step.total.error_count for step in steps) == 0
    assert steps[0].total.throughput < steps[-1].total.throughput


@pytest.mark.gpuserve_full
@pytest.mark.parametrize("output_len", list(PUBLISHED_USERS), ids=lambda length: f"len{length}")
def test_published(
    codegen: ServerHandle,
    size: str,
    load: Callable[..., Run],
    device: Device,
    *,
    output_len: int,
) -> None:
    """On the published GPU it reaches the printed values, a peak of the steps, and batches as well."""
    printed = published(device.name, "codegen", record_kind="loadtest_summary", output_len=output_len)
    run = load(
        codegen.infer(request_tensors(output_len=output_len), expect=right_answer(output_len, size=size)),
        schedule=published_steps(PUBLISHED_USERS[output_len]),
        timeout=60.0,
    )
    assert max(step.total.throughput for step in run.steps) >= LEAST * printed["throughput"]
    assert run.batching_ratio >= LEAST * printed["batching_ratio"]


def write_steps(file: Path, steps: Sequence[StepResult]) -> None:
    """Write a table with a row for each step; latencies in seconds."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", encoding="utf-8", newline="") as opened:
        writer = csv.writer(opened, lineterminator="\n")
        writer.writerow(COLUMNS)
        for step in steps:
            # The first rank is the smallest latency.
            total = step.total
            ranks = [total.quantile(q) if total.requests else None for q in (1e-12, 0.5, 0.9, 0.99)]
            writer.writerow(
                [
                    step.users,
                    total.seconds,
                    total.requests,
                    total.error_count,
                    total.throughput,
                    step.steady_throughput,
                    step.last_window_throughput,
                    total.latency.mean,
                    *ranks,
                    total.max if total.requests else None,
                ]
            )
