"""Whatever a server does wrong is counted by kind, once a request, and the load goes on."""

from __future__ import annotations

import hashlib
import resource
import socket
from itertools import accumulate
from typing import TYPE_CHECKING

import psutil
import pytest

from pytest_gpuserve.errors import LoadFailed
from pytest_gpuserve.load.driver import Engines
from pytest_gpuserve.load.schedule import Burst, Constant, Trace
from pytest_gpuserve.process.ports import free_port
from tests.fakes.http_server import BIG, BODY, Serving, Totals, plan, serving

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpuserve.load.schedule import Schedule

USERS = 4
TOTAL = 24
INCOMPLETE = {"incomplete answer"}
PROTOCOL = {"protocol"}
DEATH = {"connection refused", "connection closed", "connection reset", "incomplete answer"}


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    """Give a server that misbehaves on request."""
    with serving() as running:
        yield running


@pytest.mark.parametrize(
    ("path", "kinds"),
    [
        ("/unavailable", {"status 503"}),
        ("/moved", {"status 302"}),
        ("/half-header", INCOMPLETE),
        ("/cut-body", INCOMPLETE),
        ("/cut-chunk", INCOMPLETE),
        # Whether the beginning of the answer is still read depends on how soon the reset is there.
        ("/reset", {"incomplete answer", "connection reset"}),
        ("/hang-up", {"connection closed"}),
        ("/overlong", PROTOCOL),
        ("/twice", PROTOCOL),
        ("/garbage", PROTOCOL),
        ("/switch", PROTOCOL),
        ("/smuggled", PROTOCOL),
    ],
)
@pytest.mark.parametrize("schedule", [None, Constant(1000)], ids=["closed", "open"])
def test_every_fault_is_counted_once_by_its_kind(
    server: Serving, path: str, kinds: set[str], schedule: Schedule | None
) -> None:
    """Of N requests answered wrongly N fail with the fault's kind and a sight of it, and the server saw N."""
    before = server.seen(path).requests
    with Engines(plan(server.port, path, connections=USERS, requests=TOTAL, schedule=schedule)) as engine:
        totals = Totals(engine).take_to_end()
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
    ],
)
def test_every_form_of_a_right_answer_is_understood(server: Serving, path: str, body: bytes, *, reuses: bool) -> None:
    """Each form is counted as answered with its body, on a kept connection wherever the form allows it."""
    with Engines(plan(server.port, path, connections=USERS, requests=TOTAL)) as engine:
        totals = Totals(engine).take_to_end()
    assert (totals.requests, totals.errors, totals.sent) == (TOTAL, {}, TOTAL)
    assert totals.answers[body] + totals.unchecked == TOTAL
    assert set(totals.answers) <= {body}
    seen = server.seen(path)
    assert (seen.requests, seen.connections) == (TOTAL, USERS if reuses else TOTAL)


def test_users_wait_for_the_answers_that_do_not_come(server: Serving) -> None:
    """Beyond the last answer there is one request in flight for each user, at the server as in the report."""
    path = f"/numbered?distinct=1&total={TOTAL}"
    with Engines(plan(server.port, path, connections=USERS)) as engine:
        totals = Totals(engine).take_all(TOTAL, USERS)
        seen = server.seen("/numbered")
    assert (totals.requests, totals.errors, totals.sent) == (TOTAL, {}, TOTAL + USERS)
    assert (seen.requests, seen.connections) == (TOTAL + USERS, USERS)


def test_large_requests_are_written_whole(server: Serving) -> None:
    """8 MB a request, which no socket takes at once, reach the server as they were, on one connection a user."""
    body = BIG * 8
    before = server.seen("/digest")
    with Engines(plan(server.port, "/digest", connections=2, requests=6, body=body)) as engine:
        totals = Totals(engine).take_to_end()
    assert (totals.requests, totals.errors) == (6, {})
    assert totals.answers == {hashlib.sha256(body).hexdigest().encode(): 6}
    assert server.seen("/digest").connections == before.connections + 2


@pytest.mark.parametrize(("path", "kind"), [("/early", None), ("/too-large", "status 413")])
def test_an_answer_before_the_request_was_read_counts_and_ends_the_connection(
    server: Serving, path: str, kind: str | None
) -> None:
    """What is left of such a request is not sent into the next one, which gets a connection of its own."""
    with Engines(plan(server.port, path, connections=2, requests=6, body=BIG * 8)) as engine:
        totals = Totals(engine).take_to_end()
    assert (totals.requests, totals.errors) == ((0, {kind: 6}) if kind else (6, {}))
    assert server.seen(path).connections == 6


def test_an_answer_to_head_ends_with_its_headers(server: Serving) -> None:
    """An answer to HEAD that announces a body without sending it is complete, and the connection is kept."""
    with Engines(plan(server.port, "/headers-only", connections=USERS, method="HEAD", requests=TOTAL)) as engine:
        totals = Totals(engine).take_to_end()
    assert (totals.requests, totals.errors, totals.answers) == (TOTAL, {}, {b"": TOTAL})
    assert server.seen("/headers-only").connections == USERS


def test_a_body_in_answer_to_head_is_a_fault(server: Serving) -> None:
    """A body sent in answer to HEAD is not taken for the beginning of the next answer."""
    with Engines(plan(server.port, "/ok", connections=USERS, method="HEAD", requests=TOTAL)) as engine:
        totals = Totals(engine).take_to_end()
    assert (totals.requests, totals.errors) == (0, {"protocol": TOTAL})


