"""A server that runs is asked once: its answer as it came, its refusal, or why there is none, over each transport."""

from __future__ import annotations

import socket
import ssl
import struct
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import replace
from multiprocessing.connection import Listener
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import hpack
import pytest

from pytest_gpuserve.errors import ServerFailed, UsageProblem
from pytest_gpuserve.experiment.asking import TEXT_SHOWN, Refused, WrongAnswer
from pytest_gpuserve.experiment.handle import ServerHandle
from pytest_gpuserve.process.ports import free_port
from pytest_gpuserve.process.queue_format import ERROR, GOOD
from pytest_gpuserve.servers.base import Site
from pytest_gpuserve.servers.instance import Instance
from pytest_gpuserve.servers.remote import Remote
from tests.fakes.certificates import make_certificates
from tests.fakes.http_server import BIG, BODY, Serving, serving

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pytest_gpuserve.experiment.handle import Starter
    from pytest_gpuserve.servers.base import Ask, ServerKind

GUARD_SECONDS = 30.0

TRICKLE_PIECES = 1000
TRICKLE_SECONDS = 0.02
"""Between two pieces: all of them take 20 s, and the next one never comes late."""

PATIENCE_SECONDS = 0.3

BIG_ITEMS = 1 << 20
"""Of 8 bytes: more than any socket keeps."""


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    """A server that answers as the path asks for."""
    with serving() as there:
        yield there


def running_at(port: int, **more: Any) -> tuple[ServerHandle, Instance]:  # noqa: ANN401 -- fields of `Remote`
    """A server that somebody else runs, and what starting it would give."""
    kind = Remote(more.pop("host", "127.0.0.1"), port, **more)
    return ServerHandle(kind, cast("Starter", None)), Instance(kind, kind.site(), None, None)


@contextmanager
def answering(answer: bytes) -> Iterator[tuple[ServerHandle, Instance, list[bytes]]]:
    """A server that takes one connection, and what it received there; it answers with these bytes."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        received: list[bytes] = []

        def serve() -> None:
            peer, _ = listener.accept()
            with peer:
                received.append(peer.recv(1 << 16))
                peer.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield (*running_at(listener.getsockname()[1]), received)
        thread.join(GUARD_SECONDS)


@contextmanager
def trickling(
    listener: socket.socket, begin: bytes, piece: bytes = b"x", *, asked: bytes = b"\r\n\r\n", greeting: bytes = b""
) -> Iterator[None]:
    """Answer one connection, after a request that has these bytes in it, piece by piece for as long as one listens."""

    def serve() -> None:
        with suppress(OSError):
            peer, _ = listener.accept()
            with peer:
                peer.sendall(greeting)
                received = b""
                while asked not in received:
                    data = peer.recv(1 << 16)
                    if not data:
                        return
                    received += data
                peer.sendall(begin)
                for _ in range(TRICKLE_PIECES):
                    peer.sendall(piece)
                    time.sleep(TRICKLE_SECONDS)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield
    thread.join(GUARD_SECONDS)
    assert not thread.is_alive()


# -- answers


@pytest.mark.parametrize("path", ["/ok", "/chunked", "/drip", "/continue", "/close", "/until-close"])
def test_an_answer_is_read_whole(server: Serving, path: str) -> None:
    """However it is framed, its body is what the server said."""
    handle, running = running_at(server.port)
    assert handle.post(path, body=b"fox", expect=BODY).ask(running).body == BODY


def test_large_and_empty_answers_are_read(server: Serving) -> None:
    """A megabyte, and none at all."""
    handle, running = running_at(server.port)
    assert handle.get("/big").ask(running).body == BIG
    assert handle.get("/empty").ask(running).body == b""


def test_what_is_sent_is_what_a_load_sends() -> None:
    """Byte by byte, headers and all."""
    with answering(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok") as (handle, running, received):
        target = handle.post("/infer", body="fox", headers={"X-Word": "a"})
        assert target.ask(running).body == b"ok"
    assert tuple(received) == target.payloads(running)[0]


def test_tls_is_checked(tmp_path: Path) -> None:
    """A trusted server answers, one of an unknown authority is not asked."""
    certificates = make_certificates(tmp_path)
    with serving(certificate=certificates.server_file) as server:
        handle, running = running_at(server.port, host="localhost", tls=True, ca_file=certificates.ca_file)
        assert handle.get("/ok").ask(running).body == BODY
        handle, running = running_at(server.port, host="localhost", tls=True)
        with pytest.raises(ServerFailed, match="certificate"):
            handle.get("/ok").ask(running)


# -- refusals and wrong answers


@pytest.mark.parametrize(("path", "status", "body"), [("/unavailable", 503, b"busy"), ("/moved", 302, b"")])
def test_an_error_is_a_refusal(server: Serving, path: str, status: int, body: bytes) -> None:
    """Any status but 2xx, with what the server said, whatever is expected of a good answer."""
    handle, running = running_at(server.port)
    with pytest.raises(Refused) as caught:
        handle.get(path, expect=b"something").ask(running)
    assert caught.value.found == (f"status {status}: {body.decode()}" if body else f"status {status}")
    assert (caught.value.status, caught.value.body) == (status, body)


def test_a_wrong_answer_is_told(server: Serving) -> None:
    """With what is wrong with it, by the request's own check."""
    handle, running = running_at(server.port)
    with pytest.raises(WrongAnswer, match="expected b'right', got b'wrong'") as caught:
        handle.get("/wrong?every=1", expect=BODY).ask(running)
    assert caught.value.body == b"wrong"
    with pytest.raises(WrongAnswer, match="no fox here"):
        handle.get("/ok", expect=_refuses).ask(running)


