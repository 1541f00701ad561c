"""The torch worker's interface, by the standard library alone: KServe v2 with tensors as bytes, over HTTP.

In a body JSON comes first, then the tensors' bytes in its order ("binary tensor data" of Triton's documentation). The
client's code is ``load/kserve.py``. Errors are texts for the client.
"""

from __future__ import annotations

import json
import math
import socket
import threading
import traceback
from contextlib import suppress
from functools import lru_cache
from http import HTTPStatus
from typing import TYPE_CHECKING, BinaryIO, Final, NamedTuple, TypeAlias
from urllib.parse import quote

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Bytes: TypeAlias = "bytes | memoryview"

ITEM_BYTES: Final = {
    "BOOL": 1,
    "UINT8": 1,
    "INT8": 1,
    "INT16": 2,
    "INT32": 4,
    "INT64": 8,
    "FP16": 2,
    "BF16": 2,
    "FP32": 4,
    "FP64": 8,
}
"""KServe's datatypes that torch has, with the bytes of an element."""

HEADER_LENGTH: Final = "Inference-Header-Content-Length"
"""HTTP header with the length of the JSON."""


MOST_LINE_BYTES: Final = 1 << 16
"""Bound on a line before the body: a client that never ends one must not fill the memory."""


class BadRequest(ValueError):
    """A request that cannot be answered; its text is for the client."""


class ModelFailed(Exception):
    """The model raised an exception for a request that fits it; the text is for the client."""


class Tensor(NamedTuple):
    """A tensor as it is in a body.

    Args:
        datatype: One of ``ITEM_BYTES``.
        shape: Its shape; of an input the first dimension is the request's batch.
        data: Its elements, little-endian, in row-major order.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: Bytes


class InferenceRequest(NamedTuple):
    """A request.

    Args:
        inputs: One or more, in the request's order, all with the same first dimension.
        outputs: Names of the requested outputs; empty for all.
        request_id: Returned with the answer; may be empty.
    """

    inputs: tuple[Tensor, ...]
    outputs: tuple[str, ...] = ()
    request_id: str = ""

    @property
    def rows(self) -> int:
        """Number of rows of its batch: one or more."""
        return self.inputs[0].shape[0]


def read_request(body: bytes, json_bytes: int) -> InferenceRequest:
    """Read a request.

    Args:
        body: The whole body.
        json_bytes: Length of the JSON at its front.

    Raises:
        BadRequest: The body is not a request, or needs a feature that a torch worker does not have.
    """
    data, begin, inputs = memoryview(body), json_bytes, []
    try:
        header = json.loads(body[:json_bytes])
        for each in header["inputs"]:
            size = _bytes_of(each["name"], each["datatype"], each["shape"], each["parameters"]["binary_data_size"])
            inputs.append(Tensor(each["name"], each["datatype"], tuple(each["shape"]), data[begin : begin + size]))
            begin += size
        outputs = tuple(_output_name(each["name"], each.get("parameters", {})) for each in header.get("outputs", ()))
        request_id = header.get("id", "")
    except BadRequest:
        raise
    except (AttributeError, LookupError, RecursionError, TypeError, ValueError) as problem:
        raise BadRequest(f"not a request of KServe v2 with tensors as bytes after its JSON: {problem!r}") from None
    if begin != len(body):
        raise BadRequest(f"the inputs announce {begin - json_bytes} bytes, {len(body) - json_bytes} follow the JSON")
    if not isinstance(request_id, str):
        raise BadRequest(f"the request's id is not a text: {request_id!r}")
    if not inputs or len({tensor.name for tensor in inputs}) < len(inputs):
        raise BadRequest("a request needs inputs, each with a name of its own")
    if len({tensor.shape[0] for tensor in inputs}) > 1:
        shapes = ", ".join(f"{tensor.name!r} {list(tensor.shape)}" for tensor in inputs)
        raise BadRequest(f"the first dimension is the batch, and must be the same for all inputs: {shapes}")
    return InferenceRequest(tuple(inputs), outputs, request_id)


def _bytes_of(name: object, datatype: str, shape: list[int], announced: object) -> int:
    """Bytes of an input; raises BadRequest if it is invalid."""
    if not isinstance(name, str) or not name:
        raise BadRequest(f"input {name!r} needs a name")
    if datatype not in ITEM_BYTES:
        raise BadRequest(f"input {name!r} is {datatype!r}; a torch worker takes {', '.join(ITEM_BYTES)}")
    if not all(type(size) is int and size >= 0 for size in shape) or not shape or not shape[0]:
        raise BadRequest(f"input {name!r} has the shape {shape}; its first dimension is the batch, 1 or more")
    need = math.prod(shape) * ITEM_BYTES[datatype]
    if announced != need:
        raise BadRequest(f"input {name!r} of {datatype} {shape} takes {need} bytes, not {announced!r}")
    return need


def _output_name(name: object, parameters: dict[str, object]) -> str:
    """Name of a requested output; raises BadRequest if it is invalid, or the output should go to shared memory."""
    if not isinstance(name, str):
        raise BadRequest(f"the name of a requested output is not a text: {name!r}")
    if any(key.startswith("shared_memory") for key in parameters):
        raise BadRequest(f"output {name!r}: a torch worker has no shared memory")
    return name


def write_answer(model: str, outputs: Sequence[Tensor], request_id: str = "") -> list[Bytes]:
    """Write the answer with these outputs: its JSON, then the bytes of each."""
    header = _answer_header(model, request_id, tuple((each.name, each.datatype, each.shape) for each in outputs))
    return [header, *(each.data for each in outputs)]


@lru_cache(maxsize=256)
def _answer_header(model: str, request_id: str, described: tuple[tuple[str, str, tuple[int, ...]], ...]) -> bytes:
    """The JSON of an answer, cached because most answers of a model have the same one."""
    header: dict[str, object] = {"model_name": model}
    if request_id:
        header["id"] = request_id
    header["outputs"] = [
        {
            "name": name,
            "datatype": datatype,
            "shape": shape,
            "parameters": {"binary_data_size": math.prod(shape) * ITEM_BYTES[datatype]},
        }
        for name, datatype, shape in described
    ]
    return json.dumps(header, separators=(",", ":")).encode()


_Answer: TypeAlias = "tuple[HTTPStatus, Sequence[Bytes]]"
"""Status and parts of the body."""


class _HttpRequest(NamedTuple):
    """A request of HTTP; ``headers`` by their names in lower case, ``closes`` if the client wants no further answer."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    closes: bool


