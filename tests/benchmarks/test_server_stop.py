"""A server that stands still for half a second, and which percentiles must show it.

The open loop's latency counts from the intended send, so every request that was due in the stop shows it. Without a
ceiling on requests in flight all of them are sent in time, and the view from the actual send (``service``) is the same.
With a ceiling of one, one request waits in the server and all others in the client: the service view shows a single
slow request, and hides the rest of the stop.
"""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

import pytest

from pytest_gpuserve.units import format_seconds
from tests.benchmarks import ours
from tests.benchmarks.clients import started
from tests.benchmarks.pairs import ratio
from tests.benchmarks.queueing import percentile
from tests.benchmarks.rows import Row
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


def arithmetic(stop_seconds: float, service_seconds: float, *, ceiling: bool) -> Sequence[tuple[float, float]]:
    """Say what becomes of every request: how long from when it was due to its answer, and how long from its send.

    Args:
        stop_seconds: How long the server stood still.
        service_seconds: A request's time otherwise, the way there and back included.
        ceiling: Whether a request is sent only when the one before it was answered.
    """
    begin, end = STOP_AFTER_SECONDS, STOP_AFTER_SECONDS + stop_seconds
    answered = []
    free = 0.0
    for number in range(REQUESTS):
        due = number / RATE
        sent = max(due, free) if ceiling else due
        done = (end if begin <= sent < end else sent) + service_seconds
        if sent < begin < done:
            done = max(done, end)
        free = done
        answered.append((done - due, done - sent))
    return answered


def load_with_stop(url: str, pid: int, **options: object) -> tuple[ours.Report, float]:
    """Load at a constant rate, and let the server stand still in it.

    Returns:
        What was reported, and how long the server really stood still.
    """
    with started(ours.command(url, rate=RATE, arrivals="constant", requests=REQUESTS, **options)) as client:
        assert client.running(STOP_AFTER_SECONDS)
        try:
            os.kill(pid, signal.SIGSTOP)
            begin = time.perf_counter()
            time.sleep(STOP_SECONDS)
        finally:
            os.kill(pid, signal.SIGCONT)
            stopped_seconds = time.perf_counter() - begin
        return ours.report(client.end(60)), stopped_seconds


def test_unlimited(tmp_path: Path, table: Table) -> None:
    """Without a ceiling, p95, p99 and maximum are what arithmetic says, in both views."""
    with timed(tmp_path, "parallel", SERVICE_SECONDS) as server:
        report, stop_seconds = load_with_stop(server.url, server.pid)
    assert report.requests == REQUESTS
    assert report.service is not None
    expected = [latency for latency, _ in arithmetic(stop_seconds, report.latency["p50"], ceiling=False)]
    right = []
    for name, share in (("p95", 0.95), ("p99", 0.99), ("max", 1.0)):
        found = ratio([(report.latency[name], percentile(expected, share))])
        what = f"{format_seconds(STOP_SECONDS)} stop, open loop, {name}"
        right.append(table.compare_seconds(what, "arithmetic", found, least=0.95, most=1.05))
    assert all(right), report
    assert report.service["p99"] == pytest.approx(report.latency["p99"], rel=0.02)


def test_ceiling(tmp_path: Path, table: Table) -> None:
    """With a ceiling of one in flight the latency is what arithmetic says, and the service view hides the stop."""
    with timed(tmp_path, "parallel", SERVICE_SECONDS) as server:
        report, stop_seconds = load_with_stop(server.url, server.pid, max_in_flight=1)
    assert report.requests == REQUESTS
    assert report.service is not None
    latencies, services = zip(*arithmetic(stop_seconds, report.service["p50"], ceiling=True), strict=True)
    found = ratio([(report.latency["p99"], percentile(latencies, 0.99))])
    what = f"{format_seconds(STOP_SECONDS)} stop, open loop, one in flight"
    right = table.compare_seconds(f"{what}, p99", "arithmetic", found, least=0.95, most=1.05)
    hidden = percentile(services, 0.99)
    shown = f"arithmetic: {format_seconds(hidden)}"
    table.add(Row(f"{what}, p99 of the service view, which hides it", format_seconds(report.service["p99"]), shown))
    assert right, found
    # Ten times what arithmetic says is a twentieth of the stop still.
    assert report.service["p99"] < 10 * hidden
    assert report.service["max"] == pytest.approx(max(services), rel=0.05)
