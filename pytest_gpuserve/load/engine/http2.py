"""gRPC: unary calls on HTTP/2, with messages that are serialised once. Each slot is a connection with a call at a time.

A call that a connection's end has cut off is sent again under the same conditions as a request of HTTP/1.1.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.load.engine import http2_codec as codec
from pytest_gpuserve.load.engine.http1 import AnswerReader, Http1, HttpConnection, Parsed
from pytest_gpuserve.load.engine.transport import MAX_ANSWER_BYTES, FaultKind, MalformedResponse

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpuserve.load.engine.loop import Loop
    from pytest_gpuserve.load.engine.opening import Connected
    from pytest_gpuserve.load.engine.reactor import Reactor
    from pytest_gpuserve.load.engine.transport import Fault
    from pytest_gpuserve.load.wire import Endpoint

REFILL_BYTES: Final = 1 << 30
"""Received bytes after which the server's window is refilled: half of it, so that the server never waits."""

LAST_STREAM: Final = (1 << 31) - 3
"""Last stream that a connection can have before it is replaced."""

BLOCK_BYTES: Final = 1 << 20
"""Longest header block that is assembled from several frames."""

NO_STREAM: Final = -1

_UNUSUAL: Final = codec.PADDED | codec.PRIORITY
_GOAWAY: Final = struct.Struct(">II")


