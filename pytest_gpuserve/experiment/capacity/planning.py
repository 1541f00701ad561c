"""Which rate a search tries next: outwards until the capacity lies between two, inwards, then where it seems to lie.

Far from the capacity a rate is decided soon, and near it hardly ever, so most of the time is spent on samples there,
each at the rate at which all before it say that the share of slow requests is the allowed one (C. F. J. Wu, "Efficient
sequential designs with binary data", Journal of the American Statistical Association 80, 1985, 974-984).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from pytest_gpuserve.measure.capacity import SAMPLES, ProbeOutcome, Search

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpuserve.measure.capacity import Objective, Probe

FIRST_SHARE: Final = 0.5
"""Of the rate that users reach who wait for each answer: as a rule so far below an open loop's capacity that it is soon
shown to meet the objective."""

OUTWARDS: Final = 1.5
DOWNWARDS: Final = 2.0
"""Ratio of two rates before the capacity lies between two. Downwards it is larger: that few are slow is sooner shown of
a rate at which hardly any is, and that many are at nearly any that is too high."""

BELOW: Final = 1.8
ABOVE: Final = 1.4
"""Ratio of the capacity of an earlier start to the first rate, and of the second one to it."""

MOST_PROBES: Final = 20
"""Beside the samples."""


class Try(NamedTuple):
    """A rate that is to be tried.

    Args:
        rate: Requests a second.
        sample: The number of the sample that it is, from 0; None for none.
        is_last_resort: Whether there is none below it.
    """

    rate: float
    sample: int | None = None
    is_last_resort: bool = False


@dataclass(frozen=True, slots=True)
class Planner:
    """Plans the probes of one start.

    Args:
        first: The first rate, requests a second.
        precision: The interval is narrowed until neighbouring probes of it are no further apart, as a fraction.
        least: No lower rate is tried: its probes would take too long to decide anything.
        upwards: Ratio of the second rate to the first, if that is met.
    """

    first: float
    precision: float
    least: float
    upwards: float = OUTWARDS

    @classmethod
    def beginning(cls, *, guess: float, known: float | None, precision: float, least: float) -> Planner:
        """One that begins around what an earlier start was found to do, or else from a guess.

        Args:
            guess: Requests a second that users reach who wait for each answer.
            known: The capacity of an earlier start; None for none.
            precision: See above.
            least: See above.
        """
        if known is None:
            return cls(FIRST_SHARE * guess, precision, least)
        return cls(known / BELOW, precision, least, upwards=BELOW * ABOVE)

    def next_rate(self, search: Search) -> float | None:
        """Return the rate to try next; None where it is time for samples, or the search is over.

        The wider gap between an end of the interval and its next probe is halved, on the scale of the log rate, until a
        rate within is not decided: there it lies. The rate that bounds it from above is tried once more: what disturbed
        a machine for a moment looks like overload.
        """
        if len(search.probes) >= MOST_PROBES:
            return None
        if not search.probes:
            return max(self.first, self.least)
        low, high = search.low, search.high
        if high is None:
            ratio = self.upwards if len(search.probes) == 1 else OUTWARDS
            return ratio * max(probe.rate for probe in search.probes)
        if low is None:
            lowest = min(probe.rate for probe in search.probes)
            return None if lowest <= self.least else max(lowest / DOWNWARDS, self.least)
        inside = sorted({probe.rate for probe in search.probes if low < probe.rate < high})
        # Rates that contradict each other lie between the two gaps.
        gaps = [(low, inside[0]), (inside[-1], high)] if inside else [(low, high)]
        gap = max(gaps, key=lambda ends: ends[1] / ends[0])
        undecided = any(probe.finding is ProbeOutcome.UNDECIDED for probe in search.probes if low <= probe.rate <= high)
        if not undecided and gap[1] / gap[0] > 1 + self.precision:
            return math.sqrt(gap[0] * gap[1])
        tried = [probe for probe in search.probes if probe.rate == high]
        return high if len(tried) == 1 else None


def search_for(objective: Objective, planner: Planner, take: Callable[[Try, Search], Probe | None]) -> Search:
    """Search.

    Args:
        objective: What is asked of each rate.
        planner: Says which rate is next.
        take: Tries a rate, knowing the search so far; None where it has to be broken off.
    """
    search = Search(objective)
    while (rate := planner.next_rate(search)) is not None:
        probe = take(Try(rate, is_last_resort=rate <= planner.least), search)
        if probe is None:
            return search
        search = search.with_probe(probe)
    for number in range(SAMPLES):
        where = search.value
        probe = None if where is None else take(Try(where, sample=number), search)
        if probe is None:
            break
        search = search.with_probe(probe)
    return search
