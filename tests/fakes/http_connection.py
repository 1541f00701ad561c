"""A user of a slot of HTTP/1.1 without a network."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, cast

from pytest_gpuserve.load.engine.http1 import Http1, HttpConnection, KnownAnswers
from pytest_gpuserve.load.engine.reactor import PEER_CLOSED, READABLE
from pytest_gpuserve.load.engine.transport import Repeat, text_of
from pytest_gpuserve.load.wire import Endpoint
from tests.fakes.no_network import PAYLOAD, FakeOpening, FakeReactor, FakeSocket, NoStreams

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pytest_gpuserve.load.engine.transport import Sample, Slot

Event = tuple[object, ...]


class _AnyAnswer(dict[bytes, "list[int | bytes]"]):
    """Counts of answers as if each had come before; each count has its answer beside it."""

    def __missing__(self, body: bytes) -> list[int | bytes]:
        return self.setdefault(body, [0, body])

    def get(self, body: bytes) -> list[int | bytes]:  # type: ignore[override]  # there is always one
        """Return the count of an answer."""
        return self[body]


class User(NoStreams):
    """The issuer of one slot, which sends the next request as soon as one has ended, and keeps a record.

    Args:
        known: Recognised answers, shared with another user's slot; None shares them with none.
        remembers: Whether answers are remembered at all.
        room: Room of its socket.
        goes_on: Whether the next request follows an answer.
        payload: The request.
        transport: Maker of the slot's transport.
        asks_to_close: Whether the payload asks the server to close the connection.
        repeats: Whether the slot sends the next request by itself; the record is the same.
    """

    def __init__(
        self,
        *,
        known: KnownAnswers | None = None,
        remembers: bool = True,
        room: Iterable[int | OSError] = (),
        goes_on: bool = True,
        payload: bytes = PAYLOAD,
        transport: Callable[..., Http1] = Http1,
        asks_to_close: bool = False,
        repeats: bool = False,
    ) -> None:
        self.events: list[Event] = []
        self.samples: list[str] = []
        self.requests = 0
        self._goes_on = goes_on
        self._payload = payload
        self.repeat = Repeat(self._repeated, lambda _: None)
        if repeats:
            self.repeat.payload, self.repeat.size, self.repeat.end = payload, len(payload), 1 << 62
            self.repeat.counts = cast("Any", _AnyAnswer())
        self.reactor = FakeReactor()
        endpoint = Endpoint("http", "127.0.0.1", 1)
        self.transport = transport(endpoint, self.reactor, self, 1, asks_to_close=asks_to_close)
        if known is not None:
            self.transport.known = known
        if not remembers:
            self.transport.remember = lambda *_: None  # type: ignore[method-assign]
        self.slot = cast("HttpConnection", self.transport.open(0))
        self.socket = FakeSocket(room)
        self.slot._opened(cast("Any", self.socket))

    def _send(self) -> None:
        self.requests += 1
        self.slot.sent_ns = time.perf_counter_ns()
        self.slot.send(self._payload)

    def _repeated(self, _latency_ns: int) -> None:
        self.requests += 1
        self.events.append(("answered", cast("bytes", self.repeat.count[1]), True))

    # -- Issuer

    def ready(self, slot: Slot) -> None:
        """Send the first request."""
        self._send()

    def answered(self, slot: Slot, now_ns: int, body: bytes, keep: bool) -> None:  # noqa: FBT001 -- the interface's
        """Note it, and go on."""
        self.events.append(("answered", body, keep))
        if keep and self._goes_on:
            self._send()

    def refused(self, slot: Slot, now_ns: int, kind: str, sample: Sample, *, keep: bool) -> None:
        """Note it, and go on."""
        assert callable(sample), "an error is made text only where somebody asks"
        self.events.append(("refused", kind, text_of(sample), keep))
        if keep and self._goes_on:
            self._send()

    def lost(self, slot: Slot, kind: str, sample: str) -> None:
        """Note it."""
        self.events.append(("lost", kind))
        self.samples.append(sample)

    def resent(self, slot: Slot) -> bytes:
        """Note it."""
        self.events.append(("resent",))
        return self._payload

    # -- the network

    def event(self, mask: int) -> None:
        """Deliver an event, as the reactor would."""
        if self.reactor.events:
            self.reactor.handler(mask)

    def receive(self, *pieces: bytes, end: bool | OSError = False) -> list[Event]:
        """Deliver the pieces, and the end of the connection or what broke it; returns the record so far."""
        for piece in (*pieces, *([b""] if end is True else [end] if end else [])):
            self.socket.arriving.append(piece)
            self.event(READABLE if piece else READABLE | PEER_CLOSED)
        return self.events

    def reopen(self) -> None:
        """Open the connection on which a request is to be sent again."""
        assert self.socket.closed
        self.socket = FakeSocket()
        cast("FakeOpening", self.slot._opening).opened(cast("Any", self.socket))

    @property
    def ended(self) -> int:
        """Requests that have ended."""
        return len(self.events) - self.events.count(("resent",))
