"""A load and its stored numbers: judged by them, as far as they are evidence here and now, or recorded.

Stored numbers count only on a GPU, and only if this host recorded them with the same facts of the GPU while it was as
fast as now. They may then end a comparison with PASS. If rounds are impossible they give all three outcomes, with the
remark that no rounds were measured.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import msgspec

from pytest_gpuserve.compare.baseline_store import comparability
from pytest_gpuserve.compare.measurement import may_screen
from pytest_gpuserve.compare.side_by_side import outside_git
from pytest_gpuserve.device.rules import HOST_RULES, changes, speed_text
from pytest_gpuserve.measure.points import NotMeasured, TooFewRequests, mean_value, point
from pytest_gpuserve.measure.rounds import OF_ONE_SERVER
from pytest_gpuserve.measure.window import GpuUse
from pytest_gpuserve.measure.work import FEWEST_WINDOWS, unknown_work, unlike_work
from pytest_gpuserve.units import format_change, format_value
from pytest_gpuserve.verdict.evidence import screen_evidence
from pytest_gpuserve.verdict.metric import METRICS, log_cost
from pytest_gpuserve.verdict.reason import Reason, ReasonKind
from pytest_gpuserve.verdict.verdict import Judgement, Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpuserve.compare.baseline_store import RunEnvironment
    from pytest_gpuserve.compare.measurement import Measurement
    from pytest_gpuserve.measure.window import Session, Streams
    from pytest_gpuserve.store.baseline import Stored
    from pytest_gpuserve.verdict.metric import Metric

SHARED_GPU: Final = Reason(
    ReasonKind.NOT_SIDE_BY_SIDE,
    "not measured side by side with the baseline's commit, because both servers would share the GPU's memory; start"
    " them alternately: @pytest.mark.gpuserve(one_at_a_time=True)",
)

NOT_ASKED: Final = Reason(ReasonKind.NOT_SIDE_BY_SIDE, "not measured side by side: --stored-only")

RUNS_ALREADY: Final = Reason(
    ReasonKind.NOT_SIDE_BY_SIDE,
    "not measured side by side: this server runs already, so the plugin cannot start another build of it",
)

BY_STORED: Final = Reason(ReasonKind.STORED_ALONE, "judged by stored numbers alone, not side by side")
"""Remark on a verdict that rests on stored numbers alone, because rounds are impossible."""


def why_alone(measurement: Measurement, metric: Metric) -> Reason | None:
    """Reason why rounds beside the base commit are impossible; None if they are tried."""
    policy = measurement.policy
    if policy.stored_only:
        return NOT_ASKED
    if not measurement.is_own:
        return RUNS_ALREADY
    # Two servers on one GPU have no memory value each, so it would be useless to start them.
    return SHARED_GPU if metric.name in OF_ONE_SERVER and not policy.one_at_a_time else None


@dataclass(frozen=True, slots=True)
class Usable:
    """Part of a baseline that is evidence here and now.

    Args:
        sessions: Usable recorded sessions, each with its occasion; may be empty.
        why: Reason why none, or not all, are usable; None if all are.
    """

    sessions: Sequence[tuple[str, Session]]
    why: Reason | None = None


def usable_sessions(measurement: Measurement, stored: Stored) -> Usable:
    """Sessions of a baseline that are evidence for a load.

    A server that was not started here has another host, whose speed is unknown.
    """
    here, entry = measurement.bench.here, stored.entry
    if not may_screen(here.device):
        return _unusable("on cpu stored numbers decide nothing: the speed of a host changes too much in an hour")
    if measurement.is_own:
        if entry.host.id != here.host.id:
            return _unusable(f"the baseline was recorded on the host {entry.host.id!r}, this one is {here.host.id!r}")
        differing = comparability(here, entry).warnings
        if differing:
            return _unusable("; ".join(differing))
    kept, found = [], dict[str, None]()
    for record, session in zip(entry.sessions, stored.sessions, strict=True):
        why = speed_text(record.host_reading, measurement.host_reading()) if measurement.is_own else ""
        if why:
            found[why] = None
        else:
            kept.append((record.occasion, session))
    streams = _streams([session for _, session in kept])
    if len(streams) < FEWEST_WINDOWS and any(each is not None and each.with_usage for each in streams):
        few = f"too few recorded starts ({len(streams)}) to compare the lengths of answers"
        found[f"{few}: record two sessions or more"] = None
        kept = []
    return replace(_unusable("; ".join(found)), sessions=kept) if found else Usable(kept)


def _unusable(text: str) -> Usable:
    return Usable((), Reason(ReasonKind.NOT_SCREENED, text))


def unsound_judgement(measurement: Measurement, metric: Metric) -> Judgement | None:
    """Judgement of a measurement that cannot be trusted, or is unknown; None if it is sound."""
    invalid = measurement.run.invalid
    if invalid:
        return Judgement.invalid(metric, "baseline", *invalid, value=measurement.value(metric))
    try:
        for session in measurement.sessions:
            point(metric, session, measurement.policy.tolerance_of(metric))
    except TooFewRequests:
        return None
    except NotMeasured as problem:
        return Judgement.invalid(metric, "baseline", problem.reason)
    return None


def screen(measurement: Measurement, metric: Metric, usable: Usable) -> Judgement | None:
    """Judge by stored numbers; None if they decide nothing."""
    if not usable.sessions:
        return None
    sessions, recorded = measurement.sessions, [session for _, session in usable.sessions]
    streams = (_streams(recorded), _streams(sessions)) if metric.is_of_requests else ((), ())
    unlike = unlike_work(*streams)
    if unlike is not None:
        return Judgement.invalid(metric, "baseline", unlike, value=measurement.value(metric))
    judgement = _screened(metric, usable, sessions, tolerance=measurement.policy.tolerance_of(metric))
    shared = measurement.shared_host()
    # A server that waits for requests batches better.
    if shared is None or (judgement.verdict is Verdict.PASS and metric.name != "batching_ratio"):
        return judgement.because(*unknown_work(*streams))
    return replace(judgement, verdict=Verdict.INCONCLUSIVE, reasons=(shared,))


def _screened(metric: Metric, usable: Usable, sessions: Sequence[Session], *, tolerance: float) -> Judgement:
    """Judge the sessions of a run, as one, by recorded ones of the same host."""
    recorded: dict[str, list[float]] = {}
    try:
        for occasion, session in usable.sessions:
            recorded.setdefault(occasion, []).append(point(metric, session, tolerance))
    except NotMeasured as problem:
        return Judgement.missing(
            metric, "baseline", Reason(problem.kind, f"the baseline does not have this metric: {problem}")
        )
    try:
        now = sum(point(metric, session, tolerance) for session in sessions) / len(sessions)
    except NotMeasured as problem:
        return not_measured(metric, problem)
    evidence = screen_evidence(metric, recorded, now, most_growth=metric.growth(tolerance))
    return Judgement.from_evidence(
        metric,
        evidence,
        verdict=evidence.verdict,
        reference_kind="baseline",
        value=metric.value_at(now),
        rounds=len(sessions),
    )


def settled_alone(
    measurement: Measurement,
    metric: Metric,
    stored: Stored,
    *,
    usable: Usable,
    screened: Judgement | None,
    reason: Reason,
) -> Judgement:
    """Judgement of a load whose base cannot be measured beside it.

    Args:
        usable: Usable part of the baseline.
        screened: Judgement by it that is neither PASS nor INVALID, or None.
        reason: Reason why the base was not measured.
    """
    if screened is not None and screened.has(ReasonKind.HOST_SHARED):
        return replace(screened, verdict=Verdict.INVALID).because(reason)
    if screened is not None and screened.reference is not None:
        # The build of a remote server is unknown.
        is_own_claim = screened.verdict.is_claim and measurement.is_own
        if is_own_claim and measurement.is_base_build:
            return outside_git(screened, "this checkout is the build of the baseline").because(BY_STORED, reason)
        return screened.because(BY_STORED, reason)
    if screened is not None and screened.verdict is Verdict.MISSING:
        return screened.because(reason)
    known = () if screened is None else screened.reasons
    return Judgement(
        metric,
        Verdict.INCONCLUSIVE,
        "baseline",
        value=measurement.value(metric),
        reference=_mean(metric, stored.sessions),
        reasons=(*known, *(() if usable.why is None else (usable.why,)), reason),
    )


def compared(measurement: Measurement, judgement: Judgement) -> tuple[Sequence[Session], Sequence[Session]]:
    """Compared sessions of a judgement: the reference's and the run's; empty without a comparison."""
    if judgement.reference_kind in {"against", "duel"} and measurement.paired is not None:
        return measurement.paired.sessions("base"), measurement.paired.sessions("candidate")
    stored = measurement.stored
    if stored is None or measurement.run.invalid or judgement.reference_kind != "baseline":
        return (), ()
    usable = usable_sessions(measurement, stored).sessions
    # Changes on a host of another speed moved with the host.
    return ([session for _, session in usable], measurement.sessions) if usable else ((), ())


def changes_since(stored: Stored, here: RunEnvironment) -> tuple[str, ...]:
    """List differences from the recording besides the code: packages, driver, settings of the GPU and the host."""
    last = stored.entry
    changed = [
        f"{name} {last.software.get(name, 'absent')} -> {here.software.get(name, 'absent')}"
        for name in sorted({*last.software, *here.software})
        if last.software.get(name) != here.software.get(name)
    ]
    changed += changes(msgspec.to_builtins(last.device), msgspec.to_builtins(here.device_record()))
    if last.host.id == here.host.id:
        changed += changes(msgspec.to_builtins(last.host), msgspec.to_builtins(here.host_record()), HOST_RULES)
    return tuple(changed)


def recorded_clock_mhz(measurement: Measurement) -> float | None:
    """Mean SM clock in a comparable baseline; None without one."""
    stored = measurement.stored
    if stored is None or measurement.unlike_stored:
        return None
    use = GpuUse.pooled([window for session in stored.sessions for window in session.windows])
    return None if use is None else use.sm_clock_mhz


def not_measured(metric: Metric, problem: NotMeasured) -> Judgement:
    """Judgement of a metric that a run lacks."""
    if isinstance(problem, TooFewRequests):
        # The measurement is sound, but too short.
        return Judgement(metric, Verdict.INCONCLUSIVE, "baseline", reasons=(problem.reason,))
    return Judgement.invalid(metric, "baseline", problem.reason)


def _mean(metric: Metric, sessions: Sequence[Session]) -> float | None:
    try:
        return mean_value(metric, sessions)
    except NotMeasured:
        return None


def _streams(sessions: Sequence[Session]) -> list[Streams | None]:
    return [window.streams for session in sessions for window in session.windows]


def judge_recording(measurement: Measurement, metric: Metric) -> Judgement:
    """Judge the effect of a recording on a metric: its value is compared directly with that of the present entry."""
    unsound = unsound_judgement(measurement, metric)
    if unsound is not None:
        return unsound
    value, tolerance = measurement.value(metric), measurement.policy.tolerance_of(metric)
    shared = measurement.shared_host()
    if shared is not None:
        reason = shared.with_text(f"{shared}; a baseline recorded now would hide a regression later")
        return Judgement.invalid(metric, "baseline", reason, value=value)
    try:
        # A recording must be good enough for comparisons tomorrow.
        for session in measurement.sessions:
            point(metric, session, tolerance)
        value = mean_value(metric, measurement.sessions)
    except NotMeasured as problem:
        return not_measured(metric, problem)
    recorded = Reason(ReasonKind.RECORDING, "recorded by this run, if the test passes")
    stored, unlike = measurement.stored, measurement.unlike_stored
    if stored is None or unlike:
        # A missing entry explains why it is recorded; an entry with another workload is worth a remark.
        return Judgement.missing(metric, "baseline", *(unlike if stored else ()), recorded, value=value)
    try:
        reference = mean_value(metric, stored.sessions)
    except NotMeasured:
        return Judgement.missing(metric, "baseline", recorded, value=value)
    grown = log_cost(metric, value) - log_cost(metric, reference)
    is_looser = grown > math.log1p(metric.growth(tolerance))
    needed = (_needs_reason(metric),) if is_looser and not measurement.policy.reason else ()
    return Judgement(
        metric,
        Verdict.REGRESSED if is_looser else Verdict.PASS,
        "baseline",
        value=value,
        reference=reference,
        change=value / reference - 1,
        tolerance=tolerance,
        rounds=len(measurement.sessions),
        reasons=needed or (recorded,),
    )


def record(measurement: Measurement) -> list[str]:
    """Write the baseline of a load, if this is a recording, and it can be trusted; a report.

    Raises:
        BaselineUnusable: The file cannot be read or written.
    """
    answers = _answers(measurement)
    if not measurement.is_recorded or not answers or measurement.run.invalid:
        return []
    key, baselines = measurement.baseline_key, measurement.bench.baselines
    done = baselines.record(key, measurement.workload, measurement.sessions, measurement.policy.reason)
    return [
        f"{key.entry}: {done} in {key.path}{baselines.here.revision.to_commit(key.path)}",
        *(f"{key.entry}: {_changed(answer)}" for answer in answers),
    ]


def _answers(measurement: Measurement) -> list[Judgement]:
    """Answers to a test's comparisons with the baseline of a load, in the order of the metrics."""
    asked = ((name, "baseline") for name in METRICS)
    return [measurement.answers[each] for each in asked if each in measurement.answers]


def _changed(judgement: Judgement) -> str:
    """``throughput 812/s -> 931/s (+14.7 %)``."""
    name, unit, value, reference = judgement.metric.name, judgement.unit, judgement.value, judgement.reference
    if value is None:
        return name
    if reference is None:
        return f"{name} {format_value(value, unit)}"
    change = format_change(value / reference - 1)
    return f"{name} {format_value(reference, unit)} -> {format_value(value, unit)} ({change})"


def _needs_reason(metric: Metric) -> Reason:
    text = f"this would replace the stored {metric.name} by a worse one; give the reason: --reason='why it is worth it'"
    return Reason(ReasonKind.NEEDS_REASON, text)
