"""Ends of gRPC connections: reports to slots that were not open yet, and the release of all memory."""

from __future__ import annotations

import gc
import socket
import struct
import weakref
from typing import TYPE_CHECKING

import pytest

from pytest_gpuserve.load.engine import http2_codec as codec
from pytest_gpuserve.load.engine.http2 import Http2
from pytest_gpuserve.load.engine.http2_codec import GOAWAY, frame
from pytest_gpuserve.load.engine.reactor import Reactor
from pytest_gpuserve.load.wire import Endpoint
from tests.fakes.http2_peer import Recorder, head, number, right
from tests.load.loading import run_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpuserve.load.engine.http2 import Http2Connection

SECOND_NS = 1_000_000_000
GOODBYE = frame(GOAWAY, 0, 0, number(3) + number(codec.NO_ERROR))


class Real:
    """A transport over a real socket, whose other end is the test."""

    def __init__(self) -> None:
        self.reactor = Reactor()
        self.issuer = Recorder()
        self.listener = socket.create_server(("127.0.0.1", 0))
        endpoint = Endpoint("grpc", "127.0.0.1", self.listener.getsockname()[1], rpc="/fake.Fake/Echo")
        self.transport = Http2(endpoint, self.reactor, self.issuer, 60 * SECOND_NS)
        self.peer: socket.socket | None = None

    def end(self) -> None:
        """Give back all that is open."""
        self.transport.close()
        self.reactor.close()
        self.listener.close()
        if self.peer is not None:
            self.peer.close()

    def busy_connection(self) -> weakref.ref[Http2Connection]:
        """Four slots: one sends a body without room, one waits for its answer, one for a stream, one is idle."""
        slots = [self.transport.open(place) for place in range(4)]
        self.peer = self.listener.accept()[0]
        self.peer.sendall(codec.settings((codec.MAX_CONCURRENT_STREAMS, 2)))
        run_until(self.reactor, lambda: len(self.issuer.slots) == 4)
        for slot, payload in zip(slots, (bytes(1 << 20), b"x", b"x"), strict=False):
            self.issuer.send(slot, payload)
        return weakref.ref(slots[0]._connection)  # type: ignore[attr-defined]


@pytest.fixture
def real() -> Iterator[Real]:
    """A transport without garbage collection."""
    gc.collect()
    gc.disable()
    real = Real()
    try:
        yield real
    finally:
        real.end()
        gc.enable()


SAID = {
    "goodbye": GOODBYE + right(1) + right(3),
    "an error": frame(GOAWAY, 0, 0, number(0) + number(11)),
    "in mid-answer": head(3),
    "nonsense": head(3, b"\xff\xff\xff\xff"),
}


@pytest.mark.parametrize("ending", [*SAID, "reset", "slots closed", "transport closed"])
def test_a_connection_that_has_ended_is_let_go(real: Real, ending: str) -> None:
    """After any end, with any requests in flight, an engine without garbage collection keeps no part of it."""
    connection = real.busy_connection()
    sender = weakref.ref(connection().sender)  # type: ignore[union-attr]  # it is alive
    assert real.peer is not None
    real.peer.sendall(SAID.get(ending, b""))
    if ending == "in mid-answer":
        real.peer.shutdown(socket.SHUT_WR)
    elif ending == "reset":
        real.peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        real.peer.close()
    elif ending == "slots closed":
        # A name of the loop would keep the last slot.
        while real.issuer.slots:
            real.issuer.slots.pop().close()
    elif ending == "transport closed":
        real.transport.close()
    if not ending.endswith("closed"):
        run_until(real.reactor, lambda: len(real.issuer.gone) == 4)
    for known in (real.issuer.slots, real.issuer.busy, real.issuer.gone):
        known.clear()
    assert (connection(), sender()) == (None, None)
