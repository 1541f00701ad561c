"""Gated metrics, the scale of their judgement, the objects that every comparison ends in, and their distributions."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuserve.verdict.metric import METRICS, Growth, Metric, log_cost, requests_needed
from pytest_gpuserve.verdict.student import f_upper_tail, t_quantile, t_upper_tail
from pytest_gpuserve.verdict.verdict import Evidence, Judgement, Verdict
from tests.support.builders import said

THROUGHPUT = METRICS["throughput"]
P99 = METRICS["latency.p99"]

EVIDENCE = st.builds(
    Evidence,
    estimate=st.floats(-1, 1),
    standard_error=st.floats(1e-4, 0.3),
    df=st.floats(1, 200),
    level=st.floats(0.001, 0.1),
    claim_level=st.floats(0.0005, 0.1),
    least_claim=st.floats(0, 0.2),
    most_growth=st.floats(0.01, 0.5).map(Growth),
)


def evidence(estimate: float, standard_error: float = 0.005, *, df: float = 20) -> Evidence:
    """Evidence at the level of one look of six, for a cost that may grow by 5 %."""
    return Evidence(estimate, standard_error, df, 0.05 / 6, 0.05 / 6, 0.0, Growth(0.05))


def judge(seen: Evidence, *, verdict: Verdict | None = None) -> Judgement:
    """A throughput's judgement from evidence."""
    return Judgement.from_evidence(
        THROUGHPUT,
        seen,
        verdict=verdict or seen.verdict,
        reference_kind="against",
        value=100 * math.exp(-seen.estimate),
        rounds=4,
    )


@pytest.mark.parametrize(
    ("estimate", "standard_error", "verdict"),
    [
        (0.0, 0.005, Verdict.PASS),
        (0.0, 0.05, Verdict.INCONCLUSIVE),
        (0.045, 0.005, Verdict.REGRESSED),
        (0.03, 0.01, Verdict.INCONCLUSIVE),
        (-0.1, 0.005, Verdict.IMPROVED),
        (-0.1, 0.04, Verdict.PASS),
    ],
)
def test_the_zone_decides(estimate: float, standard_error: float, verdict: Verdict) -> None:
    """Certainly below the tolerance passes, certainly above a quarter of it regresses, certainly better improves."""
    assert evidence(estimate, standard_error).verdict is verdict


def test_a_claim_has_a_level_and_a_line_of_its_own() -> None:
    """A change below the level of a PASS need not be claimed; a claim needs its own level and line."""
    seen = replace(evidence(0.045, 0.01), level=0.02, claim_level=0.02)
    assert seen.verdict is Verdict.REGRESSED
    assert replace(seen, claim_level=0.001).verdict is Verdict.INCONCLUSIVE
    assert replace(seen, least_claim=0.05).verdict is Verdict.INCONCLUSIVE
    better = replace(seen, estimate=-0.045)
    assert better.verdict is Verdict.IMPROVED
    assert replace(better, claim_level=0.001).verdict is Verdict.PASS
    assert replace(better, least_claim=0.05).verdict is Verdict.PASS


@given(seen=EVIDENCE)
def test_a_verdict_agrees_with_its_interval(seen: Evidence) -> None:
    """PASS or IMPROVED is exactly an upper bound within the tolerance; REGRESSED a lower bound beyond the zone."""
    low, high = seen.interval
    if abs(high - seen.too_much) > 1e-9:
        assert seen.verdict.passes == (high < seen.too_much) or seen.verdict is Verdict.IMPROVED
    if seen.verdict is Verdict.REGRESSED and seen.claim_level <= seen.level:
        assert low > seen.indifferent - 1e-9


def test_change_and_interval_have_the_sign_of_the_value() -> None:
    """A cost 43 % up is throughput 30 % down, with bounds in order; for a latency the sign stays."""
    slower = judge(evidence(-math.log(0.7)))
    assert slower.verdict is Verdict.REGRESSED
    assert slower.value == pytest.approx(70)
    latency = Judgement.from_evidence(
        P99,
        evidence(math.log(1.5)),
        verdict=Verdict.REGRESSED,
        reference_kind="baseline",
        value=0.15,
        rounds=1,
    )
    for judged, change in ((slower, -0.3), (latency, 0.5)):
        assert judged.change == pytest.approx(change)
        assert judged.value is not None
        assert judged.reference == pytest.approx(judged.value / (1 + change))
        assert judged.interval is not None
        assert judged.interval[0] < change < judged.interval[1]


