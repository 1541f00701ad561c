"""A load that begins anew in the same engine process: the earlier one leaves no trace, and no memory leaks."""

from __future__ import annotations

import os
import re
import signal
import time
from typing import TYPE_CHECKING

import msgspec
import psutil
import pytest

from pytest_gpuserve.errors import LoadFailed
from pytest_gpuserve.load.driver import Engines
from pytest_gpuserve.load.request import NUMBER_PLACE
from pytest_gpuserve.load.schedule import Closed, Constant
from pytest_gpuserve.load.source import LocalEngines
from tests.fakes.http_server import Serving, Totals, plan

if TYPE_CHECKING:
    from pytest_gpuserve.load.schedule import Schedule

RESTARTS = 12
REQUESTS = 60

SLOW_MS = 400


def connections(engines: Engines) -> int:
    """Open TCP connections of all engines."""
    return sum(len(psutil.Process(pid).net_connections("tcp")) for pid in engines.pids)


def test_a_halted_load_has_neither_requests_nor_connections(server: Serving) -> None:
    """With the return of halt what was sent is answered, no engine has a connection, and none opens one."""
    path = f"/digest?ms={SLOW_MS}"
    before = server.seen("/digest")
    with Engines(plan(server.port, path, connections=6), 2) as engines:
        Totals(engines).take_waiting(6)
        assert connections(engines) == 6
        engines.halt(seed=0)
        seen = server.seen("/digest")
        assert connections(engines) == 0
        # Whoever goes on at once would have opened others by now.
        time.sleep(0.2)
        assert connections(engines) == 0
        ended = [engine._process for engine in engines._engines]
    assert [process.returncode for process in ended] == [0, 0]
    assert seen.requests - before.requests >= 6
    assert seen.service_ns - before.service_ns >= (seen.requests - before.requests) * SLOW_MS * 1e6


def test_a_server_that_does_not_answer_is_not_waited_for(server: Serving) -> None:
    """Not until the requests' own time-out, which is a minute: no halt has so long. The next load begins as any."""
    with Engines(plan(server.port, "/never", connections=2)) as engines:
        Totals(engines).take_waiting(2)
        engines.halt(seed=0)
        assert connections(engines) == 0
        engines.begin()
        Totals(engines).take_waiting(2)


@pytest.mark.parametrize("schedule", [Closed(4), Constant(1000.0)])
def test_a_load_that_has_ended_begins_anew_and_no_two_sends_are_the_same(server: Serving, schedule: Schedule) -> None:
    """Two engines send all of it again; a place in a request has a number that no other send has."""
    bodies = (b"all %s one" % NUMBER_PLACE, b"all %s 0000000000 another" % NUMBER_PLACE, b"plain")
    plans = [plan(server.port, "/echo", requests=REQUESTS, schedule=schedule, body=body) for body in bodies]
    load = msgspec.structs.replace(
        plans[0],
        payloads=tuple(each.payloads[0] for each in plans),
        numbers_before_end=tuple(len(body) - 4 if NUMBER_PLACE in body else 0 for body in bodies),
        keep_answers="all",
    )
    with Engines(load, 2) as engines:
        seen = list(Totals(engines).take_to_end().answers.elements())
        engines.halt(seed=1)
        engines.begin()
        again = Totals(engines).take_to_end()
        seen += again.answers.elements()
    assert (again.ticks[0].number, again.requests, len(seen)) == (0, REQUESTS, 2 * REQUESTS)
    numbered = [re.fullmatch(rb"all (\d{10}) (one|0000000000 another)", body) for body in seen if body != b"plain"]
    assert len(numbered) == 2 * REQUESTS * 2 / 3
    assert len({match[1] for match in numbered if match}) == len(numbered)


def test_restarts_leak_no_files(server: Serving) -> None:
    """Neither in an engine nor in its owner, whether the load before had begun or not, or had sent anything."""
    with Engines(plan(server.port, "/ok?ms=1"), 2) as engines:
        Totals(engines).take_until(lambda totals, _: totals.requests >= 20, "a load")
        engines.halt(seed=0)
        processes = [psutil.Process(), *map(psutil.Process, engines.pids)]
        before = [process.num_fds() for process in processes]
        for _ in range(RESTARTS):
            engines.begin()
            engines.halt(seed=0)
            engines.begin()
            engines.next_tick()
            engines.halt(seed=0)
            engines.halt(seed=1)
        assert [process.num_fds() for process in processes] == before


def test_an_engine_that_fails_while_halted_is_load_failed(server: Serving) -> None:
    """A dead engine fails the next halt or tick; one that does not halt fails after the bound on silence."""
    with Engines(plan(server.port), 2) as engines:
        engines.halt(seed=0)
        os.kill(engines.pids[0], signal.SIGKILL)
        with pytest.raises(LoadFailed, match="died"):
            engines.halt(seed=0)
        engines.begin()
        with pytest.raises(LoadFailed, match="died"):
            engines.next_tick()
    with Engines(plan(server.port, "/ok?ms=5"), source=LocalEngines(end_seconds=0.2)) as engines:
        engines.next_tick()
        engines._source = LocalEngines(ready_seconds=1.0)
        os.kill(engines.pids[0], signal.SIGSTOP)
        with pytest.raises(LoadFailed, match="reported nothing for 1 s"):
            engines.halt(seed=0)
