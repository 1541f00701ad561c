"""The torch worker's HTTP interface, by the standard library: a thread a connection, KServe v2's paths of one model."""

from __future__ import annotations

import errno
import json
import socketserver
import sys
import traceback
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import quote

from pytest_gpuserve.servers.inside.torch_wire import HEADER_LENGTH, BadRequest, ModelFailed

if TYPE_CHECKING:
    from collections.abc import Callable

READY_PATH: Final = "/v2/health/ready"

_WRITTEN_BYTES: Final = 1 << 16

_Answer: TypeAlias = tuple[HTTPStatus, bytes, int | None]
"""Status, body, and the length of the JSON at its front, if tensors follow."""


class HttpServer(socketserver.ThreadingTCPServer):
    """Answers ``POST /v2/models/MODEL/infer``; `serve_forever` runs it.

    Args:
        address: Host and port.
        model: Name of the model.
        infer: Answers a body, given the length of the JSON at its front, by such a length and a body. It is called in
            the connection's thread, and raises BadRequest or ModelFailed.

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
        if self.headers.get("Content-Length", "0") != "0" or "Transfer-Encoding" in self.headers:
            # Its body is not read, and is not the next request.
            self.close_connection = True
        if self.path == READY_PATH:
            self._answer(HTTPStatus.OK, b"")
        else:
            self._answer(*self._unknown_path())

    def do_POST(self) -> None:
        """Answer an inference."""
        try:
            answer = self._infer()
        except ConnectionError:
            raise
        except BadRequest as problem:
            answer = _error(HTTPStatus.BAD_REQUEST, str(problem))
        except ModelFailed as problem:
            answer = _error(HTTPStatus.INTERNAL_SERVER_ERROR, str(problem))
        except Exception as problem:  # noqa: BLE001 -- shown, and told
            traceback.print_exc()
            # The body may be unread.
            self.close_connection = True
            answer = _error(HTTPStatus.INTERNAL_SERVER_ERROR, repr(problem))
        self._answer(*answer)

    def _infer(self) -> _Answer:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal():
            self.close_connection = True
            return _error(HTTPStatus.LENGTH_REQUIRED, "a request needs a Content-Length")
        body = self.rfile.read(int(length))
        if len(body) < int(length):
            raise ConnectionResetError("the client hung up in mid-request")
        if self.path != self.server.path:
            return self._unknown_path()
        json_bytes = self.headers.get(HEADER_LENGTH, length)
        if not json_bytes.isdecimal():
            raise BadRequest(f"{HEADER_LENGTH} is not a number: {json_bytes}")
        told, answer = self.server.infer(body, int(json_bytes))
        return HTTPStatus.OK, answer, told

    def _unknown_path(self) -> _Answer:
        return _error(HTTPStatus.NOT_FOUND, f"there is only GET {READY_PATH}, and POST {self.server.path}")

    def _answer(self, status: HTTPStatus, body: bytes, json_bytes: int | None = None) -> None:
        self.send_response_only(status)
        self.send_header("Content-Length", str(len(body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        if json_bytes is not None:
            self.send_header(HEADER_LENGTH, str(json_bytes))
        self.end_headers()
        self.wfile.write(body)


def _error(status: HTTPStatus, text: str) -> _Answer:
    return status, json.dumps({"error": text}).encode(), None