def _refuses(body: bytes) -> bool:
    raise AssertionError(f"no fox here: {body!r}")


@pytest.mark.parametrize("before", [b"unknown ", b"x" * (TEXT_SHOWN - 5)], ids=["short", "cut"])
def test_secrets_of_a_request_are_not_shown(before: bytes) -> None:
    """A server that repeats a token has it masked in the error, also where that ends within it; the body is whole."""
    said = before + b"abcdefghij"
    answer = b"HTTP/1.1 403 No\r\nContent-Length: %d\r\n\r\n%s" % (len(said), said)
    with answering(answer) as (handle, running, _), pytest.raises(Refused) as caught:
        handle.get("/", headers={"Authorization": "Bearer abcdefghij"}).ask(running)
    assert f"{before.decode()}<" in caught.value.found
    assert "abc" not in str(caught.value)
    assert caught.value.body == said


# -- no answer


@pytest.mark.parametrize(
    "path", ["/hang-up", "/reset", "/cut-body", "/cut-chunk", "/garbage", "/half-header", "/twice"]
)
def test_half_an_answer_is_none(server: Serving, path: str) -> None:
    """What ends too early, or is no HTTP, is a server that failed."""
    handle, running = running_at(server.port)
    with pytest.raises(ServerFailed, match=f"does not answer GET {path}"):
        handle.get(path).ask(running)


def test_an_answer_before_the_request_is_read_counts(server: Serving) -> None:
    """A server that refuses a large body unread has answered."""
    handle, running = running_at(server.port)
    with pytest.raises(Refused, match="status 413"):
        handle.post("/too-large", body=8 * BIG).ask(running, timeout=0.5)


def test_a_server_that_is_silent_is_given_up(server: Serving) -> None:
    """After the timeout, with how to allow more."""
    handle, running = running_at(server.port)
    with pytest.raises(ServerFailed, match=r"ask\(timeout=0\.4\)") as caught:
        handle.get("/never").ask(running, timeout=0.2)
    assert caught.value.found == "no whole answer in 200 ms"


