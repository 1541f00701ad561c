"""The engine process: ``python -m pytest_gpuserve.load.engine OWNER``, with the process id of its owner.

It reads one ``Plan`` from standard input, answers ``Ready``, and reads ``Begin``. Then it loads the server until the
plan or its owner ends the load, and writes a ``Window`` to standard output at every tick's end. On ``Again`` it stops
sending, waits for answers to requests in flight, writes ``Ready`` and waits for another ``Begin``. At the end of
standard input the process exits; the owner, or the owner's death, closes that. The engine measures, without
conclusions.
"""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import select
import socket
import sys
import time
from typing import Final

import msgspec

from pytest_gpuserve.load.engine.closed_loop import ClosedLoop, ConversationLoop
from pytest_gpuserve.load.engine.http1 import ENDED_AFTER_FIRST, Http1
from pytest_gpuserve.load.engine.http2 import Http2
from pytest_gpuserve.load.engine.loop import OWN_FILES, Loop
from pytest_gpuserve.load.engine.open_loop import OpenLoop
from pytest_gpuserve.load.engine.pipes import (
    OWNER_SECONDS,
    STDIN,
    STDOUT,
    ReportsUnread,
    ReportWriter,
    read_order,
    read_plan,
)
from pytest_gpuserve.load.engine.reactor import READABLE, Reactor
from pytest_gpuserve.load.engine.streams import Streams
from pytest_gpuserve.load.engine.tick_counters import Beats, BusyClock, TickCounters
from pytest_gpuserve.load.request import choices_of
from pytest_gpuserve.load.schedule import Closed, Steps, is_open
from pytest_gpuserve.load.wire import Again, Begin, Order, Plan, Ready, frame

REST_NS: Final = 5_000_000_000
"""Longest wait for answers to sent requests before a load begins anew. A server works on for clients that hang up, and
some servers (mosec) remember such requests for ever. A stuck server is not waited for."""

COLLECT_NS: Final = 1_000_000_000
"""Shortest interval of garbage collections, because one takes milliseconds with thousands of slots."""


