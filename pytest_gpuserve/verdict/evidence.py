"""Evidence of paired rounds, of one session beside recorded ones, and the looks of a comparison with their levels.

A paired comparison measures two servers side by side over rounds of fresh starts. The unit is the round, because the
windows of one start share its luck. A round gives the trimmed mean of its block differences, and that mean's variance
from inside the round (K. K. Yuen, Biometrika 61, 1974, 165-170). The variance that one pair of starts adds is a prior
with degrees of freedom, so a single round can already decide. The spread between rounds is mixed in as it becomes
known. It replaces the prior if it is significantly larger (F test, .05). The degrees of freedom of the sum are
Satterthwaite's.

After one round, only the prior knows how far two starts of one build differ. A claim of a change after one round
therefore has to lie three standard errors beyond the tolerance, by a prior that is at least as wide as the default. A
PASS uses the prior itself, because its degrees of freedom say how little is known.

Two kinds of history tell how far two fresh starts of one build differ:

- The starts of stored sessions. Their pooled variance counts twice, because a pair has two starts. The scatter of a
  start's own windows is not subtracted, which errs on the careful side.
- The rounds of past paired comparisons. Their spread about their own mean is that of start pairs plus the variance
  inside a round, which is subtracted.

Both are centred, so they hold for every outcome of a comparison.

Consecutive starts on a machine whose speed drifts teach nothing here, because a pair shares that drift. On a virtual
machine of two cores, whose neighbours halve its speed for seconds, two starts of one build differed by up to 26 %. The
two starts of a pair differed by up to 6 %.

Few degrees of freedom must not rule: two starts that happen to agree would promise that all do. So history is mixed
with the default prior. The default's weight falls linearly from its own degrees of freedom without history to zero at
8. The default can only widen: a spread that was seen to be wider is not averaged down.

Simulated with priors learned from one or three stored sessions, from 1 to 10 comparisons of 2 or 3 rounds, or from
both. Each case has 1200 comparisons on machines of three noise levels:

- At the edge of a negligible change at most .020 are REGRESSED (nominal .05).
- At the edge of the tolerance at most .040 PASS (nominal .05).
- Identical builds: at most .0025 are REGRESSED.
- Identical builds that PASS in their first round: 48 to 99 of 100 on a quiet or typical machine, 37 to 57 on a noisy
  one.
- If two starts differ by 3 % (sd), twice the belief without history: at the edge of the tolerance at most .084 PASS
  after one start pair of history and .061 after three. Of identical builds .01 are REGRESSED.

Looks and their levels: the levels of all looks together keep the level of the whole comparison. They spend
``alpha * sqrt(t)`` of the error by the time a share t of the planned rounds is measured (K. K. G. Lan and D. L. DeMets,
Biometrika 70, 1983, 659-663). The levels are fixed numbers. A look that is not taken loses its share and gives it to no
other, so no observation can move a level. Other comparisons of the run cannot either.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import TYPE_CHECKING, Final, NamedTuple

from pytest_gpuserve.verdict.metric import COLD_START
from pytest_gpuserve.verdict.student import f_upper_tail, t_upper_tail
from pytest_gpuserve.verdict.verdict import EstimatedChange, Evidence, Verdict, one_start

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pytest_gpuserve.verdict.metric import Growth, Metric
    from pytest_gpuserve.verdict.reason import Reason


class Levels(NamedTuple):
    """One-sided levels of one look.

    Attributes:
        within: Level of a PASS.
        claim: Level of REGRESSED, and of IMPROVED.
    """

    within: float
    claim: float


PASS_ALPHA: Final = 0.05
"""Largest share of wrong PASSes over all looks of one comparison."""

CLAIM_ALPHA: Final = 0.025
"""Largest share of wrong claims of one kind over all looks of one comparison, for any number of comparisons in a
run."""

BLOCKS: Final = 6
"""Blocks of a full round."""

FIRST_BLOCKS: Final = 3
"""Blocks of the first round before the first look."""

FIRST_WORTH: Final = 2.0
"""Round 1 ends with its first look if the optimal number of blocks per start is at most this.