class Http2Protocol(AnswerReader):
    """The protocol of one connection, without its socket.

    Attributes:
        outgoing: Bytes to send; the owner takes them.
        leaving: Whether the server takes no more calls.
        goodbye: The server's reason for an end that is not in good order.
    """

    def __init__(self, requests: codec.Requests, blocks: codec.HeaderBlocks) -> None:
        self.outgoing: list[bytes | memoryview] = [codec.PREFACE]
        self.leaving = False
        self.goodbye: ConnectionResetError | None = None
        self._requests = requests
        self._blocks = blocks
        self._stream = NO_STREAM
        # The stream whose answer has not come.
        self._awaited = NO_STREAM
        self._last_answered = codec.MAX_WINDOW
        self._head: codec.Fields | None = None
        self._body: bytes | bytearray = b""
        self._answer: Parsed | None = None
        self._unread = b""
        self._block: tuple[int, bytes] | None = None
        self._received = 0
        # The server's windows: of the connection, of a new stream, of the current one.
        self._window = self._first_window = self._stream_window = codec.FIRST_WINDOW
        self._largest_frame = codec.FRAME_BYTES
        # The part of the current message that the windows do not allow yet.
        self._rest: memoryview | None = None

    @property
    def resting(self) -> bool:
        """Whether no byte of an answer has come; half a frame is part of one."""
        return self._head is None and not self._body and not self._unread and self._block is None

    @property
    def is_over(self) -> bool:
        """Whether the server will not answer the current call."""
        return self.leaving and (self.goodbye is not None or self._awaited > self._last_answered)

    @property
    def has_given_up(self) -> str:
        """Why the server leaves the current call unanswered though it may have begun it; empty if it does not."""
        return str(self.goodbye or "") if self._awaited <= self._last_answered else ""

    # -- calls

    def call(self, payload: bytes) -> bytes:
        """Begin a call, and return its bytes; if the windows do not allow all, the rest becomes ``outgoing`` later."""
        self._stream = self._awaited = stream = self._stream + 2
        self._head, self._body = None, b""
        requests = self._requests
        prepared = requests.known.get(payload) or requests.prepare(payload)
        if prepared is not None and prepared.size <= self._window and prepared.size <= self._first_window:
            self._window -= prepared.size
            number = codec.STREAM.pack(stream)
            return b"".join((requests.begin, number, prepared.middle, number, prepared.tail))
        self._stream_window = self._first_window
        self._rest = memoryview(codec.PREFIX.pack(0, len(payload)) + payload)
        return b"".join((requests.head(stream), *self._frames()))

    def _frames(self) -> Iterator[bytes | memoryview]:
        """Cut frames from the message, as far as the windows allow."""
        while self._rest is not None:
            rest = self._rest
            size = min(len(rest), self._stream_window, self._window, self._largest_frame)
            if size <= 0:
                return
            is_last = size == len(rest)
            yield codec.HEADER.pack(size << 8 | codec.DATA, codec.END_STREAM if is_last else 0, self._stream)
            yield rest[:size]
            self._rest = None if is_last else rest[size:]
            self._stream_window -= size
            self._window -= size

    def _finish(self, trailers: codec.Fields) -> None:
        head, body = self._head or trailers, self._body
        is_good = (
            trailers.grpc_status == b"0"
            and head.status == b"200"
            and len(body) >= codec.PREFIX_BYTES
            and codec.PREFIX.unpack_from(body) == (0, len(body) - codec.PREFIX_BYTES)
        )
        fault = None if is_good else codec.what_failed(head, trailers, body)
        self._end(bytes(body[codec.PREFIX_BYTES :]), fault)

    def _end(self, body: bytes, fault: Fault | None) -> None:
        # A server that answers before it has read all of the request would have to be told to forget the rest.
        reusable = self._rest is None and self._stream < LAST_STREAM
        self._answer = Parsed(0, body, reusable, fault=fault)
        self._awaited = NO_STREAM
        self._rest = self._head = None
        self._body = b""

    # -- frames

    def feed(self, data: bytes) -> Parsed | None:
        """Read all complete frames; return the answer if it is complete now.

        Raises:
            MalformedResponse: The server broke a rule of HTTP/2, so that the connection cannot be used (RFC 9113,
                5.4.1).
        """
        if self._unread:
            data = self._unread + data
        unpack = codec.HEADER.unpack_from
        position, size = 0, len(data)
        while size - position >= codec.HEADER_BYTES:
            length, flags, stream = unpack(data, position)
            kind = length & 0xFF
            length >>= 8
            if length > codec.FRAME_BYTES:
                raise MalformedResponse(f"a frame of {length} bytes: {data[position:]!r}")
            begin = position + codec.HEADER_BYTES
            end = begin + length
            if end > size:
                break
            position = end
            content = data[begin:end]
            if kind > codec.HEADERS or stream != self._awaited or flags & _UNUSUAL or self._block is not None:
                self._read_unusual(kind, flags, stream & codec.MAX_WINDOW, content)
            elif kind == codec.DATA:
                self._received += length
                self._read_data(flags, content)
            else:
                self._read_headers(flags, content)
        self._unread = data[position:]
        if self._received >= REFILL_BYTES:
            self.outgoing.append(codec.frame(codec.WINDOW_UPDATE, 0, 0, codec.STREAM.pack(self._received)))
            self._received = 0
        answer, self._answer = self._answer, None
        return answer._replace(reusable=False) if answer is not None and self.leaving else answer

    def _read_data(self, flags: int, content: bytes) -> None:
        if not self._body:
            self._body = content
        elif len(self._body) + len(content) > codec.PREFIX_BYTES + MAX_ANSWER_BYTES:
            raise MalformedResponse(f"an answer of more than {MAX_ANSWER_BYTES >> 20} MB")
        elif isinstance(self._body, bytearray):
            self._body += content
        else:
            self._body = bytearray(self._body) + content
        if flags & codec.END_STREAM:
            self._finish(codec.NO_FIELDS)

    def _read_headers(self, flags: int, block: bytes) -> None:
        if not flags & codec.END_HEADERS:
            self._block = flags, block
            return
        fields = self._blocks.known.get(block) or self._blocks.read(block)
        if flags & codec.END_STREAM:
            self._finish(fields)
        # Several interim answers (1xx) may precede the answer.
        elif self._head is None or self._head.status.startswith(b"1"):
            self._head = fields
        else:
            raise MalformedResponse("a second header block in the middle of an answer")

    def _read_unusual(self, kind: int, flags: int, stream: int, content: bytes) -> None:
        """Read a frame that is not simply part of the awaited answer."""
        if self._block is not None or kind == codec.CONTINUATION:
            self._continue(kind, flags, stream, content)
        elif kind > codec.HEADERS:
            self._read_control(kind, flags, stream, content)
        elif stream != self._awaited:
            raise MalformedResponse(f"an answer to no request, on stream {stream}")
        elif kind == codec.HEADERS:
            self._read_headers(flags, codec.unpadded(kind, flags, content))
        else:
            self._received += len(content)
            self._read_data(flags, codec.unpadded(kind, flags, content))

    def _continue(self, kind: int, flags: int, stream: int, content: bytes) -> None:
        if self._block is None or kind != codec.CONTINUATION or stream != self._awaited:
            raise MalformedResponse("a header block that is interrupted, or lacks its first part")
        first_flags, block = self._block
        block += content
        if len(block) > BLOCK_BYTES:
            raise MalformedResponse(f"a header block of more than {BLOCK_BYTES} bytes")
        self._block = None
        self._read_headers(first_flags | flags & codec.END_HEADERS, block)

    def _read_control(self, kind: int, flags: int, stream: int, content: bytes) -> None:
        codec.check_control(kind, stream, content)
        if kind == codec.SETTINGS and not flags & codec.ACK:
            self._apply(codec.read_settings(content))
        elif kind == codec.PING and not flags & codec.ACK:
            self.outgoing.append(codec.frame(codec.PING, codec.ACK, 0, content))
        elif kind == codec.WINDOW_UPDATE:
            self._widen(stream, codec.STREAM.unpack(content)[0] & codec.MAX_WINDOW)
        elif kind == codec.RST_STREAM and stream == self._awaited:
            name = codec.error_name(codec.STREAM.unpack(content)[0])
            self._rest = None
            self._end(b"", ("stream reset", f"RST_STREAM {name}"))
        elif kind == codec.GOAWAY:
            last, code = _GOAWAY.unpack_from(content)
            self.leaving, self._last_answered = True, last & codec.MAX_WINDOW
            if code:
                debug = content[_GOAWAY.size :].decode(errors="replace")
                self.goodbye = ConnectionResetError(f"GOAWAY {codec.error_name(code)} {debug}".rstrip())

    def _apply(self, settings: list[tuple[int, int]]) -> None:
        """Apply the server's settings; others than these do not concern one call at a time."""
        for name, value in settings:
            if name == codec.MAX_FRAME_SIZE:
                self._largest_frame = value
            elif name == codec.INITIAL_WINDOW_SIZE:
                self._stream_window += value - self._first_window
                self._first_window = value
        self.outgoing += [codec.frame(codec.SETTINGS, codec.ACK, 0), *self._frames()]

    def _widen(self, stream: int, size: int) -> None:
        """Widen the window of the connection (0) or of the current stream."""
        window = 0
        if stream == 0:
            self._window = window = self._window + size
        # Without anything left to send, the stream's window is not counted.
        elif stream == self._stream and self._rest is not None:
            self._stream_window = window = self._stream_window + size
        if size == 0 or window > codec.MAX_WINDOW:
            raise MalformedResponse(f"a window is widened by {size} bytes to {window}")
        self.outgoing += self._frames()