@pytest.mark.parametrize(
    ("begin", "piece"),
    [
        (b"HTTP/1.1 200 OK\r\nX-Word: ", b"x"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % TRICKLE_PIECES, b"x"),
        (b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n", b"data: x\n\n"),
    ],
    ids=["header", "body", "events"],
)
def test_a_server_that_trickles_is_given_up(begin: bytes, piece: bytes) -> None:
    """The timeout is that of the whole answer: what always has one more byte in time does not hold the test up."""
    with socket.create_server(("127.0.0.1", 0)) as listener, trickling(listener, begin, piece):
        handle, running = running_at(listener.getsockname()[1])
        with pytest.raises(ServerFailed, match=r"ask\(timeout=0\.6\)") as caught:
            handle.post("/", stream=piece != b"x").ask(running, timeout=PATIENCE_SECONDS)
    assert caught.value.found == "no whole answer in 300 ms"


def test_a_server_that_trickles_over_tls_is_given_up(tmp_path: Path) -> None:
    """The same where each byte comes as a record of its own."""
    certificates = make_certificates(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.server_file)
    begin = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % TRICKLE_PIECES
    with (
        socket.create_server(("127.0.0.1", 0)) as plain,
        context.wrap_socket(plain, server_side=True) as listener,
        trickling(listener, begin),
    ):
        handle, running = running_at(
            listener.getsockname()[1], host="localhost", tls=True, ca_file=certificates.ca_file
        )
        with pytest.raises(ServerFailed, match="no whole answer in 300 ms"):
            handle.get("/").ask(running, timeout=PATIENCE_SECONDS)


def test_nobody_there_is_told() -> None:
    """A server that is gone is no refusal."""
    handle, running = running_at(free_port())
    with pytest.raises(ServerFailed, match="ConnectionRefusedError"):
        handle.get("/").ask(running)


# -- other transports


@pytest.fixture
def grpc_target(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Makes a request to a method of a real gRPC server, and its running server."""
    pytest.importorskip("tritonclient.grpc")
    np = pytest.importorskip("numpy")
    from tests.fakes.grpc_server import serving_grpc

    with serving_grpc() as server:

        def make(method: str, port: int = server.port) -> tuple[Any, Instance]:
            monkeypatch.setattr("pytest_gpuserve.experiment.handle.RPC", f"/fake.Fake/{method}")
            handle, running = running_at(free_port(), grpc_port=port, default_model="m")
            return handle.infer({"X": np.zeros(3)}, grpc=True), running

        yield make


def test_grpc_answers(grpc_target: Any) -> None:  # noqa: ANN401 -- the fixture's function
    """The message that a load sends, and the answer's message."""
    target, running = grpc_target("Echo")
    assert target.ask(running).body == target.messages[0]


def test_a_grpc_error_is_a_refusal(grpc_target: Any) -> None:  # noqa: ANN401 -- as above
    """With its code and its text, and no status of HTTP."""
    target, running = grpc_target("Fail")
    with pytest.raises(Refused, match="NOT_FOUND: no model «größer»") as caught:
        target.ask(running)
    assert caught.value.status is None
    assert "größer" in caught.value.body.decode()


def test_grpc_without_an_answer_is_a_failure(grpc_target: Any) -> None:  # noqa: ANN401 -- as above
    """Too late, or nobody there."""
    target, running = grpc_target("Slow")
    with pytest.raises(ServerFailed, match=r"ask\(timeout=0\.4\)"):
        target.ask(running, timeout=0.2)
    target, running = grpc_target("Echo", free_port())
    with pytest.raises(ServerFailed, match="does not answer"):
        target.ask(running)


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """A frame of HTTP/2 (RFC 9113, section 4.1)."""
    return len(payload).to_bytes(3, "big") + struct.pack(">BBI", kind, flags, stream) + payload


def test_a_grpc_server_that_trickles_is_given_up() -> None:
    """A message of which a byte comes now and then is none in time."""
    pytest.importorskip("tritonclient.grpc")
    np = pytest.importorskip("numpy")
    headers = hpack.Encoder().encode([(":status", "200"), ("content-type", "application/grpc")])
    # HEADERS that end their block, then DATA that begins with the length of a message.
    begin = frame(1, 4, 1, headers) + frame(0, 0, 1, struct.pack(">BI", 0, TRICKLE_PIECES))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        handle, running = running_at(free_port(), grpc_port=listener.getsockname()[1], default_model="m")
        target = handle.infer({"X": np.arange(3)}, grpc=True)
        with (
            trickling(listener, begin, frame(0, 0, 1, b"x"), asked=target.messages[0], greeting=frame(4, 0, 0)),
            pytest.raises(ServerFailed, match="no whole answer in 300 ms"),
        ):
            target.ask(running, timeout=PATIENCE_SECONDS)


WORKER = SimpleNamespace(name="torch worker", transport="queue", ports=(), default_model="m")


@contextmanager
def worker(folder: Path, status: int, body: bytes) -> Iterator[tuple[ServerHandle, Instance]]:
    """A worker whose queue answers one request so."""
    kind = cast("ServerKind", WORKER)
    site = Site(folder)
    with Listener(str(site.queue), "AF_UNIX") as listener:

        def answer() -> None:
            with listener.accept() as connection:
                connection.send_bytes(connection.recv_bytes()[:8] + bytes([status]) + body)

        thread = threading.Thread(target=answer)
        thread.start()
        yield ServerHandle(kind, cast("Starter", None)), Instance(kind, site, None, None)
        thread.join(GUARD_SECONDS)


def test_a_worker_answers_over_its_queue(tmp_path: Path) -> None:
    """An inference's outputs are read as arrays."""
    np = pytest.importorskip("numpy")
    answer = b'{"outputs":[{"name":"Y","datatype":"INT64","shape":[2],"data":[3,4]}]}'
    with worker(tmp_path, GOOD, answer) as (handle, running):
        got = handle.infer({"X": np.zeros(3)}, expect={"Y": [3, 4]}).ask(running)
    assert got.tensors["Y"].tolist() == [3, 4]


def test_a_workers_error_is_a_refusal(tmp_path: Path) -> None:
    """With its text, and no status of HTTP."""
    np = pytest.importorskip("numpy")
    with (
        worker(tmp_path, ERROR, b"input 'X' has the wrong shape") as (handle, running),
        pytest.raises(Refused, match="wrong shape") as caught,
    ):
        handle.infer({"X": np.zeros(3)}).ask(running)
    assert caught.value.status is None


@pytest.fixture
def idle_worker(tmp_path: Path) -> Iterator[tuple[ServerHandle, Instance, socket.socket]]:
    """A worker that does nothing yet, and what it listens at."""
    kind = cast("ServerKind", WORKER)
    site = Site(tmp_path)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(site.queue))
        listener.listen()
        yield ServerHandle(kind, cast("Starter", None)), Instance(kind, site, None, None), listener


def test_a_worker_that_trickles_is_given_up(idle_worker: tuple[ServerHandle, Instance, socket.socket]) -> None:
    """An answer that has begun must come to its end in time too."""
    np = pytest.importorskip("numpy")
    handle, running, listener = idle_worker
    begin = struct.pack(">i8sB", 9 + TRICKLE_PIECES, bytes(8), GOOD)
    target = handle.infer({"X": np.zeros(3)})
    with (
        trickling(listener, begin, asked=target.requests[0].body),
        pytest.raises(ServerFailed, match="no whole answer in 300 ms"),
    ):
        target.ask(running, timeout=PATIENCE_SECONDS)


def test_a_worker_that_does_not_read_is_given_up(idle_worker: tuple[ServerHandle, Instance, socket.socket]) -> None:
    """A request for which its socket has no room does not wait for ever."""
    np = pytest.importorskip("numpy")
    handle, running, _ = idle_worker
    with pytest.raises(ServerFailed, match="no whole answer in 300 ms"):
        handle.infer({"X": np.zeros((1, BIG_ITEMS))}).ask(running, timeout=PATIENCE_SECONDS)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"", "the worker hung up"),
        (struct.pack(">i", 20) + b"half", "the worker hung up"),
        (struct.pack(">i", -1) + bytes(8), "announces -1 bytes"),
        (struct.pack(">i", 8) + bytes(8), "announces 8 bytes"),
        (struct.pack(">i", 2**31 - 1), "announces 2147483647 bytes"),
        (struct.pack(">i", 10) + b"x" * 10, "no answer of a worker"),
    ],
    ids=["none", "half", "negative", "short", "long", "other number"],
)
def test_what_is_no_answer_of_a_worker(
    idle_worker: tuple[ServerHandle, Instance, socket.socket], answer: bytes, said: str
) -> None:
    """Half an answer, or none by its length or its number, is a worker that failed."""
    np = pytest.importorskip("numpy")
    handle, running, listener = idle_worker

    def serve() -> None:
        peer, _ = listener.accept()
        with peer:
            peer.recv(1 << 16)
            peer.sendall(answer)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    with pytest.raises(ServerFailed, match=said):
        handle.infer({"X": np.zeros(3)}).ask(running)
    thread.join(GUARD_SECONDS)


