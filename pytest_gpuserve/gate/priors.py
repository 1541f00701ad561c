"""How far two fresh starts of one build lie apart, learned from what was measured before.

Two kinds of history know it: the starts of stored sessions, whose pooled variance counts twice because a pair has two
starts, and the rounds of past paired comparisons, whose spread about their own mean is that of start pairs plus that
inside a round, which is taken off. Both are centred, so they hold whatever the comparison found. What a start's own
windows scatter is not taken off the first kind, which errs on the careful side. But where that is most of what there
is, as of a capacity, the first kind says nothing of starts, and is left out.

Starts that followed each other on a machine whose speed moved meanwhile teach nothing here: they differ by what a pair
has in common. On a virtual machine of two cores, whose neighbours halve its speed for seconds, two starts of one build
were up to 26 % apart, and the two of a pair up to 6 %.

Few degrees of freedom must not rule: two starts that happen to agree would promise that all do. So history is mixed
with the default prior, whose weight falls in a straight line from its own degrees of freedom without history to none
at 8, from where on the method trusts a learned prior in a first round; below, the sum stays below 8 too. Simulated
with priors that were learned from 1 to 10 comparisons of 2 or 3 rounds each, on machines of three noise levels: of
changes at the edge of "nothing to talk about" at most .048 are called REGRESSED at any look, of those at the edge of
the tolerance at most .055 PASS (nominal .05 for both).
"""

from __future__ import annotations

import math
from statistics import fmean
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.gate.paired import FIRST_ROUND_DOF, Prior, RoundPoint, default_prior

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pytest_gpuserve.gate.metric import Metric

MOST_DOF: Final = 20.0
"""A machine changes over the months, so no history counts for more than this."""


def learn_prior(metric: Metric, stored: Sequence[Sequence[float]], paired: Sequence[Sequence[RoundPoint]]) -> Prior:
    """What history says of one start pair; the default prior where it says nothing.

    Args:
        metric: Whose log costs these are.
        stored: For each stored session of this host and device, the log costs of its starts. A session of one start
            says nothing.
        paired: For each past comparison on this host and device, its rounds. A comparison of one round says nothing.

    Raises:
        ValueError: A log cost is NaN or infinite.
    """
    default = default_prior(metric)
    starts_squares, starts_dof = _pooled(stored if metric.own_error is None else ())
    pairs_squares, pairs_dof = _pooled([[point.x for point in rounds] for rounds in paired])
    dof = starts_dof + pairs_dof
    if not dof:
        return default
    inside = math.fsum((len(rounds) - 1) * _inside(rounds) for rounds in paired if rounds)
    squares = 2 * starts_squares + max(0.0, pairs_squares - inside)
    weight = default.dof * max(0.0, 1 - dof / FIRST_ROUND_DOF)
    counted = min(float(dof), MOST_DOF)
    variance = (weight * default.variance + counted * squares / dof) / (weight + counted)
    return Prior(max(variance, metric.sd_floor**2), weight + counted, learned=True)


def _pooled(groups: Iterable[Sequence[float]]) -> tuple[float, int]:
    """Sum of squares of groups, each about its own mean, and its degrees of freedom."""
    squares, dof = 0.0, 0
    for group in groups:
        if not all(map(math.isfinite, group)):
            raise ValueError(f"log costs must be numbers, not {list(group)}")
        if group:
            centre = fmean(group)
            squares += math.fsum((value - centre) ** 2 for value in group)
            dof += len(group) - 1
    return squares, dof


def _inside(rounds: Sequence[RoundPoint]) -> float:
    """Mean squared standard error from inside a round, over the rounds that know it."""
    known = [point.u for point in rounds if point.dof]
    return fmean(known) if known else 0.0
