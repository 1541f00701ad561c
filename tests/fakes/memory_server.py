"""A server of KServe v2 on 127.0.0.1 that maps shared memory as Triton does; its model ``double`` doubles ``X``.

What it does with answers is its ``habit``: ``right`` leaves them in shared memory, ``silent`` says so and does not,
``in_body`` sends them all the same.
"""

from __future__ import annotations

import json
import struct
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Literal

from pytest_gpuserve.experiment.handle import ServerHandle
from pytest_gpuserve.load.shared_memory import FOLDER
from pytest_gpuserve.servers.instance import Instance
from pytest_gpuserve.servers.remote import RemoteServer, reached
from tests.fakes.threads import in_a_thread

if TYPE_CHECKING:
    from collections.abc import Iterator

Habit = Literal["right", "silent", "in_body"]

TOKEN_HEADER = "Owner"


class MemoryServer(ThreadingHTTPServer):
    """What it knows.

    Args:
        habit: See the module.
        token: Without which nothing is mapped.
    """

    daemon_threads = True

    def __init__(self, habit: Habit = "right", token: str = "") -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.habit = habit
        self.token = token
        self.regions: dict[str, int] = {}
        self.most_regions = 0
        self.in_body = 0
        self.through_memory = 0
        self.places: set[int] = set()

    @property
    def handle(self) -> ServerHandle:
        """The server, as one that somebody else runs."""
        kind = _Owned(self.token, "127.0.0.1", self.server_address[1]) if self.token else self.remote()
        return ServerHandle(kind, partial(reached, timeout_seconds=20))

    def remote(self, host: str = "127.0.0.1") -> RemoteServer:
        """It, at an address."""
        return RemoteServer(host, self.server_address[1])

    def instance(self, host: str = "127.0.0.1") -> Instance:
        """It, running at an address."""
        kind = self.remote(host)
        return Instance(kind, kind.site(), None, None)


class _Owned(RemoteServer):
    """Knows the token."""

    def __init__(self, token: str, host: str, port: int) -> None:
        super().__init__(host, port)
        object.__setattr__(self, "token", token)

    def owner_headers(self, site: object) -> dict[str, str]:
        """The token."""
        return {TOKEN_HEADER: self.token}  # type: ignore[attr-defined]


class _Handler(BaseHTTPRequestHandler):
    server: MemoryServer
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """Map, forget, or infer."""
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        server = self.server
        *_, name, action = self.path.split("/")
        if action == "infer":
            self._answer(200, json.dumps(self._infer(body)).encode())
        elif server.token and self.headers.get(TOKEN_HEADER) != server.token:
            self._answer(403, b'{"error": "not its owner"}')
        elif action == "unregister":
            server.regions.pop(name, None)
            self._answer(200, b"")
        else:
            server.regions[name] = json.loads(body)["byte_size"]
            server.most_regions = max(server.most_regions, len(server.regions))
            self._answer(200, b"")

    def _infer(self, body: bytes) -> dict[str, Any]:
        length = int(self.headers["Inference-Header-Content-Length"])
        request = json.loads(body[:length])
        given, wanted = request["inputs"][0], request["outputs"][0]
        count = given["shape"][0]
        described = {"name": wanted["name"], "datatype": "FP32", "shape": [count]}
        place = wanted["parameters"]
        if "shared_memory_region" not in place:
            self.server.in_body += 1
            numbers = struct.unpack(f"<{count}f", body[length:])
            return {"outputs": [{**described, "data": [2 * number for number in numbers]}]}
        self.server.through_memory += 1
        data = struct.pack(f"<{count}f", *(2 * number for number in struct.unpack(f"<{count}f", _read(given))))
        self.server.places.add(place["shared_memory_offset"])
        if self.server.habit == "in_body":
            return {"outputs": [{**described, "data": list(struct.unpack(f"<{count}f", data))}]}
        if self.server.habit == "right":
            with (FOLDER / place["shared_memory_region"]).open("r+b") as file:
                file.seek(place["shared_memory_offset"])
                file.write(data)
        return {"outputs": [{**described, "parameters": place}]}

    def _answer(self, status: int, body: bytes) -> None:
        head = f"HTTP/1.1 {status} Said\r\nContent-Length: {len(body)}\r\n\r\n"
        self.wfile.write(head.encode() + body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 -- the base class's name
        """Say nothing."""


def _read(given: dict[str, Any]) -> bytes:
    place = given["parameters"]
    with (FOLDER / place["shared_memory_region"]).open("rb") as file:
        file.seek(place["shared_memory_offset"])
        data: bytes = file.read(place["shared_memory_byte_size"])
    return data


@contextmanager
def memory_server(habit: Habit = "right", token: str = "") -> Iterator[MemoryServer]:
    """Run it."""
    with in_a_thread(MemoryServer(habit, token)) as server:
        yield server
