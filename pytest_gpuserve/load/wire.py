"""What the pytest process and the engine process say to each other: msgpack messages with a length before each."""

from __future__ import annotations

import struct
from typing import Final

import msgspec

LENGTH: Final = struct.Struct("<I")

MAX_TICK_BYTES: Final = 1 << 24
"""Several times what a tick can hold; a greater announced length is no tick, and not to be waited for."""


class Plan(msgspec.Struct, frozen=True):
    """The load, as the engine is told it.

    Args:
        host: Where the server listens.
        port: Its port.
        payload: The serialised request.
        head: Whether the answer has no body though it announces one (a HEAD request).
        connections: Concurrent users of the closed loop, one keep-alive connection each.
        tick_ns: How often the engine reports.
        timeout_ns: After which an unanswered request, or connection attempt, is an error.
    """

    host: str
    port: int
    payload: bytes
    head: bool
    connections: int
    tick_ns: int
    timeout_ns: int


class Answers(msgspec.Struct, frozen=True):
    """A distinct body among the good answers of a tick, and how often it came."""

    body: bytes
    count: int


class Tick(msgspec.Struct, frozen=True):
    """What happened since the last tick.

    Args:
        begin_ns: Its begin by the engine's monotonic clock.
        end_ns: Its end, which is the next one's begin.
        requests: Requests answered with a 2xx status.
        buckets: Their latencies, as ``measure.histogram`` counts them.
        latency_sum_ns: Their exact sum.
        latency_max_ns: Their exact maximum.
        errors: Failed requests by kind.
        error_samples: For each kind, the first sight of it in this tick, in words.
        answers: Distinct bodies of the good answers, up to a bound.
        unchecked: Good answers beyond that bound, whose bodies are not among ``answers``.
        in_flight: Requests under way at its end.
        cpu_ns: CPU time that the engine used in it.
        oldest_ns: How long the oldest of the requests under way had waited at its end.
    """

    begin_ns: int
    end_ns: int
    requests: int
    buckets: dict[int, int]
    latency_sum_ns: int
    latency_max_ns: int
    errors: dict[str, int]
    error_samples: dict[str, str]
    answers: list[Answers]
    unchecked: int
    in_flight: int
    cpu_ns: int
    oldest_ns: int = 0


def frame(message: Plan | Tick) -> bytes:
    """Serialise a message with its length before it."""
    data = msgspec.msgpack.encode(message)
    return LENGTH.pack(len(data)) + data
