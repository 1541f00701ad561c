"""Loops of the load engine in a world without sockets, whose clock stands still until something happens."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import cast
from unittest import mock

from pytest_gpuserve.load.engine import closed_loop, loop, open_loop, transport
from pytest_gpuserve.load.engine.__main__ import make_loop
from pytest_gpuserve.load.engine.reactor import Reactor
from pytest_gpuserve.load.engine.tick_counters import TickCounters
from pytest_gpuserve.load.engine.transport import IDLE, Slot, Stream
from pytest_gpuserve.load.schedule import is_open
from pytest_gpuserve.load.wire import Plan
from pytest_gpuserve.measure.window import Window

MS = 1_000_000
HOUR_NS = 3_600_000 * MS
LONGEST_NS = 20_000 * MS
BODY = b"right"


@dataclass(frozen=True)
class Reply:
    """The server's reply to a request.

    Args:
        after_ns: Time from the send; None for never.
        kind: The error's kind; empty for a good answer.
        keep: Whether the connection stays.
        lost: Whether the connection is lost instead of an answer.
        first_ns: A stream's time to its first content from the send; None without content.
        tokens: Number of tokens that a stream reports, each in a chunk of its own.
        tail_ns: Time for which a stream goes on after its last content.
        is_stream: Whether it is a stream.
    """

    after_ns: int | None = 10 * MS
    kind: str = ""
    keep: bool = True
    lost: bool = False
    first_ns: int | None = None
    tokens: int | None = None
    tail_ns: int = 0
    is_stream: bool = False


@dataclass
class Sent:
    """A request that arrived at the server.

    Args:
        at_ns: Time of arrival.
        number: Number of the request.
        payload: Its bytes.
        place: Place of its slot.
        intended_ns: Time when it was due.
        end_ns: Time when the client had its end, or gave it up; None while it is under way.
        good: Whether it was answered well.
    """

    at_ns: int
    number: int
    payload: bytes
    place: int
    intended_ns: int
    end_ns: int | None = None
    good: bool = False


@dataclass
class Simulation:
    """Runs the loop of a plan as an engine does, against a server that is a function.

    Args:
        plan: The load.
        serve: Makes the reply to a request.
        opens: Time from the attempt at which a connection, by its number, opens or fails, and the error's kind.
        begin_ns: Begin of the load.
        most_slots: Number of slots that the limit on open files allows.
        stopped: Begin and end of a pause of the engine during which the server runs on.
    """

    plan: Plan
    serve: Callable[[Sent], Reply] = field(default=lambda _: Reply())
    opens: Callable[[int], tuple[int, str]] = field(default=lambda _: (0, ""))
    begin_ns: int = 1000 * MS
    most_slots: int = 10_000
    stopped: tuple[int, int] = (0, 0)

    def __post_init__(self) -> None:
        self.now_ns = 0
        self.sent: list[Sent] = []
        self.ticks: list[Window] = []
        self.opened: list[int] = []
        self.slots: set[SimulatedSlot] = set()
        self.most_opening = 0
        self.said = 0
        self.most_slots_at_once = 0
        self.ended_ns: int | None = None
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0
        self.counters = TickCounters(len(self.plan.payloads), self.plan.keep_answers)
        self.loop = make_loop(self.plan, cast("Reactor", self), self.counters, self.most_slots)
        self.loop.open_slot = self.open

    # -- the engine

    def run(self) -> Simulation:
        """Run to the load's end, within a limit."""
        if not self.now_ns:
            self.at(self.begin_ns, lambda: self.counters.begin(self.now_ns, 0))
            self.loop.begin(self.begin_ns, self._end)
            self.at(self.begin_ns + self.plan.tick_ns, self._tick)
        with ExitStack() as stack:
            for module in (loop, closed_loop, open_loop, transport):
                stack.enter_context(mock.patch.object(module, "time", self))
            while self.ended_ns is None and self._events and self._events[0][0] <= self.begin_ns + LONGEST_NS:
                when_ns, _, callback = heapq.heappop(self._events)
                if self.stopped[0] <= when_ns < self.stopped[1]:
                    when_ns = self.stopped[1]
                self.now_ns = max(self.now_ns, when_ns)
                callback()
        return self

    def _tick(self) -> None:
        self.loop.expire(self.now_ns)
        if self.ended_ns is None:
            self.close_tick()
            self.at(self.begin_ns + (len(self.ticks) + 1) * self.plan.tick_ns, self._tick)

    def _end(self) -> None:
        if self.ended_ns is None:
            self.ended_ns = self.now_ns
            self.close_tick(last=True)

    def close_tick(self, *, last: bool = False) -> Window:
        """End a tick now."""
        under_way = self.loop.under_way()
        tick = self.counters.close(self.now_ns, 0, under_way, open_loop=is_open(self.plan.schedule), last=last)
        self.ticks.append(tick)
        return self.ticks[-1]

    # -- the reactor, and the time

    def at(self, when_ns: int, callback: Callable[[], None]) -> None:
        """Call once, at this time."""
        self._count += 1
        heapq.heappush(self._events, (when_ns, self._count, callback))

    def perf_counter_ns(self) -> int:
        """Return the time."""
        return self.now_ns

    # -- the transport

    def open(self, place: int) -> Slot:
        """Begin to open a slot."""
        slot = SimulatedSlot(place, self)
        self.slots.add(slot)
        assert len({each.place for each in self.slots}) == len(self.slots), "two slots in one place"
        after_ns, kind = self.opens(len(self.opened))
        self.opened.append(self.now_ns)
        self.most_slots_at_once = max(self.most_slots_at_once, len(self.slots))
        self.most_opening = max(self.most_opening, sum(not each.ready for each in self.slots))
        self.at(self.now_ns + after_ns, lambda: slot.open(kind))
        return slot

    # -- what there was

    def busy(self, after_ns: int) -> int:
        """Return the number of requests under way so long after the begin."""
        at_ns = self.begin_ns + after_ns
        return sum(sent.at_ns <= at_ns and (sent.end_ns is None or at_ns < sent.end_ns) for sent in self.sent)

    @property
    def most_at_once(self) -> int:
        """Most requests that were ever under way; one that ends when another is sent is not."""
        changes = [(sent.at_ns, 1) for sent in self.sent]
        changes += [(sent.end_ns, -1) for sent in self.sent if sent.end_ns is not None]
        now = most = 0
        for _, change in sorted(changes):
            now += change
            most = max(most, now)
        return most

    @property
    def numbers(self) -> list[int]:
        """Numbers of the sent requests, in order."""
        return sorted(sent.number for sent in self.sent)

    @property
    def sends(self) -> list[int]:
        """Times of sends, from the begin."""
        return [sent.at_ns - self.begin_ns for sent in self.sent]

    @property
    def requests(self) -> int:
        """Good answers in all ticks."""
        return sum(tick.requests for tick in self.ticks)

    @property
    def errors(self) -> dict[str, int]:
        """Failures in all ticks."""
        errors: dict[str, int] = {}
        for tick in self.ticks:
            for kind, count in tick.errors.items():
                errors[kind] = errors.get(kind, 0) + count
        return errors

    @property
    def ended(self) -> int:
        """Requests answered or failed."""
        return self.requests + sum(self.errors.values())


