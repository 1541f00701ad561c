"""Whether somebody else used a server meanwhile: what it counted is held against what we sent it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.experiment.shape import TICK_SECONDS
from pytest_gpuserve.gate.reason import Reason, ReasonKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpuserve.load.totals import Totals
    from pytest_gpuserve.load.wire import Tick
    from pytest_gpuserve.measure.counters import Counters

OTHERS_SHARE: Final = 0.05
"""By so much the server may have answered more requests than we sent: what it counts and what we saw are not looked at
at the same instant."""


@dataclass
class BothCounts:
    """What server and client have each counted of the same stretches of time.

    Args:
        server_requests: What the server answered.
        server_seconds: The time in which it did.
        unsure_seconds: How far the ends of that time may be from those of ours.
        readings: Of its counters, each of which it may count as a request.
        client_requests: What we sent: a request that failed here may have been answered there.
        client_seconds: The time in which we did.
        client_peak: The most requests a second in any tick.
        latency_seconds: Of all our requests together.
        last: The reading at the end of the last stretch, which the next one begins with if it follows at once.
    """

    server_requests: int = 0
    server_seconds: float = 0.0
    unsure_seconds: float = 0.0
    readings: int = 0
    client_requests: int = 0
    client_seconds: float = 0.0
    client_peak: float = 0.0
    latency_seconds: float = 0.0
    last: CounterReading | None = None

    def sent(self, ticks: Sequence[Tick], totals: Totals) -> None:
        """Add what we counted.

        Args:
            ticks: Of a stretch.
            totals: The same, added up.
        """
        self.client_requests += totals.requests + totals.error_count
        self.client_seconds += totals.seconds
        self.client_peak = max(self.client_peak, *map(_rate, ticks))
        self.latency_seconds += totals.latency.sum_ns / 1e9

    def answered(self, requests: int, before: CounterReading, after: CounterReading) -> None:
        """Add what the server counted between two readings."""
        self.server_requests += requests
        self.server_seconds += after.at_seconds - before.at_seconds
        # What one stretch has too much at a reading that it shares, the next one has too little.
        self.unsure_seconds += after.took_seconds + (
            -before.took_seconds if before is self.last else before.took_seconds
        )
        self.readings += 1
        self.last = after

    def problems(self, *, finite: bool) -> list[Reason]:
        """Say that the server answered more requests than we sent it; empty if it did not.

        Args:
            finite: Whether all of the load was measured, from before its begin to its end. Then its requests are
                compared as they are; else rates are, for the server's stretch of time and ours do not begin and end
                together.
        """
        if self.client_seconds <= 0 or self.server_seconds <= 0:
            return []
        sent = self.client_requests * (1.0 if finite else self.server_seconds / self.client_seconds)
        in_flight = self.latency_seconds / self.client_seconds
        allowed = 2 + 2 * in_flight + self.readings + (0.0 if finite else self.client_peak * self.unsure_seconds)
        if self.server_requests <= sent * (1 + OTHERS_SHARE) + allowed:
            return []
        answered, ours = self.server_requests / self.server_seconds, sent / self.server_seconds
        text = (
            f"another client: the server answered {answered:.0f} requests a second, we sent it {ours:.0f}; make sure"
            " that nobody else uses it"
        )
        return [Reason(ReasonKind.ANOTHER_CLIENT, text)]


def _rate(tick: Tick) -> float:
    """Requests a second, of a short last tick too."""
    return tick.requests / max(TICK_SECONDS, (tick.end_ns - tick.begin_ns) / 1e9)


@dataclass(frozen=True, slots=True)
class CounterReading:
    """A reading of a server's counters.

    Args:
        counters: What it says.
        at_seconds: When, by the monotonic clock, as the middle of the reading.
        took_seconds: How long after the end of the last tick it was over: on a stalled machine we are late.
    """

    counters: Counters
    at_seconds: float
    took_seconds: float
