"""The verdict against a stored baseline: new sessions of one host against recorded ones.

The unit is the session. The variance between sessions of one host, b^2, is pooled over the stored *and* the
new sessions, each group about its own mean (valid under any change), and mixed with a prior of the metric's
default sd: weight 3 beside a single stored session, 2 beside more; where the data contradict the prior
upwards (F test, .05) they speak alone. For many sessions this is the plain pooled variance. Simulated for
a growth of 5 %, stopping at the first decision of at most six looks, as P(PASS), P(REGRESSED) of an identical
build; P(PASS), P(REGRESSED) at 5 % slower; P(REGRESSED) at 10 % slower (at 30 % it is 1.00 throughout):

    stored  session sd 1 %              session sd 2 %              session sd 3 %
    1       .56 .000; .000 .18; 1.00    .31 .000; .005 .16;  .83    .25 .009; .022 .16; .61
    2       .97 .000; .000 .70; 1.00    .58 .001; .007 .33;  .97    .37 .008; .021 .23; .80
    4       1.0 .000; .001 .97; 1.00    .85 .001; .014 .58; 1.00    .56 .010; .030 .36; .94
    8       1.0 .000; .001 1.0; 1.00    .96 .002; .021 .79; 1.00    .73 .009; .033 .49; .99

The stored spread alone, with dof N-H, decides nothing at N = 2 (PASS .00) and .20, .41, .89 of identical
builds at N = 3, 4, 8 and sd 2 %; the prior without the new sessions .01, .25, .72, .94 at N = 1, 2, 4, 8.

Sessions of one occasion (one run of pytest) share its hour: the neighbours on the machine, its temperature, its
memory. They differ from each other by less than sessions of two occasions do, so a spread that was learned on one
occasion understates what the next one may bring. Simulated with 1 % between sessions and 2 % between occasions, an
identical build was called REGRESSED in 8, 7 and 5 % of runs with one, two and three occasions recorded.

So a build is called REGRESSED, or IMPROVED, only if the change is beyond that drift too: an additional variance
``d**2 * (1 + 1/n)`` for ``n`` recorded occasions, one part for today and one for theirs. ``d`` is the metric's default
sd, mixed with the spread of the occasions' means as they become known (the prior counts as three of them). A PASS
needs no more than the plain evidence, and states what it could have seen with the drift in it. With this rule the same
simulation calls .000, .001 and .001 of identical builds REGRESSED, and .44, .65 and .77 of those that are 10 % slower
(.998 or more at 20 %); what is held back is INCONCLUSIVE. The rule does not prevent a PASS by a lucky hour: at 5 %
slower .19, .18 and .17 pass (.06 to .09 where occasions differ by 1 %). The paired comparison does. This is the stored
counterpart of the rule of the paired method that a first round must use a pessimistic prior.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.gate.metric import Growth, Metric, check_growth
from pytest_gpuserve.gate.reason import Reason, ReasonKind
from pytest_gpuserve.gate.student import f_upper_tail
from pytest_gpuserve.gate.verdict import Evidence, Judgement, Verdict, format_size
from pytest_gpuserve.units import format_fraction

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


LOOKS: Final = 6
"""Most new sessions of one verdict, each followed by a look."""

ALPHA: Final = 0.05
"""Most false claims of one kind over all looks of one verdict; divided evenly, which is valid for any looks."""

_MOST_SESSIONS: Final = 100
_PRIOR_DF_ALONE: Final = 3.0
_PRIOR_DF: Final = 2.0
_CONTRADICTION: Final = 0.05
_FEWEST_DF_TO_CONTRADICT: Final = 2


@dataclass(frozen=True)
class SessionPoint:
    """One session of measuring, as the verdict sees it.

    Attributes:
        host: Identifies the machine; sessions of one host share its luck.
        y: Mean over the session's starts of the log cost.
        u: Squared standard error of ``y`` from inside the session, estimated from its windows; 0 or more.
        starts: Fresh server starts behind it, at least 1.

    Raises:
        ValueError: A field is NaN, infinite or outside its range, or the host is not named.
    """

    host: str
    y: float
    u: float
    starts: int

    def __post_init__(self) -> None:
        if not self.host:
            raise ValueError("a session must name its host")
        if not math.isfinite(self.y):
            raise ValueError(f"a session's log cost must be a number, not {self.y}")
        if not (math.isfinite(self.u) and self.u >= 0):
            raise ValueError(f"a session's squared standard error must be 0 or more, not {self.u}")
        if self.starts < 1:
            raise ValueError(f"a session has at least one start, not {self.starts}")


@dataclass(frozen=True)
class StoredResult:
    """What the stored sessions say about the new ones.

    Attributes:
        metric: What was judged.
        verdict: PASS, IMPROVED, REGRESSED, INCONCLUSIVE (another session may be taken), or MISSING where the
            stored sessions cannot be compared with this host at all.
        evidence: Estimate, standard error and the zone test; None for MISSING.
        measured: Mean log cost of the new sessions.
        predicted: Log cost that the stored sessions predict for this host; None for MISSING.
        sessions: New sessions that were looked at.
        looks: Most new sessions that may be looked at.
        reasons: Why the verdict is MISSING, or was held back; otherwise empty.
        claim: The evidence that a claim of a change has to rest on, where that is not ``evidence`` itself.
    """

    metric: Metric
    verdict: Verdict
    evidence: Evidence | None
    measured: float
    predicted: float | None
    sessions: int
    looks: int
    reasons: tuple[Reason, ...] = ()
    claim: Evidence | None = None

    def judgement(self) -> Judgement:
        """The same in the metric's unit, for assertions and reports."""
        value = self.metric.value_at(self.measured)
        if self.evidence is None or self.predicted is None:
            return Judgement.missing(self.metric, "baseline", *self.reasons, value=value)
        judgement = Judgement.from_evidence(
            self.metric,
            self.evidence,
            verdict=self.verdict,
            reference_kind="baseline",
            value=value,
            reference=self.metric.value_at(self.predicted),
            rounds=self.sessions,
            claim=self.claim,
        )
        return replace(judgement, reasons=self.reasons or judgement.reasons)


