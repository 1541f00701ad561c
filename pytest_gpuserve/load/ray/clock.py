"""How far a worker's clock is ahead of ours, from calls to and fro; arithmetic alone.

As of the Network Time Protocol (RFC 5905, section 8), with the same assumption: none about which way took longer. So an
offset comes with how far it may be off, and that is a bound, not an estimate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytest_gpuserve.load.wire import Tick


class Exchange(NamedTuple):
    """A call to a worker, in nanoseconds of the clock of who notes it.

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

    def offset(self) -> Offset:
        """What it tells of the worker's clock."""
        least, most = self.answered_ns - self.heard_ns, self.received_ns - self.sent_ns
        # Below 0 where one clock ran slower meanwhile by more than the ways took: a thousandth of a long call.
        return Offset((least + most) // 2, max(0, -(-(most - least) // 2)))


@dataclass(frozen=True, slots=True)
class Offset:
    """How far a worker's clock is ahead of ours.

    Args:
        ns: The middle of what it can be.
        uncertainty_ns: By how much it can be more or less.
    """

    ns: int
    uncertainty_ns: int

    def theirs(self, ours_ns: int) -> int:
        """Say this time of our clock by the worker's."""
        return ours_ns + self.ns

    def ours(self, theirs_ns: int) -> int:
        """Say this time of the worker's clock by ours."""
        return theirs_ns - self.ns

    def gap_ns(self, other: Offset) -> int:
        """How far the clocks certainly moved apart between two measurements; 0 where both can be true at once."""
        return max(0, abs(self.ns - other.ns) - self.uncertainty_ns - other.uncertainty_ns)


def best_offset(exchanges: Iterable[Exchange]) -> Offset:
    """What the exchange with the shortest ways tells, which is known best.

    Raises:
        ValueError: There is none.
    """
    return min(exchanges, key=lambda exchange: exchange.round_trip_ns).offset()


def in_our_time(tick: Tick, offset: Offset) -> Tick:
    """Say by our clock when a worker's tick was; how long things took in it is the same by all clocks."""
    return msgspec.structs.replace(tick, begin_ns=offset.ours(tick.begin_ns), end_ns=offset.ours(tick.end_ns))
