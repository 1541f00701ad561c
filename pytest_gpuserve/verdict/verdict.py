"""The outcomes of a comparison, as values: the verdict, the evidence behind it, and what a report shows.

Every method of comparison ends in one estimate of the change of log cost with a standard error and degrees of freedom.
`Evidence` holds those and makes both tests of the zone test, so that a stored-baseline verdict and a paired one mean
the same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final, Literal

from pytest_gpuserve.units import format_fraction
from pytest_gpuserve.verdict.metric import Growth, Metric, check_growth, log_cost
from pytest_gpuserve.verdict.reason import Reason, ReasonKind
from pytest_gpuserve.verdict.student import t_quantile, t_upper_tail

ReferenceKind = Literal["baseline", "against", "duel", "limit"]
"""Kind of the reference: a stored baseline, another revision or interpreter, a printed number, the other server of a
duel, or a plain limit in the test."""

INDIFFERENT_SHARE: Final = 0.25
"""Growths of a cost below this share of the tolerated growth are negligible, hence never REGRESSED."""

POWER: Final = 0.95
"""Probability that an effect of the minimum detectable size is reported."""


class Verdict(str, Enum):
    """The six outcomes; only two of them let a test pass."""

    PASS = "PASS"  # noqa: S105 - the name of an outcome, not a password
    IMPROVED = "IMPROVED"
    REGRESSED = "REGRESSED"
    INCONCLUSIVE = "INCONCLUSIVE"
    INVALID = "INVALID"
    MISSING = "MISSING"

    def __str__(self) -> str:
        return self.value

    @property
    def is_claim(self) -> bool:
        """Whether the verdict says that something has changed."""
        return self in (Verdict.REGRESSED, Verdict.IMPROVED)

    @property
    def passes(self) -> bool:
        """Whether a comparison with this outcome is true."""
        return self in (Verdict.PASS, Verdict.IMPROVED)


@dataclass(frozen=True)
class EstimatedChange:
    """Estimated change of log cost, before any test of it.

    Attributes:
        estimate: Estimated change of log cost; positive is worse.
        standard_error: Standard error of the estimate, positive.
        df: Degrees of freedom of the standard error, positive, not necessarily whole.
        level: One-sided level of a PASS at this look.
        claim_level: One-sided level of a claim that the cost has changed.
        least_claim: Distance of log cost by which a claim has to exceed its line in addition; usually 0.

    Raises:
        ValueError: A field is NaN, infinite or outside its range.
    """

    estimate: float
    standard_error: float
    df: float
    level: float
    claim_level: float
    least_claim: float

    def __post_init__(self) -> None:
        if not math.isfinite(self.estimate):
            raise ValueError(f"an estimate must be a number, not {self.estimate}")
        if not (math.isfinite(self.standard_error) and self.standard_error > 0):
            raise ValueError(f"a standard error must be a positive number, not {self.standard_error}")
        if not self.df > 0:
            raise ValueError(f"degrees of freedom must be positive, not {self.df}")
        for level in (self.level, self.claim_level):
            if not 0 < level < 0.5:
                raise ValueError(f"a one-sided level must lie between 0 and 0.5, not {level}")
        if not self.least_claim >= 0:
            raise ValueError(f"the least that is claimed must be 0 or more, not {self.least_claim}")

    @property
    def interval(self) -> tuple[float, float]:
        """Bounds of the change of log cost, each at this look's level of a PASS: an upper bound below d1.

        The bounds hold at every look at once, as often as the levels of all looks add up to. They are infinite if the
        degrees of freedom are too few.
        """
        reach = t_quantile(self.level, self.df) * self.standard_error
        return self.estimate - reach, self.estimate + reach

    def changes(self, metric: Metric) -> tuple[float, float] | None:
        """The interval as changes of the metric's value, lower bound first; None if one is beyond any number."""
        low, high = (metric.change_of(bound) for bound in self.interval)
        return None if low is None or high is None else (min(low, high), max(low, high))


