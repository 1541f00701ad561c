"""Whatever a server does wrong is counted by kind, once a request, and the load goes on."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import msgspec
import psutil
import pytest

from pytest_gpuserve.load.driver import Engines
from pytest_gpuserve.load.request import Request
from pytest_gpuserve.load.schedule import Constant, Trace
from pytest_gpuserve.process.ports import free_port
from tests.fakes.http_server import BIG, BODY, Serving, Totals, plan, serving
from tests.load.loading import EACH, USERS, bodies_of, connections, load, rotating

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
    """Of N requests answered wrongly N fail with the fault's kind and a sight of it, and the server saw N.

    It saw once more what got no answer on a connection that had carried one, as some errors are.
    """
    before = {path: server.seen(path).requests for path in FAULTS}
    totals = load(server.port, *FAULTS, schedule=schedule, connections=len(FAULTS))
    assert (totals.requests, totals.sent, totals.in_flight) == (0, EACH * len(FAULTS), 0)
    # Whether the beginning of the answer is still read depends on how soon the reset is there.
    found = Counter("incomplete answer" if kind == "connection reset" else kind for kind in totals.errors.elements())
    assert found == {kind: EACH * count for kind, count in Counter(FAULTS.values()).items()}
    assert all(totals.samples[kind].startswith("request ") for kind in totals.errors)
    seen = {path: server.seen(path).requests - before[path] for path in FAULTS}
    assert sum(seen.values()) == totals.sent + totals.resent
    unanswered = {"/hang-up", "/reset"}
    assert all(count == EACH or (path in unanswered and count > EACH) for path, count in seen.items())


@pytest.mark.parametrize(
    ("forms", "method", "opened"),
    [
        (
            {"/ok": BODY, "/chunked": BODY, "/drip": BODY, "/continue": BODY, "/empty": b"", "/big": BIG},
            "POST",
            USERS,
        ),
        ({"/close": BODY, "/until-close": BODY}, "POST", 2 * EACH),
        ({"/headers-only": b""}, "HEAD", USERS),
    ],
    ids=["kept", "ended", "HEAD"],
)
def test_every_form_of_a_right_answer_is_understood(
    server: Serving, forms: dict[str, bytes], method: str, opened: int
) -> None:
    """Each form is counted as answered with its body, on a kept connection wherever the form allows it."""
    before = connections(server, *forms)
    totals = load(server.port, *forms, method=method)
    assert (totals.requests, totals.errors, totals.sent) == (EACH * len(forms), {}, EACH * len(forms))
    assert bodies_of(totals) == dict.fromkeys(enumerate(forms.values()), EACH)
    assert connections(server, *forms) - before == opened


@pytest.mark.parametrize("schedule", [None, Constant(1000)], ids=["closed", "open"])
def test_connections_that_end_without_notice_cost_no_request(server: Serving, schedule: Schedule | None) -> None:
    """A server that announces to keep each connection and closes it: all is answered, and what was sent again told."""
    before = server.seen("/leave").requests
    totals = load(server.port, "/leave", schedule=schedule, requests=200)
    assert (totals.requests, totals.errors, totals.sent) == (200, {}, 200)
    # What is sent on a connection that is closed already, nobody reads.
    assert server.seen("/leave").requests - before == 200
    assert totals.resent <= 200


def test_requests_that_ask_for_it_have_connections_of_their_own(server: Serving) -> None:
    """With ``Connection: close`` each is answered on one, also by a server that keeps it open."""
    asks = Request("POST", "/ok", b"input", {"connection": "Close"}).to_bytes("127.0.0.1", server.port)
    before = server.seen("/ok").connections
    with Engines(msgspec.structs.replace(plan(server.port, requests=20), payloads=((asks,),))) as engine:
        totals = Totals(engine).take_to_end()
    assert (totals.requests, totals.errors, totals.resent) == (20, {}, 0)
    assert server.seen("/ok").connections - before == 20


def test_an_answer_before_the_request_was_read_counts_and_ends_the_connection(server: Serving) -> None:
    """What is left of such a request is not sent into the next one, which gets a connection of its own."""
    totals = load(server.port, "/early", "/too-large", body=BIG * 8)
    assert (totals.requests, totals.errors) == (EACH, {"status 413": EACH})
    assert connections(server, "/early", "/too-large") == 2 * EACH


def test_an_answer_that_never_comes_is_a_timeout(server: Serving) -> None:
    """Requests that are never answered are given up, with the time they had, and none is lost."""
    totals = load(server.port, "/never", requests=2 * USERS, timeout_seconds=0.2)
    assert (totals.requests, totals.errors, totals.sent) == (0, {"timeout": 2 * USERS}, 2 * USERS)
    assert "0.2 s" in totals.samples["timeout"]
    seen = server.seen("/never")
    assert seen.connections == seen.requests == 2 * USERS


def test_what_happens_to_an_idle_connection(server: Serving) -> None:
    """Closed or reset it is replaced without a word; bytes that nobody asked for are an error; all are answered."""
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
            users.take_until(lambda _, tick: tick.in_flight == USERS, "all users are back")
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
