"""Whatever a server does wrong is counted by kind, once a request, and the load goes on."""

from __future__ import annotations

import resource
import socket
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from pytest_gpuserve.load.driver import Engines
from pytest_gpuserve.load.schedule import Burst, Constant, Trace
from pytest_gpuserve.process.ports import free_port
from tests.fakes.http_server import BIG, BODY, Serving, Totals, plan, serving

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpuserve.load.schedule import Schedule

USERS = 4
TOTAL = 24
DEATH = {"connection refused", "connection closed", "connection reset", "incomplete answer"}


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    """Give a server that misbehaves on request."""
    with serving() as running:
        yield running


def load(port: int, path: str = "/ok", **more: Any) -> Totals:  # noqa: ANN401 -- of the plan
    """Load to the end."""
    with Engines(plan(port, path, **{"connections": USERS, "requests": TOTAL, **more})) as engine:
        return Totals(engine).take_to_end()


@pytest.mark.parametrize("schedule", [None, Constant(1000)], ids=["closed", "open"])
@pytest.mark.parametrize(
    ("path", "kinds"),
    [
        ("/unavailable", {"status 503"}),
        ("/moved", {"status 302"}),
        ("/half-header", {"incomplete answer"}),
        ("/cut-body", {"incomplete answer"}),
        ("/cut-chunk", {"incomplete answer"}),
        # Whether the beginning of the answer is still read depends on how soon the reset is there.
        ("/reset", {"incomplete answer", "connection reset"}),
        ("/hang-up", {"connection closed"}),
        ("/overlong", {"protocol"}),
        ("/twice", {"protocol"}),
        ("/garbage", {"protocol"}),
        ("/switch", {"protocol"}),
        ("/smuggled", {"protocol"}),
    ],
)
def test_every_fault_is_counted_once_by_its_kind(
    server: Serving, path: str, kinds: set[str], schedule: Schedule | None
) -> None:
    """Of N requests answered wrongly N fail with the fault's kind and a sight of it, and the server saw N."""
    before = server.seen(path).requests
    totals = load(server.port, path, schedule=schedule)
    assert (totals.requests, totals.sent, totals.errors.total(), totals.in_flight) == (0, TOTAL, TOTAL, 0)
    assert set(totals.errors) <= kinds
    assert all(totals.samples[kind].startswith("request ") for kind in totals.errors)
    assert server.seen(path).requests == before + TOTAL


@pytest.mark.parametrize(
    ("path", "body", "reuses"),
    [
        ("/ok", BODY, True),
        ("/chunked", BODY, True),
        ("/drip", BODY, True),
        ("/continue", BODY, True),
        ("/empty", b"", True),
        ("/big", BIG, True),
        ("/close", BODY, False),
        ("/until-close", BODY, False),
        ("/headers-only", b"", True),
    ],
)
def test_every_form_of_a_right_answer_is_understood(server: Serving, path: str, body: bytes, *, reuses: bool) -> None:
    """Each form is counted as answered with its body, on a kept connection wherever the form allows it."""
    totals = load(server.port, path, method="HEAD" if path == "/headers-only" else "POST")
    assert (totals.requests, totals.errors, totals.sent) == (TOTAL, {}, TOTAL)
    assert totals.answers[body] + totals.unchecked == TOTAL
    assert set(totals.answers) <= {body}
    seen = server.seen(path)
    assert (seen.requests, seen.connections) == (TOTAL, USERS if reuses else TOTAL)


@pytest.mark.parametrize(("path", "errors"), [("/early", {}), ("/too-large", {"status 413": TOTAL})])
def test_an_answer_before_the_request_was_read_counts_and_ends_the_connection(
    server: Serving, path: str, errors: dict[str, int]
) -> None:
    """What is left of such a request is not sent into the next one, which gets a connection of its own."""
    totals = load(server.port, path, body=BIG * 8)
    assert (totals.ended, totals.errors) == (TOTAL, errors)
    assert server.seen(path).connections == TOTAL


@pytest.mark.parametrize("schedule", [None, Constant(100)], ids=["closed", "open"])
def test_an_answer_that_never_comes_is_a_timeout(server: Serving, schedule: Schedule | None) -> None:
    """Requests that are never answered are given up, with the time they had, and none is lost."""
    before = server.seen("/never")
    totals = load(server.port, "/never", requests=3 * USERS, timeout_seconds=0.2, schedule=schedule)
    assert (totals.requests, totals.errors, totals.sent) == (0, {"timeout": 3 * USERS}, 3 * USERS)
    assert "0.2 s" in totals.samples["timeout"]
    seen = server.seen("/never")
    assert seen.connections - before.connections == seen.requests - before.requests == 3 * USERS


@pytest.mark.parametrize("idle", ["close", "reset", "talk"])
def test_what_happens_to_an_idle_connection(server: Serving, idle: str) -> None:
    """Closed or reset it is replaced without a word; bytes that nobody asked for are an error; all are answered."""
    before = server.seen("/ok")
    # Gaps of many times what the server waits, so that no request is sent into the end of a connection.
    gaps = Trace(tuple((0.4 * number, 0) for number in range(5)))
    totals = load(server.port, f"/ok?idle={idle}", schedule=gaps, requests=None)
    assert totals.requests == totals.sent == totals.due == 5
    assert totals.errors == ({"protocol": 4} if idle == "talk" else {})
    if idle == "talk":
        assert "an answer to no request: b'HTTP/1.1 200 OK" in totals.samples["protocol"]
    assert server.seen("/ok").connections == before.connections + 5