@dataclass(frozen=True)
class Evidence(EstimatedChange):
    """Estimated change of log cost, and its test against the largest acceptable growth.

    Attributes:
        most_growth: Largest acceptable growth of the cost: `Metric.growth` of a tolerance.

    Raises:
        ValueError: A field is NaN, infinite or outside its range.
    """

    most_growth: Growth

    def __post_init__(self) -> None:
        check_growth(self.most_growth)
        super().__post_init__()

    @property
    def indifferent(self) -> float:
        """Largest negligible change of log cost (d0)."""
        return math.log1p(self.most_growth * INDIFFERENT_SHARE)

    @property
    def too_much(self) -> float:
        """Change of log cost that uses up the whole tolerance (d1)."""
        return math.log1p(self.most_growth)

    @property
    def p_regressed(self) -> float:
        """P-value of "no worse than negligible"; if it is below the level, the cost is worse."""
        return t_upper_tail((self.estimate - self.indifferent) / self.standard_error, self.df)

    @property
    def p_improved(self) -> float:
        """P-value of "no better than negligible"; if it is below the level, the cost is better."""
        return t_upper_tail((-self.estimate - self.indifferent) / self.standard_error, self.df)

    @property
    def p_pass(self) -> float:
        """P-value of "worse than the tolerance"; if it is below the level, the change is within the tolerance."""
        return t_upper_tail((self.too_much - self.estimate) / self.standard_error, self.df)

    @property
    def verdict(self) -> Verdict:
        """PASS, IMPROVED, REGRESSED or INCONCLUSIVE, by the zone test at this look's levels."""
        if self.p_improved < self.claim_level and -self.estimate > self.least_claim:
            return Verdict.IMPROVED
        if self.p_pass < self.level:
            return Verdict.PASS
        if self.is_worse and self.estimate > self.least_claim:
            return Verdict.REGRESSED
        return Verdict.INCONCLUSIVE

    @property
    def is_worse(self) -> bool:
        """Whether the cost has grown by more than a negligible change, at the level of a claim."""
        return self.p_regressed < self.claim_level

    @property
    def slower_within_tolerance(self) -> bool:
        """Whether the cost has certainly grown, but by less than the tolerance: a PASS worth a remark."""
        return self.p_pass < self.level and self.is_worse

    @property
    def detectable_growth(self) -> Growth | None:
        """Smallest growth of the cost that this evidence reports with `POWER`; None if it reports none."""
        claimed = self.indifferent + t_quantile(self.claim_level, self.df) * self.standard_error
        return _growth(max(claimed, self.least_claim) + t_quantile(1 - POWER, self.df) * self.standard_error)

    @property
    def decidable_growth(self) -> Growth | None:
        """Smallest tolerance, as growth of the cost, that this evidence would pass (0: any); None if it passes none."""
        return _growth(max(0.0, self.interval[1]))

    def remarks(self, metric: Metric) -> tuple[Reason, ...]:
        """Remarks that a report adds to the bare verdict, in the unit of the metric."""
        tolerance = format_fraction(metric.loss(self.most_growth))
        if self.slower_within_tolerance:
            text = f"worse by {format_size(metric, self.estimate)}, within the tolerance of {tolerance}"
            return (Reason(ReasonKind.WITHIN_TOLERANCE, text),)
        if self.verdict is Verdict.INCONCLUSIVE:
            decidable = self.decidable_growth
            if decidable is None:
                return (Reason(ReasonKind.UNDECIDED, "the evidence is too thin to decide any tolerance"),)
            decided = format_fraction(metric.loss(decidable))
            text = f"the evidence suffices for a tolerance of {decided}, not of {tolerance}"
            held = (one_start(metric, self),) if self.is_worse else ()
            return (Reason(ReasonKind.UNDECIDED, text), *held)
        return ()