class GrpcConnection(HttpConnection):
    """A connection of gRPC."""

    __slots__ = ("_protocol",)

    _transport: Http2

    def _new_parser(self) -> Http2Protocol:
        self._protocol = Http2Protocol(self._transport.requests, self._transport.blocks)
        return self._protocol

    def _use(self, connected: Connected) -> None:
        super()._use(connected)
        self._write_outgoing()

    def send(self, payload: bytes) -> None:
        """Send a request."""
        self._busy = True
        data = self._protocol.call(payload)
        if self._protocol.outgoing:
            self._write_outgoing(data)
        else:
            self._write(data)

    def _write_outgoing(self, data: bytes = b"") -> None:
        """Write what the protocol has to say, and this behind it."""
        data = b"".join((*self._protocol.outgoing, data))
        self._protocol.outgoing.clear()
        self._write(data)

    def _write(self, data: bytes) -> None:
        if self._rest is not None:
            self._rest = memoryview(b"".join((self._rest, data)))
            return
        try:
            count: int | OSError = self._send(data)
        except OSError as problem:
            count = problem
        if count != len(data):
            self._sent_in_part(data, count)

    def _take(self, data: bytes, now_ns: int) -> None:
        protocol = self._protocol
        try:
            parsed = protocol.feed(data) if data else None
        except MalformedResponse as problem:
            self._lose(FaultKind.PROTOCOL, str(problem))
            return
        if parsed is not None:
            self._finish(now_ns, parsed)
        elif self._busy and protocol.has_given_up:
            # To send it again would hide a server that fails.
            self._lose(FaultKind.CONNECTION_RESET, protocol.has_given_up)
        elif not data or (protocol.leaving and not self._busy) or protocol.is_over:
            self._ended(now_ns, protocol.goodbye)
        # Usually a request has followed the answer, and taken it along: a system call costs more than the rest.
        if protocol.outgoing and self._socket is not None:
            self._write_outgoing()

    def _fault(self, parsed: Parsed) -> Fault | None:
        return parsed.fault

    def _answer(self, now_ns: int, body: bytes, *, keep: bool) -> None:
        if not (keep and self._repeat.again(self, now_ns, body)):
            self._answered(self, now_ns, body, keep)


class Http2(Http1):
    """The transport of gRPC: payloads and answers' bodies are serialised messages.

    Raises:
        OSError: The host is unknown.
    """

    connection = GrpcConnection

    def __init__(self, endpoint: Endpoint, reactor: Reactor, loop: Loop, connect_timeout_ns: int) -> None:
        super().__init__(endpoint, reactor, loop, connect_timeout_ns, protocols=("h2",))
        self.requests = codec.Requests(codec.request_block(endpoint))
        self.blocks = codec.HeaderBlocks()
