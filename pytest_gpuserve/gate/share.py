"""Whether a share of requests lies below or above a limit, where requests that follow each other resemble each other.

A queue that is long now was long a moment ago: slow requests come in clusters, and a thousand of them may be worth no
more than ten that are independent. So requests are counted by batches, stretches of time of equal length:

- The design effect is how many times the variance of the share over batches is that of independent requests (L. Kish,
  "Survey Sampling", 1965; the variance of a ratio of sums: W. G. Cochran, "Sampling Techniques", 3rd ed. 1977, 6.3).
  Ten to thirty batches are as good as any number, if each is long enough (B. Schmeiser, "Batch size effects in the
  analysis of simulation output", Operations Research 30, 1982, 556-568).
- Divided by it, and by what its few degrees of freedom cost, the requests are the effective ones, with which the exact
  limits of the binomial distribution (C. J. Clopper and E. S. Pearson, Biometrika 26, 1934) keep their error rate
  (E. L. Korn and B. I. Graubard, "Confidence intervals for proportions with small expected number of positive counts
  estimated from survey data", Survey Methodology 24, 1998, 193-201).

Batches may still resemble the one before, of a slow queue those of a short look. Then the variance of their mean is
larger than their spread tells, by ``(1 + r) / (1 - r)`` if each keeps a share r of what the one before was beyond the
mean (M. S. Bartlett, "On the theoretical specification and sampling properties of autocorrelated time-series", Journal
of the Royal Statistical Society, supplement 8, 1946, 27-41). Of n batches r is seen too small by ``(1 + 4 r) / n``,
which is added (M. G. Kendall, "Note on bias in the estimation of autocorrelation", Biometrika 41, 1954, 403-404).

Where no request was slow yet, nothing is known of how they cluster. So the design effect of a second, lower limit is
looked at as well, which a tenth of the requests exceeds, and the larger one of the two holds. What batches keep of the
one before is only looked at for the limit itself: of a server at rest its chance would make too much of a few requests.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.gate.student import f_upper_tail, t_quantile

if TYPE_CHECKING:
    from collections.abc import Sequence

FEWEST_BATCHES: Final = 8
"""Of fewer the spread is not known well enough for anything to be concluded."""

MOST_LIKENESS: Final = 0.7
"""Of a batch to the one before: beyond it so few batches tell no difference."""

LEAST_SQUARES: Final = 1e-6
"""Of requests; what is less is left by rounding, where all batches have the same share."""


@dataclass(frozen=True, slots=True)
class RequestCounts:
    """The requests of a stretch of time.

    Args:
        requests: How many there were.
        beyond: Those of them that exceed the limit.
        beyond_lower: Those of them that exceed the lower limit.

    Raises:
        ValueError: A count is negative, or more requests exceed a limit than there are.
    """

    requests: int
    beyond: int
    beyond_lower: int

    def __post_init__(self) -> None:
        if not (0 <= self.beyond <= self.requests and 0 <= self.beyond_lower <= self.requests):
            raise ValueError(f"of {self.requests} requests not {self.beyond} and {self.beyond_lower} are beyond")


@dataclass(frozen=True, slots=True)
class Share:
    """A share of requests, from 0 to 1, and of how many independent ones it is worth; not necessarily whole."""

    value: float
    effective: float

    def chance_of_so_few(self, limit: float) -> float:
        """Probability of so small a share, or a smaller one, if the true one is ``limit``; inside (0, 1)."""
        beyond = self.value * self.effective
        return 1.0 if beyond >= self.effective else _beta(1 - limit, self.effective - beyond, beyond + 1)

    def chance_of_so_many(self, limit: float) -> float:
        """Probability of so large a share, or a larger one, if the true one is ``limit``; inside (0, 1)."""
        beyond = self.value * self.effective
        return 1.0 if beyond <= 0 else _beta(limit, beyond, self.effective - beyond + 1)


def share_of(batches: Sequence[RequestCounts], level: float) -> Share:
    """Return the share of requests beyond the limit.

    Args:
        batches: Of equal length, in time.
        level: Error rate of what is to be concluded; it says what the few degrees of freedom cost.

    Returns:
        A share that is worth no request, from which nothing follows, where there are too few batches.

    Raises:
        ValueError: ``level`` is not inside (0, 0.5).
    """
    if not 0 < level < 0.5:
        raise ValueError(f"an error rate lies in (0, 0.5), not at {level}")
    requests = sum(batch.requests for batch in batches)
    if not requests:
        return Share(0.0, 0.0)
    share = sum(batch.beyond for batch in batches) / requests
    if len(batches) < FEWEST_BATCHES:
        return Share(share, 0.0)
    beyond = [(batch.requests, batch.beyond) for batch in batches]
    effect = max(
        _design_effect(beyond) * _persistence(beyond),
        _design_effect([(batch.requests, batch.beyond_lower) for batch in batches]),
    )
    # Requests that are spread more evenly than by chance are taken for no more than they are.
    return Share(share, requests / max(1.0, effect * _few(len(batches), level)))


def requests_to_show(limit: float, level: float, batches: int) -> float:
    """How many independent requests, none beyond, show at this error rate that the share lies below ``limit``."""
    return math.log(level) / math.log1p(-limit) * _few(batches, level)


def _few(batches: int, level: float) -> float:
    """How many times as many requests it takes because their spread is known from so few batches."""
    return (t_quantile(level, batches - 1) / t_quantile(level, math.inf)) ** 2


def _design_effect(counts: Sequence[tuple[int, int]]) -> float:
    """The variance of a share over batches to that of independent requests; 1 where all or none are beyond."""
    requests = sum(count for count, _ in counts)
    share = sum(beyond for _, beyond in counts) / requests
    if not 0 < share < 1:
        return 1.0
    squares = math.fsum(each**2 for each in _away(counts))
    variance = len(counts) / (len(counts) - 1) * squares / requests**2
    return variance / (share * (1 - share) / requests)


def _persistence(counts: Sequence[tuple[int, int]]) -> float:
    """The variance of the mean of batches to that of such as do not resemble the one before them."""
    away = _away(counts)
    squares = math.fsum(each**2 for each in away)
    if squares < LEAST_SQUARES:
        return 1.0
    seen = math.fsum(one * other for one, other in itertools.pairwise(away)) / squares
    likeness = min(MOST_LIKENESS, max(0.0, seen + (1 + 4 * seen) / len(away)))
    return (1 + likeness) / (1 - likeness)


def _away(counts: Sequence[tuple[int, int]]) -> list[float]:
    """By how many requests beyond the limit each batch has more than its share."""
    share = sum(beyond for _, beyond in counts) / sum(count for count, _ in counts)
    return [beyond - share * count for count, beyond in counts]


def _beta(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function I_x(a, b), as a tail of F (Abramowitz and Stegun 26.6.2)."""
    return f_upper_tail(a / b * (1 - x) / x, 2 * b, 2 * a)
