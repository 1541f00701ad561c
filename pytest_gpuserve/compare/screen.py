"""Verdicts against a baseline: its stored numbers screen if they may, and its base commit decides everything else.

Stored numbers count only on a GPU, and only if this host recorded them with the same facts of the GPU while it was as
fast as now. They may then end a comparison with PASS. If rounds are impossible they give all three outcomes, with the
remark that they were not settled side by side.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import msgspec

from pytest_gpuserve.compare.baseline_store import comparability, differences
from pytest_gpuserve.compare.one_build import outside_git
from pytest_gpuserve.compare.paired_runner import PairedSpec, not_settled
from pytest_gpuserve.device.rules import HOST_RULES, changes, speed_text
from pytest_gpuserve.errors import GpuserveError
from pytest_gpuserve.experiment.pairing import BaseFailed
from pytest_gpuserve.experiment.shape import Terms
from pytest_gpuserve.measure.points import NotMeasured, TooFewRequests, mean_value, point
from pytest_gpuserve.measure.rounds import OF_ONE_SERVER
from pytest_gpuserve.measure.window import GpuUse
from pytest_gpuserve.measure.work import FEWEST_WINDOWS, unknown_work, unlike_work
from pytest_gpuserve.store.kept import Subject
from pytest_gpuserve.verdict.metric import METRICS
from pytest_gpuserve.verdict.reason import Reason, ReasonKind
from pytest_gpuserve.verdict.screen import screen_evidence
from pytest_gpuserve.verdict.verdict import Judgement, Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpuserve.compare.loads import TestLoads
    from pytest_gpuserve.compare.measurement import Measurement
    from pytest_gpuserve.device import Device
    from pytest_gpuserve.experiment.environment import RunEnvironment
    from pytest_gpuserve.measure.streams import Streams
    from pytest_gpuserve.measure.window import Session
    from pytest_gpuserve.store.baseline import Stored
    from pytest_gpuserve.verdict.metric import Metric

SHARED_GPU: Final = Reason(
    ReasonKind.NOT_SIDE_BY_SIDE,
    "not settled side by side with the baseline's commit, because both servers would share the GPU's memory; start"
    " them alternately: @pytest.mark.gpuserve(one_at_a_time=True)",
)

NOT_ASKED: Final = Reason(ReasonKind.NOT_SIDE_BY_SIDE, "not settled side by side: --stored-only")

SOMEBODY_ELSES: Final = Reason(
    ReasonKind.NOT_SIDE_BY_SIDE,
    "not settled side by side: this server runs already, so the plugin cannot start another build of it",
)

BY_STORED: Final = Reason(ReasonKind.STORED_ALONE, "by stored numbers, not settled side by side")
"""Remark on a verdict that rests on stored numbers alone, because rounds are impossible."""


def may_screen(device: Device) -> bool:
    """Whether stored numbers count on a device: time and neighbours move those of a CPU by more than any tolerance."""
    return device.gpu is not None


@dataclass(frozen=True, slots=True)
class Usable:
    """Part of a baseline that is evidence here and now.

    Args:
        sessions: Usable recorded sessions, each with its occasion; may be empty.
        why: Reason why none, or not all, are usable; None if all are.
    """

    sessions: Sequence[tuple[str, Session]]
    why: Reason | None = None


def settle_baseline(case: TestLoads, measurement: Measurement, metric: Metric, stored: Stored | None) -> Judgement:
    """Judge by stored numbers or beside the base commit, and measure rounds until it is decided or must stop.

    Raises:
        ServerFailed: The server could not be started.
        LoadFailed: The load engine failed.
    """
    absent = why_absent(case, measurement, stored)
    if absent or stored is None:
        return Judgement.missing(metric, "baseline", *absent, value=measurement.value(metric))
    usable, screened = Usable(()), None
    if metric.name in OF_ONE_SERVER and not case.policy.one_at_a_time:
        measure_alone(case, measurement)
    if measurement.beside is None:
        unsound = unsound_judgement(case, measurement, metric)
        if unsound is not None:
            return unsound
        usable = usable_sessions(case, measurement, stored)
        screened = _screened(case, measurement, metric, usable)
        if screened is not None and screened.verdict in {Verdict.PASS, Verdict.INVALID}:
            return _noted(screened, stored)
    return _noted(_beside(case, measurement, metric, stored, usable=usable, screened=screened), stored)


def unsound_judgement(case: TestLoads, measurement: Measurement, metric: Metric) -> Judgement | None:
    """Judgement of a measurement that cannot be trusted, or is unknown; None if it is sound."""
    run = measurement.run
    if run.invalid:
        return Judgement.invalid(metric, "baseline", *run.invalid, value=measurement.value(metric))
    try:
        for session in run.sessions:
            point(metric, session, case.policy.tolerance_of(metric))
    except TooFewRequests:
        return None
    except NotMeasured as problem:
        return Judgement.invalid(metric, "baseline", problem.reason)
    return None


# -- by stored numbers


def usable_sessions(case: TestLoads, measurement: Measurement, stored: Stored) -> Usable:
    """Sessions of a baseline that are evidence for a load.

    A server that was not started here has another host, whose speed is unknown.
    """
    if not may_screen(case.here.device):
        return Usable((), _not_screened("on cpu stored numbers decide nothing: one host differs too much by the hour"))
    entry = stored.entry
    if measurement.is_own:
        if entry.host.id != case.here.host.id:
            was, is_ = entry.host.id, case.here.host.id
            return Usable((), _not_screened(f"the baseline was recorded on the host {was!r}, this one is {is_!r}"))
        differing = comparability(case.here, entry).warnings
        if differing:
            return Usable((), _not_screened("; ".join(differing)))
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
    return Usable(kept, _not_screened("; ".join(found)) if found else None)


def _screened(case: TestLoads, measurement: Measurement, metric: Metric, usable: Usable) -> Judgement | None:
    """Judgement by stored numbers; None if they decide nothing."""
    if not usable.sessions:
        return None
    sessions, recorded = measurement.run.sessions, [session for _, session in usable.sessions]
    streams = (_streams(recorded), _streams(sessions)) if metric.is_of_requests else ((), ())
    unlike = unlike_work(*streams)
    if unlike is not None:
        return Judgement.invalid(metric, "baseline", unlike, value=measurement.value(metric))
    judgement = stored_judgement(metric, usable, sessions, tolerance=case.policy.tolerance_of(metric))
    shared = shared_host(case, measurement)
    # A server that waits for requests batches better.
    if shared is None or (judgement.verdict is Verdict.PASS and metric.name != "batching_ratio"):
        return judgement.because(*unknown_work(*streams))
    return replace(judgement, verdict=Verdict.INCONCLUSIVE, reasons=(shared,))


# -- beside the base commit


def _beside(
    case: TestLoads,
    measurement: Measurement,
    metric: Metric,
    stored: Stored,
    *,
    usable: Usable,
    screened: Judgement | None,
) -> Judgement:
    impossible = _why_alone(case, measurement, metric)
    paired = None if impossible else _paired_with_base(case, measurement, metric, stored)
    if paired is not None:
        decided = paired.verdict is Verdict.REGRESSED or paired.verdict.passes
        told = Reason(
            ReasonKind.SIDE_BY_SIDE,
            f"{'settled' if decided else 'looked at'} side by side with the baseline's commit",
        )
        changed = "; ".join(changes_since(stored, case.here))
        text = f"only the code was compared: both builds now have {changed}"
        return paired.because(told, *([Reason(ReasonKind.SHARED_CHANGES, text)] if changed else []))
    reason = impossible or measurement.absent
    assert reason is not None
    if screened is not None and screened.has(ReasonKind.HOST_SHARED):
        return replace(screened, verdict=Verdict.INVALID).because(reason)
    if screened is not None and screened.reference is not None:
        # The build of a remote server is unknown.
        is_own_claim = screened.verdict.is_claim and measurement.is_own
        if is_own_claim and case.paired_runner.is_base_build(stored, measurement.baseline_key):
            return outside_git(screened, "this checkout is the build of the baseline").because(BY_STORED, reason)
        return screened.because(BY_STORED, reason)
    if screened is not None and screened.verdict is Verdict.MISSING:
        return screened.because(reason)
    value, why = measurement.value(metric), () if usable.why is None else (usable.why,)
    reasons = (*(() if screened is None else screened.reasons), *why, reason)
    return Judgement(
        metric,
        Verdict.INCONCLUSIVE,
        "baseline",
        value=value,
        reference=_mean(metric, stored.sessions),
        reasons=reasons,
    )


def _why_alone(case: TestLoads, measurement: Measurement, metric: Metric) -> Reason | None:
    """Reason why rounds are impossible; None if they are tried."""
    if case.policy.stored_only:
        return NOT_ASKED
    if not measurement.is_own:
        return SOMEBODY_ELSES
    # Two servers on one GPU have no memory value each, so it would be useless to start them.
    return SHARED_GPU if metric.name in OF_ONE_SERVER and not case.policy.one_at_a_time else None


def _paired_with_base(case: TestLoads, measurement: Measurement, metric: Metric, stored: Stored) -> Judgement | None:
    """Verdict beside the base commit; None if that is impossible, with a note in the measurement."""
    if measurement.absent:
        return None
    if measurement.paired is None:
        try:
            spec = spec_of(case, measurement, stored)
            measurement.paired = case.paired_runner.compare_with_base(spec, stored, measurement.baseline_key)
        except GpuserveError as problem:
            measurement.absent = not_settled(problem)
            return None
    # The earlier measurement stays the run, which judges further metrics, because the baseline was measured alone too.
    alone = list(measurement.run.sessions)
    try:
        return case.settle_beside(measurement, metric)
    except BaseFailed as problem:
        # The comparison is kept for its measuring time.
        measurement.absent = not_settled(problem)
        return None
    finally:
        if measurement.beside is None:
            measurement.run.sessions[:] = alone


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


def may_begin_paired(case: TestLoads, measurement: Measurement, stored: Stored) -> bool:
    """Whether a load may be measured beside the base commit from its first look on."""
    if case.policy.stored_only or not measurement.is_own or why_absent(case, measurement, stored):
        return False
    # If the test decides the end of a start, it may count its finished windows.
    return measurement.shape.requests is None and measurement.shape.until is None


def measure_alone(case: TestLoads, measurement: Measurement) -> None:
    """Measure a session of a load that has only been measured beside its baseline's commit.

    A limit applies to a server that has the machine for itself.

    Raises:
        ServerFailed: The server could not be started.
        LoadFailed: The load engine failed.
    """
    if measurement.beside != "baseline":
        return
    case.close()
    measurement.beside = None
    measurement.run.sessions.clear()
    case.announce("session", 1, 1)
    measurement.take()


def spec_of(case: TestLoads, measurement: Measurement, stored: Stored | None) -> PairedSpec:
    """Describe a load for a comparison side by side.

    Args:
        measurement: The load.
        stored: Its baseline, which tells the spread between starts if it is comparable.
    """
    here, label = case.here, measurement.run.label
    return PairedSpec(
        Subject(case.nodeid, label, here.host.id, here.device_kind, dict(measurement.workload.must_match)),
        measurement.target,
        Terms(
            measurement.shape,
            tolerance=case.policy.tolerance_of(METRICS["throughput"]),
            one_at_a_time=case.policy.one_at_a_time,
            seed=f"{case.nodeid} {label} {here.revision.content or here.occasion}",
        ),
        stored=None if why_absent(case, measurement, stored) or not may_screen(here.device) else stored,
        goes_on=case.goes_on,
    )


# -- what there is to compare with


def why_absent(case: TestLoads, measurement: Measurement, stored: Stored | None) -> tuple[Reason, ...]:
    """Reason why the load has no reference to compare with; empty if it has one."""
    key = measurement.baseline_key
    if stored is None:
        return (Reason(ReasonKind.NO_ENTRY, f"{key.path} has no entry {key.entry!r}", about=str(key.path)),)
    recorded_on = stored.entry.device.name
    if recorded_on != case.here.device.name:
        return _not_comparable(f"{key.path} was recorded on {recorded_on}, this device is {case.here.device.name}")
    incompatible = comparability(case.here, stored.entry).incompatible
    if incompatible:
        what = f"{key.path} was recorded on a device that cannot be compared with this one"
        return _not_comparable(what, *incompatible)
    different = differences(stored.entry.workload, measurement.workload.must_match)
    if different:
        what = f"{key.path} has another workload under {key.entry!r}"
        return (Reason(ReasonKind.NOT_COMPARABLE, what, about=str(key.path)), *_not_comparable(*different))
    return ()


def recorded_clock_mhz(case: TestLoads, measurement: Measurement, stored: Stored | None) -> float | None:
    """Mean SM clock in a comparable baseline; None without one."""
    if stored is None or why_absent(case, measurement, stored):
        return None
    use = GpuUse.pooled([window for session in stored.sessions for window in session.windows])
    return None if use is None else use.sm_clock_mhz


def shared_host(case: TestLoads, measurement: Measurement) -> Reason | None:
    """Reason that other processes used too much of the host; None if they did not."""
    taken = measurement.foreign_cores
    if taken <= case.policy.foreign_cores:
        return None
    return Reason(
        ReasonKind.HOST_SHARED,
        f"the host was shared: other processes took {taken:.2f} of its {case.here.host.cores} cores during a"
        f" start, {case.policy.foreign_cores:.2f} are allowed (ini gpuserve_foreign_cores)",
    )


def _noted(judgement: Judgement, stored: Stored) -> Judgement:
    """The judgement with the reason with which the baseline was accepted."""
    accepted = stored.entry.reason
    if not accepted or judgement.verdict is Verdict.INVALID:
        return judgement
    return judgement.because(Reason(ReasonKind.REMARK, f"the baseline was recorded with the reason: {accepted}"))


def stored_judgement(metric: Metric, usable: Usable, sessions: Sequence[Session], *, tolerance: float) -> Judgement:
    """Judge the sessions of a run, as one, by recorded ones of the same host.

    Args:
        metric: The judged metric.
        usable: The recorded sessions, at least one.
        sessions: Sessions of the run.
        tolerance: How much worse it may be.
    """
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


def _not_screened(text: str) -> Reason:
    return Reason(ReasonKind.NOT_SCREENED, text)


def _not_comparable(*texts: str) -> tuple[Reason, ...]:
    return tuple(Reason(ReasonKind.NOT_COMPARABLE, text) for text in texts)