# -- a start of its own


def test_without_a_running_server_one_is_started_and_ended(server: Serving) -> None:
    """It is asked when it is ready, and is gone afterwards, also where it refuses."""
    course = []

    @contextmanager
    def start(kind: ServerKind, ask: Ask, beside: object = None) -> Iterator[Instance]:
        assert beside is None
        course.append(f"started for {ask.path}")
        assert isinstance(kind, Remote)
        try:
            yield Instance(kind, kind.site(), None, None)
        finally:
            course.append("ended")

    handle = replace(running_at(server.port)[0], starter=start)
    assert handle.get("/ok").ask().body == BODY
    with pytest.raises(Refused):
        handle.get("/unavailable").ask()
    assert course == ["started for /ok", "ended", "started for /unavailable", "ended"]


# -- what cannot be asked


def test_several_requests_are_not_one() -> None:
    """Requests that rotate are asked one by one; to ask the first alone would pass over the others.

    No server is started to say so; here there is none that could be.
    """
    handle, running = running_at(1)
    target = handle.rotate([handle.get("/a"), handle.get("/b")])
    for there in (running, None):
        with pytest.raises(UsageProblem, match="one request, not 2"):
            target.ask(there)


def test_shared_memory_is_for_loads() -> None:
    """Tensors of a single question go with it; no server is started to say so."""
    np = pytest.importorskip("numpy")
    handle, running = running_at(1, default_model="m")
    target = handle.infer({"X": np.zeros(3)}, shared_memory={"Y": 8})
    for there in (running, None):
        with pytest.raises(UsageProblem, match="not through shared memory"):
            target.ask(there)


def test_a_request_to_another_deployment_is_refused() -> None:
    """Its answer would be another server's."""
    handle, _ = running_at(1)
    _, other = running_at(2)
    with pytest.raises(UsageProblem, match="asked of another"):
        handle.get("/").ask(other)