@pytest.mark.parametrize("schedule", [None, Burst(TOTAL)], ids=["closed", "open"])
def test_refused_connections_are_failed_requests(schedule: Schedule | None) -> None:
    """Where nobody listens each of N requests fails, though none could be sent, and the load ends."""
    totals = load(free_port(), schedule=schedule)
    assert (totals.requests, totals.errors, totals.sent) == (0, {"connection refused": TOTAL}, 0)
    assert "[Errno 111] Connection refused" in totals.samples["connection refused"]


@pytest.mark.parametrize("schedule", [None, Burst(TOTAL)], ids=["closed", "open"])
def test_a_server_that_does_not_accept_is_a_connect_timeout(schedule: Schedule | None) -> None:
    """With its backlog full each of N requests fails after the time that was allowed."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            totals = load(port, connections=TOTAL, timeout_seconds=0.3, schedule=schedule)
    # A few find a place in the backlog, and wait there for an answer; arrivals may be given up before the attempts.
    assert set(totals.errors) <= {"connect timeout", "timeout"}
    assert (totals.requests, totals.errors.total(), totals.in_flight) == (0, TOTAL, 0)
    if schedule is None:
        assert totals.sent == totals.errors["timeout"] < TOTAL
        assert "no connection within 0.3 s" in totals.samples["connect timeout"]


def test_the_limit_on_open_files_is_named(server: Serving) -> None:
    """Connections that the limit forbids are failed requests that say so, and the load goes on without them."""
    with Engines(plan(server.port, "/close", connections=USERS)) as engine:
        totals = Totals(engine).take_until(lambda totals, _: totals.requests > 0, "load")
        files = psutil.Process(engine.pids[0])
        limits = files.rlimit(resource.RLIMIT_NOFILE)
        files.rlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
        totals.take_until(lambda totals, _: totals.errors["connect"] >= TOTAL, "the limit")
        files.rlimit(resource.RLIMIT_NOFILE, limits)
        before = totals.requests
        totals.take_until(lambda totals, _: totals.requests > before + TOTAL, "load as before")
    assert set(totals.errors) == {"connect"}
    assert "the limit on open files is too low, see `ulimit -n`" in totals.samples["connect"]


def test_a_server_that_is_killed_and_comes_back_is_loaded_again() -> None:
    """Death in mid-load is counted and survived, with as many users afterwards as before: none lost, none doubled."""
    port = free_port()
    with Engines(plan(port, "/ok?ms=5", connections=USERS)) as engine:
        totals = Totals(engine)
        with serving(port) as server:
            totals.take_until(lambda totals, _: totals.requests > TOTAL, "load")
            server.process.kill()
            totals.take_until(lambda _, tick: "connection refused" in tick.errors, "its death is noticed")
        with serving(port) as server:
            before = totals.requests
            totals.take_until(lambda totals, _: totals.requests > before + 10 * TOTAL, "load of the new server")
            totals.take_until(lambda _, tick: tick.in_flight == USERS, "all users are back")
            seen = server.seen("/ok")
    assert set(totals.errors) <= DEATH
    assert (seen.connections, seen.most_at_once) == (USERS, USERS)


def test_arrivals_go_on_while_a_server_is_dead_and_when_it_is_back() -> None:
    """In the open loop each arrival is answered, failed or in flight, whatever the server was doing then."""
    port = free_port()
    with Engines(plan(port, "/ok?ms=5", schedule=Constant(200))) as engine:
        totals = Totals(engine)
        with serving(port) as server:
            totals.take_until(lambda totals, _: totals.requests > TOTAL, "load")
            server.process.kill()
            totals.take_until(lambda totals, _: totals.errors["connection refused"] > TOTAL, "its death is noticed")
        with serving(port) as server:
            before = totals.requests
            totals.take_until(lambda totals, _: totals.requests > before + 2 * TOTAL, "load of the new server")
            seen = server.seen("/ok")
    assert set(totals.errors) <= DEATH
    assert seen.requests >= totals.requests - before
    # What was due and is neither answered nor failed was in flight, or waited for a connection, at the last tick.
    open_at_end = totals.due - totals.ended
    assert totals.in_flight <= open_at_end <= totals.in_flight + USERS
    assert totals.sent == totals.ended - totals.errors["connection refused"] + totals.in_flight


@pytest.mark.parametrize("path", ["/close", "/hang-up", "/twice", "refused"])
def test_lost_connections_leave_nothing_behind(server: Serving, path: str) -> None:
    """The engine, which runs without garbage collector, does not grow with the connections that it opened."""
    whole = plan(free_port(), connections=200) if path == "refused" else plan(server.port, path, connections=32)
    with Engines(whole) as engine:
        process = psutil.Process(engine.pids[0])
        totals = Totals(engine).take_until(lambda totals, _: totals.ended > 1000, "connections")
        before = process.memory_info().rss
        files = process.num_fds()
        totals.take_until(lambda totals, _: totals.ended > 3000, "more connections")
        grown = process.memory_info().rss - before
        assert process.num_fds() < files + 64
    # A connection that stays is worth a thousand bytes and more.
    assert grown < 2000 * 400, f"{grown} bytes for 2000 connections"