The optimal number is `blocks_worth_a_start`. This limit is below the measured blocks, because so few blocks tell
little of their own spread.
"""

LOOKS: Final[tuple[tuple[int, int], ...]] = ((1, FIRST_BLOCKS), *((rounds, BLOCKS) for rounds in range(1, 9)))
"""Looks, as (rounds begun, blocks measured of the last round); round 1 may end with the first look."""

LEVELS: Final[tuple[Levels, ...]] = tuple(
    map(
        Levels,
        (0.01289, 0.01073, 0.01114, 0.01091, 0.01118, 0.01111, 0.01217, 0.01219, 0.01249),
        (0.00633, 0.00475, 0.00506, 0.00504, 0.00496, 0.00531, 0.00574, 0.00531, 0.00605),
    )
)
"""Levels of each look: shares of `PASS_ALPHA` and of `CLAIM_ALPHA`."""

_TAIL_FROM: Final = 0.99

_SECOND_ROUND: Final = LOOKS.index((2, BLOCKS))


def look_index(rounds: int, blocks_in_last_round: int) -> int | None:
    """Index of the look that is due after so many rounds and blocks of the last round; None between looks."""
    place = (rounds, blocks_in_last_round)
    return LOOKS.index(place) if place in LOOKS else None


def first_look(metric: Metric) -> int:
    """The first look that a metric takes part in.

    A p99 of three blocks rests on too few requests. A cold start takes two rounds, because the first start of all may
    read its files from disk while the other server finds them in memory. So the first of two rounds is left out
    (`compare.side_by_side.judged_rounds`).
    """
    if metric.name == COLD_START:
        return _SECOND_ROUND
    return 1 if metric.quantile is not None and metric.quantile >= _TAIL_FROM else 0


TRIMMED_SHARE: Final = 0.2
"""Share of the block differences of a round that is cut off at each end."""

_CONTRADICTION: Final = 0.05
_FEWEST_ROUNDS_TO_CONTRADICT: Final = 3
_FIRST_ROUND_ERRORS: Final = 3.0
_DEFAULT_DOF: Final = 3.0
_ENOUGH_DOF: Final = 8.0


@dataclass(frozen=True)
class RoundPoint:
    """One round, as the verdict sees it.

    Attributes:
        differences: Block differences of log cost, candidate minus base, at least one; positive is worse.
        x: The 20 % trimmed mean of the differences; fewer than five are not trimmed.
        u: Squared standard error of ``x`` from inside the round; 0 if there is only one difference.
        dof: Degrees of freedom of ``u``; 0 if there is only one difference.

    Raises:
        ValueError: The differences are empty, or one is NaN or infinite.
    """

    differences: tuple[float, ...]
    x: float = field(init=False, compare=False)
    u: float = field(init=False, compare=False)
    dof: int = field(init=False, compare=False)

    def __post_init__(self) -> None:
        if not self.differences:
            raise ValueError("a round has at least one block difference")
        if not all(map(math.isfinite, self.differences)):
            raise ValueError(f"block differences must be numbers, not {self.differences}")
        ordered = sorted(self.differences)
        count = len(ordered)
        cut = int(TRIMMED_SHARE * count)
        kept = ordered[cut : count - cut]
        winsorised = [kept[0]] * cut + kept + [kept[-1]] * cut
        object.__setattr__(self, "x", fmean(kept))
        object.__setattr__(self, "dof", len(kept) - 1)
        squared_error = _squares(winsorised) / (len(kept) * self.dof) if self.dof else 0.0
        object.__setattr__(self, "u", squared_error)


@dataclass(frozen=True)
class Prior:
    """Belief before a comparison: how far two fresh starts of one build differ.

    Attributes:
        variance: Variance of the difference of log cost within one pair of starts, positive.
        dof: Degrees of freedom of the variance, positive, not necessarily whole.

    Raises:
        ValueError: A number is not positive and finite.
    """

    variance: float
    dof: float

    def __post_init__(self) -> None:
        for name, number in (("variance", self.variance), ("degrees of freedom", self.dof)):
            if not (math.isfinite(number) and number > 0):
                raise ValueError(f"a prior's {name} must be a positive number, not {number}")


@dataclass(frozen=True)
class LimitEvidence(EstimatedChange):
    """Estimated change of log cost, and its test against a limit without a zone around it.

    Attributes:
        limit: Largest change of log cost that is allowed; below 0 the candidate has to be better.

    Raises:
        ValueError: A field is NaN, infinite or outside its range.
    """

    limit: float

    def __post_init__(self) -> None:
        super().__post_init__()
        if not math.isfinite(self.limit):
            raise ValueError(f"a limit must be a number, not {self.limit}")

    @property
    def p_above(self) -> float:
        """P-value of "at or below the limit"; if it is below the level of a claim, the change is above."""
        return t_upper_tail((self.estimate - self.limit) / self.standard_error, self.df)

    @property
    def p_within(self) -> float:
        """P-value of "above the limit"; if it is below the level, the change is at or below the limit."""
        return t_upper_tail((self.limit - self.estimate) / self.standard_error, self.df)

    @property
    def verdict(self) -> Verdict:
        """PASS, REGRESSED or INCONCLUSIVE, at this look's levels."""
        if abs(self.estimate - self.limit) > self.least_claim:
            if self.p_within < self.level:
                return Verdict.PASS
            if self.p_above < self.claim_level:
                return Verdict.REGRESSED
        return Verdict.INCONCLUSIVE

    def remarks(self, metric: Metric) -> tuple[Reason, ...]:
        """Remarks that a report adds to the bare verdict."""
        shown = self.p_within < self.level or self.p_above < self.claim_level
        return (one_start(metric, self),) if shown and self.verdict is Verdict.INCONCLUSIVE else ()