def test_wrong_answers_are_told_apart_and_counted(server: Serving) -> None:
    """With one wrong answer in four, bodies and counts arrive exactly."""
    with Engines(plan(server.port, "/wrong?every=4", connections=USERS, requests=TOTAL)) as engine:
        totals = Totals(engine).take_to_end()
    assert totals.answers == {b"wrong": TOTAL // 4, BODY: TOTAL - TOTAL // 4}


@pytest.mark.parametrize("schedule", [None, Constant(100)], ids=["closed", "open"])
def test_an_answer_that_never_comes_is_a_timeout(server: Serving, schedule: Schedule | None) -> None:
    """Requests that are never answered are given up, with the time they had, and none is lost."""
    before = server.seen("/never")
    load = plan(server.port, "/never", connections=USERS, requests=3 * USERS, timeout_seconds=0.2, schedule=schedule)
    with Engines(load) as engine:
        totals = Totals(engine).take_to_end()
    assert (totals.requests, totals.errors, totals.sent) == (0, {"timeout": 3 * USERS}, 3 * USERS)
    assert "0.2 s" in totals.samples["timeout"]
    seen = server.seen("/never")
    assert seen.connections - before.connections == seen.requests - before.requests == 3 * USERS


@pytest.mark.parametrize("idle", ["close", "reset", "talk"])
def test_what_happens_to_an_idle_connection(server: Serving, idle: str) -> None:
    """Closed or reset by the server it is replaced without a word; bytes that nobody asked for are an error.

    The requests themselves are all answered.
    """
    before = server.seen("/ok")
    # Gaps of many times what the server waits, so that no request is sent into the end of a connection.
    gaps = Trace(tuple((seconds, 0) for seconds in accumulate([0.0] + [0.4] * 4)))
    with Engines(plan(server.port, f"/ok?idle={idle}", schedule=gaps)) as engine:
        totals = Totals(engine).take_to_end()
    assert totals.requests == totals.sent == totals.due == 5
    assert totals.errors == ({"protocol": 4} if idle == "talk" else {})
    if idle == "talk":
        assert "an answer to no request: b'HTTP/1.1 200 OK" in totals.samples["protocol"]
    assert server.seen("/ok").connections == before.connections + 5


@pytest.mark.parametrize("schedule", [None, Burst(TOTAL)], ids=["closed", "open"])
def test_refused_connections_are_failed_requests(schedule: Schedule | None) -> None:
    """Where nobody listens each of N requests fails, though none could be sent, and the load ends."""
    with Engines(plan(free_port(), connections=USERS, requests=TOTAL, schedule=schedule)) as engine:
        totals = Totals(engine).take_to_end()
    assert (totals.requests, totals.errors, totals.sent) == (0, {"connection refused": TOTAL}, 0)
    assert "[Errno 111] Connection refused" in totals.samples["connection refused"]


@pytest.mark.parametrize("schedule", [None, Burst(TOTAL)], ids=["closed", "open"])
def test_a_server_that_does_not_accept_is_a_connect_timeout(schedule: Schedule | None) -> None:
    """With its backlog full each of N requests fails after the time that was allowed."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        port = listener.getsockname()[1]
        load = plan(port, connections=TOTAL, requests=TOTAL, timeout_seconds=0.3, schedule=schedule)
        with socket.create_connection(("127.0.0.1", port)), Engines(load) as engine:
            totals = Totals(engine).take_to_end()
    # A few find a place in the backlog, and wait there for an answer; arrivals may be given up before the attempts.
    assert set(totals.errors) <= {"connect timeout", "timeout"}
    assert (totals.requests, totals.errors.total(), totals.in_flight) == (0, TOTAL, 0)
    if schedule is None:
        assert totals.sent == totals.errors["timeout"] < TOTAL
        assert "no connection within 0.3 s" in totals.samples["connect timeout"]


def test_an_unknown_host_ends_the_load_before_it_begins() -> None:
    """It is named, with the system's words, instead of being counted for every request."""
    with pytest.raises(LoadFailed) as caught:
        Engines(plan(80, host="nobody.invalid"))
    assert "nobody.invalid:80: " in caught.value.log_tail
    assert "Traceback" not in caught.value.log_tail


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


def test_a_server_that_comes_up_later_is_loaded_then() -> None:
    """Refused connections are counted while nobody listens; then every user gets one connection and no error."""
    port = free_port()
    with Engines(plan(port, f"/ok?ms=1&total={TOTAL}", connections=USERS)) as engine:
        totals = Totals(engine).take_until(lambda totals, _: totals.ended >= 2 * USERS, "refusals")
        assert (totals.requests, set(totals.errors)) == (0, {"connection refused"})
        with serving(port) as server:
            totals.take_until(lambda totals, tick: totals.requests == TOTAL and tick.in_flight == USERS, "recovery")
            assert set(totals.errors) == {"connection refused"}
            seen = server.seen("/ok")
            assert (seen.requests, seen.connections) == (TOTAL + USERS, USERS)


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


@pytest.mark.parametrize("path", ["/close", "/hang-up"])
def test_lost_connections_leave_nothing_behind(server: Serving, path: str) -> None:
    """The engine, which runs without garbage collector, does not grow with the connections that it opened."""
    with Engines(plan(server.port, path, connections=32)) as engine:
        process = psutil.Process(engine.pids[0])
        totals = Totals(engine).take_until(lambda totals, _: totals.ended > 500, "connections")
        before = process.memory_info().rss
        files = process.num_fds()
        totals.take_until(lambda totals, _: totals.ended > 2000, "more connections")
        grown = process.memory_info().rss - before
        assert process.num_fds() < files + 64
    # A connection that stays is worth a thousand bytes and more.
    assert grown < 1500 * 500, f"{grown} bytes for 1500 connections"