@pytest.mark.parametrize(
    ("metric", "estimate", "value"), [(THROUGHPUT, -math.log(1 - 0.216), 78.4), (P99, math.log(1.216), 121.6)]
)
def test_a_change_whose_interval_is_within_the_tolerance_passes(metric: Metric, estimate: float, value: float) -> None:
    """A throughput 21.6 % lower, surely by less than 30 %, is a PASS at 30 % that says so; a latency likewise."""
    error = (math.log(1 - 0.179) - math.log(1 - 0.25)) / 2 / evidence(0, 1).interval[1]
    seen = replace(evidence(estimate, error), most_growth=metric.growth(0.3))
    shown = Judgement.from_evidence(metric, seen, verdict=seen.verdict, reference_kind="against", value=value, rounds=2)
    if metric is THROUGHPUT:
        assert shown.interval == pytest.approx((-0.25, -0.179), abs=1e-3)
    remark = "worse by 21.6 %, within the tolerance of 30 %"
    assert (shown.verdict, shown.tolerance, said(shown.reasons)) == (Verdict.PASS, 0.3, (remark,))


def test_an_undecided_judgement_says_what_could_be_decided() -> None:
    """INCONCLUSIVE names the smallest tolerance of this evidence, or None and a reason if it bounds nothing."""
    undecided = judge(evidence(0.0, 0.05))
    assert not undecided.verdict.passes
    assert said(undecided.reasons) == ("the evidence suffices for a tolerance of 12.2 %, not of 4.8 %",)
    nothing = judge(evidence(0.1, 0.1, df=0.01))
    assert nothing.verdict is Verdict.INCONCLUSIVE
    assert (nothing.interval, nothing.detectable) == (None, None)
    assert said(nothing.reasons) == ("the evidence is too thin to decide any tolerance",)
    # The verdict told is the method's, also where the bare zone test says more.
    assert judge(evidence(0.3), verdict=Verdict.INCONCLUSIVE).verdict is Verdict.INCONCLUSIVE


def test_an_impossible_judgement_cannot_be_made() -> None:
    """A PASS needs a comparison, INVALID and MISSING need a reason, and None is the only unknown number."""
    for value, reference in ((None, 1.0), (1.0, None)):
        with pytest.raises(ValueError, match="without a value and a reference"):
            Judgement(THROUGHPUT, Verdict.PASS, "limit", value=value, reference=reference)
    for verdict in (Verdict.INVALID, Verdict.MISSING):
        with pytest.raises(ValueError, match="without a reason"):
            Judgement(THROUGHPUT, verdict, "baseline")
    with pytest.raises(ValueError, match="change of throughput"):
        replace(judge(evidence(0.0)), change=math.nan)
    with pytest.raises(ValueError, match="interval of throughput"):
        replace(judge(evidence(0.0)), interval=(0.0, math.inf))


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("estimate", (math.nan, math.inf)),
        ("standard_error", (0.0, math.nan)),
        ("df", (0.0, math.nan)),
        ("level", (0.0, 0.5)),
        ("claim_level", (0.0, 0.5)),
        ("least_claim", (-0.1, math.nan)),
        ("most_growth", (0.0, math.nan)),
    ],
)
def test_evidence_holds_only_numbers_that_can_be_tested(field: str, values: tuple[float, float]) -> None:
    """A NaN or an empty standard error is an error at once, never a comparison that happens to be false."""
    for value in values:
        with pytest.raises(ValueError, match="must"):
            replace(evidence(0.0), **{field: Growth(value)})


ALL = pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS)


@given(value=st.floats(1e-9, 1e9), slowdown=st.floats(0.001, 10))
def test_worse_is_larger_by_the_log_of_the_slowdown(value: float, slowdown: float) -> None:
    """A slowdown of r adds log(1 + r) to the log cost of every metric, whichever direction is better."""
    for metric in METRICS.values():
        worse = value / (1 + slowdown) if metric.higher_is_better else value * (1 + slowdown)
        assert log_cost(metric, worse) - log_cost(metric, value) == pytest.approx(math.log1p(slowdown), abs=1e-9)


@ALL
def test_a_tolerance_is_told_as_it_was_written(metric: Metric) -> None:
    """Conversion to cost and back does not change the digits of a tolerance."""
    tolerances = [percent / 100 for percent in range(1, 100)]
    assert [metric.loss(metric.growth(tolerance)) for tolerance in tolerances] == tolerances


