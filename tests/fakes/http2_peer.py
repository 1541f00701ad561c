"""The other side of the gRPC transport, without a network: a server's frames, and a user of one slot."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import hpack

from pytest_gpuserve.load.engine import http2_codec as codec
from pytest_gpuserve.load.engine.http1 import RECEIVE_BYTES
from pytest_gpuserve.load.engine.http2 import Http2
from pytest_gpuserve.load.engine.http2_codec import DATA, END_HEADERS, END_STREAM, HEADERS, frame
from pytest_gpuserve.load.engine.transport import text_of
from pytest_gpuserve.load.wire import Endpoint
from tests.fakes.http_connection import User

if TYPE_CHECKING:
    from pytest_gpuserve.load.engine.transport import Sample, Slot
    from tests.fakes.http_connection import Event

ENDPOINT = Endpoint("grpc", "127.0.0.1", 1, rpc="/fake.Fake/Echo")


def transport(_endpoint: Endpoint, *given: Any, **_: object) -> Http2:  # noqa: ANN401 -- as the transport takes it
    """Make a transport of gRPC for a `User`."""
    return Http2(ENDPOINT, *given)


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


class Caller(User):
    """A user of one slot of gRPC, which has made a first call.

    Args:
        settings: Settings with which the server begins.
        more: Arguments of `User`.
    """

    def __init__(self, *settings: tuple[int, int], **more: Any) -> None:  # noqa: ANN401 -- as a user takes it
        super().__init__(transport=transport, **more)
        self.receive(codec.settings(*settings))

    def receive(self, *pieces: bytes, end: bool | OSError = False) -> list[Event]:
        """Deliver the pieces, as large as they are read at once."""
        parts = (piece[at : at + RECEIVE_BYTES] for piece in pieces for at in range(0, len(piece), RECEIVE_BYTES))
        return super().receive(*parts, end=end)

    def refused(self, slot: Slot, now_ns: int, kind: str, sample: Sample, *, keep: bool) -> None:
        """Note it, and go on."""
        text = text_of(sample)
        self.samples.append(text)
        super().refused(slot, now_ns, kind, lambda: text, keep=keep)

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
