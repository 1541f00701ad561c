"""The vocabulary of assertions: what gates, and that whatever gates nothing is an error."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuserve.comparison.assertions import Baseline, Comparison, Measured, Reference, Run
from pytest_gpuserve.device.card import Card
from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.gate.metric import METRICS, Metric
from pytest_gpuserve.gate.verdict import Verdict
from pytest_gpuserve.measure.points import NotMeasured
from pytest_gpuserve.roofline import Work, peak_of
from tests.support.builders import judgement, session, start, window

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpuserve.store.published import PublishedEntry

ALL = pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS)
BASELINE = Baseline()


@dataclass
class Listener:
    """A judge that notes what it was asked, and answers as told."""

    verdict: Verdict = Verdict.PASS
    asked: list[tuple[str, float | None]] = field(default_factory=list)

    def against_baseline(self, run: Run, metric: Metric) -> Comparison:
        """See ``Judge``."""
        self.asked.append((metric.name, None))
        return Comparison(judgement(self.verdict), holds=self.verdict.passes)

    def against_limit(self, run: Run, metric: Metric, limit: float) -> Comparison:
        """See ``Judge``."""
        self.asked.append((metric.name, limit))
        return Comparison(judgement(self.verdict), holds=self.verdict.passes)

    def against_published(self, run: Run, metric: Metric, entry: PublishedEntry) -> Comparison:
        """See ``Judge``."""
        raise NotImplementedError


def a_run(judge: Listener | None = None) -> Run:
    """A run of one session."""
    return Run("", judge or Listener(), [session(), session(problems=("it died",))])


def side(owner: Any, metric: Metric) -> Any:  # noqa: ANN401 -- a run's side or a baseline's
    """``owner.throughput``, ``owner.latency.p99`` ... by the metric's name."""
    return operator.attrgetter(metric.name)(owner)


def good(metric: Metric) -> Callable[[Any, Any], Any]:
    """The comparison that gates."""
    return operator.ge if metric.higher_is_better else operator.le


@ALL
@pytest.mark.parametrize("verdict", Verdict)
def test_a_comparison_with_the_baseline_is_the_judges(metric: Metric, verdict: Verdict) -> None:
    """Every metric reaches the judge under its own name, and is as true as the verdict passes."""
    judge = Listener(verdict)
    found = good(metric)(side(a_run(judge), metric), side(BASELINE, metric))
    assert judge.asked == [(metric.name, None)]
    assert isinstance(found, Comparison)
    assert bool(found) is verdict.passes


@ALL
def test_the_baseline_may_stand_first(metric: Metric) -> None:
    """``baseline.x <= run.x`` asks the same as ``run.x >= baseline.x``."""
    judge = Listener()
    mirrored = operator.le if metric.higher_is_better else operator.ge
    assert mirrored(side(BASELINE, metric), side(a_run(judge), metric))
    assert judge.asked == [(metric.name, None)]


@ALL
@pytest.mark.parametrize("limit", [50, 0.05])
def test_a_comparison_with_a_number_is_a_limit(metric: Metric, limit: float) -> None:
    """A plain number is passed on as it is, in the metric's unit."""
    judge = Listener()
    assert good(metric)(side(a_run(judge), metric), limit)
    assert judge.asked == [(metric.name, limit)]


@ALL
@pytest.mark.parametrize("other", ["baseline", 50])
@pytest.mark.parametrize(
    "compare", [operator.ge, operator.le, operator.gt, operator.lt, operator.eq, operator.ne], ids=lambda c: c.__name__
)
def test_a_comparison_that_gates_nothing_is_an_error(
    metric: Metric, compare: Callable[[Any, Any], Any], other: object
) -> None:
    """Only the direction that is good, with equality, gates; every other says what to write instead."""
    if compare is good(metric):
        return
    judge = Listener()
    right = side(BASELINE, metric) if other == "baseline" else other
    with pytest.raises(UsageProblem, match="gates nothing") as caught:
        compare(side(a_run(judge), metric), right)
    sign = ">=" if metric.higher_is_better else "<="
    if isinstance(right, (int, float)):
        assert f"or, as a limit, `{metric.name} {sign} {right}`" in str(caught.value)
    assert f"write `assert run.{metric.name} {sign} baseline.{metric.name}`" in str(caught.value)
    assert not judge.asked


@ALL
def test_another_metric_of_the_baseline_is_an_error(metric: Metric) -> None:
    """p99 against p50, or throughput against a latency, is a slip of the pen."""
    for other in METRICS.values():
        if other != metric:
            with pytest.raises(UsageProblem, match=f"not with {other.name}"):
                good(metric)(side(a_run(), metric), side(BASELINE, other))


