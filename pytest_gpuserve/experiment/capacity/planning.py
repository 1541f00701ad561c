"""What a search tries next, a rate, and for how long.

Outwards until the capacity lies between two rates, inwards, then where it seems to lie. Far from the capacity a rate is
decided soon, and near it hardly ever, so most of the time is spent on samples there, each at the rate at which all
before it say that the share of slow requests is the allowed one (C. F. J. Wu, "Efficient sequential designs with binary
data", Journal of the American Statistical Association 80, 1985, 974-984).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from pytest_gpuserve.experiment.shape import TICK_SECONDS
from pytest_gpuserve.gate.share import requests_to_show
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


ERROR: Final = 0.05
"""Chance that the capacity of a start lies outside of its interval; shared out over sides, probes and looks."""

NEXT_PROBES: Final = 2
"""Probes that are so near to the capacity that chance can show the contrary of the truth."""

BATCHES: Final = 24
"""Of a probe, at every look; the first look is after as many ticks, and each other one after a multiple of it."""

SAMPLE_BATCHES: Final = 20
"""Of a sample, which is looked at once."""

LOOKS: Final = (1, 2, 4, 8, 12, *(times << doubled for doubled in range(16) for times in (16, 24)))
"""Multiples of the first look at which another one may be: the longer it has taken, the more an early end saves."""

SECONDS: Final = 19.2
"""Measured time of a probe at most, unless its objective or a low rate needs more, or its test says otherwise."""

SAMPLE_SHARE: Final = 0.3125
"""Of that time that a sample takes: 6 s of 19.2."""

MOST_SECONDS: Final = 76.8
"""Of a probe whose low rate needs that, unless its test says more."""

OBJECTIVES_LONG: Final = 40
"""So many times the objective a probe may last at least, which is some queues' memory."""

SPARE: Final = 2.5
"""Times the requests that show a share of 0 to be low enough: the true one is above 0."""

SETTLE_SECONDS: Final = 0.5
SETTLE_OBJECTIVES: Final = 10
LONGEST_SETTLE_SECONDS: Final = 2.0
"""A probe begins with an empty queue: of it is thrown away the first of these, or so many times the objective between
it and the last; and the objective itself at least, before which a good answer need not have come."""


@dataclass(frozen=True, slots=True)
class Looks:
    """When a probe is looked at.

    Args:
        ticks: After how many ticks each look is.
        batches: In which its requests are counted; each look is after a multiple of them.
        level: Error rate of a look, of either side.
    """

    ticks: tuple[int, ...]
    batches: int
    level: float

    @classmethod
    def within(cls, seconds: float) -> Looks:
        """As many as there are within a time, the last at its end; one at least."""
        last = max(1, math.floor(seconds / (BATCHES * TICK_SECONDS) + 1e-9))
        ticks = tuple(BATCHES * times for times in (*(each for each in LOOKS if each < last), last))
        return cls(ticks, BATCHES, ERROR / 2 / NEXT_PROBES / len(ticks))

    @classmethod
    def at(cls, rate: float, objective: Objective, seconds: float | None = None) -> Looks:
        """As many as it takes at a rate to show that an objective is met.

        Args:
            rate: Requests a second.
            objective: The objective.
            seconds: For how long to look where neither a low rate nor the objective takes longer; None where no test
                says so.
        """
        usual = SECONDS if seconds is None else seconds
        wanted = max(usual, OBJECTIVES_LONG * objective.seconds)
        level = cls.within(max(wanted, MOST_SECONDS)).level
        needed = SPARE * requests_to_show(objective.allowed, level, BATCHES) / rate
        # Rounded up: what is too short by a little decides nothing.
        longer = BATCHES * TICK_SECONDS * math.ceil(needed / (BATCHES * TICK_SECONDS))
        return cls.within(max(wanted, min(MOST_SECONDS, longer)))

    @classmethod
    def of_sample(cls, rate: float, objective: Objective, seconds: float | None = None) -> Looks:
        """One, at the end of a sample; what it takes for is that of a probe which may decide something.

        Args:
            rate: See ``at``; that of the first sample, for all of a search are of one length.
            objective: See ``at``.
            seconds: See ``at``.
        """
        whole = cls.at(rate, objective, seconds)
        times = max(1, round(SAMPLE_SHARE * whole.ticks[-1] / SAMPLE_BATCHES))
        return cls((SAMPLE_BATCHES * times,), SAMPLE_BATCHES, whole.level)


def least_rate(objective: Objective, seconds: float | None) -> float:
    """The lowest rate at which an objective can be shown to be met.

    Args:
        objective: The objective.
        seconds: See ``Looks.at``.
    """
    looks = Looks.within(max(MOST_SECONDS, OBJECTIVES_LONG * objective.seconds, seconds or 0.0))
    return requests_to_show(objective.allowed, looks.level, BATCHES) / (looks.ticks[-1] * TICK_SECONDS)


def seconds_to_show(probe: Probe, objective: Objective) -> float:
    """How long to look at a rate to show that it meets an objective, if a probe of it has not decided that.

    Twice as long as the probe, or what it takes where requests are worth as much as in it.
    """
    looks = Looks.within(2 * probe.seconds)
    worth = probe.requests / probe.effective if probe.effective > 0 else 1.0
    needed = SPARE * worth * requests_to_show(objective.allowed, looks.level, BATCHES) / probe.rate
    return max(2 * probe.seconds, needed)


def settle_seconds(objective: Objective) -> float:
    """Time of a probe that is thrown away."""
    usual = min(max(SETTLE_SECONDS, SETTLE_OBJECTIVES * objective.seconds), LONGEST_SETTLE_SECONDS)
    return max(usual, objective.seconds)
