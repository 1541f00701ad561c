"""The knee of a sweep: the most that a server does within a latency budget."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True)
class Point:
    """A point of a sweep.

    Args:
        at: The swept value: a batch size, or a concurrency.
        throughput: Any rate, above 0.
        p99_seconds: Latency.
    """

    at: int
    throughput: float
    p99_seconds: float


def knee(points: Iterable[Point], budget_seconds: float) -> Point | None:
    """Return the point of the largest throughput whose p99 is within the budget; None without such a point.

    Among equal throughputs it is the one of the lower p99, and among equal ones in that the lower ``at``.
    """
    within = [point for point in points if point.p99_seconds <= budget_seconds]
    return max(within, key=lambda point: (point.throughput, -point.p99_seconds, -point.at), default=None)