@dataclass(frozen=True)
class Judgement:
    """Outcome for one metric of one run against one reference. An unknown number is None, never 0 or NaN.

    Attributes:
        metric: The judged metric.
        verdict: The outcome.
        reference_kind: Kind of the reference.
        value: The value now, in ``unit``.
        reference: The reference's value, in ``unit``; for a limit or a duel the demanded number.
        change: Change of the value against the reference, for a duel against 1, as a fraction. Its sign is that of the
            value: throughput 30 % lower is -0.3.
        interval: Lower and upper bound of ``change``.
        tolerance: How much worse the value may be, as a fraction of it. It compares with ``change``: 0.3 lets a
            throughput fall, and a latency rise, by 30 %.
        detectable: Smallest change for the worse that would have been found; None if the comparison is decided.
        rounds: New sessions or paired rounds that the verdict rests on.
        reasons: Reasons of the verdict; never empty for INVALID and MISSING.
        windows: Measured windows that the verdict rests on.

    Raises:
        ValueError: A number is NaN, a passing verdict lacks its two values, or INVALID or MISSING lacks its reason.
    """

    metric: Metric
    verdict: Verdict
    reference_kind: ReferenceKind
    value: float | None = None
    reference: float | None = None
    change: float | None = None
    interval: tuple[float, float] | None = None
    tolerance: float | None = None
    detectable: float | None = None
    rounds: int = 0
    reasons: tuple[Reason, ...] = ()
    windows: int = 0

    def __post_init__(self) -> None:
        for name in ("value", "reference", "change", "tolerance", "detectable"):
            number = getattr(self, name)
            if number is not None and not math.isfinite(number):
                raise ValueError(f"{name} of {self.metric.name} must be a number or None, not {number}")
        if self.interval is not None and not all(map(math.isfinite, self.interval)):
            raise ValueError(f"the interval of {self.metric.name} must be two numbers or None, not {self.interval}")
        if self.verdict.passes and (self.value is None or self.reference is None):
            raise ValueError(f"{self.metric.name} cannot be {self.verdict} without a value and a reference")
        if self.verdict in (Verdict.INVALID, Verdict.MISSING) and not self.reasons:
            raise ValueError(f"{self.metric.name} cannot be {self.verdict} without a reason")

    @property
    def unit(self) -> str:
        """Unit of ``value`` and ``reference``: the metric's, or a ratio for a duel."""
        return "" if self.reference_kind == "duel" else self.metric.unit

    @property
    def worst(self) -> float | None:
        """The worse end of `interval`."""
        return None if self.interval is None else self.interval[0 if self.metric.higher_is_better else 1]

    def has(self, *kinds: ReasonKind) -> bool:
        """Whether the verdict has a reason of one of these kinds."""
        return any(reason.kind in kinds for reason in self.reasons)

    def because(self, *reasons: Reason) -> Judgement:
        """This judgement with more reasons."""
        return replace(self, reasons=(*self.reasons, *reasons))

    @classmethod
    def missing(
        cls, metric: Metric, reference_kind: ReferenceKind, *reasons: Reason, value: float | None = None
    ) -> Judgement:
        """A judgement without anything to compare with; each reason says why."""
        return cls(metric, Verdict.MISSING, reference_kind, value=value, reasons=reasons)

    @classmethod
    def invalid(
        cls,
        metric: Metric,
        reference_kind: ReferenceKind,
        *reasons: Reason,
        value: float | None = None,
        reference: float | None = None,
    ) -> Judgement:
        """A judgement of a measurement that cannot be trusted; each reason says why. The value is for reading only."""
        return cls(metric, Verdict.INVALID, reference_kind, value=value, reference=reference, reasons=reasons)

    @classmethod
    def from_evidence(
        cls,
        metric: Metric,
        evidence: Evidence,
        *,
        verdict: Verdict,
        reference_kind: ReferenceKind,
        value: float,
        rounds: int,
        windows: int = 0,
    ) -> Judgement:
        """A verdict reached from evidence. The reference is the value that the estimated change is relative to.

        Args:
            metric: The judged metric.
            evidence: The estimate behind the verdict.
            verdict: ``evidence.verdict``, or the verdict of a method that holds it back at this look.
            reference_kind: Kind of the reference.
            value: The value now, in the metric's unit.
            rounds: New sessions or paired rounds behind the evidence.
            windows: Measured windows behind the evidence.
        """
        return cls(
            metric,
            verdict,
            reference_kind,
            value=value,
            reference=metric.value_at(log_cost(metric, value) - evidence.estimate),
            change=metric.change_of(evidence.estimate),
            interval=evidence.changes(metric),
            tolerance=metric.loss(evidence.most_growth),
            detectable=_loss(metric, evidence.detectable_growth) if verdict is Verdict.INCONCLUSIVE else None,
            rounds=rounds,
            reasons=evidence.remarks(metric),
            windows=windows,
        )


def one_start(metric: Metric, change: EstimatedChange) -> Reason:
    """Reason against a claim beyond its level: it rests on one round."""
    word = "worse" if change.estimate > 0 else "better"
    return Reason(
        ReasonKind.ONE_START,
        f"{metric.name} is {word} by {format_size(metric, change.estimate)} in one round, which may be the luck of one"
        " start",
    )


def format_size(metric: Metric, log_ratio: float) -> str:
    """Format the size of a change of a value, given its change of log cost, without the sign: ``21.6 %``."""
    change = metric.change_of(log_ratio)
    return "more than any number" if change is None else format_fraction(abs(change))


def _growth(log_ratio: float) -> Growth | None:
    """Growth of the cost; None if it is beyond any number."""
    try:
        growth = math.expm1(log_ratio)
    except OverflowError:
        return None
    return Growth(growth) if math.isfinite(growth) else None


def _loss(metric: Metric, growth: Growth | None) -> float | None:
    return None if growth is None else metric.loss(growth)
