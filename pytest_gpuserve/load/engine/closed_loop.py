"""The closed loop: each user sends its next request when its last one is answered."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.load.engine.loop import OPENING_AT_ONCE, RECONNECT_NS, Loop
from pytest_gpuserve.load.engine.transport import IDLE, Slot
from pytest_gpuserve.load.schedule import NANOSECONDS, Closed

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpuserve.load.engine.reactor import Reactor
    from pytest_gpuserve.load.engine.tick_counters import TickCounters
    from pytest_gpuserve.load.schedule import ClosedSchedule
    from pytest_gpuserve.load.wire import Plan

NO_LIMIT: Final = 1 << 62

LAG_SAMPLE: Final = 7
"""Without think time every eighth request's lag is noted: it is the engine's own few microseconds and nothing else."""


class ClosedLoop(Loop):
    """Users that each send the next request when the last one is answered: a slot is a user."""

    def __init__(
        self, plan: Plan, schedule: ClosedSchedule, reactor: Reactor, counters: TickCounters, most_slots: int
    ) -> None:
        super().__init__(plan, reactor, counters, most_slots)
        self._schedule = schedule
        self._think_ns = round(schedule.think_seconds * NANOSECONDS)
        self._wanted = 0
        self._absent = 0
        self._next_number = plan.part
        self._parts = plan.parts
        self._limit = NO_LIMIT if plan.requests is None else plan.requests
        self._payload = plan.payloads[0][0]
        # The next request follows at once: nothing to choose, to wait for or to read elsewhere, and no end.
        self._is_plain = self._straight = (
            plan.payloads == ((self._payload,),)
            and not self._think_ns
            and plan.outputs is None
            and not plan.numbers_before_end
        )

    def begin(self, begin_ns: int, on_end: Callable[[], None]) -> None:
        """Begin the load at this time."""
        super().begin(begin_ns, on_end)
        schedule = self._schedule
        if isinstance(schedule, Closed):
            self._reactor.at(begin_ns, lambda: self._want(schedule.users))
            return
        at_ns = begin_ns
        for users, seconds in schedule.steps:
            self._reactor.at(at_ns, lambda users=users: self._want(users))  # type: ignore[misc]  # mypy cannot infer lambdas with defaults
            at_ns += round(seconds * NANOSECONDS)
        self._reactor.at(at_ns, self._end)

    @property
    def ended(self) -> bool:
        """Whether all is sent and answered."""
        return self._nothing_left() and not self._under_way

    @property
    def users(self) -> int:
        """Users that there should be."""
        return 0 if self._nothing_left() else self._wanted

    def _nothing_left(self) -> bool:
        return self._ending or self._next_number >= self._limit

    def _want(self, users: int) -> None:
        parts, part = self._plan.parts, self._plan.part
        self._wanted = users // parts + (part < users % parts)
        self._straighten()
        self._fill()

    def _straighten(self) -> None:
        self._straight = self._is_plain and len(self._slots) <= self._wanted

    def _gone(self, slot: Slot) -> None:
        super()._gone(slot)
        self._straighten()

    def _fill(self) -> None:
        while (
            len(self._slots) + self._absent < min(self._wanted, self._most_slots)
            and len(self._opening) < OPENING_AT_ONCE
            and not self._nothing_left()
        ):
            self._open()

    def _clock_begin(self, slot: Slot) -> int:
        return slot.sent_ns

    def _note_latency(self, slot: Slot, now_ns: int) -> None:
        self._counters.latency.note(now_ns - slot.sent_ns)

    def answered(self, slot: Slot, now_ns: int, body: bytes, keep: bool) -> None:  # noqa: FBT001 -- as in the base
        """The request was answered well."""
        counters, number = self._counters, self._next_number
        seen = counters.answers[0].get(body) if self._straight and keep and number < self._limit else None
        if seen is None:
            super().answered(slot, now_ns, body, keep)
            return
        # All of the above for the commonest case, in one piece: a call costs as much as what it does here. The slot
        # stays under way.
        note = counters.latency.note
        note(now_ns - slot.sent_ns)
        counters.requests += 1
        seen[0] += 1
        self._next_number = number + self._parts
        slot.number = number
        slot.sent_ns = sent_ns = time.perf_counter_ns()
        slot.send(self._payload)
        if not counters.requests & LAG_SAMPLE:
            counters.lag.note(sent_ns - now_ns)

    def _end(self) -> None:
        self._is_plain = self._straight = False
        super()._end()

    def _opened(self, now_ns: int) -> None:
        del now_ns
        self._fill()

    def _free(self, slot: Slot, now_ns: int) -> None:
        if self._ending or len(self._slots) > self._wanted:
            slot.close()
            self._gone(slot)
        elif self._think_ns and slot.sent_ns != IDLE:
            slot.intended_ns = due_ns = now_ns + self._think_ns
            self._reactor.at(due_ns, lambda: self._next(slot, due_ns))
        else:
            self._next(slot, now_ns)

    def _next(self, slot: Slot, due_ns: int) -> None:
        if slot not in self._slots:
            return
        number = self._next_number
        if self._ending or number >= self._limit or (self._think_ns and len(self._slots) > self._wanted):
            slot.close()
            self._gone(slot)
            return
        self._next_number = number + self._parts
        sent_ns = self._send(slot, number, None, due_ns)
        if self._think_ns or not self._counters.requests & LAG_SAMPLE:
            self._counters.lag.note(sent_ns - due_ns)

    def _replace(self, when_ns: int, slot: Slot | None = None) -> None:
        del slot
        if when_ns <= time.perf_counter_ns():
            self._fill()
            return
        # Still a user, who only has to wait: otherwise somebody else would take the place at once.
        self._absent += 1
        self._reactor.at(when_ns, self._back)

    def _back(self) -> None:
        self._absent -= 1
        self._fill()

    def _not_opened(self, now_ns: int, kind: str, sample: str) -> None:
        if self._nothing_left():
            return
        # One of the requests all the same: who asked for so many would else wait for ever for a server that is gone.
        self._counters.fail(kind, f"request {self._next_number}: {sample}")
        self._next_number += self._parts
        self._replace(now_ns + RECONNECT_NS)
