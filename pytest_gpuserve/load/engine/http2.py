"""gRPC: unary calls on HTTP/2, with messages that are serialised once."""

from __future__ import annotations

import struct
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.load.engine import http2_codec as codec
from pytest_gpuserve.load.engine.http2_codec import (
    Fields,
    HeaderBlocks,
    Http2ConnectionError,
    Requests,
    request_block,
    what_failed,
)
from pytest_gpuserve.load.engine.http2_sending import IDLE_STREAM, WAITING_STREAM, RequestSender, StreamSlot
from pytest_gpuserve.load.engine.opening import Opening, TlsSocket, resolve
from pytest_gpuserve.load.engine.reactor import WRITABLE
from pytest_gpuserve.load.engine.transport import MAX_ANSWER_BYTES, FaultKind

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpuserve.load.engine.opening import Connected, ResolvedAddress
    from pytest_gpuserve.load.engine.reactor import Reactor
    from pytest_gpuserve.load.engine.transport import Issuer, Slot
    from pytest_gpuserve.load.wire import Endpoint

RECEIVE_BYTES: Final = 1 << 16

REFILL_BYTES: Final = 1 << 30
"""Received bytes after which the server's window is refilled: half of it, so that the server never waits."""

LAST_STREAM: Final = (1 << 31) - (1 << 20)
"""Streams left on a connection when it ends in good order: more than can be used before the end."""

BLOCK_BYTES: Final = 1 << 20
"""Longest header block that is assembled from several frames."""

_UNUSUAL: Final = codec.PADDED | codec.PRIORITY
_GOAWAY: Final = struct.Struct(">II")


@dataclass(frozen=True)
class SharedByConnections:
    """Common data of all connections of a transport."""

    address: ResolvedAddress
    reactor: Reactor
    issuer: Issuer
    connect_timeout_ns: int
    requests: codec.Requests
    blocks: codec.HeaderBlocks


class Http2Slot(StreamSlot):
    """A slot on a shared connection."""

    __slots__ = ("_connection",)

    def __init__(self, place: int, connection: Http2Connection) -> None:
        super().__init__(place, connection.sender)
        self._connection = connection

    def expire(self, seconds: float) -> None:
        """Give up the request; the slot stays usable unless its connection is ending."""
        self._connection.expire(self, f"no answer within {seconds:g} s")

    def close(self) -> None:
        """Leave the connection, which closes with its last slot."""
        self._connection.leave(self)


