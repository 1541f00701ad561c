"""Each fault of a server is counted by kind, once a request, and the load goes on; over TLS as over TCP."""

from __future__ import annotations

import hashlib
import socket
import ssl
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import psutil
import pytest

from pytest_gpuserve.load.driver import Engines
from pytest_gpuserve.load.request import Request
from pytest_gpuserve.load.schedule import Constant, Schedule, Trace
from pytest_gpuserve.load.wire import Plan, Tls
from pytest_gpuserve.process.ports import free_port
from tests.fakes.http_server import ANSWERS, BIG, BODY, Certificates, Serving, Totals, make_certificates, plan, serving

USERS = 4
EACH = 6
"""Requests to each path."""

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
    """A closed or reset idle connection is silently replaced; surplus bytes are an error; all requests are answered."""
    before = server.seen("/ok").connections
    # Gaps of many times what the server waits, so that no request is sent into the end of a connection.
    gaps = Trace(tuple((0.4 * number, index) for number in range(3) for index in range(3)))
    idle = ("/ok?idle=close", "/ok?idle=reset", "/ok?idle=talk")
    totals = load(server.port, *idle, schedule=gaps, requests=None)
    assert totals.requests == totals.sent == totals.due == 9
    assert totals.errors == {"protocol": 2}
    assert "an answer to no request: b'HTTP/1.1 200 OK" in totals.samples["protocol"]
    assert server.seen("/ok").connections == before + 9


def test_requests_that_ask_to_close_have_a_connection_each(server: Serving) -> None:
    """No request follows on a connection that was to close, even if the server keeps it open (RFC 9112, 9.6)."""
    before = server.seen("/ok")
    request = Request("POST", "/ok", headers={"Connection": "close"}).to_bytes("h:1")
    with Engines(msgspec.structs.replace(plan(server.port, requests=20), payloads=((request,),))) as engine:
        totals = Totals(engine).take_to_end()
    after = server.seen("/ok")
    assert (totals.requests, totals.resent, totals.errors) == (20, 0, {})
    assert after.connections - before.connections >= after.requests - before.requests == 20


def test_users_who_wait_for_a_connection_are_counted() -> None:
    """Each tick has the number of connections that are not open yet, and the time since the oldest one's begin."""
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        Engines(plan(silent.getsockname()[1], connections=3, tls=Tls("127.0.0.1"))) as engine,
    ):
        totals = Totals(engine).take_until(lambda _, tick: tick.oldest_opening_ns > 200_000_000, "the wait is long")
    last = totals.ticks[-1]
    assert last.opening == 3
    assert last.oldest_opening_ns <= last.end_ns - totals.ticks[0].begin_ns


def test_a_server_that_is_killed_and_comes_back_is_loaded_again() -> None:
    """No user is lost or doubled by a server's death, and each arrival is answered, failed or in flight."""
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


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Give certificates of an authority that is not trusted by default."""
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def tls_server(certificates: Certificates) -> Iterator[Serving]:
    """Give a server that speaks TLS."""
    with serving(certificate=certificates.server_file) as running:
        yield running


@pytest.mark.parametrize(
    ("server_name", "trusted", "reason"),
    [
        ("localhost", False, "certificate verify failed"),
        ("elsewhere.example", True, "certificate is not valid for 'elsewhere.example'"),
        ("127.0.0.2", True, "certificate is not valid for '127.0.0.2'"),
    ],
)
def test_a_certificate_that_proves_nothing_is_refused(
    tls_server: Serving, certificates: Certificates, server_name: str, reason: str, *, trusted: bool
) -> None:
    """By default an unknown authority, or another's name, fails every request; none reaches the server."""
    before = tls_server.seen("/ok").requests
    totals = load(tls_server.port, "/ok", tls=Tls(server_name, ca_file=certificates.ca_file if trusted else ""))
    assert (totals.requests, totals.errors) == (0, {"tls": EACH})
    assert reason in totals.samples["tls"]
    assert tls_server.seen("/ok").requests == before


def test_requests_and_answers_arrive_whole_over_tls(tls_server: Serving, certificates: Certificates) -> None:
    """Answers arrive whole if large, byte by byte or ended by closing, and so do requests of 8 MB."""
    expected = {
        "/big": BIG,
        "/drip": BODY,
        "/until-close": BODY,
        "/numbered?distinct=1&bytes=70000": b"0" + b"." * 70_000,
        "/digest": hashlib.sha256(BIG * 8).hexdigest().encode(),
    }
    tls = Tls("localhost", ca_file=certificates.ca_file)
    totals = load(tls_server.port, *expected, tls=tls, body=BIG * 8, requests=2 * len(expected))
    assert (totals.requests, totals.errors) == (2 * len(expected), {})
    answers = [answer for tick in totals.ticks for answer in tick.answers]
    found = Counter((answer.index, answer.body) for answer in answers for _ in range(answer.count))
    assert found == dict.fromkeys(enumerate(expected.values()), 2)


def test_a_body_that_was_cut_with_its_connection_is_incomplete(certificates: Certificates) -> None:
    """Over TLS an end without TLS's own may come from an attacker (RFC 9112, 9.8)."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.server_file)
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:

        def serve() -> None:
            with context.wrap_socket(listener.accept()[0], server_side=True) as secured:
                secured.recv(1 << 16)
                secured.sendall(ANSWERS["/until-close"])

        served = pool.submit(serve)
        tls = Tls("localhost", ca_file=certificates.ca_file)
        totals = load(listener.getsockname()[1], "/", tls=tls, connections=1, requests=1)
        served.result(30)
    assert (totals.answers, totals.errors) == ({}, {"incomplete answer": 1})