def test_a_tolerance_is_one_that_can_be_decided() -> None:
    """A throughput's tolerance is below 1, a latency's may be above; zero and negative ones are refused."""
    for tolerance in (1, 1.0, 7.5):
        with pytest.raises(ValueError, match="throughput cannot fall by"):
            METRICS["throughput"].growth(tolerance)
        assert METRICS["latency.p99"].growth(tolerance) == tolerance
    for tolerance in (0.0, -0.1, math.nan, math.inf):
        with pytest.raises(ValueError, match="positive fraction"):
            requests_needed(METRICS["throughput"], tolerance)


@ALL
def test_what_is_not_a_measurement_has_no_cost(metric: Metric) -> None:
    """Zero requests per second or a NaN latency is an error, never an infinitely good or bad number."""
    for value in (0.0, -1.0, math.nan, math.inf, -math.inf):
        with pytest.raises(ValueError, match="must be a positive number"):
            log_cost(metric, value)


@pytest.mark.parametrize(
    ("name", "tolerance", "requests"),
    [
        ("latency.p99", 0.20, 1000),
        ("latency.p90", 0.10, 200),
        ("latency.p50", 0.05, 80),
        ("throughput", 0.05, 40),
        ("batching_ratio", 0.03, 67),
        ("goodput", 0.05, 40),
        ("gpu_memory", 0.001, 1),
        ("cold_start", 0.001, 1),
    ],
)
def test_requests_needed_follow_the_published_rule(name: str, tolerance: float, requests: int) -> None:
    """p99 needs 1000 requests at 20 %, and no rounding of 1 - q adds one."""
    assert requests_needed(METRICS[name], tolerance) == requests


@pytest.mark.parametrize(
    ("t", "df", "tail"),
    [
        (-3, 7.3, 0.9905097244884332),
        (0, 3, 0.5),
        (1.96, 150, 0.025924492967958006),
        (2.8, 3, 0.03392645024207038),
        (6.5, 7.3, 0.00013978429988117081),
        (25, 20, 7.343137411726216e-17),
        (25, 150, 1.1678447637979233e-55),
    ],
)
def test_t_tails_agree_with_an_independent_implementation(t: float, df: float, tail: float) -> None:
    """Tails of t, down to 1e-55, have the reference values to eleven digits."""
    assert t_upper_tail(t, df) == pytest.approx(tail, rel=1e-11, abs=0)


@pytest.mark.parametrize(
    ("f", "df1", "df2", "tail"),
    [
        (0.5, 7, 25.5, 0.8256885040208707),
        (1, 4, 10, 0.45155504934168467),
        (2.2, 7, 25.5, 0.06852332661357677),
        (20, 2, 3.4, 0.013175940312638875),
        (20, 7, 25.5, 7.197128151104159e-09),
    ],
)
def test_f_tails_agree_with_an_independent_implementation(f: float, df1: float, df2: float, tail: float) -> None:
    """Tails of F have the reference values to eleven digits."""
    assert f_upper_tail(f, df1, df2) == pytest.approx(tail, rel=1e-11, abs=0)


def test_extremes_are_certain() -> None:
    """Tails of 0 and of infinity are 1 and 0; a tiny share with nearly no freedom gives infinity."""
    assert [f_upper_tail(f, 2, 3) for f in (0, 1e-300, math.inf)] == [1, 1, 0]
    assert 0 < f_upper_tail(1e100, 2, 3) < 1e-100
    assert [t_upper_tail(t, 3) for t in (-math.inf, -1e308, math.inf)] == [1, 1, 0]
    assert t_quantile(1e-100, 0.1) == math.inf
    assert t_quantile(0.5, 3) == 0
    assert t_quantile(0.9, 3) == pytest.approx(-t_quantile(0.1, 3))


def test_nan_and_impossible_arguments_are_errors() -> None:
    """NaN never gives a probability, and a distribution needs degrees of freedom."""
    for df in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="degrees of freedom"):
            t_upper_tail(1, df)
        with pytest.raises(ValueError, match="degrees of freedom"):
            t_quantile(0.1, df)
        with pytest.raises(ValueError, match="degrees of freedom"):
            f_upper_tail(1, df, 1)
    with pytest.raises(ValueError, match="NaN"):
        t_upper_tail(math.nan, 3)
    for f in (math.nan, -1.0):
        with pytest.raises(ValueError, match="mean squares"):
            f_upper_tail(f, 2, 3)
    for share in (0.0, 1.0, math.nan):
        with pytest.raises(ValueError, match="share"):
            t_quantile(share, 3)