class Http2Connection:
    """A connection; it opens at once, and closes when its last slot has left."""

    def __init__(self, shared: SharedByConnections, changed: Callable[[Http2Connection], None]) -> None:
        self.sender = RequestSender(shared.requests, shared.reactor)
        self._shared = shared
        self._issuer = shared.issuer
        self._answered = shared.issuer.answered
        self._repeat = shared.issuer.repeat
        self._changed = changed
        # For each slot, whether its issuer knows that it is open.
        self._slots: dict[StreamSlot, bool] = {}
        self._ready = False
        self._ending = False
        self.closed = False
        self._unread = b""
        self._received = 0
        self._block: tuple[int, int, bytes] | None = None
        self._socket: Connected | None = None
        self._opening: Opening | None = Opening(
            shared.address, shared.reactor, shared.connect_timeout_ns, self._opened, self._not_opened
        )
        self._timer = shared.reactor.at(time.perf_counter_ns() + shared.connect_timeout_ns, self._never_ready)

    # -- slots

    @property
    def slots(self) -> int:
        """Number of its slots."""
        return len(self._slots)

    @property
    def takes_more(self) -> bool:
        """Whether further slots may join."""
        return not self.closed and not self._ending

    def join(self, place: int) -> Http2Slot:
        """Add a slot; its issuer hears ``ready`` later."""
        slot = Http2Slot(place, self)
        self._slots[slot] = False
        if self._ready:
            self._shared.reactor.at(0, lambda: self._welcome(slot))
        return slot

    def leave(self, slot: StreamSlot) -> None:
        """Remove a slot and cancel its request; the last one closes the connection."""
        self.sender.abandon(slot)
        self._slots.pop(slot, None)
        if self._slots:
            self._changed(self)
        else:
            self.close()

    def expire(self, slot: StreamSlot, sample: str) -> None:
        """Give up the request of a slot as ``timeout``."""
        self.sender.abandon(slot)
        keep = self._keep(slot)
        self._issuer.refused(slot, time.perf_counter_ns(), FaultKind.TIMEOUT, sample, keep=keep)

    def close(self) -> None:
        """Close without a report to the issuer."""
        # The slots hold us: without a garbage collector such a cycle stays for ever.
        self._slots.clear()
        self._shut()

    def _shut(self) -> None:
        if self.closed:
            return
        self.closed = True
        self._changed(self)
        self.sender.close()
        self._shared.reactor.cancel(self._timer)
        if self._opening is not None:
            self._opening.cancel()
            self._opening = None
        if self._socket is not None:
            self._shared.reactor.close_later(self._socket)

    def _keep(self, slot: StreamSlot) -> bool:
        """Whether an idle slot can be used again; if not, it leaves."""
        if self._ending:
            self.leave(slot)
        return not self._ending

    def _welcome(self, slot: StreamSlot) -> None:
        if slot in self._slots and not self.closed:
            self._slots[slot] = True
            self._issuer.ready(slot)

    # -- opening and ending

    def _opened(self, connected: Connected) -> None:
        self._opening = None
        self._socket = connected
        self.sender.open(connected, self._event_tls if isinstance(connected, TlsSocket) else self._event)

    def _not_opened(self, kind: str, sample: str) -> None:
        self._opening = None
        self._lose(kind, sample)

    def _never_ready(self) -> None:
        seconds = self._shared.connect_timeout_ns / 1e9
        self._lose(FaultKind.CONNECT_TIMEOUT, f"connected, but no HTTP/2 settings within {seconds:g} s")

    def _lose(self, kind: str, sample: str) -> None:
        """Close, and report the loss of every slot."""
        if self.closed:
            return
        fates = {slot: self._fate(slot, kind, sample) for slot in self._slots}
        self._shut()
        for slot, fate in fates.items():
            # The issuer of one may close others.
            if self._slots.pop(slot, None) is not None:
                self._issuer.lost(slot, *fate)

    def _fate(self, slot: StreamSlot, kind: str, sample: str) -> tuple[str, str]:
        """Error kind and sample of the connection's end for a slot."""
        if kind == FaultKind.CONNECTION_CLOSED and self._slots[slot]:
            if slot.stream == IDLE_STREAM:
                return "", ""
            # Half a frame is part of an answer.
            if self._unread or self._block is not None or slot.head is not None or slot.body:
                return FaultKind.INCOMPLETE, f"in mid-answer: {sample}"
        return kind, sample

    def _end_in_order(self, last_stream: int) -> None:
        """Take no new requests; requests in flight up to this stream are still answered."""
        self._ending = True
        self._changed(self)
        # Waiting requests come first: room that others leave must not let them begin.
        for slot in sorted(self._slots, key=lambda slot: slot.stream):
            idle = slot.stream == IDLE_STREAM
            if slot not in self._slots or not (idle or slot.stream == WAITING_STREAM or slot.stream > last_stream):
                continue
            welcomed = self._slots[slot]
            self.leave(slot)
            if idle and welcomed:
                self._issuer.lost(slot, "", "")
            elif idle:
                self._issuer.lost(slot, FaultKind.CONNECTION_CLOSED, "the connection ended while it was being opened")
            else:
                self._issuer.lost(slot, FaultKind.CONNECTION_CLOSED, "the server went away before it began the request")

    # -- events

    def _event(self, mask: int) -> None:
        if mask & WRITABLE:
            self.sender.flush()
        if mask != WRITABLE:
            self._receive()

    def _event_tls(self, mask: int) -> None:
        self._event(mask)
        # Data that TLS has read ahead causes no more events of the socket.
        while not self.closed and isinstance(self._socket, TlsSocket) and self._socket.pending():
            self._receive()

    def _receive(self) -> None:
        assert self._socket is not None
        if self.closed:
            return
        try:
            data = self._socket.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return
        except OSError as problem:
            self._lose(FaultKind.CONNECTION_RESET, str(problem))
            return
        now_ns = time.perf_counter_ns()
        if not data:
            self._lose(FaultKind.CONNECTION_CLOSED, "the server hung up")
            return
        sender = self.sender
        # Requests that follow answers which came together are sent together, because a system call costs more than they
        # do.
        sender.corked = True
        try:
            self._read(self._unread + data if self._unread else data, now_ns)
        except Http2ConnectionError as problem:
            self._lose(FaultKind.PROTOCOL, str(problem))
            return
        if sender.next_stream >= LAST_STREAM and not self._ending:
            self._end_in_order(codec.MAX_WINDOW)
        if self._received >= REFILL_BYTES:
            sender.write(codec.frame(codec.WINDOW_UPDATE, 0, 0, codec.STREAM.pack(self._received)))
            self._received = 0
        sender.uncork()

    # -- frames

    def _read(self, data: bytes, now_ns: int) -> None:
        """Read all complete frames."""
        streams, unpack = self.sender.streams, codec.HEADER.unpack_from
        position, size = 0, len(data)
        while size - position >= codec.HEADER_BYTES:
            length, flags, stream = unpack(data, position)
            kind = length & 0xFF
            length >>= 8
            if length > codec.FRAME_BYTES:
                raise Http2ConnectionError(f"a frame of {length} bytes: {data[position:]!r}")
            begin = position + codec.HEADER_BYTES
            end = begin + length
            if end > size:
                break
            position = end
            content = data[begin:end]
            slot = streams.get(stream)
            if kind > codec.HEADERS or slot is None or flags & _UNUSUAL or self._block is not None:
                self._read_unusual(kind, flags, stream & codec.MAX_WINDOW, content, now_ns)
            elif kind == codec.DATA:
                self._received += length
                self._read_data(slot, flags, content, now_ns)
            else:
                self._read_headers(slot, stream, flags, content, now_ns)
            if self.closed:
                return
        self._unread = data[position:] if position < size else b""

    def _read_data(self, slot: StreamSlot, flags: int, content: bytes, now_ns: int) -> None:
        if not slot.body:
            slot.body = content
        elif len(slot.body) + len(content) > codec.PREFIX_BYTES + MAX_ANSWER_BYTES:
            self.sender.abandon(slot)
            sample = f"an answer of more than {MAX_ANSWER_BYTES >> 20} MB"
            self._issuer.refused(slot, now_ns, FaultKind.PROTOCOL, sample, keep=self._keep(slot))
            return
        elif isinstance(slot.body, bytearray):
            slot.body += content
        else:
            slot.body = bytearray(slot.body) + content
        if flags & codec.END_STREAM:
            self._finish(slot, codec.NO_FIELDS, now_ns)

    def _read_headers(self, slot: StreamSlot | None, stream: int, flags: int, block: bytes, now_ns: int) -> None:
        if not flags & codec.END_HEADERS:
            self._block = stream, flags, block
            return
        if slot is None:
            # Belongs to a request that was given up; without a table it need not be read.
            return
        blocks = self._shared.blocks
        fields = blocks.known.get(block) or blocks.read(block)
        if flags & codec.END_STREAM:
            self._finish(slot, fields, now_ns)
        # Several interim answers (1xx) may precede the answer.
        elif slot.head is None or slot.head.status.startswith(b"1"):
            slot.head = fields
        else:
            raise Http2ConnectionError("a second header block in the middle of an answer")

    def _read_unusual(self, kind: int, flags: int, stream: int, content: bytes, now_ns: int) -> None:
        """Read a frame that is not simply part of the answer to a request in flight."""
        if self._block is not None or kind == codec.CONTINUATION:
            self._continue(kind, flags, stream, content, now_ns)
        elif kind > codec.HEADERS:
            self._read_control(kind, flags, stream, content, now_ns)
        elif not stream & 1 or stream >= self.sender.next_stream:
            raise Http2ConnectionError(f"an answer to no request, on stream {stream}")
        elif kind == codec.HEADERS:
            self._read_headers(
                self.sender.streams.get(stream), stream, flags, codec.unpadded(kind, flags, content), now_ns
            )
        else:
            self._received += len(content)
            content = codec.unpadded(kind, flags, content)
            slot = self.sender.streams.get(stream)
            if slot is not None:
                self._read_data(slot, flags, content, now_ns)

    def _continue(self, kind: int, flags: int, stream: int, content: bytes, now_ns: int) -> None:
        if self._block is None or kind != codec.CONTINUATION or stream != self._block[0]:
            raise Http2ConnectionError("a header block that is interrupted, or has no begin")
        _, first_flags, block = self._block
        block += content
        if len(block) > BLOCK_BYTES:
            raise Http2ConnectionError(f"a header block of more than {BLOCK_BYTES} bytes")
        self._block = None
        self._read_headers(
            self.sender.streams.get(stream), stream, first_flags | flags & codec.END_HEADERS, block, now_ns
        )

    def _read_control(self, kind: int, flags: int, stream: int, content: bytes, now_ns: int) -> None:
        if not self._ready and (kind != codec.SETTINGS or flags & codec.ACK):
            raise Http2ConnectionError(f"a server begins with SETTINGS, not with a frame of type {kind}")
        codec.check_control(kind, stream, content)
        if kind == codec.SETTINGS and not flags & codec.ACK:
            self._read_settings(content)
        elif kind == codec.PING and not flags & codec.ACK:
            self.sender.write(codec.frame(codec.PING, codec.ACK, 0, content))
        elif kind == codec.WINDOW_UPDATE:
            self.sender.widen(stream, codec.STREAM.unpack(content)[0] & codec.MAX_WINDOW)
        elif kind == codec.RST_STREAM:
            self._read_reset(stream, codec.STREAM.unpack(content)[0], now_ns)
        elif kind == codec.GOAWAY:
            last_stream, code = _GOAWAY.unpack_from(content)
            if code:
                debug = content[_GOAWAY.size :].decode(errors="replace")
                self._lose(FaultKind.CONNECTION_CLOSED, f"GOAWAY {codec.error_name(code)} {debug}".rstrip())
            else:
                self._end_in_order(last_stream & codec.MAX_WINDOW)

    def _read_settings(self, content: bytes) -> None:
        self.sender.apply(codec.read_settings(content))
        self.sender.write(codec.frame(codec.SETTINGS, codec.ACK, 0))
        if not self._ready:
            self._ready = True
            self._shared.reactor.cancel(self._timer)
            for slot in list(self._slots):
                self._welcome(slot)

    def _read_reset(self, stream: int, code: int, now_ns: int) -> None:
        slot = self.sender.streams.get(stream)
        if slot is not None:
            self.sender.free(slot)
            self._issuer.refused(
                slot, now_ns, "stream reset", f"RST_STREAM {codec.error_name(code)}", keep=self._keep(slot)
            )

    def _finish(self, slot: StreamSlot, trailers: Fields, now_ns: int) -> None:
        """Report a complete answer."""
        head, body, stream = slot.head or trailers, slot.body, slot.stream
        if not self.sender.free(slot):
            # The server does not want the rest of the request.
            self.sender.reset(stream, codec.NO_ERROR)
        keep = not self._ending or self._keep(slot)
        if (
            trailers.grpc_status == b"0"
            and head.status == b"200"
            and len(body) >= codec.PREFIX_BYTES
            and codec.PREFIX.unpack_from(body) == (0, len(body) - codec.PREFIX_BYTES)
        ):
            message = bytes(body[codec.PREFIX_BYTES :])
            if not (keep and self._repeat.again(slot, now_ns, message)):
                self._answered(slot, now_ns, message, keep)
        else:
            self._issuer.refused(slot, now_ns, *what_failed(head, trailers, body), keep=keep)


