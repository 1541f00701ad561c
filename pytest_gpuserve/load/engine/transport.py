"""Where protocols and schedules meet: slots carry requests, and the issuer decides what each slot sends."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple, Protocol, TypeAlias

IDLE: Final = -1

LAG_SAMPLE: Final = 7
"""Without think time every eighth request's lag is noted: it is the engine's own few microseconds and nothing else."""

MAX_ANSWER_BYTES: Final = 1 << 28
"""A longer answer is not waited for: it would take the memory of whatever else runs on the host."""

Sample: TypeAlias = str | Callable[[], str]
"""The text of a failure, or a function that makes it: most samples are dropped, and to make one of a large answer takes
as long as a request."""


def text_of(sample: Sample) -> str:
    """Make the text of a sample."""
    return sample if isinstance(sample, str) else sample()


class FaultKind(str, Enum):
    """Why a request failed, where no status says it; with a status the kind is ``status 503``."""

    # No answer, or not all of it.
    CONNECT = "connect"
    CONNECT_TIMEOUT = "connect timeout"
    CONNECTION_REFUSED = "connection refused"
    TLS = "tls"
    TIMEOUT = "timeout"
    CONNECTION_CLOSED = "connection closed"
    CONNECTION_RESET = "connection reset"
    INCOMPLETE = "incomplete answer"
    PROTOCOL = "protocol"
    # A whole answer of the protocol that is not one of the server's model.
    OTHER_TYPE = "another content type"
    ERROR_IN_STREAM = "error in a stream"
    NO_END = "end not said"
    UNREADABLE_EVENT = "unreadable event"
    NO_TOKENS = "no tokens"
    NO_USAGE = "usage missing"

    def __str__(self) -> str:
        return self.value


class Slot:
    """Carries one request at a time: a connection of HTTP/1.1, or one of the slots on a shared connection.

    The issuer writes ``number``, ``index``, ``intended_ns`` and ``sent_ns`` and then calls ``send``. A slot is busy
    from then until it calls its issuer's ``answered``, ``refused`` or ``lost``.

    Args:
        place: Its place among the slots that are open at the same time, from 0; free again when it is gone.
    """

    __slots__ = ("index", "intended_ns", "number", "place", "sent_ns")

    def __init__(self, place: int) -> None:
        self.place = place
        self.number = IDLE
        self.index = 0
        self.intended_ns = 0
        self.sent_ns = IDLE

    def send(self, payload: bytes) -> None:
        """Send a request; failures are reported to the issuer, at once or later, never raised."""
        raise NotImplementedError

    def expire(self, seconds: float) -> None:
        """Give up the request under way after so many seconds as ``timeout``: calls ``refused`` or ``lost``."""
        raise NotImplementedError

    def close(self) -> None:
        """Close without a report to the issuer."""
        raise NotImplementedError


class Repeat:
    """A request that each slot sends again, by itself, as soon as an answer comes that is byte for byte a known one.

    To ask the issuer would take longer than the rest of the work for such a request. The slot notes what the issuer
    would note.

    Args:
        note_latency: Takes the latency of each answer.
        note_lag: Takes how long after the answer a request was sent; of every eighth request.

    Attributes:
        payload: The request.
        size: Its bytes.
        number: Number of the next request.
        step: From one number to the next.
        end: The first number that is not sent by a slot itself; 0 where all are the issuer's.
        counts: The known answers of this tick: how often each came, and to which request first.
        answer: All bytes of the answer that came last; None where that is to be looked up.
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
        """Make an answer the last one; returns whether it came in this tick before.

        Args:
            data: All of its bytes.
            body: Its body; None where the answer is not known.
        """
        count = None if body is None else self.counts.get(body)
        if count is None:
            return False
        self.answer, self.count = data, count
        return True

    def again(self, slot: Slot, now_ns: int, body: bytes) -> bool:
        """Note that this answer came to a slot at this time, and send the slot's next request.

        Returns:
            Whether that was done; otherwise the slot asks its issuer.
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


class Stream(NamedTuple):
    """What came of a stream's answer.

    Args:
        first_ns: When its first chunk with content arrived; ``IDLE`` where there was none.
        last_ns: When the last one did.
        chunks: Those with content.
        tokens: How many it says that it has; None where it does not say.
    """

    first_ns: int
    last_ns: int
    chunks: int
    tokens: int | None


class Issuer(Protocol):
    """Decides what a slot sends next.

    A slot that was ``answered`` or ``refused`` with ``keep`` may be sent on from within that call. Without it the slot
    is closed, or just closing, and is not used again: nothing more is told of it.

    Attributes:
        repeat: The request that a slot sends by itself.
    """

    repeat: Repeat

    def ready(self, slot: Slot) -> None:
        """The slot is open."""

    def answered(self, slot: Slot, now_ns: int, body: bytes, keep: bool) -> None:  # noqa: FBT001 -- the hot path: by name it would cost a tenth of a microsecond
        """The request under way was answered well; ``now_ns`` was taken before any work on what arrived."""

    def refused(self, slot: Slot, now_ns: int, kind: str, sample: Sample, *, keep: bool) -> None:
        """The request under way failed, with an error of this kind, such as ``status 503``.

        The sample is uncut: whoever shortens it looks for secrets before; see `begin_of` in ``process/logs.py``.
        To make its text is for this call alone.
        """

    def lost(self, slot: Slot, kind: str, sample: str) -> None:
        """The slot is gone, and with it the request under way, if any.

        An idle slot whose server hung up in good order has lost nothing: then ``kind`` is empty.
        """

    def resent(self, slot: Slot) -> bytes:
        """The request under way is sent once more, on a new connection; returns its payload."""

    def chunk(self, now_ns: int, before_ns: int) -> None:
        """A chunk of a stream with content arrived; ``before_ns`` is when the one before it did, ``IDLE`` for none."""

    def streamed(self, slot: Slot, now_ns: int, stream: Stream, body: bytes, *, keep: bool) -> None:
        """The request under way was answered well by a stream: what ``answered`` is to all others."""


@dataclass(slots=True)
class Transfer:
    """Sums of how long the transfer of requests and answers took; see ``wire.Tick``."""

    sending_ns: int = 0
    receiving_ns: int = 0


class Transport(Protocol):
    """Opens slots to one endpoint."""

    def take_transfer(self) -> Transfer | None:
        """Return what its slots have timed since the last call; None where they do not."""

    def open(self, place: int) -> Slot:
        """Begin to open a slot; its issuer hears ``ready`` or ``lost``, never before this has returned."""

    def close(self) -> None:
        """Close all that is open, slots and what they share."""
