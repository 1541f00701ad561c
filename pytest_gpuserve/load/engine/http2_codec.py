"""HTTP/2 and gRPC for unary calls, without sockets: frames, header blocks, requests, statuses.

Numbers and layouts are those of RFC 9113 (HTTP/2), RFC 7541 (HPACK) and gRPC's ``PROTOCOL-HTTP2.md``.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import unquote_to_bytes

import hpack

from pytest_gpuserve.load.engine.transport import FaultKind, MalformedResponse
from pytest_gpuserve.process.logs import begin_of

if TYPE_CHECKING:
    from pytest_gpuserve.load.engine.transport import Fault
    from pytest_gpuserve.load.wire import Endpoint

DATA: Final = 0
HEADERS: Final = 1
RST_STREAM: Final = 3
SETTINGS: Final = 4
PUSH_PROMISE: Final = 5
PING: Final = 6
GOAWAY: Final = 7
WINDOW_UPDATE: Final = 8
CONTINUATION: Final = 9

ACK: Final = 0x1
END_STREAM: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
PRIORITY: Final = 0x20

HEADER_TABLE_SIZE: Final = 1
ENABLE_PUSH: Final = 2
INITIAL_WINDOW_SIZE: Final = 4
MAX_FRAME_SIZE: Final = 5

FRAME_BYTES: Final = 1 << 14
"""Longest frame without a negotiated length; we do not negotiate a longer one."""

FIRST_WINDOW: Final = (1 << 16) - 1
MAX_WINDOW: Final = (1 << 31) - 1
HEADER_BYTES: Final = 9
PREFIX_BYTES: Final = 5

HEADER: Final = struct.Struct(">IBI")
"""A frame's length and type in one number, its flags and its stream: two fewer operations than apart."""

PREFIX: Final = struct.Struct(">BI")
"""Prefix of a gRPC message: whether it is compressed, and its length."""

STREAM: Final = struct.Struct(">I")
_SETTING: Final = struct.Struct(">HI")

KNOWN_BLOCKS: Final = 256
KNOWN_BLOCK_BYTES: Final = 1 << 10
"""Largest number and length of header blocks that are recognised byte for byte instead of being decoded again."""

_LENGTHS: Final = {RST_STREAM: 4, PING: 8, WINDOW_UPDATE: 4}
_OF_CONNECTION: Final = frozenset({SETTINGS, PING, GOAWAY})

_ERRORS: Final = (
    "NO_ERROR PROTOCOL_ERROR INTERNAL_ERROR FLOW_CONTROL_ERROR SETTINGS_TIMEOUT STREAM_CLOSED"
    " FRAME_SIZE_ERROR REFUSED_STREAM CANCEL COMPRESSION_ERROR CONNECT_ERROR ENHANCE_YOUR_CALM"
    " INADEQUATE_SECURITY HTTP_1_1_REQUIRED"
)


class Fields(NamedTuple):
    """Fields of a header block that decide about an answer; empty if absent."""

    status: bytes = b""
    grpc_status: bytes = b""
    message: bytes = b""


NO_FIELDS: Final = Fields()


class Framed(NamedTuple):
    """A request without its stream's number, which is inserted before ``middle`` and before ``tail``.

    Args:
        middle: The header block and the begin of the DATA frame.
        tail: gRPC's prefix and the message.
        size: Bytes that it takes from the flow-control windows: those of ``tail``.
    """

    middle: bytes
    tail: bytes
    size: int


def frame(kind: int, flags: int, stream: int, content: bytes = b"") -> bytes:
    """Serialise a frame."""
    return HEADER.pack(len(content) << 8 | kind, flags, stream) + content


def check_control(kind: int, stream: int, content: bytes) -> None:
    """Check a frame that is not part of an answer; unknown types are always allowed.

    Raises:
        MalformedResponse: The frame has a wrong length or stream, or a server must not send it.
    """
    wrong_length = len(content) < 8 if kind == GOAWAY else len(content) != _LENGTHS.get(kind, len(content))
    if wrong_length or (kind in _OF_CONNECTION and stream) or (kind == RST_STREAM and not stream):
        raise MalformedResponse(f"a frame of type {kind} with {len(content)} bytes on stream {stream}")
    if kind == PUSH_PROMISE:
        raise MalformedResponse("a pushed answer, although push is disabled")


def settings(*pairs: tuple[int, int]) -> bytes:
    """Serialise a SETTINGS frame."""
    return frame(SETTINGS, 0, 0, b"".join(_SETTING.pack(*pair) for pair in pairs))


def read_settings(content: bytes) -> list[tuple[int, int]]:
    """Read the content of a SETTINGS frame: names and values.

    Raises:
        MalformedResponse: The frame has half a setting, or a number out of range.
    """
    if len(content) % _SETTING.size:
        raise MalformedResponse("a SETTINGS frame with half a setting")
    pairs = list(_SETTING.iter_unpack(content))
    for name, value in pairs:
        if name == INITIAL_WINDOW_SIZE and value > MAX_WINDOW:
            raise MalformedResponse(f"an initial window of {value} bytes")
        if name == MAX_FRAME_SIZE and not FRAME_BYTES <= value < 1 << 24:
            raise MalformedResponse(f"a greatest frame of {value} bytes")
    return pairs


