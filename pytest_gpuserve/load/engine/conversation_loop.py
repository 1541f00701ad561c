"""The closed loop of conversations: a user sends the turns of one in order, then begins the next."""

from __future__ import annotations

import heapq
import random
from typing import TYPE_CHECKING, NamedTuple

from pytest_gpuserve.load.engine.closed_loop import ClosedLoop
from pytest_gpuserve.load.engine.transport import IDLE, Slot
from pytest_gpuserve.load.wire import OPENS

if TYPE_CHECKING:
    from pytest_gpuserve.load.engine.reactor import Reactor
    from pytest_gpuserve.load.engine.tick_counters import TickCounters
    from pytest_gpuserve.load.schedule import ClosedSchedule
    from pytest_gpuserve.load.wire import Plan


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
        self._counters.lag.note(self._send(slot, number, turn.payload, due_ns) - due_ns)

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
