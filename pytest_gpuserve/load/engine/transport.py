"""Interface between protocols and schedules: slots carry requests, and a loop chooses each slot's requests."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

IDLE: Final = -1

LAG_SAMPLE: Final = 7
"""Without think time every eighth lag is noted, because it is only the engine's own few microseconds."""

MAX_ANSWER_BYTES: Final = 1 << 28
"""Longest answer that is accepted, because a longer one would use up the host's memory."""

Sample: TypeAlias = str | Callable[[], str]
"""Text of a failure, or a function that makes it. Most samples are dropped, and the text of a large answer takes as
long as a request."""


def text_of(sample: Sample) -> str:
    """Make the text of a sample."""
    return sample if isinstance(sample, str) else sample()


class FaultKind(str, Enum):
    """Kind of a failure without a status; with a status the kind is ``status 503``."""

    # No answer, or an incomplete one.
    CONNECT = "connect"
    CONNECT_TIMEOUT = "connect timeout"
    CONNECTION_REFUSED = "connection refused"
    TLS = "tls"
    TIMEOUT = "timeout"
    CONNECTION_CLOSED = "connection closed"
    CONNECTION_RESET = "connection reset"
    INCOMPLETE = "incomplete answer"
    PROTOCOL = "protocol"
    # A complete answer of the protocol that does not come from the server's model.
    OTHER_TYPE = "another content type"
    ERROR_IN_STREAM = "error in a stream"
    NO_END = "end not said"
    UNREADABLE_EVENT = "unreadable event"
    NO_TOKENS = "no tokens"

    def __str__(self) -> str:
        return self.value


Fault: TypeAlias = tuple[str, Sample]
"""Kind of a failure, and its sample."""


class MalformedResponse(Exception):
    """The received data is not an answer, or one answer too many."""


class Slot:
    """Carries one request at a time: a connection.

    The loop writes ``number``, ``index``, ``intended_ns`` and ``sent_ns`` and then calls ``send``. A slot is busy from
    then until it calls its loop's ``answered``, ``refused`` or ``lost``.

    Args:
        place: Its place among the slots that are open at the same time, from 0; free again when the slot is gone.
    """

    __slots__ = ("index", "intended_ns", "number", "place", "sent_ns")

    def __init__(self, place: int) -> None:
        self.place = place
        self.number = IDLE
        self.index = 0
        self.intended_ns = 0
        self.sent_ns = IDLE

    def send(self, payload: bytes) -> None:
        """Send a request; failures are reported to the loop, at once or later, never raised."""
        raise NotImplementedError

    def expire(self, seconds: float) -> None:
        """Give up the current request after this many seconds as ``timeout``: calls ``refused`` or ``lost``."""
        raise NotImplementedError

    def close(self) -> None:
        """Close without a report to the loop."""
        raise NotImplementedError


class Repeat:
    """A request that each slot repeats by itself as soon as a known answer comes, byte for byte.

    A call of the loop would take longer than the rest of the work for such a request. The slot makes the loop's notes.

    Args:
        note_latency: Notes the latency of each answer.
        note_lag: Notes the time from an answer to the next send, for every eighth request.

    Attributes:
        payload: The request.
        size: Its bytes.
        number: Number of the next request.
        step: Difference of consecutive numbers.
        end: The first number that a slot does not send itself; 0 if the loop sends all.
        counts: Known answers of this tick: number of occurrences, and the first request of each.
        answer: All bytes of the last answer; None if it has to be looked up.
        count: Its entry of ``counts``.
    """

    __slots__ = ("answer", "count", "counts", "end", "note_lag", "note_latency", "number", "payload", "size", "step")

    def __init__(self, note_latency: Callable[[int], None], note_lag: Callable[[int], None]) -> None:
        self.note_latency = note_latency
        self.note_lag = note_lag
        self.payload = b""
        self.size = self.number = self.end = 0
        self.step = 1
        self.begin_tick({})

    def begin_tick(self, counts: dict[bytes, list[int]]) -> None:
        """Count in these from now on."""
        self.counts = counts
        self.answer: bytes | None = None
        self.count: list[int] = []

    def recall(self, data: bytes, body: bytes | None) -> bool:
        """Set the last answer; return whether it came in this tick before.

        Args:
            data: All of its bytes.
            body: Its body; None if the answer is not known.
        """
        count = None if body is None else self.counts.get(body)
        if count is None:
            return False
        self.answer, self.count = data, count
        return True

    def again(self, slot: Slot, now_ns: int, body: bytes) -> bool:
        """Note that this answer came to a slot at this time, and send the slot's next request.

        Returns:
            Whether that was done; if not, the slot calls its loop.
        """
        if self.number >= self.end or not self.recall(body, body):
            return False
        count = self.count
        self.note_latency(now_ns - slot.sent_ns)
        count[0] += 1
        slot.number = self.number
        self.number += self.step
        slot.sent_ns = sent_ns = time.perf_counter_ns()
        slot.send(self.payload)
        if not count[0] & LAG_SAMPLE:
            self.note_lag(sent_ns - now_ns)
        return True


@dataclass(slots=True)
class Stream:
    """Result of a stream's answer.

    Args:
        first_ns: Arrival of its first chunk with content; ``IDLE`` without one.
        last_ns: Arrival of its last chunk with content.
        chunks: Number of chunks with content.
        tokens: Reported token count, or None.
    """

    first_ns: int = IDLE
    last_ns: int = IDLE
    chunks: int = 0
    tokens: int | None = None
