"""How much load so many workers make, and what ends first: arithmetic on measured costs and stated assumptions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.load.validity import SATURATED_SHARE

if TYPE_CHECKING:
    from collections.abc import Mapping

WORKER_SHARE: Final = 0.5
"""Of a core that a worker is planned to use: at 0.9 a load is refused, and long before that requests are late."""

CLOCK_SECONDS: Final = 100e-6
"""Assumed: half the round trip between hosts of one rack, by which a measured clock offset may be off."""

CARD_BITS: Final = 25e9
"""Assumed: what the network card of a server takes a second."""

MEMORY_BYTES: Final = 8 * 2.0**30
"""Assumed: what the session may use."""

SEGMENT_BYTES: Final = 1448
FRAMING_BYTES: Final = 90
"""A TCP segment on Ethernet: 1500 less 20 of IP and 32 of TCP with time stamps; these, and 38 around a frame."""


def workers_needed(rate: float, *, request_seconds: float, drawn_seconds: float) -> int | None:
    """Return with how many workers each uses `WORKER_SHARE` of a core at most; None where no number of them does.

    A worker of ``n`` sends ``rate / n`` requests a second, and draws the arrivals of all, so it uses
    ``rate / n * (request - drawn) + rate * drawn``.

    Args:
        rate: Requests a second, of all workers together.
        request_seconds: CPU time of a request, where one worker sends all; its own arrival is in it.
        drawn_seconds: CPU time of drawing an arrival.
    """
    left = WORKER_SHARE - rate * drawn_seconds
    if left <= 0:
        return None
    return max(1, math.ceil(rate * max(0.0, request_seconds - drawn_seconds) / left))


def worker_share(rate: float, workers: int, *, request_seconds: float, drawn_seconds: float) -> float:
    """Return which part of a core each of so many workers uses."""
    return rate / workers * max(0.0, request_seconds - drawn_seconds) + rate * drawn_seconds


def rate_drawn_at_most(drawn_seconds: float) -> float:
    """Return the rate at which drawing the schedule alone saturates a worker, however many there are."""
    return SATURATED_SHARE / drawn_seconds if drawn_seconds > 0 else math.inf


def network_bits(rate: float, body_bytes: int) -> float:
    """Return the bits a second of a load's requests, or of its answers, on Ethernet; without acknowledgements."""
    segments = -(-body_bytes // SEGMENT_BYTES)
    return 8 * rate * (body_bytes + segments * FRAMING_BYTES)


def out_of_order(rate: float) -> float:
    """Return how many other arrivals lie so near to one that the clocks do not tell which of them comes first."""
    return rate * CLOCK_SECONDS


@dataclass(frozen=True)
class Uses:
    """How much of what more workers do not give more of is used.

    Args:
        shares: By what it is, as a share of all that there is.
    """

    shares: Mapping[str, float]

    @property
    def scarcest(self) -> tuple[str, float]:
        """What is used most, and how much of it."""
        return max(self.shares.items(), key=lambda use: use[1])


def uses(
    rate: float,
    *,
    drawn_seconds: float,
    coordinator_share: float,
    session_share: float,
    session_bytes: float,
    body_bytes: int,
) -> Uses:
    """Return what a load uses of each thing that workers do not bring with them.

    Args:
        rate: Requests a second.
        drawn_seconds: CPU time of drawing an arrival.
        coordinator_share: Of a core that the coordinator uses.
        session_share: Of a core that the session uses.
        session_bytes: Memory of the session.
        body_bytes: Of a request, or of an answer where that is larger.
    """
    return Uses(
        {
            "drawing the schedule in each worker": rate / rate_drawn_at_most(drawn_seconds),
            "the coordinator's core": coordinator_share,
            "the session's core": session_share,
            "the session's memory": session_bytes / MEMORY_BYTES,
            "the server's network card": network_bits(rate, body_bytes) / CARD_BITS,
        }
    )
