"""Closed loops: each user sends its next request when its last one is answered; a user may converse."""

from __future__ import annotations

import heapq
import random
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from pytest_gpuserve.load.engine.http1 import UNTIMED_BYTES
from pytest_gpuserve.load.engine.loop import OPENING_AT_ONCE, RECONNECT_NS, Loop
from pytest_gpuserve.load.engine.transport import IDLE, LAG_SAMPLE, Slot
from pytest_gpuserve.load.schedule import NANOSECONDS, Closed
from pytest_gpuserve.load.wire import OPENS

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpuserve.load.engine.reactor import Reactor
    from pytest_gpuserve.load.engine.tick_counters import TickCounters
    from pytest_gpuserve.load.schedule import ClosedSchedule
    from pytest_gpuserve.load.wire import Plan

NO_LIMIT: Final = 1 << 62


class ClosedLoop(Loop):
    """Users that each send the next request when the last one is answered; a slot is a user."""

    def __init__(
        self, plan: Plan, schedule: ClosedSchedule, reactor: Reactor, counters: TickCounters, most_slots: int
    ) -> None:
        super().__init__(plan, reactor, counters, most_slots)
        self._schedule = schedule
        self._think_ns = round(schedule.think_seconds * NANOSECONDS)
        self._wanted = 0
        self._absent = 0
        self._limit = NO_LIMIT if plan.requests is None else plan.requests
        repeat = self.repeat
        repeat.number, repeat.step = plan.part, plan.parts
        repeat.payload = payload = plan.payloads[0][0]
        repeat.size = len(payload)
        # The next request follows at once, without a choice, a wait, a timer or a read of other data.
        self._is_plain = (
            plan.payloads == ((payload,),)
            and len(payload) <= UNTIMED_BYTES
            and not self._think_ns
            and plan.outputs is None
            and plan.objectives is None
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
        self._reactor.at(at_ns, self.finish)

    def finish(self) -> None:
        """Stop sending; also requests that slots send by themselves."""
        self._is_plain = False
        self._straighten()
        super().finish()

    @property
    def ended(self) -> bool:
        """Whether all requests are sent and answered."""
        return self._nothing_left() and not self._under_way

    def _nothing_left(self) -> bool:
        return self._ending or self.repeat.number >= self._limit

    def _want(self, users: int) -> None:
        parts, part = self._plan.parts, self._plan.part
        self._wanted = users // parts + (part < users % parts)
        self._straighten()
        self._fill()

    def _straighten(self) -> None:
        self.repeat.end = self._limit if self._is_plain and len(self._slots) <= self._wanted else 0

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
        self.counters.latency.note(now_ns - slot.sent_ns)

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
        number = self.repeat.number
        if self._ending or number >= self._limit or (self._think_ns and len(self._slots) > self._wanted):
            slot.close()
            self._gone(slot)
            return
        self.repeat.number = number + self.repeat.step
        sent_ns = self._send(slot, number, None, due_ns)
        if self._think_ns or not number // self.repeat.step & LAG_SAMPLE:
            self.counters.lag.note(sent_ns - due_ns)

    def _replace(self, when_ns: int, slot: Slot | None = None) -> None:
        del slot
        if when_ns <= time.perf_counter_ns():
            self._fill()
            return
        # Still a user, who only has to wait; without this another one would take the place at once.
        self._absent += 1
        self._reactor.at(when_ns, self._back)

    def _back(self) -> None:
        self._absent -= 1
        self._fill()

    def _not_opened(self, now_ns: int, kind: str, sample: str) -> None:
        if self._nothing_left():
            return
        # Counts as a request: else a test that wants a number of requests would wait for ever for a dead server.
        self.counters.fail(kind, f"request {self.repeat.number}: {sample}")
        self.repeat.number += self.repeat.step
        self._replace(now_ns + RECONNECT_NS)


class _Turn(NamedTuple):
    """Payload of a turn, and the number of its conversation: that of the first sent turn."""

    payload: int
    number: int


class ConversationLoop(ClosedLoop):
    """Users who converse: each turn follows the answer to the previous one, after a pause.

    A conversation goes on after a failed turn, and on another connection if its own is gone. All its turns carry one
    number, so a prefix cache knows a turn's history, but no other conversation. A user's first conversation begins with
    any of its turns, so that a load begins as it goes on.
    """

    def __init__(
        self, plan: Plan, schedule: ClosedSchedule, reactor: Reactor, counters: TickCounters, most_slots: int
    ) -> None:
        super().__init__(plan, schedule, reactor, counters, most_slots)
        self._pauses_ns = (*plan.pauses_ns, OPENS)
        self._draw = random.Random(f"{plan.seed} {plan.part}")  # noqa: S311 -- reproducible, not secret
        self._begun = 0
        # Last sent turn of each user with a connection.
        self._turns: dict[Slot, _Turn] = {}
        # For each user without one: the time of the next turn, and the turn before it.
        self._without: list[tuple[int, _Turn]] = []

    def _number_in(self, slot: Slot) -> int:
        return self._turns[slot].number

    def _pause_ns(self, slot: Slot) -> int:
        turn = self._turns.get(slot)
        pause_ns = OPENS if turn is None else self._pauses_ns[turn.payload + 1]
        return self._think_ns if pause_ns == OPENS else pause_ns

    def _free(self, slot: Slot, now_ns: int) -> None:
        if slot.sent_ns != IDLE:
            self._later(slot, now_ns + self._pause_ns(slot), now_ns)
            return
        due_ns = now_ns
        if self._without:
            due_ns, self._turns[slot] = heapq.heappop(self._without)
        self._later(slot, max(now_ns, due_ns), now_ns)

    def _later(self, slot: Slot, due_ns: int, now_ns: int) -> None:
        """Send the next turn when it is due; a surplus user leaves now."""
        slot.intended_ns = due_ns
        if due_ns <= now_ns or self._ending or len(self._slots) > self._wanted:
            self._next(slot, due_ns)
        else:
            self._reactor.at(due_ns, lambda: self._next(slot, due_ns))

    def _next(self, slot: Slot, due_ns: int) -> None:
        if slot not in self._slots:
            return
        number = self.repeat.number
        if self._ending or number >= self._limit or len(self._slots) > self._wanted:
            self._turns.pop(slot, None)
            slot.close()
            self._gone(slot)
            return
        self.repeat.number = number + self.repeat.step
        turn = self._turns.get(slot)
        if turn is not None and self._pauses_ns[turn.payload + 1] != OPENS:
            turn = _Turn(turn.payload + 1, turn.number)
        else:
            turn = _Turn(self._opening_turn(), number)
        self._turns[slot] = turn
        self.counters.lag.note(self._send(slot, number, turn.payload, due_ns) - due_ns)

    def _opening_turn(self) -> int:
        """Choose the next conversation: a user's first one begins with any turn, others with the first."""
        # Each engine plays all conversations, from another one on.
        place = len(self._order) * self._plan.part // self._plan.parts + self._begun
        payload = self._order[place % len(self._order)]
        self._begun += 1
        if self._begun > self._wanted:
            return payload
        end = self._pauses_ns.index(OPENS, payload + 1)
        return self._draw.randrange(payload, end)

    def _replace(self, when_ns: int, slot: Slot | None = None) -> None:
        turn = None if slot is None else self._turns.pop(slot, None)
        if turn is not None:
            heapq.heappush(self._without, (when_ns, turn))
        super()._replace(when_ns)

    def _back(self) -> None:
        super()._back()
        # A user who has become surplus meanwhile leaves, with the conversation.
        if len(self._without) > max(0, self._wanted - len(self._slots) + len(self._opening)):
            heapq.heappop(self._without)
