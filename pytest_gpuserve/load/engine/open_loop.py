"""The open loop: arrivals that do not wait for answers."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.load.engine.loop import Loop
from pytest_gpuserve.load.engine.transport import FaultKind
from pytest_gpuserve.load.schedule import NANOSECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pytest_gpuserve.load.engine.reactor import Reactor
    from pytest_gpuserve.load.engine.tick_counters import TickCounters
    from pytest_gpuserve.load.engine.transport import Slot
    from pytest_gpuserve.load.schedule import Arrival, OpenSchedule
    from pytest_gpuserve.load.wire import Plan

ARRIVALS_AT_ONCE: Final = 1024
"""Most due requests that are sent before answers are handled again."""


class OpenLoop(Loop):
    """Arrivals that do not wait for answers; each request in flight has a slot, which is kept for the next one."""

    def __init__(
        self, plan: Plan, schedule: OpenSchedule, reactor: Reactor, counters: TickCounters, most_slots: int
    ) -> None:
        super().__init__(plan, reactor, counters, most_slots)
        ceiling = schedule.max_in_flight
        most_slots = self._most_slots
        if ceiling is not None:
            most_slots = min(most_slots, ceiling // plan.parts + (plan.part < ceiling % plan.parts))
        self._ceiling = most_slots
        self._arrivals = _until_end(schedule.arrivals(plan.seed, plan.part, plan.parts), plan)
        self._coming: Arrival | None = None
        self._last_due_ns = -1
        # The most recently used slot is taken first, because its server's keep-alive lasts longest.
        self._idle: dict[Slot, None] = {}
        # Waiting arrivals, each with its wait for the ceiling and the delay of its discovery.
        self._waiting: deque[tuple[Arrival, bool, int]] = deque()

    def begin(self, begin_ns: int, on_end: Callable[[], None]) -> None:
        """Begin the load at this time."""
        super().begin(begin_ns, on_end)
        self._coming = next(self._arrivals, None)
        if self._coming is not None:
            self._reactor.at(begin_ns + self._coming.at_ns, self._arrive)

    @property
    def ended(self) -> bool:
        """Whether all requests are sent and answered."""
        return (self._ending or self._coming is None) and not self._under_way and not self._waiting

    def expire(self, now_ns: int) -> None:
        """Give up requests that exceeded the timeout, including those that could not be sent."""
        super().expire(now_ns)
        seconds = self._plan.timeout_ns / NANOSECONDS
        while self._waiting and now_ns - self._begin_ns - self._waiting[0][0].at_ns > self._plan.timeout_ns:
            arrival, _, _ = self._waiting.popleft()
            self.counters.fail(
                FaultKind.TIMEOUT, f"request {arrival.number}: no slot to send it on within {seconds:g} s"
            )
        self._check_end()

    def _arrive(self) -> None:
        arrival = self._coming
        # One reading of the clock, so that newly due requests do not keep answers waiting.
        now_ns = time.perf_counter_ns()
        for _ in range(ARRIVALS_AT_ONCE):
            if arrival is None or self._ending:
                break
            due_ns = self._begin_ns + arrival.at_ns
            if due_ns > now_ns:
                break
            self.counters.tick.due += 1
            # Requests due at the same instant are exempt from the lag, because they cannot be sent together.
            on_time_ns = now_ns if due_ns == self._last_due_ns else due_ns
            self._last_due_ns = due_ns
            if self._idle:
                sent_ns = self._send(self._idle.popitem()[0], arrival.number, arrival.index, due_ns)
                self.counters.lag.note(sent_ns - on_time_ns)
            else:
                full = len(self._slots) >= self._ceiling
                self._waiting.append((arrival, full, now_ns - on_time_ns))
                self._replace(now_ns)
            arrival = next(self._arrivals, None)
        self._coming = arrival
        if arrival is None or self._ending:
            self._check_end()
        else:
            self._reactor.at(max(now_ns + 1, self._begin_ns + arrival.at_ns), self._arrive)

    def _clock_begin(self, slot: Slot) -> int:
        return slot.intended_ns

    def _note_latency(self, slot: Slot, now_ns: int) -> None:
        self.counters.latency.note(now_ns - slot.intended_ns)
        self.counters.service.note(now_ns - slot.sent_ns)

    def _free(self, slot: Slot, now_ns: int) -> None:
        if not self._waiting:
            self._idle[slot] = None
            return
        arrival, held, late_ns = self._waiting.popleft()
        self.counters.tick.held += held
        # The wait for a slot is not the client's lag, but it is part of the latency.
        sent_ns = self._send(slot, arrival.number, arrival.index, self._begin_ns + arrival.at_ns)
        self.counters.lag.note(late_ns + sent_ns - now_ns)

    def _opened(self, now_ns: int) -> None:
        self._replace(now_ns)

    def _gone(self, slot: Slot) -> None:
        super()._gone(slot)
        self._idle.pop(slot, None)

    def _replace(self, when_ns: int, slot: Slot | None = None) -> None:
        del when_ns, slot
        # As many as wait: gradual opening would be a delay of the client, counted as the server's.
        if len(self._opening) < len(self._waiting) and len(self._slots) < self._ceiling:
            self._open()

    def _not_opened(self, now_ns: int, kind: str, sample: str) -> None:
        # If no arrival waits, the request that the slot was opened for has failed already.
        if self._waiting:
            arrival, _, _ = self._waiting.popleft()
            self.counters.fail(kind, f"request {arrival.number}: {sample}")
        self._replace(now_ns)


def _until_end(arrivals: Iterator[Arrival], plan: Plan) -> Iterator[Arrival]:
    """Arrivals up to the load's end."""
    for arrival in arrivals:
        if plan.requests is not None and arrival.number >= plan.requests:
            return
        if plan.nanoseconds is not None and arrival.at_ns >= plan.nanoseconds:
            return
        yield arrival