class HttpServer:
    """Answers ``POST /v2/models/MODEL/infer``, with a thread for each connection; `serve_forever` runs it.

    Args:
        address: Host and port.
        model: Name of the model.
        infer: Answers a body, given the length of the JSON at its front, by the parts of a body, the JSON first. It is
            called in the connection's thread, and raises BadRequest or ModelFailed.

    Raises:
        OSError: The address cannot be used.
    """

    def __init__(self, address: tuple[str, int], model: str, infer: Callable[[bytes, int], Sequence[Bytes]]) -> None:
        self._path = f"/v2/models/{quote(model, safe='')}/infer"
        self._infer = infer
        self.listener = socket.create_server(address, backlog=4096)

    def serve_forever(self) -> None:
        """Accept connections.

        Raises:
            OSError: Too many files are open. Clients would wait for ever, so the worker ends.
            RuntimeError: No further thread can be started; likewise.
        """
        while True:
            # A client may have gone before it is accepted.
            with suppress(ConnectionError):
                link, _ = self.listener.accept()
                threading.Thread(target=self._serve, args=(link,), daemon=True).start()

    def _serve(self, link: socket.socket) -> None:
        """Answer the requests of a connection until one end closes it."""
        with suppress(ConnectionError), link, link.makefile("rb") as reader:
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            is_last = False
            while not is_last:
                try:
                    request = _read_http(reader, link)
                    is_last, answer = request.closes, self._answer(request)
                except BadRequest as problem:
                    # The rest of it would be taken for the next request.
                    is_last, answer = True, _error(HTTPStatus.BAD_REQUEST, str(problem))
                _write_http(link, *answer, is_last=is_last)

    def _answer(self, request: _HttpRequest) -> _Answer:
        if (request.method, request.path) != ("POST", self._path):
            return _error(HTTPStatus.NOT_FOUND, f"there is only POST {self._path}")
        json_bytes = request.headers.get(HEADER_LENGTH.lower(), str(len(request.body)))
        if not json_bytes.isdecimal():
            return _error(HTTPStatus.BAD_REQUEST, f"{HEADER_LENGTH} is not a number: {json_bytes}")
        try:
            return HTTPStatus.OK, self._infer(request.body, int(json_bytes))
        except BadRequest as problem:
            return _error(HTTPStatus.BAD_REQUEST, str(problem))
        except ModelFailed as problem:
            return _error(HTTPStatus.INTERNAL_SERVER_ERROR, str(problem))
        except Exception as problem:  # noqa: BLE001 -- shown, and told
            traceback.print_exc()
            return _error(HTTPStatus.INTERNAL_SERVER_ERROR, repr(problem))


def _read_http(reader: BinaryIO, link: socket.socket) -> _HttpRequest:
    """Read the next request; far faster than `http.server`, which reads headers as those of an email.

    Raises:
        BadRequest: It is not HTTP, or has a body of unknown length.
        ConnectionError: The client has hung up.
    """
    # A client may send empty lines between its requests.
    while not (line := _read_line(reader)):
        pass
    words = line.split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        raise BadRequest(f"not a request of HTTP/1.1: {line!r}")
    headers: dict[str, str] = {}
    while line := _read_line(reader):
        name, colon, value = line.partition(":")
        if not colon:
            raise BadRequest(f"not a header: {line!r}")
        headers[name.lower()] = value.strip()
    length = headers.get("content-length", "" if words[0] == "POST" else "0")
    if not length.isdecimal() or "transfer-encoding" in headers:
        raise BadRequest("a request needs a Content-Length")
    if headers.get("expect", "").lower() == "100-continue":
        link.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
    body = reader.read(int(length))
    if len(body) < int(length):
        raise ConnectionResetError("the client hung up in mid-request")
    closes = words[2] == "HTTP/1.0" or "close" in headers.get("connection", "").lower()
    return _HttpRequest(words[0], words[1], headers, body, closes)


def _read_line(reader: BinaryIO) -> str:
    line = reader.readline(MOST_LINE_BYTES)
    if not line:
        raise ConnectionResetError("the client hung up")
    if not line.endswith(b"\n"):
        raise BadRequest(f"a line of HTTP without an end, or of more than {MOST_LINE_BYTES} bytes")
    return line.decode("latin-1").rstrip("\r\n")


def _write_http(link: socket.socket, status: HTTPStatus, parts: Sequence[Bytes], *, is_last: bool) -> None:
    head = [f"HTTP/1.1 {status.value} {status.phrase}", f"Content-Length: {sum(map(len, parts))}"]
    if status is HTTPStatus.OK:
        head.append(f"{HEADER_LENGTH}: {len(parts[0])}")
    if is_last:
        head.append("Connection: close")
    # One packet, if it is small.
    link.sendall(b"".join([*(f"{line}\r\n".encode() for line in head), b"\r\n", *parts]))


def _error(status: HTTPStatus, text: str) -> _Answer:
    return status, (json.dumps({"error": text}).encode(),)
