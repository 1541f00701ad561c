"""The other side of the gRPC transport, without a network: a server's frames, a connection, an issuer."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, cast
from unittest import mock

import hpack

from pytest_gpuserve.load.engine import http2
from pytest_gpuserve.load.engine import http2_codec as codec
from pytest_gpuserve.load.engine.http2 import Http2
from pytest_gpuserve.load.engine.http2_codec import DATA, END_HEADERS, END_STREAM, HEADERS, frame
from pytest_gpuserve.load.engine.reactor import READABLE
from pytest_gpuserve.load.engine.transport import Repeat, text_of
from pytest_gpuserve.load.wire import Endpoint
from tests.fakes.no_network import PAYLOAD, FakeOpening, FakeReactor, FakeSocket, NoStreams

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpuserve.load.engine.opening import Connected
    from pytest_gpuserve.load.engine.transport import Sample, Slot

SECOND_NS = 1_000_000_000
ENDPOINT = Endpoint("grpc", "127.0.0.1", 1, rpc="/fake.Fake/Echo")


def block(*fields: tuple[str, str]) -> bytes:
    """Encode a header block as a server does that keeps no table."""
    return hpack.Encoder().encode([(name, value, True) for name, value in fields])


HEAD = block((":status", "200"), ("content-type", "application/grpc"))
OK = block(("grpc-status", "0"))


def message(body: bytes, *, compressed: bool = False, length: int | None = None) -> bytes:
    """Put gRPC's prefix before a message; ``length`` is the announced one where that is a lie."""
    return struct.pack(">?I", compressed, len(body) if length is None else length) + body


def head(stream: int, fields: bytes = HEAD) -> bytes:
    """Serialise the begin of an answer."""
    return frame(HEADERS, END_HEADERS, stream, fields)


def end(stream: int, fields: bytes = OK) -> bytes:
    """Serialise the end of an answer."""
    return frame(HEADERS, END_HEADERS | END_STREAM, stream, fields)


def right(stream: int, body: bytes = b"right") -> bytes:
    """Serialise an answer; a long one has several frames."""
    data = message(body)
    pieces = [frame(DATA, 0, stream, data[place : place + 9_000]) for place in range(0, len(data), 9_000)]
    return head(stream) + b"".join(pieces) + end(stream)


def number(value: int) -> bytes:
    """Serialise four bytes."""
    return struct.pack(">I", value)


class Recorder(NoStreams):
    """An issuer that notes everything, and checks that nothing ends twice or at the wrong time.

    Args:
        again: How many requests it sends from within ``answered`` and ``refused``.
    """

    def __init__(self, again: int = 0) -> None:
        self.again = again
        self.repeat = Repeat(lambda _: None, lambda _: None)
        self.slots: list[Slot] = []
        self.busy: set[Slot] = set()
        self.gone: set[Slot] = set()
        self.sent = 0
        self.answers: list[tuple[int, bytes, bool]] = []
        self.failures: list[tuple[int, str, str, bool]] = []
        self.lost_idle: list[tuple[int, str]] = []
        self.then: Callable[[Slot], None] = lambda slot: None

    @property
    def kinds(self) -> list[str]:
        """Of all failures."""
        return [kind for _, kind, _, _ in self.failures]

    def send(self, slot: Slot, payload: bytes = PAYLOAD) -> None:
        """Send a request."""
        assert slot not in self.busy | self.gone
        self.busy.add(slot)
        self.sent += 1
        slot.send(payload)

    def ready(self, slot: Slot) -> None:
        """Note a slot."""
        assert slot not in self.slots
        self.slots.append(slot)

    def answered(self, slot: Slot, now_ns: int, body: bytes, keep: bool) -> None:  # noqa: FBT001 -- see ``Issuer``
        """Note an answer."""
        assert type(body) is bytes
        self.answers.append((slot.place, body, keep))
        self._ended(slot, keep=keep)

    def refused(self, slot: Slot, now_ns: int, kind: str, sample: Sample, *, keep: bool) -> None:
        """Note a failure."""
        self.failures.append((slot.place, kind, text_of(sample), keep))
        self._ended(slot, keep=keep)

    def lost(self, slot: Slot, kind: str, sample: str) -> None:
        """Note a lost slot."""
        assert slot not in self.gone
        self.gone.add(slot)
        if slot in self.busy:
            self.busy.remove(slot)
            assert kind
            self.failures.append((slot.place, kind, sample, False))
        else:
            self.lost_idle.append((slot.place, kind))
        self.then(slot)

    def _ended(self, slot: Slot, *, keep: bool) -> None:
        assert slot not in self.gone
        self.busy.remove(slot)
        if not keep:
            self.gone.add(slot)
        self.then(slot)
        if keep and self.again and slot not in self.gone:
            self.again -= 1
            self.send(slot)


class Bench:
    """A transport with one fake connection at a time.

    Args:
        slots: How many to open.
        again: See ``Recorder``.
        settings: That the server begins with; None leaves out its begin.
        endpoint: Of the transport.
    """

    def __init__(
        self,
        slots: int = 1,
        again: int = 0,
        settings: tuple[tuple[int, int], ...] | None = (),
        endpoint: Endpoint = ENDPOINT,
    ) -> None:
        self.reactor = FakeReactor()
        self.issuer = Recorder(again)
        self.socket = FakeSocket()
        self.transport = Http2(endpoint, self.reactor, self.issuer, SECOND_NS)
        self.openings: list[FakeOpening] = []
        self.slots = [self.open(place) for place in range(slots)]
        self.connect()
        if settings is not None:
            self.receive(codec.settings(*settings))

    def open(self, place: int) -> Slot:
        """Open a slot, of which nothing is told at once."""
        before = len(self.issuer.slots), len(self.issuer.gone)
        with mock.patch.object(http2, "Opening", self._opening):
            slot = self.transport.open(place)
        assert (len(self.issuer.slots), len(self.issuer.gone)) == before
        return slot

    def _opening(self, *args: object) -> FakeOpening:
        self.openings.append(FakeOpening(*args))
        return self.openings[-1]

    def connect(self) -> None:
        """Let the last connection attempt succeed."""
        self.openings[-1].opened(cast("Connected", self.socket))

    def receive(self, *pieces: bytes | OSError) -> None:
        """Deliver pieces; an empty one is the end."""
        self.socket.arriving += pieces
        while self.socket.arriving and not self.reactor.closed:
            self.reactor.handler(READABLE)

    def send(self, *places: int, payload: bytes = PAYLOAD) -> None:
        """Send a request on these slots, or on all."""
        for place in places or range(len(self.slots)):
            self.issuer.send(self.slots[place], payload)

    def sent_frames(self) -> list[tuple[int, int, int, bytes]]:
        """All frames that went out, each as type, flags, stream and content; forgets them."""
        data = b"".join(self.socket.sends).removeprefix(codec.PREFACE)
        self.socket.sends.clear()
        frames = []
        while data:
            length, flags, stream = codec.HEADER.unpack_from(data)
            content, data = data[9 : 9 + (length >> 8)], data[9 + (length >> 8) :]
            assert len(content) == length >> 8
            frames.append((length & 0xFF, flags, stream, content))
        return frames
