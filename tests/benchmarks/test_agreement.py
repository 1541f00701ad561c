"""A closed loop's percentiles: ours against wrk's, on a server whose service time is fixed."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

from pytest_gpuserve.units import format_seconds
from tests.benchmarks import ours
from tests.benchmarks.pairs import in_turn, ratio
from tests.benchmarks.peers import wrk
from tests.benchmarks.rows import Row
from tests.benchmarks.servers import timed

if TYPE_CHECKING:
    from pathlib import Path

    from tests.benchmarks.peers import Outcome
    from tests.benchmarks.rows import Table

pytestmark = [pytest.mark.slow, pytest.mark.alone]

SECONDS = 5
PAIRS = 6

# Such that the server, in Python, is busy for a sixth of the time at most.
SERVICE_SECONDS = {1: 0.005, 16: 0.010, 128: 0.040}


def closed_loop(url: str, connections: int) -> Outcome:
    """Load with our engine, which must trust its own numbers."""
    report = ours.load(ours.command(url, concurrency=connections, duration=SECONDS))
    assert report.valid, report.reasons
    return report.outcome()


@pytest.mark.parametrize("connections", SERVICE_SECONDS)
def test_wrk(tmp_path: Path, table: Table, connections: int) -> None:
    """The median and the 99th percentile are within 5 % of wrk's."""
    with timed(tmp_path, "parallel", SERVICE_SECONDS[connections]) as server:
        server.told()
        results = in_turn(
            partial(closed_loop, server.url, connections),
            partial(wrk, server.url, connections=connections, seconds=SECONDS),
            pairs=PAIRS,
        )
        told = server.told()
    where = f"service of {format_seconds(server.service_seconds)}, {connections} connections"
    median = ratio([(mine.p50_seconds, theirs.p50_seconds) for mine, theirs in results])
    tail = ratio([(mine.p99_seconds, theirs.p99_seconds) for mine, theirs in results])
    median_agrees = table.compare_seconds(f"p50, {where}", "wrk", median, least=0.95, most=1.05)
    tail_agrees = table.compare_seconds(f"p99, {where}", "wrk", tail, least=0.95, most=1.05)
    late = f"p50 {format_seconds(told['late_p50_seconds'])}, p99 {format_seconds(told['late_p99_seconds'])}"
    table.add(Row(f"the server's own lateness, {where}", "", late))
    assert median_agrees, median
    assert tail_agrees, tail
