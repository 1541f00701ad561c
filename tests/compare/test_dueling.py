"""Two servers in one test: what a ratio may be compared with, and how often a limit is called held that is not."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuserve.compare.assertions import Baseline, Duel, Ratio, Run
from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.verdict.metric import METRICS, Metric
from pytest_gpuserve.verdict.paired import Prior
from pytest_gpuserve.verdict.verdict import Judgement, Verdict
from tests.compare.vocabulary import ALL, COMPARISONS, Listener, good, mirrored, side
from tests.fakes.scripted_pairing import Build, ScriptedPairing, a_comparison

if TYPE_CHECKING:
    from pytest_gpuserve.compare.side_by_side import SideBySide

THROUGHPUT, P50 = METRICS["throughput"], METRICS["latency.p50"]

SHAKY = 0.02
"""Standard deviation between starts, as the prior believes."""

PRIOR = Prior(2 * SHAKY**2, 20, learned=True)


def ratio(metric: Metric, judge: Listener | None = None) -> Ratio:
    """A metric of a duel, as a test writes it."""
    found = side(Duel(Run("", judge or Listener(), [])), metric)
    assert isinstance(found, Ratio)
    return found


def run_on(paired: SideBySide, metric: Metric, limit: float) -> Judgement:
    """Look until it is decided."""
    judged = paired.judge_limit(metric, limit)
    while judged.verdict is Verdict.INCONCLUSIVE and not paired.exhausted:
        paired.more()
        judged = paired.judge_limit(metric, limit)
    return judged


@ALL
@pytest.mark.parametrize("verdict", Verdict)
def test_a_ratio_is_the_judges(metric: Metric, verdict: Verdict) -> None:
    """Every metric reaches the judge with its limit, from either side, and is as true as the verdict passes."""
    judge = Listener(verdict)
    for limit in (1, 0.95):
        assert bool(good(metric)(ratio(metric, judge), limit)) is verdict.passes
        assert bool(mirrored(metric)(limit, ratio(metric, judge))) is verdict.passes
    assert judge.asked == [(metric.name, limit) for limit in (1.0, 1.0, 0.95, 0.95)]


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
