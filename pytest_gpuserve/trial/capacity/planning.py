"""Which rate a search tries next: outwards from a first guess until the capacity lies between two, then inwards."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.measure.capacity import Finding, Search

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpuserve.measure.capacity import Objective, Probe

FIRST_SHARE: Final = 0.75
"""Of the rate that users reach who wait for each answer: near an open loop's capacity, and as a rule below it."""

OUTWARDS: Final = 1.5
"""Ratio of two rates before the capacity lies between two."""

MOST_PROBES: Final = 20

MOST_UNDECIDED: Final = 4
"""Within the interval: where time did not decide so many rates, it would not decide their neighbours."""


@dataclass(frozen=True, slots=True)
class Planner:
    """Plans the probes of one start.

    Args:
        first: The first rate, requests a second.
        precision: The interval is narrowed until neighbouring probes of it are no further apart, as a fraction.
        least: No lower rate is tried: its probes would take too long to decide anything.
    """

    first: float
    precision: float
    least: float

    def next_rate(self, search: Search) -> float | None:
        """Return the rate to try next; None where the search is over.

        The wider gap between an end of the interval and its next probe is halved, on the scale of the log rate. In the
        end the rate that bounds it from above is tried once more: what disturbed a machine for a moment looks like
        overload.
        """
        if len(search.probes) >= MOST_PROBES:
            return None
        if not search.probes:
            return max(self.first, self.least)
        low, high = search.low, search.high
        if high is None:
            return OUTWARDS * max(probe.rate for probe in search.probes)
        if low is None:
            lowest = min(probe.rate for probe in search.probes)
            return None if lowest <= self.least else max(lowest / OUTWARDS, self.least)
        inside = sorted({probe.rate for probe in search.probes if low < probe.rate < high})
        undecided = sum(probe.finding is Finding.UNDECIDED for probe in search.probes if low <= probe.rate <= high)
        # Between two that were not decided nothing will be.
        outer = [(low, inside[0]), (inside[-1], high)] if inside else [(low, high)]
        gap = max(outer, key=lambda ends: ends[1] / ends[0])
        if undecided < MOST_UNDECIDED and gap[1] / gap[0] > 1 + self.precision:
            return math.sqrt(gap[0] * gap[1])
        tried = [probe for probe in search.probes if probe.rate == high]
        return high if len(tried) == 1 else None


def search_for(objective: Objective, planner: Planner, take: Callable[[float, Search], Probe | None]) -> Search:
    """Search.

    Args:
        objective: What is asked of each rate.
        planner: Says which rate is next.
        take: Tries a rate, knowing the search so far; None where it has to be broken off.
    """
    search = Search(objective)
    while (rate := planner.next_rate(search)) is not None:
        probe = take(rate, search)
        if probe is None:
            break
        search = search.with_probe(probe)
    return search
