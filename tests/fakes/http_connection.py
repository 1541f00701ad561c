"""A user of a slot of HTTP/1.1, and openings, sockets and a reactor in place of the network below it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any, cast

from pytest_gpuserve.load.engine.http1 import Http1, HttpConnection, KnownAnswers
from pytest_gpuserve.load.engine.opening import Connected
from pytest_gpuserve.load.engine.reactor import PEER_CLOSED, READABLE, Reactor
from pytest_gpuserve.load.engine.tick_counters import TickCounters
from pytest_gpuserve.load.engine.transport import Repeat, Sample, Slot, Stream, text_of
from pytest_gpuserve.load.wire import Endpoint

Event = tuple[object, ...]

PAYLOAD = b"request"


def cut(data: bytes, places: Iterable[int]) -> list[bytes]:
    """Cut data at these places, wherever they are; no piece is empty."""
    ends = sorted({place % (len(data) + 1) for place in places} | {0, len(data)})
    return [data[begin:end] for begin, end in pairwise(ends)]


class FakeSocket:
    """Receives what the test puts into it, and takes as much as the test allows.

    Args:
        room: Bytes that each call of ``send`` takes, all after the last one; an exception is raised.
    """

    def __init__(self, room: Iterable[int | OSError] = ()) -> None:
        self.arriving: list[bytes | OSError] = []
        self.sends: list[bytes] = []
        self.closed = False
        self.room = iter(room)

    @property
    def sent(self) -> bytes:
        """All that was sent."""
        return b"".join(self.sends)

    def fileno(self) -> int:
        """Return no real number."""
        return -2

    def close(self) -> None:
        """Note it."""
        assert not self.closed
        self.closed = True

    def recv(self, size: int) -> bytes:
        """Give the next piece."""
        assert not self.closed
        piece = self.arriving.pop(0) if self.arriving else BlockingIOError()
        if isinstance(piece, OSError):
            raise piece
        if len(piece) > size:
            self.arriving.insert(0, piece[size:])
        return piece[:size]

    def send(self, data: bytes | memoryview) -> int:
        """Take what there is room for."""
        assert not self.closed
        room = next(self.room, len(data))
        if isinstance(room, OSError):
            raise room
        self.sends.append(bytes(data[:room]))
        return min(room, len(data))


class FakeReactor(Reactor):
    """Remembers the watched events, and does nothing by itself.

    It closes at once, because no socket here has a number that another could take.
    """

    def __init__(self) -> None:
        self.events = 0
        self.handler: Callable[[int], None]

    def watch(self, fd: int, handler: Callable[[int], None], events: int) -> None:
        """Note what is waited for."""
        self.handler, self.events = handler, events

    change = watch

    def close_later(self, sock: object) -> None:
        """Close it."""
        self.events = 0
        cast("FakeSocket", sock).close()


class FakeOpening:
    """A connection that opens when the test says so."""

    def __init__(self, *args: object) -> None:
        self.opened = cast("Callable[[Connected], None]", args[3])

    def cancel(self) -> None:
        """Nothing is on its way."""


class _AnyAnswer(dict[bytes, "list[int | bytes]"]):
    """Counts of answers as if each had come before; each count has its answer beside it."""

    def __missing__(self, body: bytes) -> list[int | bytes]:
        return self.setdefault(body, [0, body])

    def get(self, body: bytes) -> list[int | bytes]:  # type: ignore[override]  # there is always one
        """Return the count of an answer."""
        return self[body]


class User:
    """The loop of one slot, which sends the next request as soon as one has ended, and keeps a record.

    Args:
        known: Recognised answers, shared with another user's slot; None shares them with none.
        remembers: Whether answers are remembered at all.
        room: Room of its socket.
        goes_on: Whether the next request follows an answer.
        payload: The request.
        transport: Maker of the slot's transport.
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
        repeats: bool = False,
    ) -> None:
        self.events: list[Event] = []
        self.samples: list[str] = []
        self.requests = 0
        self.counters = TickCounters()
        self._goes_on = goes_on
        self._payload = payload
        self.repeat = Repeat(self._repeated, lambda _: None)
        if repeats:
            self.repeat.payload, self.repeat.size, self.repeat.end = payload, len(payload), 1 << 62
            self.repeat.counts = cast("Any", _AnyAnswer())
        self.reactor = FakeReactor()
        endpoint = Endpoint("http", "127.0.0.1", 1)
        self.transport = transport(endpoint, self.reactor, self, 1)
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

    # -- for its slot

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

    def chunk(self, now_ns: int, before_ns: int) -> None:
        """Not called: answers are whole bodies."""
        raise AssertionError

    def streamed(self, slot: Slot, now_ns: int, stream: Stream, body: bytes, *, keep: bool) -> None:
        """Not called: answers are whole bodies."""
        raise AssertionError

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
