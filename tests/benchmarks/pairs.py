"""Two clients in turn on a noisy machine: ours, peer, peer, ours, ..., and the ratios of neighbours.

What a request costs a client is beyond what it takes to start. CPU time is by the same basis for all: the whole process
tree's from start to end. What a start takes is taken off by a second, smallest load: the cost of a request is the
difference of both loads' CPU time by that of their requests.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from tests.benchmarks.peers import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

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
    return Ratio(
        statistics.median(mine for mine, _ in values),
        statistics.median(theirs for _, theirs in values),
        statistics.median(ratios),
        min(ratios),
        max(ratios),
        len(ratios),
    )


STARTS = 3


@dataclass(frozen=True)
class Contestant:
    """A client with its load.

    Args:
        load: Runs the load.
        smallest: Runs the smallest that it can; None where that is none (wrk runs a second at least, and starts in
            2 ms, which it is charged with).
    """

    load: Callable[[], Outcome]
    smallest: Callable[[], Outcome] | None

    def start(self) -> Outcome:
        """Return its smallest load, with the median CPU time of a few."""
        if self.smallest is None:
            return Outcome(0, 0.0, 0.0)
        loads = sorted((self.smallest() for _ in range(STARTS)), key=lambda load: load.cpu_seconds)
        return loads[STARTS // 2]


@dataclass(frozen=True)
class Compared:
    """Ours against a peer.

    Args:
        cost: CPU seconds a request.
        speed: Requests a second.
    """

    cost: Ratio
    speed: Ratio


def compare(ours: Contestant, peer: Contestant, *, pairs: int) -> Compared:
    """Run both in turn."""
    ours_start, peer_start = ours.start(), peer.start()
    results = in_turn(ours.load, peer.load, pairs=pairs)
    return Compared(
        ratio([(_cost(mine, ours_start), _cost(theirs, peer_start)) for mine, theirs in results]),
        ratio([(mine.throughput, theirs.throughput) for mine, theirs in results]),
    )


def _cost(load: Outcome, start: Outcome) -> float:
    return (load.cpu_seconds - start.cpu_seconds) / (load.requests - start.requests)
