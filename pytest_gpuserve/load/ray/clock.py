"""Estimates how far a worker's clock is ahead of ours, from calls to it; arithmetic alone.

As of the Network Time Protocol (RFC 5905, section 8), with the same assumption: none about which way took longer. So an
offset comes with how far it may be off, and that is a bound, not an estimate. As time goes on the bound widens by what
two clocks can drift apart, and every further call narrows it again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

if TYPE_CHECKING:
    from pytest_gpuserve.load.wire import Tick

MOST_DRIFT_PPM: Final = 500
"""So much faster or slower than ours a clock may run: quartzes are off by up to 100, and NTP steers none by more."""

UNKNOWN_NS: Final = 1 << 63
"""Further apart are no two clocks."""


class Exchange(NamedTuple):
    """A call to a worker; each time is in nanoseconds of the clock of the side that took it.

    Args:
        sent_ns: When we called.
        received_ns: When it was called, by its own clock.
        answered_ns: When it returned, by its own clock.
        heard_ns: When we had the result.
    """

    sent_ns: int
    received_ns: int
    answered_ns: int
    heard_ns: int

    @property
    def round_trip_ns(self) -> int:
        """How long both ways together took."""
        return (self.heard_ns - self.sent_ns) - (self.answered_ns - self.received_ns)

    @property
    def least_ns(self) -> int:
        """So far at least its clock is ahead when we have the result."""
        return self.answered_ns - self.heard_ns

    @property
    def most_ns(self) -> int:
        """So far at most it is then: as far as when we called, and what it has drifted since."""
        return self.received_ns - self.sent_ns + _drift_ns(self.heard_ns - self.sent_ns)


@dataclass(frozen=True, slots=True)
class Offset:
    """How far a worker's clock is ahead of ours."""

    ns: int
    uncertainty_ns: int

    def theirs(self, ours_ns: int) -> int:
        """Say this time of our clock by the worker's."""
        return ours_ns + self.ns

    def ours(self, theirs_ns: int) -> int:
        """Say this time of the worker's clock by ours."""
        return theirs_ns - self.ns


class Track:
    """A worker's clock beside ours, call by call; nothing is known of it before the first.

    What is taken for the offset stays what it was for as long as it can be true: it follows a clock that drifts, and
    does not jump about with the length of the calls.

    Attributes:
        astray_ns: How far the clock certainly went since ``begin`` that no drift explains.
    """

    def __init__(self) -> None:
        self._low_ns, self._high_ns = -UNKNOWN_NS, UNKNOWN_NS
        self._ns = 0
        self._at_ns = 0
        self._ended: tuple[int, int] | None = None
        self.begin()

    def begin(self) -> None:
        """Begin to follow a load: what its clock does from now on is told by ``astray_ns`` and ``moved_ns``."""
        self.settle()
        self._begun_ns = self._low_ns, self._high_ns
        self.astray_ns = 0

    def hear(self, exchange: Exchange) -> None:
        """Learn from a call, the newest."""
        drift_ns = _drift_ns(abs(exchange.heard_ns - self._at_ns))
        low_ns, high_ns = self._low_ns - drift_ns, self._high_ns + drift_ns
        least_ns, most_ns = exchange.least_ns, exchange.most_ns
        gap_ns = max(least_ns - high_ns, low_ns - most_ns, least_ns - most_ns)
        if gap_ns > 0:
            self.astray_ns += gap_ns
            # Of a clock that was set in the course of the call only the least is of the time after it.
            low_ns, high_ns = least_ns, most_ns if most_ns >= least_ns else least_ns + high_ns - low_ns
        else:
            low_ns, high_ns = max(low_ns, least_ns), min(high_ns, most_ns)
        self._low_ns, self._high_ns, self._at_ns = low_ns, high_ns, exchange.heard_ns
        self._ns = min(max(self._ns, low_ns), high_ns)

    def settle(self) -> None:
        """Take the middle of what the offset can be for it; not in mid-load, where that would be a jump."""
        self._ns = (self._low_ns + self._high_ns) // 2

    @property
    def offset(self) -> Offset:
        """How far its clock was ahead at the last call."""
        return Offset(self._ns, max(self._high_ns - self._ns, self._ns - self._low_ns))

    @property
    def uncertainty_ns(self) -> int:
        """By how much the offset could be more or less, if the middle of what it can be were taken for it."""
        return -(-(self._high_ns - self._low_ns) // 2)

    @property
    def moved_ns(self) -> int:
        """How far it certainly moved since ``begin``, by drifting too."""
        begun_low_ns, begun_high_ns = self._begun_ns
        return max(0, self._low_ns - begun_high_ns, begun_low_ns - self._high_ns)

    def in_our_time(self, tick: Tick) -> Tick:
        """Say by our clock when a worker's tick was; how long things took in it is the same by all clocks.

        A tick that begins as the one before it ended does so by our clock too.
        """
        begin_ns = self.offset.ours(tick.begin_ns)
        if self._ended is not None and self._ended[0] == tick.begin_ns:
            begin_ns = self._ended[1]
        end_ns = max(begin_ns, self.offset.ours(tick.end_ns))
        self._ended = tick.end_ns, end_ns
        return msgspec.structs.replace(tick, begin_ns=begin_ns, end_ns=end_ns)


def _drift_ns(elapsed_ns: int) -> int:
    """How far a clock can have drifted in so long, rounded up."""
    return -(-elapsed_ns * MOST_DRIFT_PPM // 1_000_000)
