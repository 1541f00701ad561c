"""What the client keeps: its memory over millions of requests, and thousands of connections."""

from __future__ import annotations

import os
import resource
import time
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Look:
    """What was seen of a client at a time.

    Args:
        at_seconds: Since its start.
        value: Of all its processes together.
    """

    at_seconds: float
    value: int


def watch(client: Client, value: Callable[[psutil.Process], int]) -> list[Look]:
    """Look at all processes of a client until it ends."""
    begin = time.monotonic()
    looks = []
    while client.running(LOOK_SECONDS):
        total = 0
        try:
            root = psutil.Process(client.pid)
            for process in (root, *root.children(recursive=True)):
                total += value(process)
        except psutil.Error:
            # One of them has just ended, so the sum is none.
            continue
        looks.append(Look(time.monotonic() - begin, total))
    return looks


def resident_bytes(process: psutil.Process) -> int:
    """Memory of a process."""
    return process.memory_info().rss


def open_files(process: psutil.Process) -> int:
    """How many files and sockets a process has open."""
    return process.num_fds()


@pytest.mark.parametrize("requests", [TEN_MILLION // 10, TEN_MILLION])
def test_growth(nginx_url: str, table: Table, requests: int) -> None:
    """Ten million requests make the client grow by less than 64 MB, and a million by less than a tenth of that."""
    if requests == TEN_MILLION and not os.environ.get(LONG_VARIABLE):
        pytest.skip(f"takes a quarter of an hour: set {LONG_VARIABLE}=1")
    with started(ours.command(nginx_url, concurrency=16, requests=requests)) as client:
        looks = watch(client, resident_bytes)
        report = ours.report(client.end(60))
    assert report.requests == requests
    warm = [look.value for look in looks if look.at_seconds >= WARM_UP_SECONDS]
    assert len(warm) >= 20, "too short a load to see growth"
    growth = max(warm) - warm[0]
    most = MOST_BYTES * requests / TEN_MILLION
    table.add(
        Row(
            f"growth of the client over {requests / 1e6:g} million requests",
            f"{growth / 1e6:.1f} MB",
            f"after {WARM_UP_SECONDS:g} s: {warm[0] / 1e6:.0f} MB",
            target=f"< {most / 1e6:g} MB",
            met=growth < most,
        )
    )
    assert growth < most, looks


def test_connections(nginx_url: str, table: Table) -> None:
    """Ten thousand users have a connection each, and every request is answered."""
    _, limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit != resource.RLIM_INFINITY and limit < CONNECTIONS + OTHER_FILES:
        pytest.skip(f"needs {CONNECTIONS + OTHER_FILES} open files, and ulimit -Hn is {limit}")
    requests = 20 * CONNECTIONS
    with started(ours.command(nginx_url, concurrency=CONNECTIONS, requests=requests)) as client:
        most = max(look.value for look in watch(client, open_files))
        report = ours.report(client.end(60))
    table.add(
        Row(
            f"answers to {CONNECTIONS} users at once",
            f"{report.requests} of {requests}",
            f"{most} files open",
            target="all, and a connection each",
            met=report.requests == requests and most >= CONNECTIONS,
        )
    )
    assert report.requests == requests
    assert most >= CONNECTIONS


def test_limit_on_files_is_named(nginx_url: str) -> None:
    """Where the system allows fewer open files than there are users, the command says so and how to raise it."""
    with started(ours.command(nginx_url, concurrency=1000, requests=2000), open_files=256) as client:
        ended = client.end(60)
    assert ended.status != 0
    assert "limit on open files is 256" in ended.trouble
    assert "ulimit" in ended.trouble
