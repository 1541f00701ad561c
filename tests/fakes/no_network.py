"""Openings, sockets and a reactor of a test, in place of the network below a transport of the load engine."""

from __future__ import annotations

from itertools import chain, pairwise, repeat
from typing import TYPE_CHECKING, cast

from pytest_gpuserve.load.engine.reactor import Reactor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pytest_gpuserve.load.engine.opening import Connected
    from pytest_gpuserve.load.engine.transport import Slot, Stream

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


def room_for(count: int | None) -> Iterator[int | OSError]:
    """Room for so many bytes at most, and for no more until the test makes some again; None for all."""
    return iter(()) if count is None else chain([count], repeat(BlockingIOError()))


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


class NoStreams:
    """An issuer of requests whose answers are whole bodies; it never repeats one."""

    def chunk(self, now_ns: int, before_ns: int) -> None:
        """Not called: answers are whole bodies."""
        raise AssertionError

    def streamed(self, slot: Slot, now_ns: int, stream: Stream, body: bytes, *, keep: bool) -> None:
        """Not called: answers are whole bodies."""
        raise AssertionError

    def resent(self, slot: Slot) -> bytes:
        """Nothing is sent again."""
        raise AssertionError
