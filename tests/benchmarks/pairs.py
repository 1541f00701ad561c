"""Two clients in turn on a noisy machine: ours, peer, peer, ours, ..., and the ratios of neighbours.

A request's cost to a client is beyond what it takes to start: the start is taken off by a second, smallest load.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.benchmarks.tools import Outcome

Result = TypeVar("Result")


@dataclass(frozen=True)
class Ratio:
    """What ours is to the peer's.

    Args:
        ours: Median of our values.
        peer: Median of the peer's values.
        median: Of the pairs' ratios.
        low: The smallest of them.
        high: The largest.
        pairs: How many there were.
    """

    ours: float
    peer: float
    median: float
    low: float
    high: float
    pairs: int


def in_turn(ours: Callable[[], Result], peer: Callable[[], Result], *, pairs: int) -> list[tuple[Result, Result]]:
    """Run both ``pairs`` times, each time the other one first, so that a drift of the machine favours nobody."""
    results = []
    for number in range(pairs):
        if number % 2:
            theirs = peer()
            results.append((ours(), theirs))
        else:
            mine = ours()
            results.append((mine, peer()))
    return results


def ratio(values: Sequence[tuple[float, float]]) -> Ratio:
    """Compare pairs of values."""
    ratios = [mine / theirs for mine, theirs in values]
    ours, peer = (statistics.median(side) for side in zip(*values, strict=True))
    return Ratio(ours, peer, statistics.median(ratios), min(ratios), max(ratios), len(ratios))


def cost_of_start(smallest: Callable[[], Outcome]) -> tuple[float, int]:
    """CPU seconds and requests of the smallest load of a client: the median of three."""
    loads = sorted((smallest() for _ in range(3)), key=lambda load: load.cpu_seconds)
    return loads[1].cpu_seconds, loads[1].requests


def cost(load: Outcome, start: tuple[float, int] = (0.0, 0)) -> float:
    """CPU seconds a request, less those of the start."""
    seconds, requests = start
    return (load.cpu_seconds - seconds) / (load.requests - requests)
