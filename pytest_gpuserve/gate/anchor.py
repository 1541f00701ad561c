"""Drift: what a metric is now against its anchor, the number that was last accepted deliberately.

A baseline is replaced again and again, and each time it may be worse by its tolerance. The anchor stays, so that small
steps add up. Of it a mean log cost is known, with the standard deviation between its sessions; what is asked is the
two-sample t test with pooled variance (Snedecor and Cochran, Statistical Methods, 6.9), for sessions of two occasions:

    est = mean(y_now) - y_anchor
    V   = b^2 * (1/J + 1/n) + d^2 * (1/M + 1/m)      J, n sessions; M, m occasions, of now and of the anchor
    p   = P(t_df > (est - d0) / sqrt(V))             d0 = log(1 + growth/4), as in every verdict here

b^2 is the variance between sessions, mixed with the metric's default as in ``gate/stored.py``, from the anchor's
sessions, those of now, and those of the builds between; df are its degrees of freedom. d^2 is that between occasions,
as in ``gate/stored.py``. Growth is that of the cost at the tolerance. A metric has drifted if p is below the level
*and* the estimate is beyond the tolerance:
what has come together in many steps is told where it is too much, not as soon as it is surely something. It has
improved if the test on the opposite sign is below a sixth of the level, as at one look of the stored gate: an anchor
that was tightened by luck stays so. Both are asked once, when the last session was measured; that another verdict on
the same sessions may have ended them is in the rates below.

Simulated for throughput with a growth of 5 % and three sessions a recording, where each update replaces the
sessions, and tightens or keeps the anchor. Shares of updates, and of gates after each, that are told to have drifted in
chains of fifty updates of one build; and of chains of updates that are 1 % slower each, how many have been refused by
the step that makes it 8, 10 and 12 %:

    sd between sessions, occasions    false alarms: updates, gates    refused by 8 %, 10 %, 12 %
    0.3 %      0 %                    .000  .000                      1.00  1.00  1.00
    1 %        0 %                    .000  .000                       .86  1.00  1.00
    2 %        0 %                    .000  .000                       .74   .98  1.00
    3 %        0 %                    .001  .000                       .66   .88   .98
    1 %        1 %                    .000  .000                       .79   .96  1.00
    2 %        1 %                    .002  .001                       .70   .94   .99
    1 %        2 %                    .013  .013                       .78   .92   .97
    2 %        2 %                    .015  .017                       .70   .86   .97
    1 %        3 %                    .080  .081                       .81   .92   .97

The last line is an hour's drift beyond the default that is assumed of it, of which a file with one occasion knows
nothing; for that there is the comparison with the anchor's commit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import TYPE_CHECKING

from pytest_gpuserve.gate.metric import Growth, Metric, check_growth
from pytest_gpuserve.gate.stored import ALPHA, LOOKS, drift_variance, session_variance, sum_of_squares
from pytest_gpuserve.gate.verdict import Evidence, Judgement, Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True)
class AnchorPoint:
    """An anchor on the scale on which it is judged.

    Attributes:
        y: Mean log cost of its sessions.
        sd: Standard deviation of log cost between them; None where there is one.
        sessions: Behind it, at least 1.
        occasions: Runs of pytest that measured them, at least 1.

    Raises:
        ValueError: A field is NaN, infinite or outside its range, or the spread does not fit the sessions.
    """

    y: float
    sd: float | None
    sessions: int
    occasions: int

    def __post_init__(self) -> None:
        if not math.isfinite(self.y):
            raise ValueError(f"an anchor's log cost must be a number, not {self.y}")
        if not 1 <= self.occasions <= self.sessions:
            raise ValueError(f"{self.sessions} sessions cannot be of {self.occasions} occasions")
        if (self.sd is None) is not (self.sessions == 1):
            raise ValueError(f"a spread of {self.sd} does not fit {self.sessions} sessions")
        if self.sd is not None and not (math.isfinite(self.sd) and self.sd >= 0):
            raise ValueError(f"an anchor's standard deviation must be 0 or more, not {self.sd}")

    @classmethod
    def of(cls, occasions: Mapping[str, Sequence[float]]) -> AnchorPoint:
        """The anchor that these log costs of sessions make, by the occasion on which they were measured."""
        ys = [y for costs in occasions.values() for y in costs]
        return cls(fmean(ys), stdev(ys) if len(ys) > 1 else None, len(ys), len(occasions))


@dataclass(frozen=True)
class AnchorResult:
    """A metric against its anchor.

    Attributes:
        measured: Mean log cost now, of ``sessions``.
        evidence: Estimate, standard error and the zone test.
    """

    metric: Metric
    anchor: AnchorPoint
    measured: float
    sessions: int
    evidence: Evidence

    @property
    def is_beyond(self) -> bool:
        """Whether the estimate itself is worse by more than the tolerance, surely or not."""
        return self.evidence.estimate > self.evidence.too_much

    @property
    def has_drifted(self) -> bool:
        """Whether it is worse by more than the tolerance, and chance does not explain it."""
        return self.is_beyond and self.evidence.p_regressed < self.evidence.level

    @property
    def has_improved(self) -> bool:
        """Whether it is better, and chance does not explain it."""
        return self.evidence.p_improved < self.evidence.level / LOOKS

    @property
    def change(self) -> float:
        """Of the value, as a fraction by its own sign."""
        return self.metric.value_at(self.measured) / self.metric.value_at(self.anchor.y) - 1

    def judgement(self) -> Judgement:
        """The drift as a regression from the anchor, in the metric's unit; for what has drifted."""
        return Judgement.from_evidence(
            self.metric,
            self.evidence,
            verdict=Verdict.REGRESSED,
            reference_kind="baseline",
            value=self.metric.value_at(self.measured),
            reference=self.metric.value_at(self.anchor.y),
            rounds=self.sessions,
            looks=1,
        )


