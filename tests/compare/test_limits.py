"""A run against a limit of its test: its verdicts, and its failures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

from pytest_gpuserve.compare.assertions import Run
from pytest_gpuserve.compare.comparison import judge_limit
from pytest_gpuserve.verdict.metric import METRICS, Metric
from pytest_gpuserve.verdict.verdict import Judgement, Verdict
from tests.compare.vocabulary import Listener
from tests.support.builders import session, start, window
from tests.support.reasons import said

if TYPE_CHECKING:
    from pytest_gpuserve.compare.measurement import Measurement
    from pytest_gpuserve.measure.window import Session

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
