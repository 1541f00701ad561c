"""A run against a limit of its test."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpuserve.measure.points import NotMeasured, pooled_value, too_few_requests
from pytest_gpuserve.measure.rounds import demand_own_gpu
from pytest_gpuserve.verdict.reason import Reason, ReasonKind
from pytest_gpuserve.verdict.verdict import Judgement, Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpuserve.compare.measurement import Measurement
    from pytest_gpuserve.measure.rounds import Round
    from pytest_gpuserve.verdict.metric import Metric


def judge_limit(
    measurement: Measurement, metric: Metric, limit: float, *, tolerance: float, rounds: Sequence[Round] = ()
) -> Judgement:
    """Compare all that was measured, pooled, with a number in the metric's unit, without statistics.

    Args:
        measurement: What was measured.
        metric: What is compared.
        limit: The number.
        tolerance: Of the metric, by which a quantile has to have its requests.
        rounds: In which it was measured, where that was beside another server.
    """
    run = measurement.run
    if run.invalid:
        return Judgement.invalid(metric, "limit", *run.invalid, reference=limit)
    try:
        demand_own_gpu(metric, rounds)
        value = pooled_value(metric, run.sessions)
    except NotMeasured as problem:
        return Judgement.invalid(metric, "limit", problem.reason, reference=limit)
    too_few = too_few_requests(metric, run.sessions, tolerance)
    if too_few:
        more = "give the schedule more" if measurement.shape.finite else "give it longer: load(..., seconds=...)"
        reason = Reason(ReasonKind.TOO_FEW_REQUESTS, f"{too_few}; {more}")
        return Judgement(metric, Verdict.INCONCLUSIVE, "limit", value=value, reference=limit, reasons=(reason,))
    good = value >= limit if metric.higher_is_better else value <= limit
    return Judgement(
        metric,
        Verdict.PASS if good else Verdict.REGRESSED,
        "limit",
        value=value,
        reference=limit,
        change=value / limit - 1,
        rounds=len(run.sessions),
    )
