"""What the client keeps: its memory over millions of requests, and thousands of connections."""

from __future__ import annotations

import os
import resource
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.benchmarks import ours
from tests.benchmarks.clients import started
from tests.benchmarks.rows import Row

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.benchmarks.clients import Client
    from tests.benchmarks.rows import Table

pytestmark = [pytest.mark.slow, pytest.mark.alone]

LONG_VARIABLE = "GPUSERVE_BENCH_LONG"
"""Set to anything, the ten million requests are really sent: a quarter of an hour."""

TEN_MILLION = 10_000_000
MOST_BYTES = 64e6
WARM_UP_SECONDS = 4.0
LOOK_SECONDS = 0.2
CONNECTIONS = 10_000
OTHER_FILES = 500


def watch(client: Client, value: Callable[[psutil.Process], int]) -> list[tuple[float, int]]:
    """Look at a client until it ends: seconds since its start, and the value of all its processes together."""
    begin = time.monotonic()
    looks = []
    while client.running(LOOK_SECONDS):
        # A sum is none where one of them has just ended.
        with suppress(psutil.Error):
            root = psutil.Process(client.pid)
            total = sum(map(value, (root, *root.children(recursive=True))))
            looks.append((time.monotonic() - begin, total))
    return looks


@pytest.mark.parametrize("requests", [TEN_MILLION // 10, TEN_MILLION])
def test_growth(nginx_url: str, table: Table, requests: int) -> None:
    """Ten million requests make the client grow by less than 64 MB, and a million by less than a tenth of that."""
    if requests == TEN_MILLION and not os.environ.get(LONG_VARIABLE):
        pytest.skip(f"takes a quarter of an hour: set {LONG_VARIABLE}=1")
    with started(ours.command(nginx_url, concurrency=16, requests=requests)) as client:
        looks = watch(client, lambda process: process.memory_info().rss)
        report = ours.report(client.end(60))
    assert report.requests == requests
    warm = [value for at_seconds, value in looks if at_seconds >= WARM_UP_SECONDS]
    assert len(warm) >= 20, "too short a load to see growth"
    growth, most = max(warm) - warm[0], MOST_BYTES * requests / TEN_MILLION
    what = f"growth of the client over {requests / 1e6:g} million requests"
    begin, target = f"after {WARM_UP_SECONDS:g} s: {warm[0] / 1e6:.0f} MB", f"< {most / 1e6:g} MB"
    table.add(Row(what, f"{growth / 1e6:.1f} MB", begin, target=target, met=growth < most))
    assert growth < most, looks


def test_connections(nginx_url: str, table: Table) -> None:
    """Ten thousand users have a connection each, and every request is answered."""
    _, limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit != resource.RLIM_INFINITY and limit < CONNECTIONS + OTHER_FILES:
        pytest.skip(f"needs {CONNECTIONS + OTHER_FILES} open files, and ulimit -Hn is {limit}")
    requests = 20 * CONNECTIONS
    with started(ours.command(nginx_url, concurrency=CONNECTIONS, requests=requests)) as client:
        most = max(value for _, value in watch(client, lambda process: process.num_fds()))
        report = ours.report(client.end(60))
    met = report.requests == requests and most >= CONNECTIONS
    what, answered = f"answers to {CONNECTIONS} users at once", f"{report.requests} of {requests}"
    table.add(Row(what, answered, f"{most} files open", target="all, and a connection each", met=met))
    assert report.requests == requests
    assert most >= CONNECTIONS
