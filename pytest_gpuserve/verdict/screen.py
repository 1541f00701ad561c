"""The screen: what a new session of a host says beside sessions that were recorded there.

Of ``n`` recorded sessions with the mean ``M``, and one new session ``y``::

    est = y - M      V = s^2 (1 + 1/n) + d^2

``s`` is the spread of sessions within an occasion (a run of pytest), pooled over the recorded occasions and mixed with
the metric's default, which counts as three degrees of freedom. ``d`` is the drift between occasions, which no single
one can see: the metric's default, mixed likewise with the spread of the occasions' means as several become known. The
degrees of freedom of the sum are Satterthwaite's (Biometrics Bulletin 2, 1946, 110-114). The zone test of `Evidence`
decides, a PASS at .05 and a claim at .025.

It is a screen and no more: a lucky hour passes what a pair of servers side by side would not. Simulated for a growth of
5 %, 20 000 runs each (`tests/verdict/test_screen.py` counts): identical builds that PASS and are REGRESSED; builds that
are 5 % slower that PASS and are REGRESSED; builds that are 10 % slower that are REGRESSED:

    sd of sessions, occasions    3 sessions of one occasion     12 sessions of four occasions
    0.3 %      0 %               .27 .000; .000 .00; 1.0        1.0 .000; .000 .19; 1.0
    1 %        1 %               .43 .000; .002 .06; .83        .76 .000; .007 .27; .99
    1 %        2 %               .46 .005; .044 .17; .72        .57 .006; .046 .25; .87
    2 %        2 %               .42 .012; .063 .18; .63        .46 .008; .052 .20; .73
"""

from __future__ import annotations

import math
from statistics import fmean
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.verdict.sequential import CLAIM_ALPHA, PASS_ALPHA
from pytest_gpuserve.verdict.verdict import Evidence

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_gpuserve.verdict.metric import Growth, Metric

_PRIOR_DOF: Final = 3.0


def screen_evidence(
    metric: Metric, recorded: Mapping[str, Sequence[float]], now: float, *, most_growth: Growth
) -> Evidence:
    """What a new session says beside recorded ones of the same host.

    Args:
        metric: What is judged.
        recorded: Log costs of the recorded sessions, one at least, by the occasion on which they were measured.
        now: Log cost of the new session.
        most_growth: Largest acceptable growth of the cost: `Metric.growth` of a tolerance.

    Raises:
        ValueError: Nothing was recorded, or a number is NaN, infinite or out of range.
    """
    every = [cost for costs in recorded.values() for cost in costs]
    if not every:
        raise ValueError("there is no recorded session to compare with")
    within = [(cost - fmean(costs)) for costs in recorded.values() for cost in costs]
    means = [fmean(costs) for costs in recorded.values()]
    session, session_dof = _mixed(metric, within, len(every) - len(means))
    drift, drift_dof = _mixed(metric, [mean - fmean(means) for mean in means], len(means) - 1)
    part = session * (1 + 1 / len(every))
    variance = part + drift
    df = variance**2 / (part**2 / session_dof + drift**2 / drift_dof)
    return Evidence(now - fmean(every), math.sqrt(variance), df, PASS_ALPHA, CLAIM_ALPHA, 0.0, most_growth)


def _mixed(metric: Metric, deviations: Sequence[float], dof: int) -> tuple[float, float]:
    """A variance, the metric's default mixed with what was seen, and its degrees of freedom."""
    squares = math.fsum(deviation**2 for deviation in deviations)
    variance = (_PRIOR_DOF * metric.default_sd**2 + squares) / (_PRIOR_DOF + dof)
    return max(variance, metric.sd_floor**2), _PRIOR_DOF + dof