@dataclass(frozen=True)
class Variance:
    """Squared standard deviation of log cost between sessions of one host, and its degrees of freedom."""

    value: float
    df: float


@dataclass(frozen=True)
class _Prediction:
    """Log cost expected of the new sessions' mean, with the variance of measured minus expected."""

    mean: float
    variance: Variance


def judge_stored(
    metric: Metric,
    stored: Sequence[SessionPoint],
    new: Sequence[SessionPoint],
    *,
    most_growth: Growth,
    looks: int = LOOKS,
    alpha: float = ALPHA,
) -> StoredResult:
    """Judge new sessions of one host against stored sessions of any hosts, at one look.

    Call it after each new session with all new sessions so far, and stop at the first verdict that is not
    INCONCLUSIVE.

    Args:
        metric: What is judged.
        stored: The baseline's sessions, in any order.
        new: Sessions of this run, all of one host, at most ``looks``.
        most_growth: Largest acceptable growth of the cost: `Metric.growth` of a tolerance.
        looks: Most new sessions that this verdict may ever look at.
        alpha: Most false claims of one kind over all looks.

    Raises:
        ValueError: An empty list, new sessions of several hosts or more of them than looks, or a growth or
            alpha out of range: mistakes of the caller, never of a measurement.
    """
    check_growth(most_growth)
    _check(stored, new, looks=looks, alpha=alpha)
    host = new[0].host
    by_host: dict[str, list[float]] = {}
    for point in stored:
        by_host.setdefault(point.host, []).append(point.y)
    measured = fmean(point.y for point in new)
    if host not in by_host and len(by_host) == 1:
        text = f"the baseline was only recorded on {next(iter(by_host))!r}, this host is {host!r}"
        reasons = (Reason(ReasonKind.OTHER_HOST, text),)
        return StoredResult(metric, Verdict.MISSING, None, measured, None, len(new), looks, reasons)
    session = _session_variance(metric, by_host, [point.y for point in new])
    prediction = _predict(by_host, host, session, sessions=len(new))
    # Noise inside a session is independent between sessions, so that of their mean is 1/J of it; at J = 1
    # this is the whole difference. What was stored with less noise does not know of the difference.
    noisier = max(0.0, fmean(point.u for point in new) - fmean(point.u for point in stored)) / len(new)
    evidence = Evidence(
        estimate=measured - prediction.mean,
        standard_error=math.sqrt(prediction.variance.value + noisier),
        df=prediction.variance.df,
        level=alpha / looks,
        claim_level=alpha / looks,
        least_claim=0.0,
        most_growth=most_growth,
    )
    return StoredResult(metric, evidence.verdict, evidence, measured, prediction.mean, len(new), looks)


