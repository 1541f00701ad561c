"""Sends requests on an HTTP/2 connection, within the limits of windows, streams and the kernel."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.load.engine import http2_codec as codec
from pytest_gpuserve.load.engine.http2_codec import Http2ConnectionError
from pytest_gpuserve.load.engine.reactor import READABLE, WRITABLE
from pytest_gpuserve.load.engine.transport import Slot

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpuserve.load.engine.opening import Connected
    from pytest_gpuserve.load.engine.reactor import Reactor

SEND_BYTES: Final = 1 << 18
"""Bytes of bodies of several frames that are given to the kernel at once."""

IDLE_STREAM: Final = 0
WAITING_STREAM: Final = -1


class StreamSlot(Slot):
    """A slot with the state of its request's stream."""

    __slots__ = ("_sender", "body", "head", "rest", "stream", "window")

    def __init__(self, place: int, sender: RequestSender) -> None:
        super().__init__(place)
        self._sender = sender
        self.stream = IDLE_STREAM
        self.window = 0
        self.rest: memoryview | None = None
        self.clear()

    def clear(self) -> None:
        """Forget the answer."""
        self.head: codec.Fields | None = None
        self.body: bytes | bytearray = b""

    def send(self, payload: bytes) -> None:
        """Send a request; it waits if the server allows no more streams, or its windows are used up."""
        sender = self._sender
        prepared = sender.requests.known.get(payload)
        if (
            prepared is None
            or prepared.size > sender.window
            or prepared.size > sender.first_window
            or len(sender.streams) >= sender.most_streams
        ):
            sender.send_slowly(self, payload)
        else:
            sender.send(self, prepared)