class SimulatedSlot(Slot):
    """A connection to the server."""

    __slots__ = ("_request", "_simulation", "closed", "ready")

    def __init__(self, place: int, simulation: Simulation) -> None:
        super().__init__(place)
        self._simulation = simulation
        self._request: Sent | None = None
        self.ready = False
        self.closed = False

    def open(self, kind: str) -> None:
        """Be open, or fail to be."""
        if self.closed:
            return
        self.ready = True
        if kind:
            self.close()
            self._simulation.loop.lost(self, kind, "not opened")
        else:
            self._simulation.loop.ready(self)

    def send(self, payload: bytes) -> None:
        """Let the server see a request."""
        assert self.ready, "sent on a slot that is not open"
        assert not self.closed, "sent on a closed slot"
        assert self._request is None, "sent on a busy slot"
        simulation = self._simulation
        request = Sent(simulation.now_ns, self.number, payload, self.place, self.intended_ns)
        self._request = request
        simulation.sent.append(request)
        reply = simulation.serve(request)
        if reply.after_ns is not None:
            simulation.at(simulation.now_ns + reply.after_ns, lambda: self._reply(request, reply))

    def _reply(self, request: Sent, reply: Reply) -> None:
        if self._request is not request:
            return
        loop, now_ns = self._simulation.loop, self._simulation.now_ns
        self._finish()
        if not reply.keep or reply.lost:
            self.close()
        if reply.lost:
            loop.lost(self, reply.kind, "lost")
        elif reply.kind:
            loop.refused(self, now_ns, reply.kind, self._say, keep=reply.keep)
        else:
            request.good = True
            if reply.is_stream:
                first_ns = IDLE if reply.first_ns is None else request.at_ns + reply.first_ns
                last_ns = IDLE if reply.first_ns is None else now_ns - reply.tail_ns
                chunks = 0 if reply.first_ns is None else reply.tokens or 1
                stream = Stream(first_ns, last_ns, chunks, reply.tokens)
                loop.streamed(self, now_ns, stream, BODY, keep=reply.keep)
            elif not (reply.keep and loop.repeat.again(self, now_ns, BODY)):
                loop.answered(self, now_ns, BODY, reply.keep)

    def _say(self) -> str:
        self._simulation.said += 1
        return repr(BODY)

    def hang_up(self) -> None:
        """Be closed by the server in good order, while idle."""
        assert self._request is None, "a busy slot does not end in good order"
        if not self.closed:
            self.close()
            self._simulation.loop.lost(self, "", "")

    def expire(self, seconds: float) -> None:
        """Give up the request."""
        assert self._request is not None, "an idle slot does not expire"
        self._finish()
        self.close()
        self._simulation.loop.lost(self, "timeout", f"{seconds:g} s")

    def close(self) -> None:
        """Close without telling anybody."""
        if self._request is not None:
            self._finish()
        self.closed = True
        self._simulation.slots.discard(self)

    def _finish(self) -> None:
        assert self._request is not None
        self._request.end_ns = self._simulation.now_ns
        self._request = None
