"""HTTP/1.1 on a Unix socket with the standard library alone: one thread reads all requests, any thread answers.

A connection has one request in flight at a time, like those of the load engine. A client that sends a second one before
the first answer is disconnected. Method, path and headers are ignored, except for the length of the body.
"""

from __future__ import annotations

import contextlib
import errno
import http
import select
import socket
import struct
import threading
from typing import TYPE_CHECKING, Final, final

from pytest_gpuserve.errors import UsageProblem

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import TracebackType

MAX_HEAD_BYTES: Final = 1 << 14
MAX_BODY_BYTES: Final = 1 << 28

ANSWER_SECONDS: Final = 5
"""Longest time that a client may not read its answer: the thread serves no other client meanwhile."""

FULL: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
"""Errors that prevent further connections: a client would wait for ever, so the worker ends."""

KNOWN_HEADS: Final = 1024
"""Number of remembered request heads with their lengths of body: a load has few, and parsing one takes long."""

_RECEIVED_BYTES: Final = 1 << 16
# Up to this size a copy is cheaper than a second system call.
_JOINED_BYTES: Final = 1 << 14
_BACKLOG: Final = 4096
# More digits than any allowed length has.
_MOST_DIGITS: Final = 12
_END_OF_HEAD: Final = b"\r\n\r\n"


