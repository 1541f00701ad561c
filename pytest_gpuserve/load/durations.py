"""Many durations as one value: a histogram with count, sum and maximum, from the engine to the verdict."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from pytest_gpuserve.measure.histogram import Histogram

if TYPE_CHECKING:
    from collections.abc import Iterable


def requests_to_know(q: float) -> int:
    """Return from how many requests on a quantile is known: so many that one of them at least lies above it.

    With fewer the nearest rank is the last one, and the quantile the maximum under another name: 100 for p99.

    Raises:
        ValueError: ``q`` is outside of (0, 1).
    """
    if not 0 < q < 1:
        raise ValueError(f"a quantile that can be unknown lies in (0, 1), not at {q}")
    # Rounded first: 1 - 0.9 is not quite 0.1.
    return math.ceil(round(1 / (1 - q), 6))


class Durations(msgspec.Struct, frozen=True):
    """Many durations, each known to 0.05 %, with their exact mean and maximum.

    Args:
        counts: Number of durations by bucket of ``measure.histogram``.
        sum_ns: Their sum in nanoseconds.
        max_ns: The longest in nanoseconds.
    """

    counts: dict[int, int] = {}
    sum_ns: int = 0
    max_ns: int = 0

    @classmethod
    def pooled(cls, parts: Iterable[Durations]) -> Durations:
        """Add up durations exactly."""
        known = [part for part in parts if part.counts]
        if len(known) < 2:
            return known[0] if known else cls()
        # A load's sum is much longer than the tick that is added to it: it is copied, not counted again.
        known.sort(key=lambda part: len(part.counts), reverse=True)
        counts = dict(known[0].counts)
        for part in known[1:]:
            for bucket, count in part.counts.items():
                counts[bucket] = counts.get(bucket, 0) + count
        return cls(
            counts=counts,
            sum_ns=sum(part.sum_ns for part in known),
            max_ns=max(part.max_ns for part in known),
        )

    @property
    def histogram(self) -> Histogram:
        """How many there are of each length."""
        return Histogram(self.counts)

    @property
    def total(self) -> int:
        """How many there are."""
        return sum(self.counts.values())

    @property
    def mean(self) -> float | None:
        """In seconds; None where there are none."""
        total = self.total
        return self.sum_ns / total / 1e9 if total else None

    @property
    def maximum(self) -> float | None:
        """In seconds; None where there are none."""
        return self.max_ns / 1e9 if self.counts else None

    def quantile(self, q: float) -> float | None:
        """Return the nearest-rank quantile in seconds, never above the maximum.

        None where there are fewer than ``requests_to_know(q)``.

        Raises:
            ValueError: ``q`` is outside of (0, 1).
        """
        if self.total < requests_to_know(q):
            return None
        return min(self.histogram.quantile(q), self.max_ns / 1e9)

    def in_seconds(self) -> Histogram:
        """The same as a histogram with sum and maximum in seconds."""
        return Histogram(self.counts, self.sum_ns / 1e9, self.max_ns / 1e9)
