"""Two servers in one test: what a ratio may be compared with, and how often a limit is called held that is not."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import pytest

from pytest_gpuserve.comparison.assertions import Baseline, Comparison, Duel, Ratio, Run
from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.gate.metric import METRICS, Metric
from pytest_gpuserve.gate.paired import Prior
from pytest_gpuserve.gate.verdict import Judgement, Verdict
from tests.fakes.scripted_pairing import Build, ScriptedPairing, a_comparison
from tests.support.builders import judgement

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpuserve.comparison.side_by_side import SideBySide

ALL = pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS)
THROUGHPUT, P50, P99 = METRICS["throughput"], METRICS["latency.p50"], METRICS["latency.p99"]

SHAKY = 0.02
"""Standard deviation between starts, as the prior believes."""

PRIOR = Prior(2 * SHAKY**2, 20, learned=True)


@dataclass
class Listener:
    """A judge that notes what it was asked, and answers as told."""

    verdict: Verdict = Verdict.PASS
    asked: list[tuple[str, float]] = field(default_factory=list)

    def against_ratio(self, run: Run, metric: Metric, limit: float) -> Comparison:
        """See ``DuelJudge``."""
        self.asked.append((metric.name, limit))
        return Comparison(judgement(self.verdict), holds=self.verdict.passes)


def ratio(metric: Metric, judge: Listener | None = None) -> Ratio:
    """A metric of a duel, as a test writes it."""
    listener = judge or Listener()
    found = operator.attrgetter(metric.name)(Duel(Run("", None, []), listener))  # type: ignore[arg-type]
    assert isinstance(found, Ratio)
    return found


def good(metric: Metric) -> Callable[[Any, Any], Any]:
    """The comparison that gates."""
    return operator.ge if metric.higher_is_better else operator.le


def bad(metric: Metric) -> Callable[[Any, Any], Any]:
    """The one that does not."""
    return operator.le if metric.higher_is_better else operator.ge


def run_on(paired: SideBySide, metric: Metric, limit: float) -> Judgement:
    """Look until it is decided."""
    judged = paired.judge_limit(metric, limit)
    while judged.verdict is Verdict.INCONCLUSIVE and not paired.exhausted:
        paired.more()
        judged = paired.judge_limit(metric, limit)
    return judged


@ALL
@pytest.mark.parametrize("verdict", Verdict)
@pytest.mark.parametrize("limit", [1, 0.95, 1.05])
def test_a_ratio_is_the_judges(metric: Metric, verdict: Verdict, limit: float) -> None:
    """Every metric reaches the judge with its limit, from either side, and is as true as the verdict passes."""
    judge = Listener(verdict)
    assert bool(good(metric)(ratio(metric, judge), limit)) is verdict.passes
    assert bool(bad(metric)(limit, ratio(metric, judge))) is verdict.passes
    assert judge.asked == [(metric.name, float(limit))] * 2


@ALL
@pytest.mark.parametrize("other", [1.05, Baseline(), None, "1.05"])
def test_what_gates_nothing_is_refused(metric: Metric, other: object) -> None:
    """The wrong direction, strict and exact comparisons and plain truth are errors that say what to write."""
    judge = Listener()
    for compare in (bad(metric), operator.gt, operator.lt, operator.eq, operator.ne):
        with pytest.raises(UsageProblem, match="gates nothing") as caught:
            cast("Callable[[Any, Any], Any]", compare)(ratio(metric, judge), other)
        assert f"write `assert duel.{metric.name}" in str(caught.value)
    with pytest.raises(UsageProblem, match="neither true nor false"):
        bool(ratio(metric, judge))
    assert judge.asked == []


@ALL
@pytest.mark.parametrize("other", [0, -1.05, math.nan, math.inf, True, None, "1.05", Baseline()])
def test_only_a_number_above_0_is_a_limit(metric: Metric, other: object) -> None:
    """A ratio of two servers compares with a number; a baseline belongs to a load."""
    judge = Listener()
    with pytest.raises(UsageProblem, match="a number above 0") as caught:
        good(metric)(ratio(metric, judge), other)
    assert "baseline is for what load(...) returns" in str(caught.value)
    assert judge.asked == []


def test_two_ratios_cannot_be_compared() -> None:
    """A ratio is no number of its own: it has none until it is compared with one."""
    with pytest.raises(UsageProblem):
        _ = ratio(THROUGHPUT) >= ratio(THROUGHPUT)
    with pytest.raises(TypeError):
        hash(ratio(THROUGHPUT))


@pytest.mark.parametrize(
    ("metric", "change", "limit", "verdict"),
    [
        (THROUGHPUT, -0.3, 1.05, Verdict.PASS),
        (THROUGHPUT, -0.3, 1.5, Verdict.REGRESSED),
        (THROUGHPUT, 0.0, 0.9, Verdict.PASS),
        (THROUGHPUT, 0.3, 0.9, Verdict.REGRESSED),
        (P50, -0.3, 0.95, Verdict.PASS),
        (P50, 0.0, 0.8, Verdict.REGRESSED),
        (P50, 0.3, 1.5, Verdict.PASS),
        (P50, 0.3, 1.1, Verdict.REGRESSED),
        (METRICS["batching_ratio"], -0.3, 1.2, Verdict.PASS),
    ],
)
def test_a_limit_is_of_the_values_themselves(metric: Metric, change: float, limit: float, verdict: Verdict) -> None:
    """The ratio is the first server's value to the second's, its interval on the side of the limit that is told."""
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


def test_a_p99_waits_for_a_full_round() -> None:
    """In a duel too; before it there is a ratio to read, and no verdict."""
    paired = a_comparison(ScriptedPairing(Build(-0.5)))
    assert paired.judge_limit(P99, 1.0).value is None
    paired.more()
    first = paired.judge_limit(P99, 1.0)
    assert first.verdict is Verdict.INCONCLUSIVE
    assert first.value == pytest.approx(math.exp(-0.5), rel=0.03)
    paired.more()
    assert paired.judge_limit(P99, 1.0).verdict is Verdict.PASS


def test_an_equal_pair_is_not_5_percent_better() -> None:
    """Of 100 equal pairs none is said to reach 1.05, and most are said not to."""
    verdicts = [
        run_on(a_comparison(ScriptedPairing(Build(0.0, SHAKY, SHAKY), seed), prior=PRIOR), THROUGHPUT, 1.05).verdict
        for seed in range(100)
    ]
    assert verdicts.count(Verdict.PASS) <= 5
    assert verdicts.count(Verdict.REGRESSED) > 60
    assert set(verdicts) <= {Verdict.PASS, Verdict.REGRESSED, Verdict.INCONCLUSIVE}


def test_at_the_limit_itself_either_claim_keeps_its_level() -> None:
    """Of 200 pairs that lie exactly at the limit 5 % are said to hold it and 5 % to miss it, looks included.

    Of 200 that is 10, with a standard deviation of 3.
    """
    build = Build(-math.log(1.05), SHAKY, SHAKY)
    verdicts = [
        run_on(a_comparison(ScriptedPairing(build, seed), prior=PRIOR), THROUGHPUT, 1.05).verdict for seed in range(200)
    ]
    assert 2 <= verdicts.count(Verdict.PASS) <= 19
    assert 2 <= verdicts.count(Verdict.REGRESSED) <= 19
