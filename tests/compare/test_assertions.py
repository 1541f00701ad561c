"""Assertions: each gates, or it is an error; a limit of a test; and two servers in one test."""

from __future__ import annotations

import math
import operator
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from pytest_gpuserve.compare.assertions import Baseline, Comparison, Duel, Ratio, Run
from pytest_gpuserve.compare.comparison import judge_limit
from pytest_gpuserve.compare.measurement import Measurement
from pytest_gpuserve.compare.side_by_side import SideBySide
from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.measure.points import NotMeasured
from pytest_gpuserve.measure.window import Session
from pytest_gpuserve.verdict.evidence import Prior
from pytest_gpuserve.verdict.metric import METRICS, Metric
from pytest_gpuserve.verdict.verdict import Judgement, ReferenceKind, Verdict
from tests.fakes.scripted_pairing import Build, ScriptedPairing, a_comparison
from tests.support.builders import judgement, said, session, start, window

ALL = pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS)
COMPARISONS = (operator.ge, operator.le, operator.gt, operator.lt, operator.eq, operator.ne)


@dataclass
class Listener:
    """A judge that notes its calls, and answers as configured."""

    verdict: Verdict = Verdict.PASS
    asked: list[tuple[str, object]] = field(default_factory=list)

    def __call__(self, metric: Metric, kind: ReferenceKind, limit: float | None) -> Comparison:
        """See ``Judge``."""
        self.asked.append((metric.name, kind if limit is None else limit))
        return Comparison(judgement(self.verdict, metric.name), holds=self.verdict.passes)


def a_run(judge: Listener | None = None) -> Run:
    """A run of two sessions, one with a problem."""
    return Run("", judge or Listener(), lambda: [session(), session(problems=("it died",))])


def side(owner: object, metric: Metric) -> Any:  # noqa: ANN401 -- of a run, a baseline or a duel
    """``owner.throughput``, ``owner.latency.p99`` ... by the metric's name."""
    return operator.attrgetter(metric.name)(owner)


def good(metric: Metric) -> Callable[[Any, Any], Any]:
    """The comparison that gates."""
    return operator.ge if metric.higher_is_better else operator.le


def mirrored(metric: Metric) -> Callable[[Any, Any], Any]:
    """The mirrored operator, which gates only with exchanged operands."""
    return operator.le if metric.higher_is_better else operator.ge


BASELINE = Baseline()


def ratio(metric: Metric, judge: Listener | None = None) -> Ratio:
    """A metric of a duel, as a test writes it."""
    found = side(Duel(Run("", judge or Listener(), list)), metric)
    assert isinstance(found, Ratio)
    return found


@ALL
@pytest.mark.parametrize("verdict", Verdict)
def test_a_comparison_is_the_judges(metric: Metric, verdict: Verdict) -> None:
    """Each metric of a run or a duel reaches the judge by its name from either side, a number as a limit or ratio."""
    judge = Listener(verdict)
    stored, of_run, of_duel = side(BASELINE, metric), side(a_run(judge), metric), ratio(metric, judge)
    found = [
        good(metric)(of_run, stored),
        mirrored(metric)(stored, of_run),
        good(metric)(of_run, 50),
        good(metric)(of_duel, 0.95),
        mirrored(metric)(0.95, of_duel),
    ]
    assert all(isinstance(each, Comparison) and bool(each) is verdict.passes for each in found)
    assert judge.asked == [(metric.name, other) for other in ("baseline", "baseline", 50, 0.95, 0.95)]


@ALL
def test_a_comparison_that_gates_nothing_is_an_error(metric: Metric) -> None:
    """A comparison in the wrong direction, or with another metric, is an error that says what to write."""
    judge = Listener()
    sign = ">=" if metric.higher_is_better else "<="
    for compare in set(COMPARISONS) - {good(metric)}:
        with pytest.raises(UsageProblem, match="gates nothing") as caught:
            compare(side(a_run(judge), metric), side(BASELINE, metric))
        assert f"write `assert run.{metric.name} {sign} baseline.{metric.name}`" in str(caught.value)
        with pytest.raises(UsageProblem, match="gates nothing") as caught:
            compare(side(a_run(judge), metric), 50)
        assert f"write `assert run.{metric.name} {sign} baseline.{metric.name}`" in str(caught.value)
        assert f"or, as a limit, `{metric.name} {sign} 50`" in str(caught.value)
    for another in METRICS.values():
        if another != metric:
            with pytest.raises(UsageProblem, match=f"not with {another.name}"):
                good(metric)(side(a_run(judge), metric), side(BASELINE, another))
    assert not judge.asked


