"""What a load came to, for tables and people: pooled over all measured windows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpuserve.measure.histogram import Histogram, merge, seconds_of
from pytest_gpuserve.measure.points import NotMeasured

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pytest_gpuserve.measure.window import Window


@dataclass(frozen=True, slots=True)
class Summary:
    """Counts and latencies of some windows.

    Args:
        requests: Requests that were answered well.
        errors: Requests that failed.
        seconds: Measured time.
        throughput: Requests answered a second.
        mean: Mean latency in seconds, exact.
        max: Greatest latency in seconds, exact.
        latency: All latencies, each within 0.05 %.
    """

    requests: int
    errors: int
    seconds: float
    throughput: float
    mean: float
    max: float
    latency: Histogram

    @property
    def in_flight(self) -> float:
        """Requests under way on average, by Little's law: throughput times mean latency.

        Of a closed loop without pauses it is the number of users, within what was under way at the ends.
        """
        return self.throughput * self.mean

    def quantile(self, q: float) -> float:
        """Return the nearest-rank quantile of the latency in seconds.

        Raises:
            ValueError: ``q`` is outside of (0, 1].
        """
        return self.latency.quantile(q)

    def histogram(self, bins: int) -> list[tuple[float, int]]:
        """Count latencies in bins of equal width between the least and the greatest, as hey prints them.

        Args:
            bins: How many, one at least.

        Returns:
            For each bin its upper edge in seconds, and how many latencies lie in it, above the bin before it.

        Raises:
            ValueError: ``bins`` is less than one.
        """
        if bins < 1:
            raise ValueError(f"a histogram has one bin at least, not {bins}")
        known = {seconds_of(bucket): count for bucket, count in self.latency.counts.items()}
        low, high = min(known), max(known)
        width = (high - low) / bins
        counts = [0] * bins
        for seconds, count in known.items():
            place = math.ceil((seconds - low) / width) - 1 if width else 0
            counts[min(max(place, 0), bins - 1)] += count
        return [(low + (number + 1) * width, count) for number, count in enumerate(counts)]


def summary_of(windows: Iterable[Window]) -> Summary:
    """Pool windows.

    Raises:
        NotMeasured: Nothing was answered in them.
    """
    known: Sequence[Window] = list(windows)
    requests = sum(window.requests for window in known)
    seconds = math.fsum(window.seconds for window in known)
    if not requests or seconds <= 0:
        raise NotMeasured("no request was answered in the measured time")
    return Summary(
        requests=requests,
        errors=sum(sum(window.errors.values()) for window in known),
        seconds=seconds,
        throughput=requests / seconds,
        mean=math.fsum(window.latency_sum_seconds for window in known) / requests,
        max=max(window.latency_max_seconds for window in known),
        latency=merge(window.latency for window in known),
    )