def default_prior(metric: Metric) -> Prior:
    """Prior of a metric that was never measured, with 3 degrees of freedom.

    The sd is 1.5 %. For p99 it is 3 %, for memory 0.7 %, for a cold start 7.1 %.
    """
    return Prior(max(metric.default_pair_sd, metric.sd_floor) ** 2, _DEFAULT_DOF)


def paired_evidence(
    metric: Metric, rounds: Sequence[RoundPoint], prior: Prior, *, most_growth: Growth, levels: Levels
) -> Evidence:
    """Evidence of all rounds so far, at one look.

    Args:
        metric: The measured metric.
        rounds: At least one, in any order.
        prior: Prior for the variance of one start pair.
        most_growth: Largest acceptable growth of the cost: `Metric.growth` of a tolerance.
        levels: Levels of this look.

    Raises:
        ValueError: The rounds are empty, or the growth or a level is out of range.
    """
    estimate, error, df = _estimate(rounds, prior)
    least = math.log1p(most_growth) + _first_round_error(metric, rounds, prior) if len(rounds) == 1 else 0.0
    return Evidence(estimate, error, df, levels.within, levels.claim, least, most_growth)


def paired_limit(
    metric: Metric, rounds: Sequence[RoundPoint], prior: Prior, *, limit_log_cost: float, levels: Levels
) -> LimitEvidence:
    """Evidence on whether the candidate costs at most ``exp(limit_log_cost)`` times what the base costs.

    A limit has no zone that separates the two answers. So both are claims, and after one round both have to be far from
    the limit. Arguments are those of `paired_evidence`; a limit below 0 demands that the candidate is better.

    Raises:
        ValueError: As for `paired_evidence`, or the limit is NaN or infinite.
    """
    estimate, error, df = _estimate(rounds, prior)
    least = _first_round_error(metric, rounds, prior) if len(rounds) == 1 else 0.0
    return LimitEvidence(estimate, error, df, levels.within, levels.claim, least, limit_log_cost)


def _first_round_error(metric: Metric, rounds: Sequence[RoundPoint], prior: Prior) -> float:
    """Distance that a claim has to keep from a line after one round."""
    wide = replace(prior, variance=max(prior.variance, default_prior(metric).variance))
    return _FIRST_ROUND_ERRORS * _estimate(rounds, wide)[1]


def blocks_worth_a_start(point: RoundPoint, prior: Prior, *, start_in_blocks: float) -> float:
    """Optimal number of blocks per start, not rounded, for the time that the blocks and the start take.

    This is the best size of a cluster, ``sqrt(c1 / c2) * s2 / s1``, of W. G. Cochran, Sampling Techniques, 3rd ed.,
    1977, section 10.6. The spread of blocks is measured, the spread of starts is the prior's.

    Args:
        point: A round of at least two blocks.
        prior: Prior for the variance of one start pair.
        start_in_blocks: Time to start and warm up both servers, as a multiple of a block.
    """
    variance = _squares(point.differences) / (len(point.differences) - 1)
    return math.sqrt(start_in_blocks * variance / prior.variance)