@pytest.mark.parametrize("other", [None, "50", True, [50], math.nan, math.inf, -math.inf, object, a_run().throughput])
def test_anything_else_is_an_error(other: object) -> None:
    """A comparison with anything but a baseline or a finite number is refused, and the value is shown."""
    judge = Listener()
    with pytest.raises(UsageProblem, match="with a finite number") as caught:
        _ = a_run(judge).throughput >= other
    assert repr(other) in str(caught.value)
    assert not judge.asked


@pytest.mark.parametrize(
    "thing",
    [
        *(a_run(), a_run().latency, a_run().throughput),
        *(BASELINE, BASELINE.latency, BASELINE.latency.p99),
    ],
    ids=lambda thing: repr(thing)[:20],
)
def test_nothing_but_a_comparison_is_true(thing: object) -> None:
    """``assert run.throughput`` is an error, never a quiet pass."""
    with pytest.raises(UsageProblem, match="neither true nor false") as caught:
        bool(thing)
    assert "write `assert run." in str(caught.value)


def test_what_cannot_be_compared_for_equality() -> None:
    """``baseline.throughput != 5`` is an error, never a quiet true, and neither side can hide in a set."""
    for compare in (operator.eq, operator.ne):
        with pytest.raises(UsageProblem, match="gates nothing"):
            compare(BASELINE.throughput, 5)
    for thing in (a_run().throughput, BASELINE.throughput):
        with pytest.raises(TypeError, match="unhashable"):
            hash(thing)


@pytest.mark.parametrize(
    "written",
    [
        *(lambda side: side * 0.9, lambda side: 0.9 * side, lambda side: a_run().throughput - side),
        *(lambda side: a_run().throughput / side, float, lambda side: side.value),
        *(lambda side: a_run().throughput.value >= side, lambda side: side <= BASELINE.throughput),
    ],
)
def test_a_baseline_takes_no_arithmetic(written: Callable[[Any], object]) -> None:
    """``baseline.throughput * 0.9`` is refused, with the marker that sets a tolerance."""
    with pytest.raises(UsageProblem, match="gates nothing") as caught:
        written(BASELINE.throughput)
    assert "@pytest.mark.gpuserve(throughput=0.1)" in str(caught.value)


def test_numbers_are_there_to_be_read() -> None:
    """A run's values are pooled in the metric's unit, its problems are of all sessions, and an unknown one raises."""
    run = a_run()
    assert float(run.throughput) == run.throughput.value == pytest.approx(20.0)
    assert float(run.batching_ratio) == 4.0
    assert float(run.latency.p99) == pytest.approx(0.010, rel=0.0006)
    assert run.problems == ("it died",)
    uncounted = start(window(items=None, batches=None))
    with pytest.raises(NotMeasured):
        float(Run("", Listener(), lambda: [session(uncounted, uncounted)]).batching_ratio)
    assert "latency.p99" in repr(run.latency.p99)
    assert len(repr(run.latency.p99)) < 300


@pytest.mark.parametrize("owner", [a_run(), BASELINE, a_run().latency, BASELINE.latency])
@pytest.mark.parametrize("name", ["troughput", "p999"])
def test_an_unknown_metric_names_the_known_ones(owner: object, name: str) -> None:
    """A misspelt metric is an AttributeError that lists all."""
    with pytest.raises(AttributeError, match=f"no metric '{name}'") as caught:
        getattr(owner, name)
    assert all(metric in str(caught.value) for metric in METRICS)


THROUGHPUT, P50 = METRICS["throughput"], METRICS["latency.p50"]


class _Measured:
    """As much of a measurement as a limit looks at."""

    def __init__(self, *sessions: Session) -> None:
        self.run = Run("", Listener(), lambda: sessions or (session(),))
        self.rounds = ()
        self.shape: Any = type("", (), {"finite": False})


def judged(limit: float, *sessions: Session, metric: Metric = THROUGHPUT) -> Judgement:
    """Judgement of a run of these sessions; by default it answers 20 requests a second in 10 ms each."""
    measurement = cast("Measurement", _Measured(*sessions))
    return judge_limit(measurement, metric, limit, tolerance=metric.default_tolerance)


@pytest.mark.parametrize(
    ("metric", "limit", "verdict"),
    [
        (THROUGHPUT, 19.9, Verdict.PASS),
        (THROUGHPUT, 20.1, Verdict.REGRESSED),
        (P50, 0.0101, Verdict.PASS),
        (P50, 0.0099, Verdict.REGRESSED),
    ],
)
def test_a_limit_has_no_tolerance(metric: Metric, limit: float, verdict: Verdict) -> None:
    """The pooled value is compared directly; a limit has no samples, so no interval and no tolerance."""
    found = judged(limit, metric=metric)
    assert (found.verdict, found.reference, found.reference_kind) == (verdict, limit, "limit")
    assert found.value is not None
    assert found.change == pytest.approx(found.value / limit - 1)
    assert (found.interval, found.tolerance, found.detectable) == (None, None, None)


