"""The torch worker's HTTP interface, by the standard library: a thread a connection, KServe v2's paths of one model."""

from __future__ import annotations

import errno
import json
import socketserver
import sys
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from pytest_gpuserve.servers.inside.torch_wire import HEADER_LENGTH, BadRequest

if TYPE_CHECKING:
    from collections.abc import Callable

READY_PATH: Final = "/v2/health/ready"

_WRITTEN_BYTES: Final = 1 << 16


class HttpServer(socketserver.ThreadingTCPServer):
    """Answers ``POST /v2/models/MODEL/infer``; `serve_forever` runs it.

    Args:
        address: Host and port.
        model: Name of the model.
        infer: Answers a body, given the length of the JSON at its front, by such a length and a body. It is called in
            the connection's thread, and raises BadRequest.

    Raises:
        OSError: The address cannot be used.
    """

    daemon_threads = True
    request_queue_size = 4096

    def __init__(self, address: tuple[str, int], model: str, infer: Callable[[bytes, int], tuple[int, bytes]]) -> None:
        self.path = f"/v2/models/{quote(model, safe='')}/infer"
        self.infer = infer
        super().__init__(address, _Connection)

    def get_request(self) -> tuple[Any, Any]:
        """Accept a connection.

        Raises:
            RuntimeError: Too many files are open. Clients would wait for ever, so the worker ends.
        """
        try:
            return super().get_request()
        except OSError as problem:
            if problem.errno in {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}:
                raise RuntimeError(f"no further connection is possible: {problem}") from problem
            raise

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 -- the base's own
        """Print the traceback of an error, unless the client has only gone."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class _Connection(BaseHTTPRequestHandler):
    """A client's connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    # Head and body of a small answer are sent together.
    wbufsize = _WRITTEN_BYTES
    server: HttpServer

    def do_GET(self) -> None:
        """Tell that the worker is ready: it listens once its model is loaded."""
        if self.path == READY_PATH:
            self._answer(HTTPStatus.OK, b"")
        else:
            self._refuse(HTTPStatus.NOT_FOUND, f"there is only GET {READY_PATH}, and POST {self.server.path}")

    def do_POST(self) -> None:
        """Answer an inference."""
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal():
            self.close_connection = True
            self._refuse(HTTPStatus.LENGTH_REQUIRED, "a request needs a Content-Length")
            return
        body = self.rfile.read(int(length))
        json_bytes = self.headers.get(HEADER_LENGTH, length)
        if len(body) < int(length):
            self.close_connection = True
        elif self.path != self.server.path:
            self._refuse(HTTPStatus.NOT_FOUND, f"there is only GET {READY_PATH}, and POST {self.server.path}")
        elif not json_bytes.isdecimal():
            self._refuse(HTTPStatus.BAD_REQUEST, f"{HEADER_LENGTH} is not a number: {json_bytes}")
        else:
            try:
                told, answer = self.server.infer(body, int(json_bytes))
            except BadRequest as problem:
                self._refuse(HTTPStatus.BAD_REQUEST, str(problem))
            else:
                self._answer(HTTPStatus.OK, answer, told)

    def _refuse(self, status: HTTPStatus, text: str) -> None:
        self._answer(status, json.dumps({"error": text}).encode())

    def _answer(self, status: HTTPStatus, body: bytes, json_bytes: int | None = None) -> None:
        self.send_response_only(status)
        self.send_header("Content-Length", str(len(body)))
        if json_bytes is not None:
            self.send_header(HEADER_LENGTH, str(json_bytes))
        self.end_headers()
        self.wfile.write(body)
