"""Judges a load by the stored numbers of its baseline, as far as they are evidence here and now.

Stored numbers count only on a GPU, and only if this host recorded them with the same facts of the GPU while it was as
fast as now. They may then end a comparison with PASS. If rounds are impossible they give all three outcomes, with the
remark that they were not settled side by side.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import msgspec

from pytest_gpuserve.compare.baseline_store import comparability
from pytest_gpuserve.compare.measurement import may_screen
from pytest_gpuserve.compare.one_build import outside_git
from pytest_gpuserve.device.rules import HOST_RULES, changes, speed_text
from pytest_gpuserve.measure.points import NotMeasured, TooFewRequests, mean_value, point
from pytest_gpuserve.measure.rounds import OF_ONE_SERVER
from pytest_gpuserve.measure.window import GpuUse
from pytest_gpuserve.measure.work import FEWEST_WINDOWS, unknown_work, unlike_work
from pytest_gpuserve.verdict.reason import Reason, ReasonKind
from pytest_gpuserve.verdict.screen import screen_evidence
from pytest_gpuserve.verdict.verdict import Judgement, Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpuserve.compare.measurement import Measurement
    from pytest_gpuserve.experiment.environment import RunEnvironment
    from pytest_gpuserve.measure.window import Session, Streams
    from pytest_gpuserve.store.baseline import Stored
    from pytest_gpuserve.verdict.metric import Metric

SHARED_GPU: Final = Reason(
    ReasonKind.NOT_SIDE_BY_SIDE,
    "not settled side by side with the baseline's commit, because both servers would share the GPU's memory; start"
    " them alternately: @pytest.mark.gpuserve(one_at_a_time=True)",
)

NOT_ASKED: Final = Reason(ReasonKind.NOT_SIDE_BY_SIDE, "not settled side by side: --stored-only")

RUNS_ALREADY: Final = Reason(
    ReasonKind.NOT_SIDE_BY_SIDE,
    "not settled side by side: this server runs already, so the plugin cannot start another build of it",
)

BY_STORED: Final = Reason(ReasonKind.STORED_ALONE, "by stored numbers, not settled side by side")
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
        return _unusable("on cpu stored numbers decide nothing: one host differs too much by the hour")
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
        found[f"{len(streams)} starts do not report token counts: record two sessions or more"] = None
        kept = []
    return replace(_unusable("; ".join(found)), sessions=kept) if found else Usable(kept)


def _unusable(text: str) -> Usable:
    return Usable((), Reason(ReasonKind.NOT_SCREENED, text))


def unsound_judgement(measurement: Measurement, metric: Metric) -> Judgement | None:
    """Judgement of a measurement that cannot be trusted, or is unknown; None if it is sound."""
    run = measurement.run
    if run.invalid:
        return Judgement.invalid(metric, "baseline", *run.invalid, value=measurement.value(metric))
    try:
        for session in run.sessions:
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
    sessions, recorded = measurement.run.sessions, [session for _, session in usable.sessions]
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
        return Judgement.missing(metric, "baseline", Reason(problem.kind, f"the baseline does not have it: {problem}"))
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
        if is_own_claim and measurement.is_base_build(stored):
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


def recorded_clock_mhz(measurement: Measurement, stored: Stored | None) -> float | None:
    """Mean SM clock in a comparable baseline; None without one."""
    if stored is None or measurement.why_absent(stored):
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
