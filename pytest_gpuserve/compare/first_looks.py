"""The first look at each load of a test, before anything is compared."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_gpuserve.compare.assertions import Run
from pytest_gpuserve.compare.baseline_store import Workload
from pytest_gpuserve.compare.context import Look
from pytest_gpuserve.compare.measurement import Measurement
from pytest_gpuserve.compare.paired import Unconfirmed, base_build, base_failed, make_confirmation, next_round
from pytest_gpuserve.compare.screen import FIRST_SESSION
from pytest_gpuserve.errors import GpuserveError, UsageProblem
from pytest_gpuserve.experiment.pairing import BaseFailed
from pytest_gpuserve.verdict.reason import Reason, ReasonKind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pytest_gpuserve.builds.worktree import ReferenceBuild
    from pytest_gpuserve.compare.assertions import Judge
    from pytest_gpuserve.compare.context import ComparisonContext, TestMeasurements
    from pytest_gpuserve.compare.recording import Recorder
    from pytest_gpuserve.compare.screen import BaselineComparison
    from pytest_gpuserve.experiment.handle import Target
    from pytest_gpuserve.experiment.shape import LoadShape
    from pytest_gpuserve.measure.window import Session


class FirstLooks:
    """Adds the loads of a test, and takes the first look at each; a recording takes all its sessions.

    Args:
        case: The test.
        judge: Reaches the verdicts on the runs.
        baselines: Judges by baselines.
        recorder: Says what is recorded anew.
        earlier: The loads of an earlier try of the same test, whose sessions are kept; None where there was none.
    """

    def __init__(
        self,
        case: ComparisonContext,
        judge: Judge,
        baselines: BaselineComparison,
        recorder: Recorder,
        earlier: TestMeasurements | None,
    ) -> None:
        self._case = case
        self._judge = judge
        self._baselines = baselines
        self._recorder = recorder
        self._earlier = earlier

    def of_load(self, target: Target, shape: LoadShape, name: str | None) -> Run:
        """Look at a server alone, or beside what every comparison is with.

        Raises:
            UsageProblem: Another load of this test has that name.
            ServerFailed: The server could not be started.
            LoadFailed: The load engine failed.
            BaselineUnusable: The baseline file cannot be read or trusted; found before anything is measured.
        """
        measurement = self._added(name, shape, target)
        against = self._case.paired_runner.against
        if against is not None:
            self._begin_against(measurement, against)
        else:
            self._begin_paired(measurement)
        if measurement.paired is None:
            self._take_sessions(measurement)
        return measurement.run

    def of_duel(self, target: Target, opponent: Target, shape: LoadShape, name: str | None) -> Run:
        """Look at two servers side by side; the run is the first one's.

        Raises:
            UsageProblem: Another load of this test has that name.
            ServerFailed: A server could not be started.
            LoadFailed: The load engine failed.
        """
        measurement = self._added(name, shape, target, opponent)
        self._case.loads.duels.append(measurement.run)
        spec = self._baselines.spec_of(measurement, None)
        measurement.paired = self._case.paired_runner.compare_servers(spec, opponent)
        self._look_first(measurement)
        return measurement.run

    def _added(self, name: str | None, shape: LoadShape, *targets: Target) -> Measurement:
        """Check a load of one server, or of two side by side, and add it to the test; the run is the first one's."""
        shape = replace(shape, late_share=self._case.late_share)
        for target in targets:
            is_stream = target.protocol == "sse"
            shape.check_target(len(target.requests), is_stream=is_stream, has_turns=bool(target.pauses))
            target.check_schedule(shape.schedule)
        loads, paired_runner, first = self._case.loads, self._case.paired_runner, targets[0]
        label = name or ("" if not loads.measurements else f"load {len(loads.measurements) + 1}")
        if any(label == other.run.label for other in loads.measurements):
            raise UsageProblem(
                f"two loads of this test are called {label!r}, and would share one baseline",
                remedies=["give each its own: load(..., name='...')"],
            )
        measurement = Measurement(
            Run(label, self._judge, [], shape.schedule),
            first,
            shape,
            _workload_of(targets, shape),
            self._case.baseline_store.key_of(self._case.nodeid, label),
            paired_runner.progress,
            paired_runner.read_host,
            make_room=paired_runner.starts.make_room,
        )
        loads.stop_other_loads(measurement)
        loads.measurements.append(measurement)
        return measurement

    def _take_sessions(self, measurement: Measurement) -> None:
        policy = self._case.policy
        stored = self._case.baseline_store.find(measurement.baseline_key)
        wanted = self._recorder.wants(stored)
        # What is recorded anew may have other clocks.
        clock_mhz = None if wanted else self._baselines.clock_mhz(measurement, stored)
        sessions = policy.record_sessions if wanted else 1
        measurement.run.sessions.extend(self._kept(measurement))
        while len(measurement.run.sessions) < sessions:
            if wanted:
                self._case.on_look(Look("session", len(measurement.run.sessions) + 1, sessions))
            else:
                self._case.announce(FIRST_SESSION)
            measurement.take(self._case.requests_wanted, policy.foreign_cores, clock_mhz)
            # What will not be recorded anyway need not be measured to its end.
            if measurement.run.invalid or self._baselines.shared(measurement):
                break

    def _begin_against(self, measurement: Measurement, against: Callable[[], ReferenceBuild]) -> None:
        """Compare with what was asked for; where it has no such server, the measurement notes why."""
        stored = self._case.baseline_store.find(measurement.baseline_key)
        try:
            spec = self._baselines.spec_of(measurement, stored)
            measurement.paired = self._case.paired_runner.compare_builds(spec, against())
            self._look_first(measurement)
        except GpuserveError as problem:
            if measurement.paired is not None and not isinstance(problem, BaseFailed):
                raise
            measurement.paired, measurement.absent = None, Reason(ReasonKind.NOT_SIDE_BY_SIDE, str(problem))

    def _begin_paired(self, measurement: Measurement) -> None:
        """Begin side by side with the baseline's commit where the stored numbers decide nothing here.

        They decide nothing either where an earlier run has measured rounds of these two builds: a screen after them
        would be a second look, and could pass what they called REGRESSED.
        """
        # Where that commit cannot be measured, the measurement notes why.
        stored = self._case.baseline_store.find(measurement.baseline_key)
        if stored is None or self._recorder.wants(stored):
            return
        if not self._baselines.may_begin_paired(measurement, stored):
            return
        runner, spec = self._case.paired_runner, self._baselines.spec_of(measurement, stored)
        is_screened = not self._was_paired(measurement) and bool(self._baselines.usable(measurement, stored).sessions)
        try:
            if is_screened and not runner.has_rounds(spec, base_build(runner, stored, measurement.baseline_key)):
                return
            measurement.paired = make_confirmation(runner, spec, stored, measurement.baseline_key)
            measurement.is_paired = True
            self._look_first(measurement)
        except Unconfirmed as problem:
            measurement.absent = None if is_screened else problem.reason
        except BaseFailed as problem:
            assert measurement.paired is not None
            # The time that it took is the test's.
            measurement.seconds += measurement.paired.seconds
            measurement.paired, measurement.is_paired = None, False
            measurement.absent = base_failed(problem)

    def _was_paired(self, measurement: Measurement) -> bool:
        """Whether the test goes on with a load that began side by side: the host is not asked again."""
        if self._earlier is None or not self._case.goes_on:
            return False
        return any(
            other.is_paired and other.baseline_key == measurement.baseline_key for other in self._earlier.measurements
        )

    def _look_first(self, measurement: Measurement) -> None:
        assert measurement.paired is not None
        if measurement.paired.rounds:
            measurement.show()
        else:
            self._case.announce(next_round(measurement.paired))
            measurement.look()

    def _kept(self, measurement: Measurement) -> list[Session]:
        """Sound sessions of an earlier try of this test under the same load."""
        if self._earlier is None:
            return []
        for other in self._earlier.measurements:
            # Rounds beside a commit are no sessions alone; the comparison itself remembers them.
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
