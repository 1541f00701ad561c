"""Loads of a misbehaving server that one engine sends to their end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from pytest_gpuserve.load.driver import Engines
from tests.fakes.http_server import Serving, Totals, plan

if TYPE_CHECKING:
    from pytest_gpuserve.load.wire import Plan

USERS = 4
EACH = 6
"""Requests to each path."""


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
