"""What a docker client talks to, as far as it takes to see what it asks for: nothing is run."""

from __future__ import annotations

import json
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingUnixStreamServer
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.fakes.threads import in_a_thread

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Asked(NamedTuple):
    """One request of the client."""

    method: str
    path: str
    body: Any


@contextmanager
def docker_daemon(socket: Path) -> Iterator[list[Asked]]:
    """Answer on the Unix socket that there is no container and no image; yields the requests so far."""
    asked: list[Asked] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            asked.append(Asked(self.command, self.path, json.loads(body) if body else None))
            ping = self.path == "/_ping"
            answer = b"OK" if ping else json.dumps({"message": "No such container or image"}).encode()
            self.send_response(200 if ping else 404)
            for name, value in {
                "Api-Version": "1.44",
                "Content-Type": "application/json",
                "Content-Length": str(len(answer)),
                "Connection": "close",
            }.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(answer)

        do_HEAD = do_POST = do_DELETE = do_GET  # noqa: N815 - the names that http.server looks for

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name that http.server uses
            """Say nothing."""

    with in_a_thread(ThreadingUnixStreamServer(str(socket), Handler)):
        yield asked