class RequestSender:
    """Sends the requests of one connection."""

    def __init__(self, requests: codec.Requests, reactor: Reactor) -> None:
        self.requests = requests
        self.streams: dict[int, StreamSlot] = {}
        self.next_stream = 1
        self.window = codec.FIRST_WINDOW
        self.first_window = codec.FIRST_WINDOW
        self.most_streams = codec.MAX_WINDOW
        self.corked = False
        self._reactor = reactor
        self._largest_frame = codec.FRAME_BYTES
        self._pieces: list[bytes | memoryview] = []
        self._unsent = bytearray()
        self._uploads: list[StreamSlot] = []
        self._waiting: deque[tuple[StreamSlot, bytes]] = deque()
        self._socket: Connected | None = None
        self._handler: Callable[[int], None] = _nobody

    # -- the connection

    def open(self, connected: Connected, handler: Callable[[int], None]) -> None:
        """Begin to send, with HTTP/2's preface; the handler gets the socket's events."""
        self._socket = connected
        self._handler = handler
        self._reactor.watch(connected.fileno(), handler, READABLE)
        self.write(codec.PREFACE)

    def close(self) -> None:
        """Stop sending, and drop all requests and the event handler."""
        self._socket = None
        # All these hold us: without a garbage collector such a cycle stays for ever.
        self._handler = _nobody
        for slot in (*self.streams.values(), *(slot for slot, _ in self._waiting)):
            slot.stream = IDLE_STREAM
            slot.rest = None
            slot.clear()
        self.streams.clear()
        self._uploads.clear()
        self._waiting.clear()

    def apply(self, settings: list[tuple[int, int]]) -> None:
        """Apply the server's settings."""
        for name, value in settings:
            if name == codec.MAX_CONCURRENT_STREAMS:
                self.most_streams = value
            elif name == codec.MAX_FRAME_SIZE:
                self._largest_frame = value
            else:
                for slot in self._uploads:
                    slot.window += value - self.first_window
                self.first_window = value
        self._begin_waiting()

    def widen(self, stream: int, size: int) -> None:
        """Widen the window of one stream, or of the connection (0).

        Raises:
            Http2ConnectionError: The size is impossible.
        """
        window = 0
        if stream == 0:
            self.window = window = self.window + size
        else:
            slot = self.streams.get(stream)
            if slot is None:
                return
            # Without anything left to send, the window is not counted, because it would grow over all requests of a
            # slot.
            if slot.rest is not None:
                slot.window = window = slot.window + size
        if size == 0 or window > codec.MAX_WINDOW:
            raise Http2ConnectionError(f"a window is widened by {size} bytes to {window}")

    # -- requests

    def send(self, slot: StreamSlot, prepared: codec.Framed) -> None:
        """Send a request that fits into the windows."""
        stream = self.next_stream
        self.next_stream = stream + 2
        self.window -= prepared.size
        self.streams[stream] = slot
        slot.stream = stream
        number = codec.STREAM.pack(stream)
        self.write(b"".join((self.requests.begin, number, prepared.middle, number, prepared.tail)))

    def send_slowly(self, slot: StreamSlot, payload: bytes) -> None:
        """Send a request for the first time, or one that may not fit into the windows."""
        slot.stream = WAITING_STREAM
        self._waiting.append((slot, payload))
        self._begin_waiting()

    def free(self, slot: StreamSlot) -> bool:
        """End the stream of a slot and forget its answer; return whether its request was sent completely."""
        sent = slot.rest is None
        del self.streams[slot.stream]
        if not sent:
            self._uploads.remove(slot)
            slot.rest = None
        slot.stream = IDLE_STREAM
        slot.clear()
        if self._waiting:
            self._begin_waiting()
        return sent

    def abandon(self, slot: StreamSlot) -> None:
        """Cancel the request of a slot, if any."""
        stream = slot.stream
        if stream == WAITING_STREAM:
            self._waiting = deque(entry for entry in self._waiting if entry[0] is not slot)
            slot.stream = IDLE_STREAM
        elif stream != IDLE_STREAM:
            self.reset(stream, codec.CANCEL)
            self.free(slot)

    def reset(self, stream: int, code: int) -> None:
        """Tell the server to stop an answer."""
        self.write(codec.frame(codec.RST_STREAM, 0, stream, codec.STREAM.pack(code)))

    def _begin_waiting(self) -> None:
        """Begin waiting requests, as many as the server allows."""
        while self._waiting and len(self.streams) < self.most_streams:
            slot, payload = self._waiting.popleft()
            prepared = self.requests.prepare(payload)
            if prepared is not None and prepared.size <= min(self.window, self.first_window):
                self.send(slot, prepared)
            else:
                self._begin_upload(slot, payload)

    def _begin_upload(self, slot: StreamSlot, payload: bytes) -> None:
        """Begin a request whose body is sent frame by frame, as windows allow."""
        stream = self.next_stream
        self.next_stream = stream + 2
        self.streams[stream] = slot
        slot.stream = stream
        slot.window = self.first_window
        slot.rest = memoryview(codec.PREFIX.pack(0, len(payload)) + payload)
        self._uploads.append(slot)
        corked, self.corked = self.corked, True
        self.write(self.requests.head(stream))
        if not corked:
            self.uncork()

    # -- bytes

    def write(self, data: bytes) -> None:
        """Send bytes, and keep the rest if the kernel does not take all."""
        if self.corked:
            self._pieces.append(data)
            return
        if self._unsent:
            self._unsent += data
            return
        if self._socket is None:
            return
        try:
            count = self._socket.send(data)
        except BlockingIOError:
            count = 0
        except OSError:
            # The connection is broken; its next event tells how.
            return
        if count != len(data):
            self._unsent += memoryview(data)[count:]
            self._reactor.change(self._socket.fileno(), self._handler, READABLE | WRITABLE)

    def uncork(self) -> None:
        """Send bytes that were collected while ``corked``, and bodies as far as windows and the kernel allow."""
        self.corked = False
        if self._socket is None or not (self._pieces or self._uploads):
            return
        pieces, self._pieces = self._pieces, []
        while True:
            if not self._unsent:
                self._cut(pieces)
            if not pieces:
                return
            self.write(b"".join(pieces))
            pieces = []

    def flush(self) -> None:
        """Continue to send, because the kernel takes bytes again."""
        if self._socket is None or not self._unsent:
            return
        try:
            with memoryview(self._unsent) as unsent:
                count = self._socket.send(unsent)
        except BlockingIOError:
            return
        except OSError:
            count = len(self._unsent)
        del self._unsent[:count]
        if not self._unsent:
            self._reactor.change(self._socket.fileno(), self._handler, READABLE)
            self.uncork()

    def _cut(self, pieces: list[bytes | memoryview]) -> None:
        """Cut frames from the bodies in progress."""
        room = SEND_BYTES
        for slot in list(self._uploads):
            while slot.rest is not None and room > 0:
                rest = slot.rest
                size = min(len(rest), slot.window, self.window, self._largest_frame, SEND_BYTES)
                if size <= 0:
                    break
                last = size == len(rest)
                flags = codec.END_STREAM if last else 0
                pieces.append(codec.HEADER.pack(size << 8 | codec.DATA, flags, slot.stream))
                pieces.append(rest[:size])
                slot.rest = None if last else rest[size:]
                slot.window -= size
                self.window -= size
                room -= size
                if last:
                    self._uploads.remove(slot)


def _nobody(_mask: int) -> None:
    """Ignore the events of a connection that is closed, or not open yet."""
