"""How connections of gRPC end: what slots are told that were not open yet, and that nothing of it stays."""

from __future__ import annotations

import gc
import socket
import struct
import weakref
from typing import TYPE_CHECKING
from unittest import mock

import pytest

from pytest_gpuserve.load.engine import http2_codec as codec
from pytest_gpuserve.load.engine.http2 import Http2
from pytest_gpuserve.load.engine.http2_codec import GOAWAY, frame
from pytest_gpuserve.load.engine.reactor import Reactor
from pytest_gpuserve.load.wire import Endpoint
from tests.fakes.http2_peer import Bench, Recorder, head, number, right
from tests.load.loading import run_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpuserve.load.engine.http2 import Http2Connection

SECOND_NS = 1_000_000_000
GOODBYE = frame(GOAWAY, 0, 0, number(3) + number(codec.NO_ERROR))


@pytest.mark.parametrize(
    ("ending", "kind"),
    [(GOODBYE, "connection closed"), (b"", "connection closed"), (ConnectionResetError("reset"), "connection reset")],
    ids=["goodbye", "hung up", "reset"],
)
def test_a_slot_that_waits_for_its_welcome_is_lost_with_a_reason(ending: bytes | OSError, kind: str) -> None:
    """A slot on an open connection that ends before its issuer heard of the slot was not idle: it never opened."""
    bench = Bench()
    bench.open(1)
    with mock.patch.object(bench.issuer, "lost", wraps=bench.issuer.lost) as lost:
        bench.receive(ending)
    told = {call.args[0].place: call.args[1:] for call in lost.call_args_list}
    assert (told[0] == ("", "")) == (kind == "connection closed")
    assert told[1][0] == kind
    assert told[1][1], "and the words"
    bench.reactor.pass_time()
    assert [slot.place for slot in bench.issuer.slots] == [0]


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
        """Of four slots one sends a body that has no room, one waits for its answer, one for a stream, one is idle."""
        slots = [self.transport.open(place) for place in range(4)]
        self.peer = self.listener.accept()[0]
        self.peer.sendall(codec.settings((codec.MAX_CONCURRENT_STREAMS, 2)))
        run_until(self.reactor, lambda: len(self.issuer.slots) == 4)
        for slot, payload in zip(slots, (bytes(1 << 20), b"x", b"x"), strict=False):
            self.issuer.send(slot, payload)
        return weakref.ref(slots[0]._connection)  # type: ignore[attr-defined]


@pytest.fixture
def real() -> Iterator[Real]:
    """A transport whose garbage nobody collects."""
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
    """However it ends, and whatever was under way: an engine, which collects no garbage, keeps nothing of it."""
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


@pytest.mark.parametrize("refused", [True, False], ids=["refused", "closed"])
def test_a_connection_that_never_opened_is_let_go(real: Real, *, refused: bool) -> None:
    """One that was refused, and one that was closed before the server said a word, leave nothing either."""
    if refused:
        real.listener.close()
    connection = weakref.ref(real.transport.open(0)._connection)  # type: ignore[attr-defined]
    if refused:
        run_until(real.reactor, lambda: bool(real.issuer.gone))
        assert real.issuer.lost_idle == [(0, "connection refused")]
        real.issuer.gone.clear()
    else:
        real.transport.close()
    assert connection() is None
