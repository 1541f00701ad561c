"""A real HTTP server on the loopback that shows given pages."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpuserve.servers.base import Site

if TYPE_CHECKING:
    from collections.abc import Iterator


class Pages(ThreadingHTTPServer):
    """The server; its next page may be set at any time.

    Attributes:
        status: Status of each answer.
        body: Body of each answer.
        close_early: Whether it hangs up instead.
        seconds: Time of each answer.
        location: Target to which each answer redirects.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.status = 200
        self.body = b""
        self.close_early = False
        self.seconds = 0.0
        self.location = ""

    @property
    def port(self) -> int:
        """Port of the server."""
        return self.server_port

    def site(self) -> Site:
        """Site of the server, as its adapter knows it."""
        return Site(Path(), {"http": self.server_port})


class Handler(BaseHTTPRequestHandler):
    """Shows a page."""

    server: Pages

    def do_GET(self) -> None:
        """Answer, or hang up."""
        shown = self.server
        time.sleep(shown.seconds)
        if shown.close_early:
            self.close_connection = True
            return
        self.send_response(shown.status)
        self.send_header("Content-Length", str(len(shown.body)))
        if shown.location:
            self.send_header("Location", shown.location)
        self.end_headers()
        self.wfile.write(shown.body)

    do_POST = do_GET  # noqa: N815 -- the name that http.server looks for

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def pages() -> Iterator[Pages]:
    """Run the server in a thread until the block ends."""
    with Pages() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
