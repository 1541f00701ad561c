"""How long a rate is tried: when it is looked at, when it is given up, and what is thrown away before."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.experiment.shape import TICK_SECONDS
from pytest_gpuserve.gate.share import requests_to_show

if TYPE_CHECKING:
    from pytest_gpuserve.measure.capacity import Objective, Probe

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
