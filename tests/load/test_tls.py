"""TLS: checked unless that was switched off, named when it fails, and as exact as plain TCP when it does not."""

from __future__ import annotations

import hashlib
import socket
import ssl
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from pytest_gpuserve.errors import LoadFailed
from pytest_gpuserve.load.driver import Engines
from pytest_gpuserve.load.schedule import Constant
from pytest_gpuserve.load.wire import Tls
from tests.fakes.certificates import Certificates, make_certificates
from tests.fakes.http_server import ANSWERS, BIG, BODY, Serving, Totals, plan, serving

if TYPE_CHECKING:
    from collections.abc import Iterator

USERS = 4
TOTAL = 24


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Give certificates of an authority that nobody trusts by default."""
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def server(certificates: Certificates) -> Iterator[Serving]:
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
    server: Serving, certificates: Certificates, server_name: str, reason: str, *, trusted: bool
) -> None:
    """An unknown authority, and another's name, fail every request as ``tls`` with the reason; none reaches the server.

    Verification is what happens without asking for it.
    """
    tls = Tls(server_name, ca_file=certificates.ca_file if trusted else "")
    path = f"/ok?from={server_name}"
    before = server.seen("/ok").requests
    with Engines(plan(server.port, path, connections=USERS, requests=TOTAL, tls=tls)) as engine:
        totals = Totals(engine).take_to_end()
    assert (totals.requests, totals.errors) == (0, {"tls": TOTAL})
    assert reason in totals.samples["tls"]
    assert server.seen("/ok").requests == before


@pytest.mark.parametrize("server_name", ["localhost", "127.0.0.1", "elsewhere.example"])
def test_a_server_is_loaded_over_tls(server: Serving, certificates: Certificates, server_name: str) -> None:
    """A trusted certificate of the right name, or one that is not to be checked, costs no request."""
    verify = server_name != "elsewhere.example"
    tls = Tls(server_name, verify=verify, ca_file=certificates.ca_file if verify else "")
    before = server.seen("/ok")
    with Engines(plan(server.port, connections=USERS, requests=TOTAL, tls=tls)) as engine:
        totals = Totals(engine).take_to_end()
    assert (totals.requests, totals.errors, totals.answers) == (TOTAL, {}, {BODY: TOTAL})
    seen = server.seen("/ok")
    assert (seen.requests, seen.connections) == (before.requests + TOTAL, before.connections + USERS)


@pytest.mark.parametrize("path", ["/big", "/drip", "/until-close", "/numbered?distinct=1&bytes=70000"])
def test_answers_arrive_whole_over_tls(server: Serving, certificates: Certificates, path: str) -> None:
    """Large answers, of which TLS reads ahead of what was asked for, byte by byte, and those that end by closing."""
    tls = Tls("localhost", ca_file=certificates.ca_file)
    body = {"/big": BIG, "/drip": BODY, "/until-close": BODY}.get(path, b"0" + b"." * 70_000)
    with Engines(plan(server.port, path, connections=USERS, requests=TOTAL, tls=tls)) as engine:
        totals = Totals(engine).take_to_end()
    assert (totals.requests, totals.errors) == (TOTAL, {})
    assert totals.answers[body] + totals.unchecked == TOTAL
    assert set(totals.answers) == {body}


def test_large_requests_arrive_whole_over_tls(server: Serving, certificates: Certificates) -> None:
    """8 MB a request, which no socket takes at once, reach the server as they were."""
    body = BIG * 8
    load = plan(server.port, "/digest", requests=4, body=body, tls=Tls("localhost", ca_file=certificates.ca_file))
    with Engines(load) as engine:
        totals = Totals(engine).take_to_end()
    assert (totals.requests, totals.errors) == (4, {})
    assert totals.answers == {hashlib.sha256(body).hexdigest().encode(): 4}


@pytest.mark.parametrize(("path", "kinds"), [("/cut-body", {"incomplete answer"}), ("/hang-up", {"connection closed"})])
def test_faults_over_tls_are_those_of_plain_tcp(
    server: Serving, certificates: Certificates, path: str, kinds: set[str]
) -> None:
    """An answer cut off, and none at all, are counted by the same kinds, once a request."""
    tls = Tls("localhost", ca_file=certificates.ca_file)
    with Engines(plan(server.port, path, connections=USERS, requests=TOTAL, tls=tls)) as engine:
        totals = Totals(engine).take_to_end()
    assert (totals.requests, totals.errors.total(), set(totals.errors)) == (0, TOTAL, kinds)
    assert server.seen(path).requests == TOTAL


@pytest.mark.parametrize("ending", ["in good order", "cut"])
def test_a_body_that_ends_with_its_connection_must_end_in_good_order(certificates: Certificates, ending: str) -> None:
    """Over TLS an end that TLS was not told of may be anybody's: the answer is incomplete (RFC 9112, 9.8)."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.server_file)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with context.wrap_socket(connection, server_side=True) as secured:
                secured.recv(1 << 16)
                secured.sendall(ANSWERS["/until-close"])
                if ending == "in good order":
                    # It waits for the client's word too, which may not come.
                    with suppress(OSError):
                        secured.unwrap()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        tls = Tls("localhost", ca_file=certificates.ca_file)
        with Engines(plan(listener.getsockname()[1], connections=1, requests=1, tls=tls)) as engine:
            totals = Totals(engine).take_to_end()
        thread.join(30)
    if ending == "in good order":
        assert (totals.answers, totals.errors) == ({BODY: 1}, {})
    else:
        assert (totals.requests, totals.errors) == (0, {"incomplete answer": 1})


def test_an_open_loop_loads_over_tls(server: Serving, certificates: Certificates) -> None:
    """Arrivals that find no connection open one, handshake and all, and none is lost."""
    tls = Tls("localhost", ca_file=certificates.ca_file)
    with Engines(plan(server.port, "/ok", schedule=Constant(100), requests=TOTAL, tls=tls)) as engine:
        totals = Totals(engine).take_to_end()
    assert (totals.requests, totals.errors, totals.due) == (TOTAL, {}, TOTAL)


def test_certificates_that_cannot_be_read_are_named(server: Serving) -> None:
    """A missing file of certificates ends the load before it begins, with the file's name."""
    tls = Tls("localhost", ca_file="/nowhere/ca.pem")
    with pytest.raises(LoadFailed) as caught:
        Engines(plan(server.port, tls=tls))
    assert "'/nowhere/ca.pem'" in caught.value.log_tail