def _check(stored: Sequence[SessionPoint], new: Sequence[SessionPoint], *, looks: int, alpha: float) -> None:
    if not stored or not new:
        raise ValueError(f"a verdict needs sessions on both sides, not {len(stored)} stored and {len(new)} new")
    if len(new) > looks:
        raise ValueError(f"{len(new)} new sessions are more than the {looks} looks that the level is divided for")
    hosts = {point.host for point in new}
    if len(hosts) > 1:
        raise ValueError(f"the new sessions must be of one host, not of {sorted(hosts)}")
    if not 0 < alpha < 0.5:
        raise ValueError(f"alpha must lie between 0 and 0.5, not {alpha}")


def _session_variance(metric: Metric, by_host: Mapping[str, Sequence[float]], new: Sequence[float]) -> Variance:
    groups = [*by_host.values(), new]
    return session_variance(
        metric,
        squares=sum_of_squares(groups),
        df=sum(len(group) - 1 for group in groups),
        alone=sum(map(len, by_host.values())) == 1,
    )


def sum_of_squares(groups: Iterable[Sequence[float]]) -> float:
    """Squared deviations of values from the mean of their own group, over all groups."""
    return math.fsum((y - mean) ** 2 for group in groups for mean in (fmean(group),) for y in group)


def session_variance(metric: Metric, *, squares: float, df: int, alone: bool) -> Variance:
    """b^2: the prior mixed with the pooled spread, never below the metric's floor.

    Args:
        metric: Gives the prior by its default sd.
        squares: Squared deviations of log costs from the means of their groups, with ``df`` degrees of freedom.
        df: See ``squares``.
        alone: Whether only one session was stored, whose spread nobody knows: the prior weighs more.
    """
    prior = Variance(metric.default_sd**2, _PRIOR_DF_ALONE if alone else _PRIOR_DF)
    variance = Variance((prior.df * prior.value + squares) / (prior.df + df), prior.df + df)
    if df >= _FEWEST_DF_TO_CONTRADICT and f_upper_tail(squares / df / prior.value, df, prior.df) < _CONTRADICTION:
        variance = Variance(squares / df, float(df))
    return Variance(max(variance.value, metric.sd_floor**2), variance.df)


def _predict(by_host: Mapping[str, Sequence[float]], host: str, session: Variance, *, sessions: int) -> _Prediction:
    """One-way random effects of the host: shrunken towards all hosts if it is known, their mean if it is not."""
    means = {name: fmean(ys) for name, ys in by_host.items()}
    mean_all = fmean(means.values())
    new_part = session.value / sessions
    if len(by_host) == 1:
        variance = new_part + session.value / len(by_host[host])
        return _Prediction(means[host], Variance(variance, session.df))
    sizes = [len(ys) for ys in by_host.values()]
    hosts, total = len(sizes), sum(sizes)
    grand = math.fsum(y for ys in by_host.values() for y in ys) / total
    mean_square = math.fsum(len(ys) * (means[name] - grand) ** 2 for name, ys in by_host.items()) / (hosts - 1)
    typical_size = (total - sum(size * size for size in sizes) / total) / (hosts - 1)
    between = max(0.0, (mean_square - session.value) / typical_size)
    # The mean of host means: every host's own luck, and what few sessions leave unknown of it.
    inverse_sizes = math.fsum(1 / size for size in sizes) / hosts**2
    mean_all_variance = between / hosts + session.value * inverse_sizes
    if host in by_host:
        own = session.value / len(by_host[host])
        weight = between / (between + own)
        variance = new_part + weight * own + (1 - weight) ** 2 * mean_all_variance
        return _Prediction(weight * means[host] + (1 - weight) * mean_all, Variance(variance, session.df))
    variance = new_part + between + mean_all_variance
    return _Prediction(
        mean_all,
        Variance(
            variance,
            _unseen_host_df(
                variance,
                host_part=(1 + 1 / hosts) / typical_size * mean_square if between else 0.0,
                session_df=session.df,
                hosts=hosts,
            ),
        ),
    )


def _unseen_host_df(variance: float, *, host_part: float, session_df: float, hosts: int) -> float:
    """Satterthwaite's degrees of freedom, and never more than the spread between hosts has.

    Without that bound a between-host variance that came out as 0 by luck would count as known: simulated, a
    build of an unseen host is then called REGRESSED in 4 to 5 % of cases with two or three stored hosts, and
    with it in at most 0.8 %.
    """
    session_part = variance - host_part
    satterthwaite = variance**2 / (host_part**2 / (hosts - 1) + session_part**2 / session_df)
    return min(satterthwaite, float(hosts - 1))


_OCCASIONS_DF: Final = 3.0


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
    return (_OCCASIONS_DF * default_sd**2 + squares) / (_OCCASIONS_DF + len(means) - 1)
