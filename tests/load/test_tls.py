"""TLS: checked unless that was switched off, named when it fails, and as exact as plain TCP when it does not."""

from __future__ import annotations

import hashlib
import socket
import ssl
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from pytest_gpuserve.load.wire import Tls
from tests.fakes.certificates import Certificates, make_certificates
from tests.fakes.http_server import ANSWERS, BIG, BODY, Serving, serving
from tests.load.loading import EACH, bodies_of, load

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Give certificates of an authority that is not trusted by default."""
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
    """By default an unknown authority, or another's name, fails every request; none reaches the server."""
    before = server.seen("/ok").requests
    totals = load(server.port, "/ok", tls=Tls(server_name, ca_file=certificates.ca_file if trusted else ""))
    assert (totals.requests, totals.errors) == (0, {"tls": EACH})
    assert reason in totals.samples["tls"]
    assert server.seen("/ok").requests == before


def test_requests_and_answers_arrive_whole_over_tls(server: Serving, certificates: Certificates) -> None:
    """Large answers, with TLS's read-ahead; byte by byte; ended by closing; 8 MB, more than a socket takes at once."""
    expected = {
        "/big": BIG,
        "/drip": BODY,
        "/until-close": BODY,
        "/numbered?distinct=1&bytes=70000": b"0" + b"." * 70_000,
        "/digest": hashlib.sha256(BIG * 8).hexdigest().encode(),
    }
    tls = Tls("localhost", ca_file=certificates.ca_file)
    totals = load(server.port, *expected, tls=tls, body=BIG * 8, requests=2 * len(expected))
    assert (totals.requests, totals.errors) == (2 * len(expected), {})
    assert bodies_of(totals) == dict.fromkeys(enumerate(expected.values()), 2)


@pytest.mark.parametrize(("server_name", "ending"), [("localhost", "in good order"), ("127.0.0.1", "cut")])
def test_a_body_that_ends_with_its_connection_must_end_in_good_order(
    certificates: Certificates, server_name: str, ending: str
) -> None:
    """Over TLS an end without TLS's own may come from an attacker: the answer is incomplete (RFC 9112, 9.8)."""
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
        tls = Tls(server_name, ca_file=certificates.ca_file)
        totals = load(listener.getsockname()[1], "/", tls=tls, connections=1, requests=1)
        thread.join(30)
    expected = ({BODY: 1}, {}) if ending == "in good order" else ({}, {"incomplete answer": 1})
    assert (totals.answers, totals.errors) == expected
