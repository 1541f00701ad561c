"""The queue of an in-process worker: slots on one Unix socket that speaks multiprocessing's messages.

A message is a 4-byte big-endian signed length and so many bytes (``multiprocessing.connection`` of Python's standard
library, which is the worker's end). A request is an 8-byte little-endian number and its body; an answer is the same
number, a status byte and its body. Answers come in any order.
"""

from __future__ import annotations

import socket
import struct
import time
from functools import partial
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.load.engine.opening import Connected, Opening, resolve
from pytest_gpuserve.load.engine.reactor import READABLE, WRITABLE, Reactor
from pytest_gpuserve.load.engine.transport import Issuer, Slot, Transport
from pytest_gpuserve.process.logs import begin_of
from pytest_gpuserve.process.queue_format import ERROR, GOOD, MAX_BODY_BYTES, NUMBER_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpuserve.load.wire import Endpoint

MAX_LATE: Final = 1 << 14
"""So many requests that timed out may still be answered; a worker that owes more is given up."""

_LENGTH_BYTES: Final = 4
_REQUEST: Final = struct.Struct(f">i{NUMBER_BYTES}s")
_ANSWER: Final = struct.Struct(f">i{NUMBER_BYTES}sB")
_MIN_LENGTH: Final = _ANSWER.size - _LENGTH_BYTES
_MAX_LENGTH: Final = _MIN_LENGTH + MAX_BODY_BYTES

_RECEIVE_BYTES: Final = 1 << 16
# A copy of so little costs less than the kernel's gathering.
_JOINED_BYTES: Final = 1 << 14
# Requests are known by their number as it goes over the wire; no request has this one.
_NOTHING: Final = b""


class QueueSlot(Slot):
    """One place in the queue: one request at a time."""

    __slots__ = ("connection", "key")

    def __init__(self, place: int, connection: QueueConnection) -> None:
        super().__init__(place)
        self.connection: QueueConnection | None = connection
        self.key = _NOTHING

    def send(self, payload: bytes) -> None:
        """Send a request, later if the socket is full: a worker that does not read is a slow worker."""
        connection = self.connection
        assert connection is not None
        connection.count += 1
        key = self.key = connection.count.to_bytes(NUMBER_BYTES, "little")
        connection.busy[key] = self
        # It fits into the length: what an engine can be told is far smaller (wire.MAX_MESSAGE_BYTES).
        header = _REQUEST.pack(NUMBER_BYTES + len(payload), key)
        if connection.unsent:
            connection.unsent[key] = [memoryview(header), memoryview(payload)]
            return
        try:
            count = (
                connection.send(header + payload)
                if len(payload) <= _JOINED_BYTES
                else connection.sendmsg((header, payload))
            )
        except OSError:
            # The socket is full; or the connection is broken, and its next event says how.
            count = 0
        if count != _REQUEST.size + len(payload):
            connection.send_later(key, _after(count, [memoryview(header), memoryview(payload)]))

    def expire(self, seconds: float) -> None:
        """Give up the request under way; its answer may still come."""
        now_ns = time.perf_counter_ns()
        connection = self.connection
        assert connection is not None
        if len(connection.late) >= MAX_LATE:
            connection.fail("timeout", f"the worker owes {MAX_LATE} answers to requests that timed out")
            return
        connection.give_up(self)
        connection.issuer.refused(self, now_ns, "timeout", f"no answer within {seconds:g} s", keep=True)

    def close(self) -> None:
        """Leave the queue."""
        if self.connection is not None:
            self.connection.leave(self)
            self.connection = None


