"""Common part of the closed and the open loop: the choice of the next request, over slots of any protocol."""

from __future__ import annotations

import math
import mmap
import random
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.load.engine.transport import IDLE, Slot, text_of
from pytest_gpuserve.load.request import NUMBER_PLACE
from pytest_gpuserve.load.schedule import NANOSECONDS, is_open
from pytest_gpuserve.load.wire import OPENS, unwritten

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytest_gpuserve.load.engine.reactor import Reactor
    from pytest_gpuserve.load.engine.tick_counters import TickCounters
    from pytest_gpuserve.load.engine.transport import Sample, Stream
    from pytest_gpuserve.load.wire import Outputs, Plan


class OutputPlaces:
    """Places of all slots, one after the other in a shared-memory file.

    Raises:
        OSError: The file cannot be opened, or is empty.
    """

    def __init__(self, outputs: Outputs) -> None:
        self._size = outputs.slot_bytes
        try:
            with Path(outputs.file).open("r+b") as file:
                self._memory = mmap.mmap(file.fileno(), 0)
        except (OSError, ValueError) as problem:
            raise OSError(f"shared memory {outputs.file!r} cannot be opened for outputs: {problem}") from problem
        # Otherwise a place that the server does not write again would pass for an answer.
        self._blank = unwritten(self._size)
        for begin in range(0, len(self._memory) - self._size + 1, self._size):
            self._memory[begin : begin + self._size] = self._blank

    def take(self, place: int) -> bytes:
        """Return the bytes of a place, and blank it."""
        begin = place * self._size
        data = self._memory[begin : begin + self._size]
        self._memory[begin : begin + self._size] = self._blank
        return data


RECONNECT_NS: Final = 50_000_000
"""Pause of a user whose connection failed, so that a dead server is not flooded."""

OPENING_AT_ONCE: Final = 128
"""Most connections that are being opened at the same time. More would overflow a server's backlog, and the kernel
repeats a dropped attempt only after a second."""

OWN_FILES: Final = 32
"""Open files of the engine besides slots."""


NUMBER_NS: Final = 10_000
"""Unit of the time that begins the numbers in requests. If fewer requests are sent in one unit, numbers of a later load
are above those of an earlier one."""

NUMBERS: Final = 10 ** len(NUMBER_PLACE)
"""Number of units, 28 hours, after which they begin anew."""


