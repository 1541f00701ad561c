"""The first look at each load of a test, before anything is compared."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_gpuserve.compare.assertions import Run
from pytest_gpuserve.compare.baseline_store import Workload
from pytest_gpuserve.compare.measurement import Measurement
from pytest_gpuserve.compare.paired import Unconfirmed, base_build, base_failed, make_confirmation
from pytest_gpuserve.compare.policy import Look
from pytest_gpuserve.compare.recording import wants_recording
from pytest_gpuserve.compare.screen import may_begin_paired, recorded_clock_mhz, shared_host, spec_of, usable_sessions
from pytest_gpuserve.errors import GpuserveError, UsageProblem
from pytest_gpuserve.experiment.pairing import BaseFailed
from pytest_gpuserve.verdict.reason import Reason, ReasonKind
from pytest_gpuserve.verdict.sequential import LOOKS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pytest_gpuserve.builds.worktree import ReferenceBuild
    from pytest_gpuserve.compare.assertions import Judge
    from pytest_gpuserve.compare.loads import TestLoads
    from pytest_gpuserve.experiment.handle import Target
    from pytest_gpuserve.experiment.shape import LoadShape
    from pytest_gpuserve.measure.window import Session


def first_look(case: TestLoads, judge: Judge, target: Target, shape: LoadShape, name: str | None) -> Run:
    """Look at a server alone, or beside what every comparison is with.

    Raises:
        UsageProblem: Another load of this test has that name.
        ServerFailed: The server could not be started.
        LoadFailed: The load engine failed.
        BaselineUnusable: The baseline file cannot be read or trusted; found before anything is measured.
    """
    measurement = _added(case, judge, name, shape, target)
    against = case.paired_runner.against
    if against is not None:
        _begin_against(case, measurement, against)
    else:
        _begin_paired(case, measurement)
    if measurement.paired is None:
        _take_sessions(case, measurement)
    return measurement.run


def first_look_at_duel(
    case: TestLoads, judge: Judge, target: Target, opponent: Target, shape: LoadShape, *, name: str | None
) -> Run:
    """Look at two servers side by side; the run is the first one's.

    Raises:
        UsageProblem: Another load of this test has that name.
        ServerFailed: A server could not be started.
        LoadFailed: The load engine failed.
    """
    measurement = _added(case, judge, name, shape, target, opponent)
    case.duels.append(measurement.run)
    spec = spec_of(case, measurement, None)
    measurement.paired = case.paired_runner.compare_servers(spec, opponent)
    _look_first(case, measurement)
    return measurement.run


def _added(case: TestLoads, judge: Judge, name: str | None, shape: LoadShape, *targets: Target) -> Measurement:
    """Check a load of one server, or of two side by side, and add it to the test; the run is the first one's."""
    shape = replace(shape, late_share=case.late_share)
    for target in targets:
        is_stream = target.protocol == "sse"
        shape.check_target(len(target.requests), is_stream=is_stream, has_turns=bool(target.pauses))
        target.check_schedule(shape.schedule)
    paired_runner, first = case.paired_runner, targets[0]
    label = name or ("" if not case.measurements else f"load {len(case.measurements) + 1}")
    if any(label == other.run.label for other in case.measurements):
        raise UsageProblem(
            f"two loads of this test are called {label!r}, and would share one baseline",
            remedies=["give each its own: load(..., name='...')"],
        )
    measurement = Measurement(
        Run(label, judge, [], shape.schedule),
        first,
        shape,
        _workload_of(targets, shape),
        case.baseline_store.key_of(case.nodeid, label),
        paired_runner.progress,
        paired_runner.read_host,
        make_room=paired_runner.starts.make_room,
    )
    case.stop_other_loads(measurement)
    case.measurements.append(measurement)
    return measurement


def _take_sessions(case: TestLoads, measurement: Measurement) -> None:
    policy = case.policy
    stored = case.baseline_store.find(measurement.baseline_key)
    wanted = wants_recording(case, stored)
    # What is recorded anew may have other clocks.
    clock_mhz = None if wanted else recorded_clock_mhz(case, measurement, stored)
    sessions = policy.record_sessions if wanted else 1
    measurement.run.sessions.extend(_kept(case, measurement))
    while len(measurement.run.sessions) < sessions:
        if wanted:
            case.on_look(Look("session", len(measurement.run.sessions) + 1, sessions))
        else:
            case.announce("session", 1, 1)
        measurement.take(case.requests_wanted, policy.foreign_cores, clock_mhz)
        # What will not be recorded anyway need not be measured to its end.
        if measurement.run.invalid or shared_host(case, measurement):
            break


