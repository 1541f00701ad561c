"""A server that stands still for half a second, and which percentiles must show it.

The open loop's latency counts from the intended send, so every request that was due in the stop shows it. Without a
ceiling on requests in flight all of them are sent in time, and the view from the actual send (``service``) is the same.
"""

from __future__ import annotations

import math
import os
import signal
import time
from typing import TYPE_CHECKING

import pytest

from pytest_gpuserve.units import format_seconds
from tests.benchmarks import ours
from tests.benchmarks.clients import started
from tests.benchmarks.pairs import ratio
from tests.benchmarks.servers import timed

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.benchmarks.rows import Table

pytestmark = [pytest.mark.slow, pytest.mark.alone]

RATE = 200
REQUESTS = 1000
STOP_SECONDS = 0.5
STOP_AFTER_SECONDS = 3.0
"""From the command's start. Where in the load it is changes none of the percentiles, nor do the requests after it."""

SERVICE_SECONDS = 0.001


def arithmetic(stop_seconds: float, service_seconds: float) -> Sequence[float]:
    """Say how long it is from when each request is due to its answer.

    Args:
        stop_seconds: How long the server stood still.
        service_seconds: A request's time otherwise, the way there and back included.
    """
    begin, end = STOP_AFTER_SECONDS, STOP_AFTER_SECONDS + stop_seconds
    latencies = []
    for number in range(REQUESTS):
        due = number / RATE
        done = (end if begin <= due < end else due) + service_seconds
        latencies.append((max(done, end) if due < begin < done else done) - due)
    return latencies


def load_with_stop(url: str, pid: int) -> tuple[ours.Report, float]:
    """Load at a constant rate, and let the server stand still in it.

    Returns:
        What was reported, and how long the server really stood still.
    """
    with started(ours.command(url, rate=RATE, arrivals="constant", requests=REQUESTS)) as client:
        assert client.running(STOP_AFTER_SECONDS)
        try:
            os.kill(pid, signal.SIGSTOP)
            begin = time.perf_counter()
            time.sleep(STOP_SECONDS)
        finally:
            os.kill(pid, signal.SIGCONT)
            stopped_seconds = time.perf_counter() - begin
        return ours.report(client.end(60)), stopped_seconds


def test_a_stop(tmp_path: Path, table: Table) -> None:
    """Without a ceiling, p95, p99 and maximum are what arithmetic says, in both views."""
    with timed(tmp_path, "parallel", SERVICE_SECONDS) as server:
        report, stop_seconds = load_with_stop(server.url, server.pid)
    assert report.requests == REQUESTS
    assert report.service is not None
    expected = arithmetic(stop_seconds, report.latency["p50"])
    right = []
    for name, share in (("p95", 0.95), ("p99", 0.99), ("max", 1.0)):
        found = ratio([(report.latency[name], sorted(expected)[math.ceil(share * REQUESTS) - 1])])
        what = f"{format_seconds(STOP_SECONDS)} stop, open loop, {name}"
        right.append(table.compare_seconds(what, "arithmetic", found, least=0.95, most=1.05))
    assert all(right), report
    assert report.service["p99"] == pytest.approx(report.latency["p99"], rel=0.02)