def _estimate(rounds: Sequence[RoundPoint], prior: Prior) -> tuple[float, float, float]:
    """Estimate of the change of log cost, its standard error and the error's degrees of freedom."""
    if not rounds:
        raise ValueError("a paired verdict needs at least one round")
    count = len(rounds)
    means = [point.x for point in rounds]
    inside_dof = sum(point.dof for point in rounds)
    # One difference does not tell the spread inside its round; to count it as zero would be a guess.
    inside = fmean(point.u for point in rounds if point.dof) if inside_dof else 0.0
    expected = prior.variance + inside
    inside_part = inside**2 / inside_dof if inside_dof else 0.0
    expected_dof = expected**2 / (prior.variance**2 / prior.dof + inside_part)
    squares, seen_dof = _squares(means), count - 1
    variance = (expected_dof * expected + squares) / (expected_dof + seen_dof)
    df = expected_dof + seen_dof
    if (
        count >= _FEWEST_ROUNDS_TO_CONTRADICT
        and f_upper_tail(squares / seen_dof / expected, seen_dof, expected_dof) < _CONTRADICTION
    ):
        variance, df = squares / seen_dof, float(seen_dof)
    return fmean(means), math.sqrt(variance / count), df


def _squares(values: Sequence[float]) -> float:
    """Sum of the squared distances from the mean."""
    centre = fmean(values)
    return math.fsum((value - centre) ** 2 for value in values)


MOST_DOF: Final = 20.0
"""Upper bound on the degrees of freedom of history, because a machine changes over the months."""


def learn_prior(metric: Metric, stored: Sequence[Sequence[float]], paired: Sequence[Sequence[RoundPoint]]) -> Prior:
    """Learn the prior of one start pair from history; the default prior if the history is empty.

    Args:
        metric: The metric of these log costs.
        stored: For each stored session of this host and device, the log costs of its starts. Sessions of one start are
            ignored.
        paired: For each past comparison on this host and device, its rounds. Comparisons of one round are ignored.

    Raises:
        ValueError: A log cost is NaN or infinite.
    """
    default = default_prior(metric)
    starts_squares, starts_dof = _pooled(stored)
    pairs_squares, pairs_dof = _pooled([[point.x for point in rounds] for rounds in paired])
    dof = starts_dof + pairs_dof
    if not dof:
        return default
    inside = math.fsum((len(rounds) - 1) * _inside(rounds) for rounds in paired if rounds)
    learned = (2 * starts_squares + max(0.0, pairs_squares - inside)) / dof
    counted = min(float(dof), MOST_DOF)
    weight = default.dof * max(0.0, 1 - dof / _ENOUGH_DOF)
    mixed = (weight * default.variance + counted * learned) / (weight + counted)
    return Prior(max(mixed, learned, metric.sd_floor**2), weight + counted)


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
    """Mean squared standard error inside a round, over the rounds of two or more blocks."""
    known = [point.u for point in rounds if point.dof]
    return fmean(known) if known else 0.0


def screen_evidence(
    metric: Metric, recorded: Mapping[str, Sequence[float]], now: float, *, most_growth: Growth
) -> Evidence:
    """Evidence of a new session against recorded ones of the same host.

    Of ``n`` recorded sessions with the mean ``M``, and one new session ``y``::

        est = y - M      V = s^2 (1 + 1/n) + d^2

    ``s`` is the spread of sessions within an occasion (a run of pytest). It is pooled over the recorded occasions and
    mixed with the metric's default, which counts as three degrees of freedom. ``d`` is the drift between occasions,
    which a single occasion cannot show: the metric's default, mixed with the spread of the occasions' means once there
    are several. The degrees of freedom of the sum are Satterthwaite's (Biometrics Bulletin 2, 1946, 110-114). The zone
    test of `Evidence` decides, a PASS at .05 and a claim at .025.

    A screen is weaker than a paired comparison: in a lucky hour it passes builds that a pair of servers would not. The
    table is simulated for a tolerated growth of 5 %, 20 000 runs each (`tests/verdict/test_screen.py` counts). Its
    columns: identical builds that PASS and are REGRESSED; builds 5 % slower that PASS and are REGRESSED; builds 10 %
    slower that are REGRESSED. ::

        sd of sessions, occasions    3 sessions of one occasion     12 sessions of four occasions
        0.3 %      0 %               .27 .000; .000 .00; 1.0        1.0 .000; .000 .19; 1.0
        1 %        1 %               .43 .000; .002 .06; .83        .76 .000; .007 .27; .99
        1 %        2 %               .46 .005; .044 .17; .72        .57 .006; .046 .25; .87
        2 %        2 %               .42 .012; .063 .18; .63        .46 .008; .052 .20; .73

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
    variance = (_DEFAULT_DOF * metric.default_sd**2 + squares) / (_DEFAULT_DOF + dof)
    return max(variance, metric.sd_floor**2), _DEFAULT_DOF + dof
