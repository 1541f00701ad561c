"""Loads of a misbehaving server that one engine sends to their end, and reactors that run until something is so."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import msgspec

from pytest_gpuserve.load.driver import Engines
from tests.fakes.http_server import SAFETY_SECONDS, Serving, Totals, plan

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpuserve.load.engine.reactor import Reactor
    from pytest_gpuserve.load.wire import Plan

USERS = 4
EACH = 6
"""Requests to each path."""

LOOK_NS = 500_000


def rotating(port: int, *paths: str, **more: Any) -> Plan:  # noqa: ANN401 -- of the plan
    """Plan a load with requests to these paths in turn; all answers are kept."""
    plans = [plan(port, path, **{"connections": USERS, **more}) for path in paths]
    return msgspec.structs.replace(
        plans[0], payloads=tuple(payload for each in plans for payload in each.payloads), keep_answers="all"
    )


def load(port: int, *paths: str, **more: Any) -> Totals:  # noqa: ANN401 -- of the plan
    """Load to the end."""
    with Engines(rotating(port, *paths, **{"requests": EACH * len(paths), **more})) as engine:
        return Totals(engine).take_to_end()


def bodies_of(totals: Totals) -> dict[tuple[int, bytes], int]:
    """Number of times that each body answered each path, by its place."""
    counts: dict[tuple[int, bytes], int] = {}
    for answer in (answer for tick in totals.ticks for answer in tick.answers):
        counts[answer.index, answer.body] = counts.get((answer.index, answer.body), 0) + answer.count
    return counts


def connections(server: Serving, *paths: str) -> int:
    """Number of connections that the server has seen, by the path of their first request."""
    return sum(server.seen(path).connections for path in paths)


def run_until(reactor: Reactor, done: Callable[[], bool]) -> None:
    """Run a reactor until it is so, looked at twice a millisecond; a test that would hang fails instead."""
    limit_ns = time.perf_counter_ns() + round(SAFETY_SECONDS * 1e9)

    def look() -> None:
        assert time.perf_counter_ns() < limit_ns, "it never came"
        if done():
            reactor.stop()
        else:
            reactor.at(time.perf_counter_ns() + LOOK_NS, look)

    reactor.at(time.perf_counter_ns() + LOOK_NS, look)
    reactor.run()