class Loop:
    """Common state of both loops: slots, requests in flight, the end.

    After ``answered``, ``streamed`` or ``refused`` with ``keep``, a slot may be used within that call. Without ``keep``
    the slot is closed, or closing, and must not be used again; it makes no more calls.

    Attributes:
        open_slot: Begins to open a slot at a place; the loop gets ``ready`` or ``lost``, never before this has
            returned.
        counters: Counts of the current tick; slots add their times of transfer.
        losses: Number of lost slots so far.
        repeat: The request that a slot sends by itself.
    """

    def __init__(self, plan: Plan, reactor: Reactor, counters: TickCounters, most_slots: int) -> None:
        self.open_slot: Callable[[int], Slot]
        self._plan = plan
        self._reactor = reactor
        self.counters = counters
        self.repeat = counters.repeat
        self._most_slots = most_slots
        self._begin_ns = 0
        self._ending = False
        self.losses = 0
        self._under_way: set[Slot] = set()
        self._slots: set[Slot] = set()
        self._places: list[int] = []
        self._opening: dict[Slot, int] = {}
        self._outputs = OutputPlaces(plan.outputs) if plan.outputs else None
        self._on_end: Callable[[], None] = _nobody
        self._think_ns = 0
        self._objectives = plan.objectives
        order = [index for index in range(len(plan.payloads)) if not plan.pauses_ns or plan.pauses_ns[index] == OPENS]
        if plan.shuffled:
            random.Random(plan.seed).shuffle(order)  # noqa: S311 -- reproducible, not secret
        self._order = order
        # Engines number their requests in steps of the number of engines. If that shares a divisor with the number of
        # payloads, an engine would send only some of them for ever. So each pass over the payloads begins one further.
        # In an open loop the engines together send what one alone would.
        together = math.gcd(len(order), plan.parts)
        self._shifted_every = 0 if together == 1 or is_open(plan.schedule) else len(order) * plan.parts // together
        self._forms = plan.payloads
        self._numbers_before_end = plan.numbers_before_end
        self._first_number = 0
        places = min(map(len, plan.payloads))
        # A payload with one form, without shared memory, has the same form for all slots.
        if places > 1 or plan.outputs is not None:
            self._most_slots = min(most_slots, places // plan.parts + (plan.part < places % plan.parts))

    # -- for the engine

    def begin(self, begin_ns: int, on_end: Callable[[], None]) -> None:
        """Begin the load at this time; ``on_end`` is called when all is sent and answered."""
        self._begin_ns = begin_ns
        self._on_end = on_end
        # A multiple, so that engines with different clocks still have no number in common.
        self._first_number = time.time_ns() // NUMBER_NS // self._plan.parts * self._plan.parts
        # A short load may have nothing for this engine.
        self._reactor.at(begin_ns, self._check_end)
        if self._plan.nanoseconds is not None:
            self._reactor.at(begin_ns + self._plan.nanoseconds, self.finish)

    def finish(self) -> None:
        """Stop sending; the load ends when requests in flight are answered."""
        self._ending = True
        self._check_end()

    @property
    def ended(self) -> bool:
        """Whether all requests are sent and answered."""
        raise NotImplementedError

    def opening(self) -> Sequence[int]:
        """Return the times when the opening of slots began that are not open yet."""
        return list(self._opening.values())

    def under_way(self) -> Sequence[int]:
        """Return the send times of the requests in flight."""
        return [slot.sent_ns for slot in self._under_way]

    def expire(self, now_ns: int) -> None:
        """Give up requests that exceeded the timeout."""
        limit_ns = self._plan.timeout_ns
        late = [slot for slot in self._under_way if now_ns - slot.sent_ns > limit_ns]
        for slot in sorted(late, key=lambda slot: slot.sent_ns):
            slot.expire(limit_ns / NANOSECONDS)

    def close(self) -> None:
        """Abandon all requests in flight."""
        self._ending = True
        for slot in self._slots:
            slot.close()
        self._slots.clear()

    # -- for slots

    def ready(self, slot: Slot) -> None:
        """Note that the slot is open."""
        self._opening.pop(slot, None)
        now_ns = time.perf_counter_ns()
        self._free(slot, now_ns)
        self._opened(now_ns)

    def answered(self, slot: Slot, now_ns: int, body: bytes, keep: bool) -> None:  # noqa: FBT001 -- the hot path: by name it would cost a tenth of a microsecond
        """Note that the request was answered well; ``now_ns`` was read before any work on the answer."""
        self._under_way.remove(slot)
        self._note_latency(slot, now_ns)
        if self._outputs is not None:
            body = self._outputs.take(self._place(slot)) + body
        if self._objectives is not None:
            self._judge(slot, now_ns, None, None)
        self._count(slot, now_ns, body, keep=keep)

    def _count(self, slot: Slot, now_ns: int, body: bytes, *, keep: bool) -> None:
        counters = self.counters
        seen = counters.answers[slot.index].get(body)
        if seen is not None:
            seen[0] += 1
        else:
            counters.new_answer(slot.index, slot.number, body)
        if keep:
            self._free(slot, now_ns)
        else:
            self._gone(slot)
            self._replace(now_ns + self._pause_ns(slot), slot)
        if not self._under_way:
            self._check_end()

    def refused(self, slot: Slot, now_ns: int, kind: str, sample: Sample, *, keep: bool) -> None:
        """Note that the request failed, with an error of this kind, such as ``status 503``.

        The sample is uncut, because secrets must be masked before it is shortened; see `begin_of` in
        ``process/logs.py``. Its text may be made only within this call.
        """
        self._under_way.remove(slot)
        if self._outputs is not None:
            # The bytes of a failed request do not answer the next one.
            self._outputs.take(self._place(slot))
        waited_ns = now_ns - slot.sent_ns
        self.counters.fail(kind, lambda: f"request {slot.number}: {text_of(sample)}", under_way_ns=waited_ns)
        if keep:
            self._free(slot, now_ns)
        else:
            self._gone(slot)
            self._replace(now_ns + self._pause_ns(slot), slot)
        self._check_end()

    def lost(self, slot: Slot, kind: str, sample: str) -> None:
        """Note that the slot is gone, with its request, if any.

        If an idle slot's server closed it in good order, nothing is lost, and ``kind`` is empty.
        """
        if slot not in self._slots:
            return
        now_ns = time.perf_counter_ns()
        self.losses += 1
        self._gone(slot)
        if slot in self._under_way:
            self._under_way.remove(slot)
            if self._outputs is not None:
                self._outputs.take(self._place(slot))
            self.counters.fail(kind, f"request {slot.number}: {sample}", under_way_ns=now_ns - slot.sent_ns)
            self._replace(now_ns + max(RECONNECT_NS, self._pause_ns(slot)), slot)
        elif slot in self._opening:
            del self._opening[slot]
            self._not_opened(now_ns, kind, sample)
        else:
            if kind:
                self.counters.fail(kind, sample)
            # A thinking user thinks on, without a connection.
            self._replace(max(now_ns, slot.intended_ns), slot)
        self._check_end()

    def resent(self, slot: Slot) -> bytes:
        """Note that the current request is sent once more, on a new connection; return its payload."""
        self.counters.tick.resent += 1
        return self._payload_of(slot)

    def chunk(self, now_ns: int, before_ns: int) -> None:
        """Note a chunk of a stream with content; ``before_ns`` is the arrival of the previous one, or ``IDLE``."""
        self.counters.tokens += 1
        if before_ns != IDLE:
            self.counters.itl.note(now_ns - before_ns)

    def streamed(self, slot: Slot, now_ns: int, stream: Stream, body: bytes, *, keep: bool) -> None:
        """Note that a stream answered the request well; its latency ends with its last token."""
        counters, tokens = self.counters, stream.tokens
        # An answer without content shows nothing before its end.
        first_ns, last_ns = (now_ns, now_ns) if stream.first_ns == IDLE else (stream.first_ns, stream.last_ns)
        self._under_way.remove(slot)
        self._note_latency(slot, last_ns)
        counters.tick.untimed_ns += now_ns - last_ns
        ttft_ns = first_ns - self._clock_begin(slot)
        counters.ttft.note(ttft_ns)
        tpot_ns = None
        if tokens is None:
            counters.silent_chunks += stream.chunks
        else:
            counters.with_usage += 1
            counters.usage_tokens += tokens
            counters.tokens += tokens - stream.chunks
            tpot_ns = 0
            if tokens > 1 and stream.chunks:
                tpot_ns = (last_ns - first_ns) // (tokens - 1)
                counters.tpot.note(tpot_ns)
        if self._objectives is not None:
            self._judge(slot, last_ns, ttft_ns, tpot_ns)
        self._count(slot, now_ns, body, keep=keep)

    # -- for the loops

    def _send(self, slot: Slot, number: int, index: int | None, intended_ns: int) -> int:
        """Send a request; return its send time."""
        if index is None:
            turn = number // self._shifted_every if self._shifted_every else 0
            index = self._order[(number + turn) % len(self._order)]
        slot.number = number
        slot.index = index
        slot.intended_ns = intended_ns
        slot.sent_ns = sent_ns = time.perf_counter_ns()
        self._under_way.add(slot)
        slot.send(self._payload_of(slot))
        return sent_ns

    def _payload_of(self, slot: Slot) -> bytes:
        forms = self._forms[slot.index]
        form = forms[0] if len(forms) == 1 else forms[self._place(slot)]
        before_end = self._numbers_before_end[slot.index] if self._numbers_before_end else 0
        if not before_end:
            return form
        at = len(form) - before_end
        number = b"%0*d" % (len(NUMBER_PLACE), (self._first_number + self._number_in(slot)) % NUMBERS)
        # Reversed: digits that most numbers share come last, so that a prefix cache does not match them.
        return b"".join((form[:at], number[::-1], form[at + len(NUMBER_PLACE) :]))

    def _number_in(self, slot: Slot) -> int:
        """Return the number for the slot's request."""
        return slot.number

    def _place(self, slot: Slot) -> int:
        """Return the slot's place among those of all engines."""
        return slot.place * self._plan.parts + self._plan.part

    def _open(self) -> None:
        place = self._places.pop() if self._places else len(self._slots)
        slot = self.open_slot(place)
        self._opening[slot] = time.perf_counter_ns()
        self._slots.add(slot)

    def _gone(self, slot: Slot) -> None:
        self._slots.discard(slot)
        self._places.append(slot.place)

    def _judge(self, slot: Slot, now_ns: int, ttft_ns: int | None, tpot_ns: int | None) -> None:
        """Count an answer that meets all objectives, or whose objectives are unknown."""
        assert self._objectives is not None
        is_met = self._objectives.met(now_ns - self._clock_begin(slot), ttft_ns, tpot_ns)
        if is_met is None:
            self.counters.tick.unjudged += 1
        elif is_met:
            self.counters.good += 1

    def _check_end(self) -> None:
        if self.ended:
            self._on_end()

    def _clock_begin(self, slot: Slot) -> int:
        """Return the begin of the latency of the slot's request."""
        raise NotImplementedError

    def _note_latency(self, slot: Slot, now_ns: int) -> None:
        raise NotImplementedError

    def _free(self, slot: Slot, now_ns: int) -> None:
        """Use a slot that is open and idle since this time."""
        raise NotImplementedError

    def _opened(self, now_ns: int) -> None:
        """Note the end of a slot's opening."""

    def _pause_ns(self, slot: Slot) -> int:
        """Return the pause of the slot's user after an answer."""
        del slot
        return self._think_ns

    def _replace(self, when_ns: int, slot: Slot | None = None) -> None:
        """Replace a slot that is gone, not before this time; None for one that was never open."""
        raise NotImplementedError

    def _not_opened(self, now_ns: int, kind: str, sample: str) -> None:
        """Note that a slot could not be opened."""
        raise NotImplementedError


def _nobody() -> None:
    """Do nothing, because no end was set yet."""