PREFACE: Final = b"".join(
    (
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        # Without a table equal header blocks are equal bytes, and always mean the same.
        settings((HEADER_TABLE_SIZE, 0), (ENABLE_PUSH, 0), (INITIAL_WINDOW_SIZE, MAX_WINDOW)),
        frame(WINDOW_UPDATE, 0, 0, STREAM.pack(MAX_WINDOW - FIRST_WINDOW)),
    )
)
"""First bytes of a client, with windows that a server never has to wait for."""


def unpadded(kind: int, flags: int, content: bytes) -> bytes:
    """Remove padding, and the old priority of HEADERS, from the content of a DATA or HEADERS frame.

    Raises:
        MalformedResponse: The padding is longer than the content.
    """
    begin, end = 0, len(content)
    if flags & PADDED:
        begin = 1
        end -= content[0] if content else 1
    if kind == HEADERS and flags & PRIORITY:
        begin += 5
    if begin > end:
        raise MalformedResponse("a frame with more padding than content")
    return content[begin:end]


def request_block(endpoint: Endpoint) -> bytes:
    """Encode the header block of all requests to this endpoint; it changes no table, so its bytes can be reused."""
    fields = [
        (":method", "POST"),
        (":scheme", "https" if endpoint.tls else "http"),
        (":path", endpoint.rpc),
        (":authority", endpoint.authority),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
        ("user-agent", "pytest-gpuserve"),
    ]
    # Sensitive fields go into no table.
    return hpack.Encoder().encode([(name, value, True) for name, value in fields])


class Requests:
    """Requests as bytes, with the same header block; only the stream's number changes in them.

    Attributes:
        known: Prepared requests that fit into one frame.
    """

    def __init__(self, block: bytes) -> None:
        self.known: dict[bytes, Framed] = {}
        self.begin = HEADER.pack(len(block) << 8 | HEADERS, END_HEADERS, 0)[:PREFIX_BYTES]
        self._block = block

    def head(self, stream: int) -> bytes:
        """Serialise the HEADERS frame of a request whose body follows in other frames."""
        return self.begin + STREAM.pack(stream) + self._block

    def prepare(self, payload: bytes) -> Framed | None:
        """Prepare a request; None if its message does not fit into one frame of any server."""
        size = len(payload) + PREFIX_BYTES
        if size > FRAME_BYTES:
            return None
        begin_of_data = HEADER.pack(size << 8 | DATA, END_STREAM, 0)[:PREFIX_BYTES]
        self.known[payload] = prepared = Framed(
            self._block + begin_of_data, PREFIX.pack(0, len(payload)) + payload, size
        )
        return prepared


class HeaderBlocks:
    """Decodes header blocks, and recognises repeated ones."""

    def __init__(self) -> None:
        self.known: dict[bytes, Fields] = {}
        self._decoder = hpack.Decoder()
        # Kept for good, because a block's meaning never depends on earlier blocks.
        self._decoder.max_allowed_table_size = 0
        self._decoder.header_table_size = 0

    def read(self, block: bytes) -> Fields:
        """Decode a new block.

        Raises:
            MalformedResponse: The data is not a header block, or needs a table although we have none.
        """
        try:
            pairs = self._decoder.decode(block, raw=True)
        except hpack.HPACKError as problem:
            raise MalformedResponse(f"a header block that cannot be decoded ({problem})") from problem
        values = dict(pairs)
        fields = Fields(values.get(b":status", b""), values.get(b"grpc-status", b""), values.get(b"grpc-message", b""))
        if len(block) <= KNOWN_BLOCK_BYTES:
            if len(self.known) >= KNOWN_BLOCKS:
                self.known.clear()
            self.known[block] = fields
        return fields


def error_name(code: int) -> str:
    """Name an error code of RST_STREAM or GOAWAY."""
    return dict(enumerate(_ERRORS.split())).get(code, str(code))


_STATUSES: Final = (
    "OK CANCELLED UNKNOWN INVALID_ARGUMENT DEADLINE_EXCEEDED NOT_FOUND ALREADY_EXISTS PERMISSION_DENIED"
    " RESOURCE_EXHAUSTED FAILED_PRECONDITION ABORTED OUT_OF_RANGE UNIMPLEMENTED INTERNAL UNAVAILABLE"
    " DATA_LOSS UNAUTHENTICATED"
)


def what_failed(head: Fields, trailers: Fields, body: bytes | bytearray) -> Fault:
    """Return the fault of a complete answer that is not status OK with one message."""
    code = trailers.grpc_status
    if not code and head.status != b"200" and head.status.isdigit():
        return f"status {head.status[:3].decode()}", lambda: f"not from a gRPC server: {begin_of(body)!r}"
    if not code.isdigit() or len(code) > 3:
        return FaultKind.PROTOCOL, f"grpc-status is {code!r}"
    if int(code):
        name = dict(enumerate(_STATUSES.split())).get(int(code), str(int(code)))
        message = trailers.message
        return f"grpc status {name}", lambda: begin_of(unquote_to_bytes(message)).decode(errors="replace")
    got = f"HTTP status {head.status!r} and {len(body)}{' compressed' if body and body[0] else ''} bytes"
    return FaultKind.PROTOCOL, f"gRPC status OK without one plain message and HTTP status 200, but with {got}"
