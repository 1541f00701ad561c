"""The load engine against real tools and a server of known times; prints the rows of a page's table."""

from __future__ import annotations

import math
import os
import signal
import statistics
import subprocess
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest

from pytest_gpuserve.units import format_rate, format_seconds
from tests.benchmarks.tools import (
    ENDS_WITH_US,
    Outcome,
    cost,
    cost_of_start,
    hey,
    in_turn,
    is_kept,
    nginx,
    our_command,
    our_report,
    ours,
    timed,
    wrk,
)

pytestmark = [pytest.mark.slow, pytest.mark.alone]

PAIRS = 6


@pytest.fixture(scope="module")
def nginx_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An nginx that answers 200."""
    with nginx(tmp_path_factory.mktemp("nginx")) as url:
        yield url


# -- what a request costs

CONNECTIONS = 16
REQUESTS = 100_000


def our_load(url: str, requests: int) -> Outcome:
    """A closed loop of one engine process."""
    _, outcome = ours(url, concurrency=CONNECTIONS, requests=requests, processes=1)
    return outcome


def test_cost_beside_wrk(nginx_url: str) -> None:
    """A request takes at most 1.03 of wrk's CPU time, and one process is at least 0.95 as fast as one thread of wrk.

    wrk starts in 2 ms, with which it is charged. Runs are short and many: a neighbour on the host disturbs a pair, and
    not the median.
    """
    start = cost_of_start(partial(our_load, nginx_url, CONNECTIONS))
    peer = partial(wrk, nginx_url, connections=CONNECTIONS, seconds=1)
    results = in_turn(partial(our_load, nginx_url, REQUESTS), peer, pairs=3 * PAIRS)
    costs = [(cost(mine, start), cost(theirs)) for mine, theirs in results]
    speeds = [(mine.throughput, theirs.throughput) for mine, theirs in results]
    cheap = is_kept("client CPU a request, nginx", "wrk -t1", costs, most=1.03)
    assert is_kept("throughput of one process, nginx", "wrk -t1", speeds, format_rate, least=0.95)
    assert cheap


def test_cost_beside_hey(nginx_url: str) -> None:
    """A request takes at most 0.4 of hey's CPU time."""
    start = cost_of_start(partial(our_load, nginx_url, CONNECTIONS))
    theirs_start = cost_of_start(partial(hey, nginx_url, connections=CONNECTIONS, requests=CONNECTIONS))
    peer = partial(hey, nginx_url, connections=CONNECTIONS, requests=REQUESTS)
    results = in_turn(partial(our_load, nginx_url, REQUESTS), peer, pairs=PAIRS)
    costs = [(cost(mine, start), cost(theirs, theirs_start)) for mine, theirs in results]
    assert is_kept("client CPU a request, nginx", "hey", costs, most=0.4)


# -- a closed loop's percentiles

# Such that the server, in Python, is busy for a sixth of the time at most.
SERVICE_SECONDS = {1: 0.005, 16: 0.010, 128: 0.040}
SECONDS = 5


def valid_load(url: str, **options: object) -> Outcome:
    """A load of our engine, which must trust its own numbers."""
    report, outcome = ours(url, **options)
    assert report["valid"], report["reasons"]
    return outcome


@pytest.mark.parametrize("connections", SERVICE_SECONDS)
def test_percentiles_beside_wrk(tmp_path: Path, connections: int) -> None:
    """On a server of fixed service time, p50 and p99 are within 5 % of wrk's."""
    with timed(tmp_path, SERVICE_SECONDS[connections]) as server:
        results = in_turn(
            partial(valid_load, server.url, concurrency=connections, duration=SECONDS),
            partial(wrk, server.url, connections=connections, seconds=SECONDS),
            pairs=PAIRS,
        )
    where = f"service of {format_seconds(server.service_seconds)}, {connections} connections"
    medians = [(mine.p50_seconds, theirs.p50_seconds) for mine, theirs in results]
    tails = [(mine.p99_seconds, theirs.p99_seconds) for mine, theirs in results]
    median_agrees = is_kept(f"p50, {where}", "wrk", medians, least=0.95, most=1.05)
    assert is_kept(f"p99, {where}", "wrk", tails, least=0.95, most=1.05)
    assert median_agrees


# -- an open loop's send times

RATE = 10_000


def test_send_lag(nginx_url: str) -> None:
    """At 10 000 requests a second the median send is at most 50 us late, and the 99th percentile 300 us."""
    reports = [ours(nginx_url, rate=RATE, arrivals="constant", duration=10)[0] for _ in range(5)]
    assert min(report["throughput"] for report in reports) >= 0.99 * RATE, reports
    lags = {name: statistics.median(report[f"send_lag_{name}"] for report in reports) for name in ("p50", "p99")}
    print({name: format_seconds(lag) for name, lag in lags.items()})  # noqa: T201 -- shown by -rP
    assert lags["p50"] <= 50e-6, reports
    assert lags["p99"] <= 300e-6, reports


# -- an open loop beside a server that stands still

STOP_RATE = 200
STOP_REQUESTS = 1000
STOP_SECONDS = 0.5
STOP_AFTER_SECONDS = 3.0


def arithmetic(stop_seconds: float, service_seconds: float) -> Sequence[float]:
    """How long it is from when each request is due to its answer, shortest first."""
    begin, end = STOP_AFTER_SECONDS, STOP_AFTER_SECONDS + stop_seconds
    latencies = []
    for number in range(STOP_REQUESTS):
        due = number / STOP_RATE
        done = (end if begin <= due < end else due) + service_seconds
        latencies.append((max(done, end) if due < begin < done else done) - due)
    return sorted(latencies)


def test_a_stop(tmp_path: Path) -> None:
    """p95, p99 and maximum of an open loop are what arithmetic says, from when a request was due and from its send."""
    with timed(tmp_path, 0.001) as server:
        command = our_command(server.url, rate=STOP_RATE, arrivals="constant", requests=STOP_REQUESTS)
        with subprocess.Popen([*ENDS_WITH_US, *command], stdout=subprocess.PIPE, text=True) as client:
            time.sleep(STOP_AFTER_SECONDS)
            begin = time.perf_counter()
            try:
                os.kill(server.pid, signal.SIGSTOP)
                time.sleep(STOP_SECONDS)
            finally:
                os.kill(server.pid, signal.SIGCONT)
            stop_seconds = time.perf_counter() - begin
            report = our_report(client.communicate(timeout=60)[0])
    assert report["requests"] == STOP_REQUESTS
    expected = arithmetic(stop_seconds, report["latency"]["p50"])
    kept = []
    for name, share in (("p95", 0.95), ("p99", 0.99), ("max", 1.0)):
        found = report["latency"][name], expected[math.ceil(share * STOP_REQUESTS) - 1]
        what = f"{format_seconds(STOP_SECONDS)} stop, open loop, {name}"
        kept.append(is_kept(what, "arithmetic", [found], least=0.95, most=1.05))
    assert all(kept), report
    assert report["service"]["p99"] == pytest.approx(report["latency"]["p99"], rel=0.02)