class QueueConnection:
    """The connection that all slots share."""

    def __init__(self, worker: WorkerQueue) -> None:
        self.issuer = worker.issuer
        self.count = 0
        self.busy: dict[bytes, QueueSlot] = {}
        self.late: set[bytes] = set()
        self.unsent: dict[bytes, list[memoryview]] = {}
        self._worker = worker
        self._reactor = worker.reactor
        self._slots: dict[QueueSlot, None] = {}
        self._new: list[QueueSlot] = []
        self._pieces: list[bytes] = []
        self._have = 0
        self._needed = 0
        self._socket: socket.socket | None = None
        self._opening: Opening | None = Opening(
            worker.address, worker.reactor, worker.connect_timeout_ns, self._opened, self._not_opened
        )

    # -- slots

    def join(self, slot: QueueSlot) -> None:
        """Add a slot; its issuer hears ``ready`` when there is a connection."""
        self._slots[slot] = None
        self._new.append(slot)
        if self._socket is not None and len(self._new) == 1:
            self._reactor.at(time.perf_counter_ns(), self._tell_ready)

    def leave(self, slot: QueueSlot) -> None:
        """Remove a slot, and with the last one the connection."""
        if slot not in self._slots:
            # Its loss is about to be reported.
            return
        del self._slots[slot]
        if slot.key:
            self.give_up(slot)
        if not self._slots:
            self.close()

    def give_up(self, slot: QueueSlot) -> None:
        """Stop waiting for a slot's answer."""
        key, slot.key = slot.key, _NOTHING
        del self.busy[key]
        if key in self.unsent and key != next(iter(self.unsent)):
            del self.unsent[key]
        else:
            # Of the first that is unsent a part may be sent, so the rest has to follow.
            self.late.add(key)

    def close(self) -> None:
        """Close without a report to the issuer."""
        self._worker.forget(self)
        if self._opening is not None:
            self._opening.cancel()
            self._opening = None
        if self._socket is not None:
            self._reactor.close_later(self._socket)
            self._socket = None
        # Slots and their connection know each other: nobody collects garbage in an engine.
        for slot in self._slots:
            slot.connection = None
        self._slots.clear()
        self._new.clear()
        self.busy.clear()
        self.unsent.clear()
        self._pieces.clear()

    def fail(self, kind: str, sample: str) -> None:
        """Close, and report the loss of every slot.

        An open slot without a request under way has lost nothing; but if there are no others, one of them gets the
        report of a worker that breaks the protocol.
        """
        new = set(self._new)
        unheard = kind == "protocol" and not (self.busy or new)
        for slot in self._lose():
            struck = unheard or slot.key or slot in new
            unheard = False
            slot.key = _NOTHING
            self.issuer.lost(slot, *(kind, sample) if struck else ("", ""))

    def _lose(self) -> Iterator[QueueSlot]:
        """Close, and yield the slots whose loss is to be reported."""
        slots, self._slots = self._slots, {}
        self.close()
        for slot in slots:
            # The issuer may close others, or all, when it hears of one.
            if slot.connection is not None and not self._worker.closed:
                slot.connection = None
                yield slot

    # -- opening

    def _opened(self, connected: Connected) -> None:
        assert isinstance(connected, socket.socket)
        self._opening = None
        self._socket = connected
        self._recv = connected.recv
        self.send = connected.send
        self.sendmsg = connected.sendmsg
        self._reactor.watch(connected.fileno(), self._happened, READABLE)
        self._tell_ready()

    def _not_opened(self, kind: str, sample: str) -> None:
        self._opening = None
        for slot in self._lose():
            self.issuer.lost(slot, kind, sample)

    def _tell_ready(self) -> None:
        slots, self._new = self._new, []
        for slot in slots:
            if slot.connection is not None:
                self.issuer.ready(slot)

    # -- sending

    def send_later(self, key: bytes, rest: list[memoryview]) -> None:
        """Send the rest of a request when the socket has room."""
        assert self._socket is not None
        self.unsent[key] = rest
        self._reactor.change(self._socket.fileno(), self._happened, READABLE | WRITABLE)

    def _flush(self) -> None:
        assert self._socket is not None
        while self.unsent:
            key, rest = next(iter(self.unsent.items()))
            rest = self.unsent[key] = _after(self.sendmsg(rest), rest)
            if rest:
                return
            del self.unsent[key]
        self._reactor.change(self._socket.fileno(), self._happened, READABLE)

    # -- receiving

    def _happened(self, mask: int) -> None:
        if mask != WRITABLE:
            self._receive()
        if mask & WRITABLE and self.unsent:
            try:
                self._flush()
            except BlockingIOError:
                return
            except OSError as problem:
                # As long as there is something to read, that says more.
                if not mask & READABLE:
                    self._ended(problem)

    def _receive(self) -> None:
        try:
            data = self._recv(_RECEIVE_BYTES)
        except BlockingIOError:
            return
        except OSError as problem:
            self._ended(problem)
            return
        now_ns = time.perf_counter_ns()
        if not data:
            self._ended(None)
            return
        if self._have:
            self._pieces.append(data)
            self._have += len(data)
            if self._have < self._needed:
                return
            data = b"".join(self._pieces)
            self._pieces.clear()
            self._have = 0
        self._parse(data, now_ns)

    def _parse(self, data: bytes, now_ns: int) -> None:
        """Report all complete answers, and keep the rest."""
        issuer, busy = self.issuer, self.busy
        begin, end = 0, len(data)
        while end - begin >= _ANSWER.size:
            length, key, status = _ANSWER.unpack_from(data, begin)
            next_begin = begin + _LENGTH_BYTES + length
            if next_begin > end or length < _MIN_LENGTH:
                break
            if status > ERROR:
                self.fail("protocol", f"an answer with status byte {status}, where 0 is good and 1 an error")
                return
            slot = busy.pop(key, None)
            if slot is not None:
                slot.key = _NOTHING
                body = data[begin + _ANSWER.size : next_begin]
                if status == GOOD:
                    issuer.answered(slot, now_ns, body, True)  # noqa: FBT003 -- see ``Issuer``
                else:
                    issuer.refused(slot, now_ns, "worker error", partial(_said, body), keep=True)
                # The issuer may end it all from within.
                if self._socket is None:
                    return
            elif key in self.late:
                self.late.discard(key)
            else:
                number = int.from_bytes(key, "little")
                self.fail("protocol", f"an answer to request {number}, which waits for none")
                return
            begin = next_begin
        if begin != end:
            self._keep(data[begin:])

    def _keep(self, rest: bytes) -> None:
        """Keep the begin of an answer, if it can be one."""
        self._needed = _LENGTH_BYTES
        if len(rest) >= _LENGTH_BYTES:
            length = int.from_bytes(rest[:_LENGTH_BYTES], "big", signed=True)
            if not _MIN_LENGTH <= length <= _MAX_LENGTH:
                self.fail("protocol", f"a message of {length} bytes; an answer has {_MIN_LENGTH} to {_MAX_LENGTH}")
                return
            self._needed += length
        self._pieces.append(rest)
        self._have = len(rest)

    def _ended(self, problem: OSError | None) -> None:
        """Report what the end of the connection means."""
        if self._have:
            self.fail("incomplete answer", f"the connection ended after {self._have} bytes of an answer")
        elif problem is None:
            self.fail("connection closed", "before the answer")
        else:
            self.fail("connection reset", str(problem))


