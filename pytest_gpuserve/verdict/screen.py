"""Screen: compares a new session of a host with sessions that were recorded there.

Of ``n`` recorded sessions with the mean ``M``, and one new session ``y``::

    est = y - M      V = s^2 (1 + 1/n) + d^2

``s`` is the spread of sessions within an occasion (a run of pytest). It is pooled over the recorded occasions and mixed
with the metric's default, which counts as three degrees of freedom. ``d`` is the drift between occasions, which a
single occasion cannot show: the metric's default, mixed with the spread of the occasions' means once there are several.
The degrees of freedom of the sum are Satterthwaite's (Biometrics Bulletin 2, 1946, 110-114). The zone test of
`Evidence` decides, a PASS at .05 and a claim at .025.

A screen is weaker than a paired comparison: in a lucky hour it passes builds that a pair of servers would not. The
table is simulated for a tolerated growth of 5 %, 20 000 runs each (`tests/verdict/test_screen.py` counts). Its columns:
identical builds that PASS and are REGRESSED; builds 5 % slower that PASS and are REGRESSED; builds 10 % slower that are
REGRESSED.

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
    """Evidence of a new session against recorded ones of the same host.

    Args:
        metric: The judged metric.
        recorded: Log costs of the recorded sessions, at least one, by the occasion of their measurement.
        now: Log cost of the new session.
        most_growth: Largest acceptable growth of the cost: `Metric.growth` of a tolerance.

    Raises:
        ValueError: Nothing was recorded, or a number is NaN, infinite or out of range.
    """
    every = [cost for costs in recorded.values() for cost in costs]
    if not every:
        raise ValueError("a screen needs at least one recorded session")
    within = [(cost - fmean(costs)) for costs in recorded.values() for cost in costs]
    means = [fmean(costs) for costs in recorded.values()]
    session, session_dof = _mixed(metric, within, len(every) - len(means))
    drift, drift_dof = _mixed(metric, [mean - fmean(means) for mean in means], len(means) - 1)
    part = session * (1 + 1 / len(every))
    variance = part + drift
    df = variance**2 / (part**2 / session_dof + drift**2 / drift_dof)
    return Evidence(now - fmean(every), math.sqrt(variance), df, PASS_ALPHA, CLAIM_ALPHA, 0.0, most_growth)


def _mixed(metric: Metric, deviations: Sequence[float], dof: int) -> tuple[float, float]:
    """Variance that mixes the metric's default with the observed one, and its degrees of freedom."""
    squares = math.fsum(deviation**2 for deviation in deviations)
    variance = (_PRIOR_DOF * metric.default_sd**2 + squares) / (_PRIOR_DOF + dof)
    return max(variance, metric.sd_floor**2), _PRIOR_DOF + dof
