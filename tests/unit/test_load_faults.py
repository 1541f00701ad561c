"""Whatever a server does wrong is counted by kind, once a request, and the load goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psutil
import pytest

from pytest_gpuserve.load.driver import Engine
from pytest_gpuserve.process.ports import free_port
from tests.fakes.http_server import BIG, BODY, Serving, Totals, plan, serving

if TYPE_CHECKING:
    from collections.abc import Iterator

USERS = 4
TOTAL = 24
INCOMPLETE = {"incomplete answer"}
PROTOCOL = {"protocol"}


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
def test_every_fault_is_counted_once_by_its_kind(server: Serving, path: str, kinds: set[str]) -> None:
    """Of N requests answered wrongly N fail with the fault's kind and a sight of it, and every user asks again."""
    with Engine(plan(server.port, f"{path}?total={TOTAL}", connections=USERS)) as engine:
        totals = Totals(engine).take_all(TOTAL, USERS)
    assert totals.requests == 0
    assert totals.errors.total() == TOTAL
    assert set(totals.errors) <= kinds
    assert all(totals.samples[kind] for kind in totals.errors)
    assert server.seen(path).requests == TOTAL + USERS


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
    with Engine(plan(server.port, f"{path}?total={TOTAL}", connections=USERS)) as engine:
        totals = Totals(engine).take_all(TOTAL, USERS)
    assert (totals.requests, totals.errors) == (TOTAL, {})
    assert totals.answers[body] + totals.unchecked == TOTAL
    assert set(totals.answers) <= {body}
    seen = server.seen(path)
    assert seen.requests == TOTAL + USERS
    assert seen.connections == (USERS if reuses else TOTAL + USERS)


def test_an_answer_to_head_ends_with_its_headers(server: Serving) -> None:
    """An answer to HEAD that announces a body without sending it is complete, and the connection is kept."""
    with Engine(plan(server.port, f"/headers-only?total={TOTAL}", connections=USERS, method="HEAD")) as engine:
        totals = Totals(engine).take_all(TOTAL, USERS)
    assert (totals.requests, totals.errors, totals.answers) == (TOTAL, {}, {b"": TOTAL})
    assert server.seen("/headers-only").connections == USERS


def test_a_body_in_answer_to_head_is_a_fault(server: Serving) -> None:
    """A body sent in answer to HEAD is not taken for the beginning of the next answer."""
    with Engine(plan(server.port, f"/ok?total={10 * TOTAL}", connections=USERS, method="HEAD")) as engine:
        totals = Totals(engine).take_until(lambda totals, _: totals.ended >= TOTAL, "answers")
    assert (totals.requests, set(totals.errors)) == (0, PROTOCOL)


def test_wrong_answers_are_told_apart_and_counted(server: Serving) -> None:
    """With one wrong answer in four, bodies and counts arrive exactly."""
    with Engine(plan(server.port, f"/wrong?every=4&total={TOTAL}", connections=USERS)) as engine:
        totals = Totals(engine).take_all(TOTAL, USERS)
    assert totals.answers == {b"wrong": TOTAL // 4, BODY: TOTAL - TOTAL // 4}


def test_an_answer_that_never_comes_is_a_timeout(server: Serving) -> None:
    """Users whose requests are never answered give up and ask again, on a new connection, and none is lost."""
    with Engine(plan(server.port, "/never", connections=USERS, timeout_seconds=0.2)) as engine:
        totals = Totals(engine).take_until(lambda totals, _: totals.ended >= 3 * USERS, "timeouts")
        totals.take_until(lambda _, tick: tick.in_flight == USERS, "all users ask again")
    assert (totals.requests, set(totals.errors)) == (0, {"timeout"})
    assert "0.2 s" in totals.samples["timeout"]
    seen = server.seen("/never")
    # Beyond the last tick the users went on for an instant, so the server may have seen a little more.
    assert seen.connections == seen.requests >= totals.ended


def test_a_server_that_comes_up_later_is_loaded_then() -> None:
    """Refused connections are counted while nobody listens; then every user gets one connection and no error."""
    port = free_port()
    with Engine(plan(port, f"/ok?ms=1&total={TOTAL}", connections=USERS)) as engine:
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
    with Engine(plan(port, "/ok?ms=5", connections=USERS)) as engine:
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
    assert set(totals.errors) <= {"connection refused", "connection closed", "connection reset"}
    assert (seen.connections, seen.most_at_once) == (USERS, USERS)


@pytest.mark.parametrize("path", ["/close", "/hang-up"])
def test_lost_connections_leave_nothing_behind(server: Serving, path: str) -> None:
    """The engine, which runs without garbage collector, does not grow with the connections that it opened."""
    with Engine(plan(server.port, path, connections=32)) as engine:
        process = psutil.Process(engine._process.pid)
        totals = Totals(engine).take_until(lambda totals, _: totals.ended > 500, "connections")
        before = process.memory_info().rss
        totals.take_until(lambda totals, _: totals.ended > 2000, "more connections")
        grown = process.memory_info().rss - before
    # A connection that stays is worth several thousand bytes.
    assert grown < 1500 * 500, f"{grown} bytes for 1500 connections"
