"""What an answer that came over HTTP/2 is to gRPC, where it is none of status OK with one message.

Status codes are those of gRPC's ``statuscodes.md``, the layout is that of its ``PROTOCOL-HTTP2.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import unquote_to_bytes

from pytest_gpuserve.load.engine.http2_codec import PREFIX, PREFIX_BYTES, Fields
from pytest_gpuserve.process.logs import begin_of

if TYPE_CHECKING:
    from pytest_gpuserve.load.engine.transport import Sample

_STATUSES: Final = (
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
)


def what_failed(head: Fields, trailers: Fields, body: bytes | bytearray) -> tuple[str, Sample]:
    """Return the error kind and the uncut sample of a complete answer that is none of status OK with one message.

    Args:
        head: Its first header block.
        trailers: Its last one, which may be the same.
        body: Of all its DATA frames.
    """
    code = trailers.grpc_status
    if not code and head.status != b"200" and head.status.isdigit():
        return f"status {head.status[:3].decode()}", lambda: f"not from a gRPC server: {begin_of(body)!r}"
    if not code.isdigit() or len(code) > 3:
        return "protocol", f"grpc-status is {code!r}"
    if int(code):
        number = int(code)
        name = _STATUSES[number] if number < len(_STATUSES) else str(number)
        message = trailers.message
        return f"grpc status {name}", lambda: begin_of(unquote_to_bytes(message)).decode(errors="replace")
    return "protocol", _what_is_wrong(head, body)


def _what_is_wrong(head: Fields, body: bytes | bytearray) -> str:
    if head.status != b"200":
        return f"gRPC status OK with HTTP status {head.status!r}"
    if len(body) < PREFIX_BYTES:
        return f"gRPC status OK with {len(body)} bytes, which is no message"
    if body[0]:
        return "the answer is compressed, which was not offered"
    length = PREFIX.unpack_from(body)[1]
    return f"a message of {length} bytes announced, {len(body) - PREFIX_BYTES} came"
