"""Each fault of a server is counted by kind, once a request, and the load goes on."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import psutil
import pytest

from pytest_gpuserve.load.driver import Engines
from pytest_gpuserve.load.schedule import Constant, Trace
from pytest_gpuserve.process.ports import free_port
from tests.fakes.http_server import Serving, Totals, plan, serving
from tests.load.loading import EACH, USERS, connections, load, rotating

if TYPE_CHECKING:
    from pytest_gpuserve.load.schedule import Schedule

TOTAL = 24
DEATH = {"connection refused", "connection closed", "connection reset", "incomplete answer"}


FAULTS = {
    "/unavailable": "status 503",
    "/moved": "status 302",
    "/half-header": "incomplete answer",
    "/cut-body": "incomplete answer",
    "/cut-chunk": "incomplete answer",
    "/reset": "incomplete answer",
    "/hang-up": "connection closed",
    "/overlong": "protocol",
    "/twice": "protocol",
    "/garbage": "protocol",
    "/switch": "protocol",
    "/smuggled": "protocol",
}


@pytest.mark.parametrize("schedule", [None, Constant(1000)], ids=["closed", "open"])
def test_every_fault_is_counted_once_by_its_kind(server: Serving, schedule: Schedule | None) -> None:
    """N requests with wrong answers are N failures of the fault's kind, with a sample, and the server saw N.

    It saw once more what got no answer on a connection that had carried one, as some errors are.
    """
    before = {path: server.seen(path).requests for path in FAULTS}
    totals = load(server.port, *FAULTS, schedule=schedule, connections=len(FAULTS))
    assert (totals.requests, totals.sent, totals.in_flight) == (0, EACH * len(FAULTS), 0)
    # Whether the beginning of the answer is still read depends on how soon the reset is there.
    found = Counter("incomplete answer" if kind == "connection reset" else kind for kind in totals.errors.elements())
    assert found == {kind: EACH * count for kind, count in Counter(FAULTS.values()).items()}
    assert all(totals.samples[kind].startswith("request ") for kind in totals.errors)
    assert "it redirects to /ok" in totals.samples["status 302"]
    seen = {path: server.seen(path).requests - before[path] for path in FAULTS}
    assert sum(seen.values()) == totals.sent + totals.resent
    unanswered = {"/hang-up", "/reset"}
    assert all(count == EACH or (path in unanswered and count > EACH) for path, count in seen.items())


def test_what_happens_to_an_idle_connection(server: Serving) -> None:
    """A closed or reset one is silently replaced; surplus bytes are an error; all requests are answered."""
    before = connections(server, "/ok")
    # Gaps of many times what the server waits, so that no request is sent into the end of a connection.
    gaps = Trace(tuple((0.4 * number, index) for number in range(3) for index in range(3)))
    idle = ("/ok?idle=close", "/ok?idle=reset", "/ok?idle=talk")
    totals = load(server.port, *idle, schedule=gaps, requests=None)
    assert totals.requests == totals.sent == totals.due == 9
    assert totals.errors == {"protocol": 2}
    assert "an answer to no request: b'HTTP/1.1 200 OK" in totals.samples["protocol"]
    assert connections(server, "/ok") == before + 9


def test_a_server_that_is_killed_and_comes_back_is_loaded_again() -> None:
    """Its death is counted and survived: no user is lost or doubled, and each arrival answered, failed or in flight."""
    port = free_port()
    closed = plan(port, "/ok?ms=5", connections=USERS)
    opened = plan(port, "/digest?ms=5", schedule=Constant(200))
    with Engines(closed) as waiting, Engines(opened) as arriving:
        users, arrivals = both = Totals(waiting), Totals(arriving)
        with serving(port) as server:
            for totals in both:
                totals.take_until(lambda totals, _: totals.requests > TOTAL, "load")
            server.process.kill()
            for totals in both:
                totals.take_until(lambda _, tick: "connection refused" in tick.errors, "its death is noticed")
        with serving(port) as server:
            before = arrivals.requests
            for totals in both:
                more = totals.requests + 2 * TOTAL
                totals.take_until(lambda totals, _, more=more: totals.requests > more, "load of the new server")  # type: ignore[misc]  # mypy cannot infer lambdas with defaults
            users.take_until(lambda _, tick: tick.under_way == USERS, "all users are back")
            by_users, by_arrivals = server.seen("/ok"), server.seen("/digest")
    assert set(users.errors) | set(arrivals.errors) <= DEATH
    assert (by_users.connections, by_users.most_at_once) == (USERS, USERS)
    assert by_arrivals.requests >= arrivals.requests - before
    # What was due and is neither answered nor failed was in flight, or waited for a connection, at the last tick.
    open_at_end = arrivals.due - arrivals.ended
    assert arrivals.in_flight <= open_at_end <= arrivals.in_flight + arrivals.ticks[-1].opening
    assert arrivals.sent == arrivals.ended - arrivals.errors["connection refused"] + arrivals.in_flight


@pytest.mark.parametrize("paths", [("/close", "/hang-up", "/twice"), ()], ids=["lost", "refused"])
def test_lost_connections_leave_nothing_behind(server: Serving, paths: tuple[str, ...]) -> None:
    """The engine, which runs without garbage collector, does not grow with the connections that it opened."""
    with Engines(rotating(server.port if paths else free_port(), *(paths or ("/ok",)), connections=100)) as engine:
        process = psutil.Process(engine.pids[0])
        totals = Totals(engine).take_until(lambda totals, _: totals.ended > 1000, "connections")
        before = process.memory_info().rss
        files = process.num_fds()
        totals.take_until(lambda totals, _: totals.ended > 3000, "more connections")
        grown = process.memory_info().rss - before
        assert process.num_fds() < files + 150
    # A connection that stays is worth a thousand bytes and more.
    assert grown < 2000 / max(1, len(paths)) * 800, f"{grown} bytes for 2000 connections"