def _begin_against(case: TestLoads, measurement: Measurement, against: Callable[[], ReferenceBuild]) -> None:
    """Compare with what was asked for; where it has no such server, the measurement notes why."""
    stored = case.baseline_store.find(measurement.baseline_key)
    try:
        spec = spec_of(case, measurement, stored)
        measurement.paired = case.paired_runner.compare_builds(spec, against())
        _look_first(case, measurement)
    except GpuserveError as problem:
        if measurement.paired is not None and not isinstance(problem, BaseFailed):
            raise
        measurement.paired, measurement.absent = None, Reason(ReasonKind.NOT_SIDE_BY_SIDE, str(problem))


def _begin_paired(case: TestLoads, measurement: Measurement) -> None:
    """Begin side by side with the baseline's commit where the stored numbers decide nothing here.

    They decide nothing either where an earlier run has measured rounds of these two builds: a screen after them
    would be a second look, and could pass what they called REGRESSED.
    """
    # Where that commit cannot be measured, the measurement notes why.
    stored = case.baseline_store.find(measurement.baseline_key)
    if stored is None or wants_recording(case, stored):
        return
    if not may_begin_paired(case, measurement, stored):
        return
    runner, spec = case.paired_runner, spec_of(case, measurement, stored)
    is_screened = not _was_paired(case, measurement) and bool(usable_sessions(case, measurement, stored).sessions)
    try:
        if is_screened and not runner.has_rounds(spec, base_build(runner, stored, measurement.baseline_key)):
            return
        measurement.paired = make_confirmation(runner, spec, stored, measurement.baseline_key)
        measurement.is_paired = True
        _look_first(case, measurement)
    except Unconfirmed as problem:
        measurement.absent = None if is_screened else problem.reason
    except BaseFailed as problem:
        assert measurement.paired is not None
        # The time that it took is the test's.
        measurement.seconds += measurement.paired.seconds
        measurement.paired, measurement.is_paired = None, False
        measurement.absent = base_failed(problem)


def _was_paired(case: TestLoads, measurement: Measurement) -> bool:
    """Whether the test goes on with a load that began side by side: the host is not asked again."""
    if case.earlier is None or not case.goes_on:
        return False
    return any(
        other.is_paired and other.baseline_key == measurement.baseline_key for other in case.earlier.measurements
    )


def _look_first(case: TestLoads, measurement: Measurement) -> None:
    assert measurement.paired is not None
    if measurement.paired.rounds:
        measurement.show()
    else:
        case.announce("round", measurement.paired.next_round, LOOKS[-1][0])
        measurement.look()


def _kept(case: TestLoads, measurement: Measurement) -> list[Session]:
    """Sound sessions of an earlier try of this test under the same load."""
    if case.earlier is None:
        return []
    for other in case.earlier.measurements:
        # Rounds beside a commit are not sessions; the comparison itself keeps them.
        if other.is_paired:
            continue
        if (
            other.baseline_key == measurement.baseline_key
            and other.workload.must_match == measurement.workload.must_match
        ):
            return [session for session in other.run.sessions if not session.problems]
    return []


def _workload_of(targets: Sequence[Target], shape: LoadShape) -> Workload:
    """The workload of a load of one server, or of two side by side, each with its own words."""
    must_match: dict[str, str] = {}
    information: dict[str, str] = {}
    for name, target in zip("ab", targets, strict=False):
        prefix = f"{name}." if len(targets) > 1 else ""
        kind = target.server.kind
        must_match |= _prefixed(prefix, {**kind.workload(), **target.fingerprint()})
        information |= _prefixed(prefix, kind.information())
    return Workload({**must_match, **shape.workload()}, information)


def _prefixed(prefix: str, words: Mapping[str, str]) -> dict[str, str]:
    return {f"{prefix}{key}": value for key, value in words.items()}
