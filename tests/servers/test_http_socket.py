"""HTTP on a Unix socket, at the server's end: requests however they are cut, answers from any thread, and the end."""

from __future__ import annotations

import contextlib
import os
import queue
import resource
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING

import pytest

from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.load.engine.http1 import Parsed, ResponseParser
from pytest_gpuserve.load.request import Request
from pytest_gpuserve.servers.inside import http_socket
from pytest_gpuserve.servers.inside.http_socket import ClientConnection, HttpSocket

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

GUARD_SECONDS = 20.0


def echo(client: ClientConnection, body: bytes | bytearray) -> None:
    """Answer with what was sent."""
    client.answer(HTTPStatus.OK, bytes(body))


@contextmanager
def listening(path: Path, handle: Callable[[ClientConnection, bytes | bytearray], object] = echo) -> Iterator[Path]:
    """A server at this path."""
    with HttpSocket(path) as listener:
        thread = threading.Thread(target=listener.serve, args=(handle,), daemon=True)
        thread.start()
        yield path
    thread.join(GUARD_SECONDS)
    assert not thread.is_alive()
    assert not path.exists()


@contextmanager
def connected(path: Path) -> Iterator[socket.socket]:
    """A client."""
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(GUARD_SECONDS)
        link.connect(str(path))
        yield link


def read(link: socket.socket) -> Parsed:
    """The next answer, whole."""
    parser = ResponseParser()
    while True:
        data = link.recv(1 << 16)
        assert data, "hung up before the answer"
        parsed = parser.feed(data)
        if parsed is not None:
            return parsed


def post(body: bytes) -> bytes:
    """A request."""
    return Request("POST", "/v2/models/m/infer", body).to_bytes("", 0)


def test_requests_are_read_however_they_come(tmp_path: Path) -> None:
    """In one piece, byte by byte, larger than any buffer, and without a body; on one connection after each other."""
    big = os.urandom(3 << 20)
    with listening(tmp_path / "socket") as path, connected(path) as link:
        for body in (b"fox", b"", b"fox"):
            link.sendall(post(body))
            assert read(link).body == body
        for byte in post(b"small"):
            link.send(bytes([byte]))
        assert read(link).body == b"small"
        with ThreadPoolExecutor(1) as pool:
            sending = pool.submit(link.sendall, post(big))
            assert read(link).body == big
            sending.result()
        link.sendall(Request("GET", "/").to_bytes("", 0))
        assert read(link).body == b""


def test_answers_come_in_any_order_and_from_any_thread(tmp_path: Path) -> None:
    """Each client has its own answer, with its status."""
    asked: queue.SimpleQueue[tuple[ClientConnection, bytes]] = queue.SimpleQueue()
    with listening(tmp_path / "socket", lambda client, body: asked.put((client, bytes(body)))) as path:
        with connected(path) as one, connected(path) as other:
            one.sendall(post(b"1"))
            other.sendall(post(b"2"))
            waiting = {body: client for client, body in (asked.get(timeout=GUARD_SECONDS) for _ in range(2))}
            waiting[b"2"].answer(HTTPStatus.OK, b"two")
            assert (answer := read(other)).body == b"two"
            assert answer.status == 200
            waiting[b"1"].answer(HTTPStatus.INTERNAL_SERVER_ERROR, b"no")
            assert ((answer := read(one)).status, answer.body) == (500, b"no")
            one.sendall(post(b"3"))
            client, _ = asked.get(timeout=GUARD_SECONDS)
        # It has gone: its answer is nobody's, and no error.
        client.answer(HTTPStatus.OK, bytes(1 << 20))


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", 411),
        (b"POST / HTTP/1.1\r\nContent-Length: many\r\n\r\n", 411),
        (b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % (http_socket.MAX_BODY_BYTES + 1), 413),
        (b"POST / HTTP/1.1\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n", 413),
        (b"x" * (http_socket.MAX_HEAD_BYTES + 1), 431),
        (post(b"") + post(b""), 400),
    ],
)
def test_what_cannot_be_read_is_refused(tmp_path: Path, sent: bytes, status: int) -> None:
    """The status says why, and the connection ends; others go on."""
    with listening(tmp_path / "socket") as path, connected(path) as link, connected(path) as other:
        link.sendall(sent)
        assert read(link).status == status
        assert link.recv(1) == b""
        other.sendall(post(b"fox"))
        assert read(other).body == b"fox"


def test_who_does_not_wait_for_the_answer_is_hung_up_on(tmp_path: Path) -> None:
    """A second request before the answer to the first could not be told from it."""
    asked: queue.SimpleQueue[ClientConnection] = queue.SimpleQueue()
    with listening(tmp_path / "socket", lambda client, _: asked.put(client)) as path, connected(path) as link:
        link.sendall(post(b"1"))
        asked.get(timeout=GUARD_SECONDS)
        link.sendall(post(b"2"))
        with contextlib.suppress(ConnectionResetError):
            assert link.recv(1) == b""


def test_who_does_not_read_holds_up_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread answers all: after a while it hangs up on a client that does not read, also while that asks on."""
    monkeypatch.setattr(http_socket, "ANSWER_SECONDS", 1)
    answers: queue.SimpleQueue[tuple[ClientConnection, bytes] | None] = queue.SimpleQueue()

    def answer_all() -> None:
        while (asked := answers.get()) is not None:
            asked[0].answer(HTTPStatus.OK, bytes(8 << 20) if asked[1] == b"much" else b"little")

    answering = threading.Thread(target=answer_all, daemon=True)
    answering.start()
    with (
        listening(tmp_path / "socket", lambda client, body: answers.put((client, bytes(body)))) as path,
        connected(path) as idle,
        connected(path) as other,
    ):
        idle.sendall(post(b"much"))
        idle.sendall(b"POST / HTTP/1.1\r\nContent-Length: many\r\n\r\n")
        other.sendall(post(b"fox"))
        assert read(other).body == b"little"
    answers.put(None)
    answering.join(GUARD_SECONDS)
    assert not answering.is_alive()


def test_there_can_be_no_second_socket(tmp_path: Path) -> None:
    """A path that is taken, or too long, is told with what helps."""
    with listening(tmp_path / "socket") as path, pytest.raises(UsageProblem, match=r"Address already in use[\s\S]*end"):
        HttpSocket(path)
    with pytest.raises(UsageProblem, match="too long"):
        HttpSocket(tmp_path / ("x" * 108))


def test_too_many_open_files_end_it(tmp_path: Path) -> None:
    """Whoever comes when there is no descriptor left would wait for ever: that is an error, which ends the worker."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with (
        HttpSocket(tmp_path / "socket") as listener,
        socket.socket(socket.AF_UNIX) as late,
        ThreadPoolExecutor() as pool,
    ):
        serving = pool.submit(listener.serve, echo)
        with connected(tmp_path / "socket") as link:
            link.sendall(post(b"early"))
            assert read(link).body == b"early"
            resource.setrlimit(resource.RLIMIT_NOFILE, (late.fileno() + 1, hard))
            try:
                late.connect(str(tmp_path / "socket"))
                with pytest.raises(OSError, match="Too many open files"):
                    serving.result(GUARD_SECONDS)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