@pytest.mark.parametrize("other", [None, "50", True, [50], math.nan, math.inf, -math.inf, object])
def test_anything_else_is_an_error(other: object) -> None:
    """What is neither a baseline nor a finite number is refused and shown; NaN would make every comparison false."""
    judge = Listener()
    with pytest.raises(UsageProblem, match="with a finite number") as caught:
        _ = a_run(judge).throughput >= other
    assert repr(other) in str(caught.value)
    assert not judge.asked


def test_a_run_against_itself_is_an_error() -> None:
    """Two runs are compared by a duel, not by one's numbers as the other's limit."""
    with pytest.raises(UsageProblem):
        _ = a_run().throughput >= a_run().throughput


@pytest.mark.parametrize(
    "thing",
    [a_run(), a_run().latency, a_run().throughput, BASELINE, BASELINE.latency, BASELINE.latency.p99],
    ids=["run", "latency", "metric", "baseline", "baseline.latency", "baseline.metric"],
)
def test_nothing_but_a_comparison_is_true(thing: object) -> None:
    """``assert run.throughput`` is an error, never a quiet pass."""
    with pytest.raises(UsageProblem, match="neither true nor false") as caught:
        bool(thing)
    assert "write `assert run." in str(caught.value)


@pytest.mark.parametrize("compare", [operator.eq, operator.ne])
def test_a_baseline_has_no_value_outside_of_a_comparison(compare: Callable[[Any, Any], Any]) -> None:
    """``baseline.throughput != 5`` is an error, never a quiet true."""
    with pytest.raises(UsageProblem, match="gates nothing"):
        compare(BASELINE.throughput, 5)


def test_numbers_are_there_to_be_read() -> None:
    """``float(run.throughput)`` and ``.value`` are the pooled value in the metric's unit."""
    run = a_run()
    assert float(run.throughput) == run.throughput.value == pytest.approx(20.0)
    assert float(run.batching_ratio) == 4.0
    assert float(run.latency.p99) == pytest.approx(0.010, rel=0.0006)


def test_what_was_not_measured_has_no_number() -> None:
    """A server without counters has no batching ratio, not one of zero."""
    uncounted = start(window(items=None, batches=None))
    with pytest.raises(NotMeasured):
        float(Run("", Listener(), [session(uncounted, uncounted)]).batching_ratio)


def test_problems_are_those_of_all_sessions() -> None:
    """One session that went wrong shows in the run."""
    assert a_run().problems == ("it died",)


@pytest.mark.parametrize("owner", [a_run(), BASELINE, a_run().latency, BASELINE.latency])
@pytest.mark.parametrize("name", ["troughput", "p999", "mean"])
def test_an_unknown_metric_names_the_known_ones(owner: object, name: str) -> None:
    """A misspelt metric is an AttributeError that lists all."""
    with pytest.raises(AttributeError, match=f"no metric '{name}'") as caught:
        getattr(owner, name)
    assert all(metric in str(caught.value) for metric in METRICS)


def test_they_show_themselves_without_a_flood() -> None:
    """In a traceback a metric is its name, not every window behind it."""
    shown = repr(a_run().latency.p99)
    assert "latency.p99" in shown
    assert len(shown) < 300


@pytest.mark.parametrize("thing", [a_run().throughput, BASELINE.throughput])
def test_they_cannot_hide_in_a_set(thing: Measured | Reference) -> None:
    """What cannot be compared for equality has no hash."""
    with pytest.raises(TypeError, match="unhashable"):
        hash(thing)


T4 = Card(0, "Tesla T4", "T4", "GPU-1", None, None, None, None, None, None, None)


def test_the_share_of_the_peak_is_that_of_the_runs_own_card() -> None:
    """Throughput times a request's operations, over the rate of the card that the run's server was on."""
    run = Run("", Listener(), [session()], T4)
    work = Work(flops=65e12 / 10 / run.throughput.value)
    assert run.share_of_peak(work, precision="fp16") == pytest.approx(0.1)
    assert run.share_of_peak(work, peak=peak_of("Tesla T4", "fp16")) == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("card", "asked", "words"),
    [
        (None, {"precision": "fp16"}, "card"),
        (T4, {"precision": "bf16"}, "bf16"),
        (replace(T4, mig_profile="1g.5gb"), {"precision": "fp16"}, "MIG"),
        (T4, {}, "precision or a peak"),
        (T4, {"precision": "fp16", "peak": peak_of("Tesla T4", "fp16")}, "not both"),
    ],
)
def test_a_peak_that_is_not_known_is_no_share(card: Card | None, asked: dict[str, Any], words: str) -> None:
    """No card, a precision without units, a part of a card, and a question with no or two answers are errors."""
    with pytest.raises(UsageProblem, match=words):
        Run("", Listener(), [session()], card).share_of_peak(Work(flops=1e9), **asked)
