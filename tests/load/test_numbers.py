"""A place in a request is overwritten at each send, with a number that no other send has."""

from __future__ import annotations

import re

import msgspec

from pytest_gpuserve.load.driver import Engines
from pytest_gpuserve.load.request import NUMBER_PLACE
from pytest_gpuserve.load.schedule import Closed, Constant, Schedule
from tests.fakes.http_server import Serving, Totals, plan

REQUESTS = 60
BODIES = (b"all %s one" % NUMBER_PLACE, b"all %s 0000000000 another" % NUMBER_PLACE, b"plain")


def test_no_two_sends_are_the_same(server: Serving) -> None:
    """It holds for two engines, closed and open, and after a new begin; a request without a place is unchanged.

    The second engine sends with a longer ``Host``, so that its places lie elsewhere.
    """
    seen: list[bytes] = []
    for schedule in (Closed(4), Constant(1000.0)):
        seen += sent_twice(server, schedule)
    assert len(seen) == 4 * REQUESTS
    numbered = [re.fullmatch(rb"all (\d{10}) (one|0000000000 another)", body) for body in seen if body != b"plain"]
    assert len(numbered) == 4 * REQUESTS * 2 / 3
    assert len({match[1] for match in numbered if match}) == len(numbered)


def sent_twice(server: Serving, schedule: Schedule) -> list[bytes]:
    """All bodies of a load that was sent, and sent again."""
    plans = [plan(server.port, "/echo", requests=REQUESTS, schedule=schedule, body=body) for body in BODIES]
    load = msgspec.structs.replace(
        plans[0],
        payloads=tuple(each.payloads[0] for each in plans),
        numbers_before_end=tuple(len(body) - 4 if NUMBER_PLACE in body else 0 for body in BODIES),
        keep_answers="all",
    )
    bodies: list[bytes] = []
    with Engines(load, 2) as engines:
        for again in (False, True):
            if again:
                engines.halt(seed=1)
                engines.begin()
            bodies += Totals(engines).take_to_end().answers.elements()
    return bodies