class LoadEngine:
    """An engine with its plan.

    Raises:
        socket.gaierror: The host is unknown.
        UnicodeError: The host is not a valid name.
        OSError: A file of the plan cannot be used; the text names it.
    """

    def __init__(self, plan: Plan, owner: int) -> None:
        self._plan = plan
        self._owner = owner
        self._reactor = Reactor()
        self._counters = TickCounters(len(plan.payloads), plan.keep_answers)
        self._loop = make_loop(plan, self._reactor, self._counters, _raise_file_limit() - OWN_FILES)
        self._loop.open_slot = make_transport(plan, self._reactor, self._loop).open
        self._next_tick_ns = 0
        self._beats = Beats()
        self._busy = BusyClock()
        self._losses = 0
        self._collected_ns = 0
        self._ended = False
        self._again: Order | None = None

    def run(self, begin_ns: int) -> Order | None:
        """Load the server from this time on; the engine must be closed afterwards.

        Returns:
            The order that has ended the load; None if it ended by itself, or the owner has ended.
        """
        self._reports = ReportWriter(self._reactor)
        self._reactor.watch(STDIN, self._input, READABLE)
        self._reactor.at(begin_ns, self._begin)
        self._loop.begin(begin_ns, self._last_tick)
        self._next_tick_ns = begin_ns + self._plan.tick_ns
        self._reactor.at(self._next_tick_ns, self._tick)
        self._reactor.run()
        self._loop.close()
        self._reports.flush(self._owner)
        return self._again

    def close(self) -> None:
        """Release its file descriptors, whether it has run or not."""
        self._reactor.close()
        self._busy.close()

    def _begin(self) -> None:
        now_ns, cpu_ns = time.perf_counter_ns(), time.process_time_ns()
        self._counters.begin(now_ns, cpu_ns)
        self._beats.begin(now_ns, self._busy.read_ns(cpu_ns))
        self._beat()

    def _beat(self) -> None:
        # As often as the durations have to be settled: at 10 000 requests/s that takes a fortieth of a millisecond.
        self._counters.settle()
        self._beats.look(time.perf_counter_ns(), self._busy.read_ns(time.process_time_ns()))
        self._reactor.at(self._beats.next_ns, self._beat)

    def _tick(self) -> None:
        # A fork of a killed owner may keep our standard input open.
        if self._ended or os.getppid() != self._owner:
            self._reactor.stop()
            return
        self._loop.expire(time.perf_counter_ns())
        if not self._ended:
            self._report(last=False)
            # Absolute times, so that the ticks do not drift, and fit those of other engines.
            self._next_tick_ns += self._plan.tick_ns
            self._reactor.at(self._next_tick_ns, self._tick)

    def _last_tick(self) -> None:
        if not self._ended:
            self._ended = True
            self._report(last=True)
            self._reactor.stop()

    def _report(self, *, last: bool) -> None:
        now_ns, cpu_ns = time.perf_counter_ns(), time.process_time_ns()
        # A pause of the engine belongs to the tick that ends now, even if its late beat comes after that.
        self._beats.look(now_ns, self._busy.read_ns(cpu_ns))
        # After a pause of the engine, this tick also covers those whose ends are past.
        overdue = max(0, (now_ns - self._next_tick_ns) // self._plan.tick_ns)
        self._next_tick_ns += overdue * self._plan.tick_ns
        self._counters.tick.number += overdue
        is_timed = is_open(self._plan.schedule)
        tick = self._counters.close(now_ns, cpu_ns, self._loop.under_way(), open_loop=is_timed, last=last)
        opening_ns = self._loop.opening()
        tick.opening, tick.oldest_opening_ns = len(opening_ns), now_ns - min(opening_ns, default=now_ns)
        tick.late_beats, tick.late_beats_ns = self._beats.take()
        self._reports.put(frame(tick))
        self._collect(now_ns)

    def _collect(self, now_ns: int) -> None:
        """Collect the leftovers of lost slots: the tracebacks of their failures are reference cycles."""
        if self._loop.losses != self._losses and now_ns - self._collected_ns >= COLLECT_NS:
            self._losses = self._loop.losses
            self._collected_ns = now_ns
            gc.collect()

    def _input(self, _mask: int) -> None:
        # Any order after the begin ends the load.
        try:
            self._again = read_order(self._owner)
        except EOFError:
            self._reactor.stop()
            return
        self._reactor.at(time.perf_counter_ns() + REST_NS, self._reactor.stop)
        self._loop.finish()


def make_loop(plan: Plan, reactor: Reactor, counters: TickCounters, most_slots: int) -> Loop:
    """Make the loop of a plan's schedule.

    Raises:
        OSError: The outputs in shared memory cannot be used.
    """
    if isinstance(plan.schedule, (Closed, Steps)):
        loop = ConversationLoop if plan.pauses_ns else ClosedLoop
        return loop(plan, plan.schedule, reactor, counters, most_slots)
    return OpenLoop(plan, plan.schedule, reactor, counters, most_slots)


def make_transport(plan: Plan, reactor: Reactor, loop: Loop) -> Http1:
    """Make the transport of the endpoint's protocol.

    Raises:
        socket.gaierror: The host is unknown.
        UnicodeError: The host is not a valid name.
        OSError: The certificates cannot be read.
    """
    endpoint, timeout_ns = plan.endpoint, plan.timeout_ns
    if endpoint.protocol == "grpc":
        return Http2(endpoint, reactor, loop, timeout_ns)
    if endpoint.protocol == "sse":
        choices = [choices_of(forms[0]) for forms in plan.payloads]
        transport: Http1 = Streams(endpoint, reactor, loop, timeout_ns, choices)
    else:
        transport = Http1(endpoint, reactor, loop, timeout_ns)
    heads = (forms[0].partition(b"\r\n\r\n")[0].lower() for forms in plan.payloads)
    if any(b"\r\nconnection: close" in head for head in heads):
        # No request may follow on its connection, even if the server keeps that open (RFC 9112, 9.6).
        transport.ended_after_first = ENDED_AFTER_FIRST
    return transport


def _raise_file_limit() -> int:
    """Raise the limit of open files as far as allowed, and return it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def main() -> None:
    """Read the plan and run it, as often as the owner orders."""
    try:
        _serve(int(sys.argv[1]))
    except (EOFError, ReportsUnread) as problem:
        sys.exit(str(problem))


def _serve(owner: int) -> None:
    plan = read_plan(owner)
    engine = _ready(plan, owner)
    order = read_order(owner)
    # The engine could have begun, so its owner ends it this way.
    with contextlib.suppress(BrokenPipeError, EOFError):
        while True:
            if isinstance(order, Begin):
                order = engine.run(order.at_ns) or read_order(owner)
            engine.close()
            assert isinstance(order, Again)
            plan = msgspec.structs.replace(plan, seed=order.seed)
            engine = _ready(plan, owner)
            order = read_order(owner)


def _ready(plan: Plan, owner: int) -> LoadEngine:
    """Make the engine of a plan, and report its readiness to the owner, or end with the reason for a failure."""
    try:
        engine = LoadEngine(plan, owner)
    except (socket.gaierror, UnicodeError) as problem:
        # An invalid name raises UnicodeError.
        sys.exit(f"{plan.endpoint.host}:{plan.endpoint.port}: {problem}")
    except OSError as problem:
        sys.exit(str(problem))
    # Without errors the engine leaves no reference cycles, and a collection in mid-load would show up as latency.
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    gc.disable()
    # Through the descriptor, because a buffer must not hold bytes when reports are written.
    data = frame(Ready())
    # After a load it is non-blocking, and may be full of reports that the owner has yet to read.
    while not select.select([], [STDOUT], [], OWNER_SECONDS)[1]:
        if os.getppid() != owner:
            raise EOFError("the process that started this one is gone")
    os.write(STDOUT, data)
    return engine


if __name__ == "__main__":
    main()
