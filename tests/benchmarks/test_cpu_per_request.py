"""What a small request costs the client: ours against wrk and hey on nginx."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

from pytest_gpuserve.units import format_rate
from tests.benchmarks import ours
from tests.benchmarks.pairs import Contestant, compare
from tests.benchmarks.peers import hey, wrk

if TYPE_CHECKING:
    from tests.benchmarks.rows import Table

pytestmark = [pytest.mark.slow, pytest.mark.alone]

CONNECTIONS = 16
REQUESTS = 100_000
PAIRS = 6


def our_contestant(url: str) -> Contestant:
    """Return ours, with one engine process."""
    return ours.contestant(url, concurrency=CONNECTIONS, requests=REQUESTS, processes=1)


def test_wrk(nginx_url: str, table: Table) -> None:
    """A request takes at most 1.03 of wrk's CPU time, and one process is at least 0.95 as fast as one thread of wrk."""
    peer = Contestant(partial(wrk, nginx_url, connections=CONNECTIONS, seconds=1), None)
    # Short runs and many of them: a neighbour on the host disturbs a pair, and not the median.
    found = compare(our_contestant(nginx_url), peer, pairs=3 * PAIRS)
    cheap = table.compare_seconds("client CPU a request, nginx", "wrk -t1", found.cost, most=1.03)
    fast = table.compare("throughput of one process, nginx", "wrk -t1", found.speed, format_rate, least=0.95)
    assert cheap, found
    assert fast, found


def test_hey(nginx_url: str, table: Table) -> None:
    """A request takes at most 0.4 of hey's CPU time."""
    load = partial(hey, nginx_url, connections=CONNECTIONS)
    peer = Contestant(partial(load, requests=REQUESTS), partial(load, requests=CONNECTIONS))
    found = compare(our_contestant(nginx_url), peer, pairs=PAIRS)
    assert table.compare_seconds("client CPU a request, nginx", "hey", found.cost, most=0.4), found
