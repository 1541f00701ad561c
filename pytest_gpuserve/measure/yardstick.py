"""How fast the machine was while a session was measured, and whether it is as fast now.

A yardstick is never used to scale a number: workloads follow it by different amounts. It only says whether a number
that was stored is evidence here and now.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from statistics import fmean, variance
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

LIMIT: Final = 0.05
"""How far, as a change of log rate, a machine may be from what it was, what its own scatter leaves open included."""

STANDARD_ERRORS: Final = 2.0
"""So many of them are what scatter leaves open."""

SCATTER: Final = 0.01
"""Standard deviation of log rate between readings that is assumed at least: a few may agree by chance."""


@dataclass(frozen=True, slots=True)
class Yardstick:
    """How often a second a machine did each kind of work, at each reading; empty where nobody measured."""

    rates: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, readings: Iterable[Mapping[str, float]]) -> Yardstick:
        """Put readings together; a kind of work that one of them lacks is left out."""
        return cls.pooled(cls({kind: (rate,) for kind, rate in each.items()}) for each in readings)

    @classmethod
    def pooled(cls, parts: Iterable[Yardstick]) -> Yardstick:
        """All readings of several; a kind of work that one of them lacks is left out."""
        known = list(parts)
        kinds = [kind for kind in known[0].rates if all(kind in each.rates for each in known)] if known else []
        return cls({kind: tuple(rate for each in known for rate in each.rates[kind]) for kind in kinds})

    @property
    def is_steady(self) -> bool:
        """Whether the machine is known to have been as fast all the time: no two readings lie `LIMIT` apart."""
        counts = [len(rates) for rates in self.rates.values()]
        return min(counts, default=0) > 1 and all(
            math.log(max(rates) / min(rates)) <= LIMIT for rates in self.rates.values()
        )


@dataclass(frozen=True, slots=True)
class SpeedChange:
    """How much faster a machine does one kind of work than it did.

    Args:
        ratio: Rate now by rate then.
        error: What scatter leaves open of its log.
    """

    kind: str
    ratio: float
    error: float

    @property
    def is_near(self) -> bool:
        """Whether the machine seems to be as fast as it was, if scatter is left out of account."""
        return abs(math.log(self.ratio)) <= LIMIT

    @property
    def is_within(self) -> bool:
        """Whether the machine is known to be as fast as it was."""
        return abs(math.log(self.ratio)) + self.error <= LIMIT


def speed_changes(then: Yardstick, now: Yardstick) -> tuple[SpeedChange, ...]:
    """Compare two yardsticks by each kind of work that both know; empty where they have none in common."""
    return tuple(
        SpeedChange(kind, math.exp(_mean(rates) - _mean(then.rates[kind])), _error(then.rates[kind], rates))
        for kind, rates in now.rates.items()
        if kind in then.rates
    )


def is_as_fast(then: Yardstick, now: Yardstick) -> bool:
    """Whether a machine is known to be as fast as it was, at every kind of work that was measured then.

    Nothing that is not known is alike: neither a yardstick without readings, nor work that only one of them knows.
    """
    changes = speed_changes(then, now)
    return bool(changes) and then.rates.keys() == now.rates.keys() and all(change.is_within for change in changes)


def speed_ratio(then: Yardstick, now: Yardstick) -> float | None:
    """How many times as fast a machine is as it was: the kind of work that has moved furthest; None if not known."""
    changes = speed_changes(then, now)
    return max((change.ratio for change in changes), key=lambda ratio: abs(math.log(ratio)), default=None)


def _mean(rates: tuple[float, ...]) -> float:
    return fmean(map(math.log, rates))


def _error(*groups: tuple[float, ...]) -> float:
    """What scatter leaves open of the difference of two means, by the variance that both have in common."""
    logs = [[math.log(rate) for rate in rates] for rates in groups]
    freedom = sum(len(values) - 1 for values in logs)
    squares = math.fsum((len(values) - 1) * variance(values) for values in logs if len(values) > 1)
    pooled = max(SCATTER**2, squares / freedom if freedom else 0.0)
    return STANDARD_ERRORS * math.sqrt(pooled * math.fsum(1 / len(values) for values in logs))