def test_what_cannot_be_judged_is_no_pass() -> None:
    """A run that went wrong; a metric that it lacks; a quantile of too few requests."""
    found = judged(1, session(problems=("it died",)))
    assert (found.verdict, said(found.reasons)) == (Verdict.INVALID, ("it died",))
    uncounted = start(window(items=None, batches=None))
    assert judged(1, session(uncounted, uncounted), metric=METRICS["batching_ratio"]).verdict is Verdict.INVALID
    found = judged(1, metric=METRICS["latency.p99"])
    assert found.verdict is Verdict.INCONCLUSIVE
    assert "needs 1000 requests in the whole run\n  found: 80 requests in" in found.reasons[0].text


# -- two servers in one test

SHAKY = 0.02
"""Standard deviation between starts, as the prior believes."""

PRIOR = Prior(2 * SHAKY**2, 20)


def run_on(paired: SideBySide, metric: Metric, limit: float) -> Judgement:
    """Look until it is decided."""
    judged = paired.judge_limit(metric, limit)
    while judged.verdict is Verdict.INCONCLUSIVE and not paired.exhausted:
        paired.more()
        judged = paired.judge_limit(metric, limit)
    return judged


@ALL
def test_what_gates_nothing_is_refused(metric: Metric) -> None:
    """A duel's ratio compares with a number above 0 in the good direction; anything else says what to write."""
    judge = Listener()
    wrong: tuple[Any, ...] = (0, -1.05, math.nan, math.inf, True, None, "1.05", Baseline(), ratio(metric))
    for compare in set(COMPARISONS) - {good(metric)}:
        for other in (1.05, *wrong[-4:-1]):
            with pytest.raises(UsageProblem, match="gates nothing") as caught:
                compare(ratio(metric, judge), other)
            assert f"write `assert duel.{metric.name}" in str(caught.value)
    with pytest.raises(UsageProblem, match="neither true nor false"):
        bool(ratio(metric, judge))
    for other in wrong:
        with pytest.raises(UsageProblem, match="a number above 0") as caught:
            good(metric)(ratio(metric, judge), other)
        assert "baseline is for what load(...) returns" in str(caught.value)
    with pytest.raises(TypeError):
        hash(ratio(metric))
    with pytest.raises(UsageProblem, match="ratio of two servers"):
        good(metric)(ratio(metric, judge), side(Baseline(), metric))
    assert judge.asked == []


@pytest.mark.parametrize(
    ("metric", "change", "limit", "verdict"),
    [
        (THROUGHPUT, -0.3, 1.05, Verdict.PASS),
        (THROUGHPUT, -0.3, 1.5, Verdict.REGRESSED),
        (THROUGHPUT, 0.3, 0.9, Verdict.REGRESSED),
        (P50, -0.3, 0.95, Verdict.PASS),
        (P50, 0.3, 1.5, Verdict.PASS),
        (P50, 0.3, 1.1, Verdict.REGRESSED),
    ],
)
def test_a_limit_is_of_the_values_themselves(metric: Metric, change: float, limit: float, verdict: Verdict) -> None:
    """The ratio is the first server's value to the second's, with its interval on the reported end of the limit."""
    judged = run_on(a_comparison(ScriptedPairing(Build(change))), metric, limit)
    expected = math.exp(-change if metric.higher_is_better else change)
    assert judged.verdict is verdict
    assert judged.value == pytest.approx(expected, rel=0.03)
    assert judged.reference == limit
    assert judged.change == pytest.approx(expected - 1, abs=0.03)
    assert judged.change is not None
    assert judged.interval is not None
    assert judged.interval[0] < judged.change < judged.interval[1]
    assert [(1 + bound >= limit) is metric.higher_is_better for bound in judged.interval] == [verdict.passes] * 2


def test_either_claim_keeps_its_level() -> None:
    """At the limit 5 % of 100 pairs hold and 2.5 % miss (sd 2 and 1.6); most of 40 equal pairs are not 5 % better."""

    def counted(build: Build, count: int) -> Counter[Verdict]:
        return Counter(
            run_on(a_comparison(ScriptedPairing(build, seed), prior=PRIOR), THROUGHPUT, 1.05).verdict
            for seed in range(count)
        )

    at_limit = counted(Build(-math.log(1.05), SHAKY, SHAKY), 100)
    assert 1 <= at_limit[Verdict.PASS] <= 11
    assert at_limit[Verdict.REGRESSED] <= 7
    equal = counted(Build(0.0, SHAKY, SHAKY), 40)
    assert equal[Verdict.PASS] <= 3
    assert equal[Verdict.REGRESSED] > 24
    assert set(equal) <= {Verdict.PASS, Verdict.REGRESSED, Verdict.INCONCLUSIVE}
