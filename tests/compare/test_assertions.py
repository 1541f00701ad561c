"""Assertions: each gates, or it is an error; and a run against a limit of its test."""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Any, cast

import pytest

from pytest_gpuserve.compare.assertions import Baseline, Comparison, Run
from pytest_gpuserve.compare.comparison import judge_limit
from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.measure.points import NotMeasured
from pytest_gpuserve.verdict.metric import METRICS, Metric
from pytest_gpuserve.verdict.verdict import Judgement, Verdict
from tests.compare.vocabulary import ALL, COMPARISONS, Listener, a_run, good, mirrored, side
from tests.support.builders import session, start, window
from tests.support.reasons import said

if TYPE_CHECKING:
    from pytest_gpuserve.compare.measurement import Measurement
    from pytest_gpuserve.measure.window import Session


BASELINE = Baseline()


@ALL
@pytest.mark.parametrize("verdict", Verdict)
def test_a_comparison_is_the_judges(metric: Metric, verdict: Verdict) -> None:
    """Each metric reaches the judge by its name from either side, a plain number as a limit in the metric's unit."""
    judge = Listener(verdict)
    found = good(metric)(side(a_run(judge), metric), side(BASELINE, metric))
    assert isinstance(found, Comparison)
    assert bool(found) is verdict.passes
    assert bool(mirrored(metric)(side(BASELINE, metric), side(a_run(judge), metric))) is verdict.passes
    for limit in (50, 0.05):
        assert bool(good(metric)(side(a_run(judge), metric), limit)) is verdict.passes
    assert judge.asked == [(metric.name, other) for other in ("baseline", "baseline", 50, 0.05)]


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


def test_numbers_are_there_to_be_read() -> None:
    """A run's values are pooled in the metric's unit, its problems are of all sessions, and an unknown one raises."""
    run = a_run()
    assert float(run.throughput) == run.throughput.value == pytest.approx(20.0)
    assert float(run.batching_ratio) == 4.0
    assert float(run.latency.p99) == pytest.approx(0.010, rel=0.0006)
    assert run.problems == ("it died",)
    uncounted = start(window(items=None, batches=None))
    with pytest.raises(NotMeasured):
        float(Run("", Listener(), [session(uncounted, uncounted)]).batching_ratio)
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
        self.run = Run("", Listener(), list(sessions or (session(),)))
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
    assert "latency.p99 needs 1000 requests, there are 80; give it longer" in found.reasons[0].text