class WorkerQueue(Transport):
    """The transport to an in-process worker's queue."""

    def __init__(self, endpoint: Endpoint, reactor: Reactor, issuer: Issuer, connect_timeout_ns: int) -> None:
        self.address = resolve(endpoint)
        self.reactor = reactor
        self.issuer = issuer
        self.connect_timeout_ns = connect_timeout_ns
        self.closed = False
        self._connection: QueueConnection | None = None

    def open(self, place: int) -> Slot:
        """Begin to open a slot; the first one opens the connection."""
        if self._connection is None:
            self._connection = QueueConnection(self)
        slot = QueueSlot(place, self._connection)
        self._connection.join(slot)
        return slot

    def take_transfer(self) -> None:
        """Return None: transfers are not timed."""

    def close(self) -> None:
        """Close the connection, and all slots with it, for good."""
        self.closed = True
        if self._connection is not None:
            self._connection.close()

    def forget(self, connection: QueueConnection) -> None:
        """Drop a connection that is gone; the next slot opens another."""
        if self._connection is connection:
            self._connection = None


def _after(count: int, parts: list[memoryview]) -> list[memoryview]:
    """Return what is left of the parts after so many bytes."""
    while parts and count >= len(parts[0]):
        count -= len(parts[0])
        parts = parts[1:]
    return [parts[0][count:], *parts[1:]] if parts else []


def _said(body: bytes) -> str:
    return begin_of(body).decode(errors="replace")