def judge_anchor(
    metric: Metric,
    anchor: AnchorPoint,
    now: Mapping[str, Sequence[float]],
    between: Mapping[str, Sequence[float]],
    *,
    most_growth: Growth,
    alpha: float = ALPHA,
) -> AnchorResult:
    """Compare what was measured now with an anchor of the same host.

    Args:
        metric: What is compared.
        anchor: Its anchor.
        now: Log costs of the sessions of this build, by occasion.
        between: The same of another build that was recorded since, which only tells how much sessions and occasions
            vary; may be empty.
        most_growth: Largest acceptable growth of the cost.
        alpha: One-sided level of each question.

    Raises:
        ValueError: No session, or a growth or alpha out of range: mistakes of the caller, never of a measurement.
    """
    check_growth(most_growth)
    ys = [y for costs in now.values() for y in costs]
    if not ys:
        raise ValueError("nothing was measured that could be compared with an anchor")
    others = [y for costs in between.values() for y in costs]
    groups = [group for group in (ys, others) if group]
    known = 0.0 if anchor.sd is None else (anchor.sessions - 1) * anchor.sd**2
    session = session_variance(
        metric,
        squares=known + sum_of_squares(groups),
        df=anchor.sessions - 1 + sum(len(group) - 1 for group in groups),
        alone=anchor.sessions == 1 and not others,
    )
    drift = drift_variance(metric.default_sd, between) if between else metric.default_sd**2
    measured = fmean(ys)
    variance = session.value * (1 / len(ys) + 1 / anchor.sessions) + drift * (1 / len(now) + 1 / anchor.occasions)
    evidence = Evidence(
        estimate=measured - anchor.y,
        standard_error=math.sqrt(variance),
        df=session.df,
        level=alpha,
        most_growth=most_growth,
    )
    return AnchorResult(metric, anchor, measured, len(ys), evidence)
