"""TLS: checked unless that was switched off, named when it fails, and as exact as plain TCP when it does not."""

from __future__ import annotations

import hashlib
import socket
import ssl
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuserve.errors import LoadFailed
from pytest_gpuserve.load.driver import Engines
from pytest_gpuserve.load.schedule import Constant
from pytest_gpuserve.load.wire import Tls
from tests.fakes.certificates import Certificates, make_certificates
from tests.fakes.http_server import ANSWERS, BIG, BODY, Serving, Totals, plan, serving

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpuserve.load.schedule import Schedule

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


def load(port: int, tls: Tls, path: str = "/ok", **more: Any) -> Totals:  # noqa: ANN401 -- of the plan
    """Load to the end."""
    with Engines(plan(port, path, **{"connections": USERS, "requests": TOTAL, "tls": tls, **more})) as engine:
        return Totals(engine).take_to_end()


@pytest.fixture
def tls(certificates: Certificates) -> Tls:
    """Trust that authority."""
    return Tls("localhost", ca_file=certificates.ca_file)


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
    """Without being asked: an unknown authority, or another's name, fails every request; none reaches the server."""
    before = server.seen("/ok").requests
    totals = load(server.port, Tls(server_name, ca_file=certificates.ca_file if trusted else ""))
    assert (totals.requests, totals.errors) == (0, {"tls": TOTAL})
    assert reason in totals.samples["tls"]
    assert server.seen("/ok").requests == before


@pytest.mark.parametrize("server_name", ["localhost", "127.0.0.1", "elsewhere.example"])
@pytest.mark.parametrize("schedule", [None, Constant(100)], ids=["closed", "open"])
def test_a_server_is_loaded_over_tls(
    server: Serving, certificates: Certificates, server_name: str, schedule: Schedule | None
) -> None:
    """A trusted certificate of the right name, or one that is not to be checked, costs no request."""
    verify = server_name != "elsewhere.example"
    tls = Tls(server_name, verify=verify, ca_file=certificates.ca_file if verify else "")
    before = server.seen("/ok")
    totals = load(server.port, tls, schedule=schedule)
    assert (totals.requests, totals.errors, totals.answers) == (TOTAL, {}, {BODY: TOTAL})
    seen = server.seen("/ok")
    assert seen.requests == before.requests + TOTAL
    if schedule is None:
        assert seen.connections == before.connections + USERS


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/big", BIG),
        ("/drip", BODY),
        ("/until-close", BODY),
        ("/numbered?distinct=1&bytes=70000", b"0" + b"." * 70_000),
        ("/digest", hashlib.sha256(BIG * 8).hexdigest().encode()),
    ],
)
def test_requests_and_answers_arrive_whole_over_tls(server: Serving, tls: Tls, path: str, body: bytes) -> None:
    """Large answers, of which TLS reads ahead; byte by byte; ended by closing; 8 MB, which no socket takes at once."""
    totals = load(server.port, tls, path, requests=4, body=BIG * 8 if path == "/digest" else b"")
    assert (totals.requests, totals.errors) == (4, {})
    assert totals.answers[body] + totals.unchecked == 4
    assert set(totals.answers) == {body}


@pytest.mark.parametrize(("path", "kind"), [("/cut-body", "incomplete answer"), ("/hang-up", "connection closed")])
def test_faults_over_tls_are_those_of_plain_tcp(server: Serving, tls: Tls, path: str, kind: str) -> None:
    """An answer cut off, and none at all, are counted by the same kinds, once a request."""
    totals = load(server.port, tls, path)
    assert (totals.requests, totals.errors, server.seen(path).requests) == (0, {kind: TOTAL}, TOTAL)


@pytest.mark.parametrize("ending", ["in good order", "cut"])
def test_a_body_that_ends_with_its_connection_must_end_in_good_order(
    certificates: Certificates, tls: Tls, ending: str
) -> None:
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
        totals = load(listener.getsockname()[1], tls, connections=1, requests=1)
        thread.join(30)
    expected = ({BODY: 1}, {}) if ending == "in good order" else ({}, {"incomplete answer": 1})
    assert (totals.answers, totals.errors) == expected


def test_certificates_that_cannot_be_read_are_named(server: Serving) -> None:
    """A missing file of certificates ends the load before it begins, with the file's name."""
    tls = Tls("localhost", ca_file="/nowhere/ca.pem")
    with pytest.raises(LoadFailed) as caught:
        Engines(plan(server.port, tls=tls))
    assert "'/nowhere/ca.pem'" in caught.value.log_tail