SLOTS: Final = 6
"""Most slots on one connection. Triton's own client library lets as many share a connection
(``TRITON_CLIENT_GRPC_CHANNEL_MAX_SHARE_COUNT``), so users load a server this way."""


class Http2:
    """The transport of gRPC: payloads and answers' bodies are serialised messages.

    The server's MAX_CONCURRENT_STREAMS is respected: if it is lower than a connection's slots, requests wait.

    Raises:
        OSError: The host is unknown.
    """

    def __init__(self, endpoint: Endpoint, reactor: Reactor, issuer: Issuer, connect_timeout_ns: int) -> None:
        self._shared = SharedByConnections(
            resolve(endpoint, ("h2",)),
            reactor,
            issuer,
            connect_timeout_ns,
            Requests(request_block(endpoint)),
            HeaderBlocks(),
        )
        self._connections: dict[Http2Connection, None] = {}
        self._roomy: dict[Http2Connection, None] = {}

    def open(self, place: int) -> Slot:
        """Begin to open a slot, on a connection with room or on a new one."""
        connection = next(iter(self._roomy), None) or Http2Connection(self._shared, self._changed)
        slot = connection.join(place)
        self._connections[connection] = None
        self._changed(connection)
        return slot

    def take_transfer(self) -> None:
        """Return None: frames of several requests are sent together, so none is timed."""

    def close(self) -> None:
        """Close all connections."""
        for connection in list(self._connections):
            connection.close()

    def _changed(self, connection: Http2Connection) -> None:
        if connection.closed:
            self._connections.pop(connection, None)
        if connection.takes_more and connection.slots < SLOTS:
            self._roomy[connection] = None
        else:
            self._roomy.pop(connection, None)
