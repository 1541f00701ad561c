"""A server that does nothing: it answers every request of a known length at once.

Run as ``python -m pytest_gpuserve.load.null_server REQUEST_BYTES ANSWER_BYTES`` it prints its port, and ends with its
standard input. What the engine reaches against it is all that it can reach on this host.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import sys
from typing import Final

RECEIVE_BYTES: Final = 1 << 18


class _NullConnection:
    """One client's connection."""

    __slots__ = ("_missing", "_request_bytes", "_response", "_unsent", "socket")

    def __init__(self, sock: socket.socket, request_bytes: int, response: bytes) -> None:
        self.socket = sock
        self._request_bytes = request_bytes
        self._response = response
        self._missing = request_bytes
        self._unsent = b""

    def serve(self, poller: select.epoll) -> bool:
        """Receive, and answer what is complete; whether the connection goes on."""
        try:
            if self._unsent:
                self._send(poller, self._unsent)
                return True
            count = len(self.socket.recv(RECEIVE_BYTES))
            self._missing -= count
            if self._missing <= 0:
                # Several where they came in one piece.
                complete = 1 + -self._missing // self._request_bytes
                self._missing += complete * self._request_bytes
                self._send(poller, self._response * complete)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return count > 0

    def _send(self, poller: select.epoll, data: bytes) -> None:
        try:
            rest = data[self.socket.send(data) :]
        except BlockingIOError:
            rest = data
        if bool(rest) != bool(self._unsent):
            poller.modify(self.socket.fileno(), select.EPOLLOUT if rest else select.EPOLLIN)
        self._unsent = rest


def serve(request_bytes: int, answer_bytes: int) -> None:
    """Serve on a port of 127.0.0.1, which is printed, until standard input ends."""
    response = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % answer_bytes + b"n" * answer_bytes
    connections: dict[int, _NullConnection] = {}
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener, select.epoll() as poller:
        listener.setblocking(False)  # noqa: FBT003 -- the standard library's signature
        poller.register(listener.fileno(), select.EPOLLIN)
        poller.register(sys.stdin.fileno(), select.EPOLLIN)
        os.write(sys.stdout.fileno(), b"%d\n" % listener.getsockname()[1])
        while True:
            for fd, _ in poller.poll():
                connection = connections.get(fd)
                if connection is not None:
                    if not connection.serve(poller):
                        poller.unregister(fd)
                        connections.pop(fd).socket.close()
                elif fd == sys.stdin.fileno():
                    return
                else:
                    with contextlib.suppress(OSError):
                        accepted, _ = listener.accept()
                        accepted.setblocking(False)  # noqa: FBT003 -- the standard library's signature
                        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                        connections[accepted.fileno()] = _NullConnection(accepted, request_bytes, response)
                        poller.register(accepted.fileno(), select.EPOLLIN)


if __name__ == "__main__":
    serve(int(sys.argv[1]), int(sys.argv[2]))
