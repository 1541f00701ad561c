"""A server whose service time is known, run as a program: PORT, ``parallel`` or ``queue``, seconds of service.

``parallel`` answers each request so long after it was read. ``queue`` serves one request after the other: a service
begins when the one before it ends, on paper, whatever this program does in between, so that its own slowness never adds
up. ``GET /told`` returns, and forgets, what it knows of itself since it was last asked: how many requests it answered,
and how late its answers were.

It needs the standard library only, and waits by ``select`` with a timer slack of 1 ns, which is accurate to some ten
microseconds; epoll's time-outs are whole milliseconds.
"""

from __future__ import annotations

import ctypes
import json
import select
import socket
import sys
import time
from collections import deque
from typing import Final

PR_SET_TIMERSLACK: Final = 29
BACKLOG: Final = 4096
READ_BYTES: Final = 1 << 16
END_OF_REQUEST: Final = b"\r\n\r\n"
ANSWER: Final = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Type: text/plain\r\n\r\nok"


class TimedServer:
    """Answers when it is time.

    Args:
        port: TCP port of 127.0.0.1.
        service_ns: The time of service.
        queue: Whether requests are served one after the other.
    """

    def __init__(self, port: int, service_ns: int, *, queue: bool) -> None:
        self._service_ns = service_ns
        self._queue = queue
        self._due: deque[tuple[int, socket.socket]] = deque()
        self._connections: dict[int, socket.socket] = {}
        self._free_ns = 0
        self._late_ns: list[int] = []
        self._listener = socket.create_server(("127.0.0.1", port), backlog=BACKLOG)
        self._listener.settimeout(0)
        self._epoll = select.epoll()
        self._epoll.register(self._listener, select.EPOLLIN)

    def serve(self) -> None:
        """Serve until the process is ended."""
        now, due, epoll = time.perf_counter_ns, self._due, [self._epoll]
        while True:
            seconds = max(0, due[0][0] - now()) / 1e9 if due else None
            select.select(epoll, [], [], seconds)
            # Answers first: when they are due is what this server promises.
            while due and due[0][0] <= now():
                self._answer(*due.popleft())
            for descriptor, _ in self._epoll.poll(0):
                connection = self._connections.get(descriptor)
                if connection is None:
                    self._accept()
                else:
                    self._read(connection)

    def _answer(self, due_ns: int, connection: socket.socket) -> None:
        self._late_ns.append(time.perf_counter_ns() - due_ns)
        self._send(connection, ANSWER)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except BlockingIOError:
                return
            connection.settimeout(0)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._connections[connection.fileno()] = connection
            self._epoll.register(connection, select.EPOLLIN)

    def _read(self, connection: socket.socket) -> None:
        try:
            request = connection.recv(READ_BYTES)
        except OSError:
            request = b""
        now_ns = time.perf_counter_ns()
        if not request:
            self._close(connection)
        elif request.startswith(b"GET /told "):
            self._send(connection, self._told())
        elif not request.endswith(END_OF_REQUEST) or request.count(END_OF_REQUEST) > 1:
            # Its clients send small requests without a body, each in one piece, and wait for the answer.
            raise ValueError(f"one request at a time is understood, not {request[:200]!r}")
        else:
            begin_ns = max(now_ns, self._free_ns) if self._queue else now_ns
            self._free_ns = begin_ns + self._service_ns
            self._due.append((self._free_ns, connection))

    def _told(self) -> bytes:
        late = self._late_ns
        told = {"answered": len(late), "mean_late_seconds": sum(late) / len(late) / 1e9 if late else 0.0}
        late.clear()
        body = json.dumps(told).encode()
        return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nContent-Type: application/json\r\n\r\n" % len(body) + body

    def _send(self, connection: socket.socket, answer: bytes) -> None:
        try:
            connection.send(answer)
        except OSError:
            self._close(connection)

    def _close(self, connection: socket.socket) -> None:
        # Closed while an answer to it was due, it is asked to close again when that cannot be sent.
        if self._connections.pop(connection.fileno(), None) is not None:
            self._epoll.unregister(connection)
            connection.close()


if __name__ == "__main__":
    ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)
    TimedServer(int(sys.argv[1]), round(float(sys.argv[3]) * 1e9), queue=sys.argv[2] == "queue").serve()
