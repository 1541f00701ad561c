"""Claims of a change, held against what an hour can do.

Sessions of one occasion (one run of pytest) share its hour: the neighbours on the machine, its temperature, its
memory. They differ from each other by less than sessions of two occasions do, so a spread that was learned on one
occasion understates what the next one may bring. Simulated with 1 % between sessions and 2 % between occasions, an
identical build was called REGRESSED in 8, 7 and 5 % of runs with one, two and three occasions recorded.

So a build is called REGRESSED, or IMPROVED, only if the change is beyond that drift too: an additional variance
``d**2 * (1 + 1/n)`` for ``n`` recorded occasions, one part for today and one for theirs. ``d`` is the metric's default
sd, mixed with the spread of the occasions' means as they become known (the prior counts as three of them). A PASS
needs no more than the plain evidence, and states what it could have seen with the drift in it. Held back so, the
same simulation calls .000, .001 and .001 of identical builds REGRESSED, and .44, .65 and .77 of those that are 10 %
slower (.998 or more at 20 %); what is held back is INCONCLUSIVE. What it does not mend is a PASS by a lucky hour: at
5 % slower .19, .18 and .17 pass (.06 to .09 where occasions differ by 1 %). That is for the paired comparison.

It is the stored counterpart of the rule of the paired method that a first round must use a pessimistic prior.
"""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import fmean
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.gate.reason import Reason, ReasonKind
from pytest_gpuserve.gate.verdict import Verdict, format_size
from pytest_gpuserve.units import format_fraction

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_gpuserve.gate.stored import StoredResult

_PRIOR_DF: Final = 3.0


def withstand_drift(result: StoredResult, occasions: Mapping[str, Sequence[float]]) -> StoredResult:
    """Hold back a claim that the drift between occasions could explain.

    Args:
        result: What the sessions say.
        occasions: The log costs of this host's stored sessions, by the occasion on which they were recorded. Empty
            for a host that recorded nothing: the spread between hosts is in the evidence already.
    """
    evidence = result.evidence
    if evidence is None or not occasions:
        return result
    drift = drift_variance(result.metric.default_sd, occasions)
    claim = replace(evidence, standard_error=math.sqrt(evidence.standard_error**2 + drift * (1 + 1 / len(occasions))))
    verdict = result.verdict
    if verdict not in {Verdict.REGRESSED, Verdict.IMPROVED} or claim.verdict is verdict:
        return replace(result, claim=claim)
    within = evidence.p_pass < evidence.level
    word = "worse" if verdict is Verdict.REGRESSED else "better"
    text = (
        f"{word} by {format_size(result.metric, evidence.estimate)}, which may be the hour: one build moves by"
        f" {format_fraction(math.sqrt(drift))} (sd) from one occasion to the next, as far as the {len(occasions)}"
        " recorded can tell"
    )
    reason = Reason(ReasonKind.OTHER_HOUR, text)
    return replace(result, verdict=Verdict.PASS if within else Verdict.INCONCLUSIVE, claim=claim, reasons=(reason,))


def drift_variance(default_sd: float, occasions: Mapping[str, Sequence[float]]) -> float:
    """Variance of log cost between occasions: the default mixed with the spread of the occasions' means.

    The spread of the means holds some of the spread between sessions too, which is on the careful side.
    """
    means = [fmean(costs) for costs in occasions.values()]
    centre = fmean(means)
    squares = math.fsum((mean - centre) ** 2 for mean in means)
    return (_PRIOR_DF * default_sd**2 + squares) / (_PRIOR_DF + len(means) - 1)