class ClientConnection:
    """A client's connection; `answer` may be called from any thread.

    Args:
        heads: Lengths of bodies by the heads of requests, shared by all connections.
    """

    def __init__(self, accepted: socket.socket, heads: dict[bytes, int]) -> None:
        accepted.setblocking(True)  # noqa: FBT003 -- the socket's own
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", ANSWER_SECONDS, 0))
        self._socket = accepted
        self._heads = heads
        self._lock = threading.Lock()
        self._busy = False
        self._head = b""
        self._body = bytearray()
        self._have = 0

    def receive(self) -> bytes | bytearray | None:
        """Receive the available bytes, and return the body of a request once it is complete.

        Raises:
            OSError: The connection has ended, or the bytes are not a request.
        """
        if self._body:
            count = self._socket.recv_into(memoryview(self._body)[self._have :], 0, socket.MSG_DONTWAIT)
            if not count:
                raise ConnectionResetError("the client hung up in mid-request")
            return self._complete(count)
        data = self._socket.recv(_RECEIVED_BYTES, socket.MSG_DONTWAIT)
        if not data or self._busy:
            raise ConnectionResetError("the client hung up, or did not wait for its answer")
        data = self._head + data
        end = data.find(_END_OF_HEAD)
        if end < 0:
            if len(data) > MAX_HEAD_BYTES:
                raise self._refused(http.HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
            self._head = data
            return None
        self._head = b""
        begin = end + len(_END_OF_HEAD)
        length = self._body_length(data[:end])
        if len(data) - begin > length:
            raise self._refused(http.HTTPStatus.BAD_REQUEST)
        if len(data) - begin == length:
            self._busy = True
            return data[begin:]
        self._body = bytearray(length)
        self._body[: len(data) - begin] = data[begin:]
        return self._complete(len(data) - begin)

    def answer(self, status: http.HTTPStatus, body: bytes) -> None:
        """Answer the current request, once; a client that has gone or does not read is disconnected."""
        with self._lock:
            self._send(status, body)

    def _send(self, status: http.HTTPStatus, body: bytes) -> None:
        head = b"HTTP/1.1 %d %b\r\nContent-Length: %d\r\n\r\n" % (status, status.phrase.encode(), len(body))
        # Before the answer is sent, because its client may send the next request at once.
        self._busy = False
        try:
            if len(body) <= _JOINED_BYTES:
                self._socket.sendall(head + body)
            else:
                self._socket.sendall(head)
                self._socket.sendall(body)
        except OSError:
            # Half an answer may have been sent.
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Disconnect the client."""
        # This ends an answer that waits for the client, and so holds the lock.
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._socket.close()

    def _complete(self, count: int) -> bytearray | None:
        """Count bytes of the body; return it when it is complete."""
        self._have += count
        if self._have < len(self._body):
            return None
        body, self._body, self._have = self._body, bytearray(), 0
        self._busy = True
        return body

    def _body_length(self, head: bytes) -> int:
        length = self._heads.get(head, -1)
        if length < 0:
            fields = dict(_field(line) for line in head.split(b"\r\n")[1:])
            text = fields.get(b"content-length", b"0")
            if b"transfer-encoding" in fields or not text.isdigit():
                raise self._refused(http.HTTPStatus.LENGTH_REQUIRED)
            if len(text) > _MOST_DIGITS or (length := int(text)) > MAX_BODY_BYTES:
                raise self._refused(http.HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
            if len(self._heads) >= KNOWN_HEADS:
                self._heads.clear()
            self._heads[head] = length
        return length

    def _refused(self, status: http.HTTPStatus) -> ConnectionError:
        """Answer a request that cannot be read to its end, and return the error that ends the connection."""
        # The reading thread must not wait for a client that does not read its answer.
        if self._lock.acquire(blocking=False):
            try:
                self._send(status, f"{status.phrase}: a body has at most {MAX_BODY_BYTES} bytes".encode())
            finally:
                self._lock.release()
        return ConnectionError(status.phrase)


def _field(line: bytes) -> tuple[bytes, bytes]:
    name, _, value = line.partition(b":")
    return name.lower(), value.strip()


@final
class HttpSocket:
    """Listens on a Unix socket and hands out requests.

    A process that may write to the socket may use the server. So the socket is in a folder of its user alone.

    Args:
        path: Path of the socket, which must not exist yet.

    Raises:
        UsageProblem: The socket cannot be created at the path.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._closed = False
        self._connections: dict[int, ClientConnection] = {}
        self._heads: dict[bytes, int] = {}
        self._listener = socket.socket(socket.AF_UNIX)
        try:
            self._listener.bind(str(path))
            self._listener.listen(_BACKLOG)
        except OSError as problem:
            self._listener.close()
            raise UsageProblem(
                "a worker needs a Unix socket",
                found=str(problem),
                looked=[str(path)],
                remedies=[
                    "give a path of less than 108 bytes: a shorter TMPDIR",
                    "remove the socket of a worker that was killed, or end the one that is running",
                ],
            ) from problem
        self._listener.setblocking(False)  # noqa: FBT003 -- the socket's own

    def __enter__(self) -> HttpSocket:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def serve(self, handle: Callable[[ClientConnection, bytes | bytearray], object]) -> None:
        """Hand out requests until `close`, in the order of their completion.

        Args:
            handle: Gets the client to answer and the body. While it runs, no more requests are read, so that the
                clients' sockets fill.

        Raises:
            OSError: No further connection can be accepted.
        """
        with select.epoll() as poll, contextlib.closing(self._listener):
            listener = self._listener.fileno()
            poll.register(listener, select.EPOLLIN)
            try:
                while not self._closed:
                    for descriptor, _ in poll.poll():
                        if descriptor == listener:
                            self._accept(poll)
                        elif (body := self._received(poll, descriptor)) is not None:
                            handle(self._connections[descriptor], body)
            finally:
                for connection in self._connections.values():
                    connection.close()

    def _received(self, poll: select.epoll, descriptor: int) -> bytes | bytearray | None:
        """Receive a connection's bytes; return the body of a complete request. Forget a connection that has ended."""
        try:
            return self._connections[descriptor].receive()
        except BlockingIOError:
            return None
        except (OSError, ValueError, MemoryError):
            poll.unregister(descriptor)
            self._connections.pop(descriptor).close()
            return None

    def close(self) -> None:
        """End `serve`, disconnect all clients, and remove the socket."""
        self._closed = True
        # Wakes `serve`, unless it has ended by itself.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._path.unlink(missing_ok=True)

    def _accept(self, poll: select.epoll) -> None:
        try:
            while not self._closed:
                accepted, _ = self._listener.accept()
                self._connections[accepted.fileno()] = ClientConnection(accepted, self._heads)
                poll.register(accepted.fileno(), select.EPOLLIN)
        except BlockingIOError:
            return
        except OSError as problem:
            if problem.errno in FULL and not self._closed:
                raise
