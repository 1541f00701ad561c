"""The vocabulary of assertions: an assertion gates, or it is an error."""

from __future__ import annotations

import math
import operator

import pytest

from pytest_gpuserve.compare.assertions import Baseline, Comparison, Run
from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.measure.points import NotMeasured
from pytest_gpuserve.verdict.metric import METRICS, Metric
from pytest_gpuserve.verdict.verdict import Verdict
from tests.compare.vocabulary import ALL, COMPARISONS, Listener, a_run, good, mirrored, side
from tests.support.builders import session, start, window

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
