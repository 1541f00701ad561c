"""The verdict of a run against a stored entry, from what both measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpuserve.gate.occasions import withstand_drift
from pytest_gpuserve.gate.stored import LOOKS, SessionPoint, judge_stored
from pytest_gpuserve.gate.verdict import Judgement, Verdict
from pytest_gpuserve.measure.points import NotMeasured, TooFewRequests, point, pooled_value
from pytest_gpuserve.trial.machine import why_other

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpuserve.gate.metric import Metric
    from pytest_gpuserve.measure.window import Session
    from pytest_gpuserve.measure.yardstick import Yardstick
    from pytest_gpuserve.store.baseline import Stored


def stored_judgement(
    metric: Metric, stored: Stored, sessions: Sequence[Session], *, host: str, tolerance: float
) -> Judgement:
    """Judge the sessions of a run against those of a baseline of the same workload.

    Args:
        metric: What is judged.
        stored: The baseline.
        sessions: The run's, all of this host.
        host: This host.
        tolerance: How much worse it may be.
    """
    records = stored.entry.sessions
    try:
        then = [
            _session_point(metric, session, record.host.id, tolerance)
            for session, record in zip(stored.sessions, records, strict=True)
        ]
    except NotMeasured as problem:
        return Judgement.missing(metric, "baseline", f"the baseline does not have it: {problem}")
    try:
        now = [_session_point(metric, session, host, tolerance) for session in sessions]
    except NotMeasured as problem:
        return not_measured(metric, problem)
    occasions: dict[str, list[float]] = {}
    for record, known in zip(records, then, strict=True):
        if record.host.id == host:
            occasions.setdefault(record.occasion, []).append(known.y)
    # A recording may have taken more sessions than a gate ever looks at.
    result = judge_stored(metric, then, now, most_growth=metric.growth(tolerance), looks=max(LOOKS, len(now)))
    return withstand_drift(result, occasions).judgement()


def undecided_elsewhere(metric: Metric, stored: Stored, now: Yardstick, *, value: float | None) -> Judgement:
    """The judgement where the machine is not as fast as it was, or not known to be: the numbers decide nothing.

    Args:
        metric: What is judged.
        stored: The baseline.
        now: The run's yardstick.
        value: What was measured, for reading only; None where that is not known.
    """
    try:
        reference = pooled_value(metric, stored.sessions)
    except NotMeasured:
        reference = None
    return Judgement(
        metric,
        Verdict.INCONCLUSIVE,
        "baseline",
        value=value,
        reference=reference,
        reasons=(why_other(stored, now),),
    )


def not_measured(metric: Metric, problem: NotMeasured) -> Judgement:
    """The judgement of a metric that a run does not have."""
    if isinstance(problem, TooFewRequests):
        # The measurement is sound, there is only too little of it.
        return Judgement(metric, Verdict.INCONCLUSIVE, "baseline", reasons=(str(problem),))
    return Judgement.invalid(metric, "baseline", str(problem))


def _session_point(metric: Metric, session: Session, host: str, tolerance: float) -> SessionPoint:
    reduced = point(metric, session, tolerance)
    return SessionPoint(host=host, y=reduced.y, u=reduced.u, starts=len(session.starts))
