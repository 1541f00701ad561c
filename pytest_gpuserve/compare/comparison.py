"""Comparisons of one test: the first look at each of its loads, and the answers to its assertions."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pytest_gpuserve.compare.assertions import Comparison, Duel, Run
from pytest_gpuserve.compare.baseline_store import Workload
from pytest_gpuserve.compare.loads import Look, TestLoads
from pytest_gpuserve.compare.measurement import Measurement
from pytest_gpuserve.compare.paired_runner import not_settled
from pytest_gpuserve.compare.recording import judge_recording, may_record, proposals, wants_recording, write_baselines
from pytest_gpuserve.compare.screen import (
    may_begin_paired,
    measure_alone,
    recorded_clock_mhz,
    settle_baseline,
    shared_host,
    spec_of,
    usable_sessions,
)
from pytest_gpuserve.errors import GpuserveError, UsageProblem
from pytest_gpuserve.experiment.pairing import BaseFailed
from pytest_gpuserve.measure.points import NotMeasured, pooled_value, too_few_requests
from pytest_gpuserve.measure.rounds import demand_own_gpu
from pytest_gpuserve.verdict.reason import Reason, ReasonKind
from pytest_gpuserve.verdict.sequential import LOOKS
from pytest_gpuserve.verdict.verdict import Judgement, ReferenceKind, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pytest_gpuserve.builds.worktree import ReferenceBuild
    from pytest_gpuserve.experiment.handle import Target
    from pytest_gpuserve.experiment.shape import LoadShape
    from pytest_gpuserve.measure.window import Session
    from pytest_gpuserve.verdict.metric import Metric


@dataclass(eq=False)
class TestComparison(TestLoads):
    """Comparisons of one test: measures loads, answers assertions, and reports the results."""

    _skips: list[str] = field(default_factory=list, init=False)
    _unheld: list[Judgement] = field(default_factory=list, init=False)

    # -- measuring

    def measure(self, target: Target, shape: LoadShape, name: str | None) -> Run:
        """Take the first look at a load; a recording takes all its sessions.

        Raises:
            UsageProblem: Another load of this test has that name.
            ServerFailed: The server could not be started.
            LoadFailed: The load engine failed.
            BaselineUnusable: The baseline file cannot be read or trusted; raised before the first measurement.
        """
        measurement = self._added(name, shape, target)
        against = self.paired_runner.against
        if against is not None:
            self._begin_against(measurement, against)
        else:
            self._begin_beside_commit(measurement)
        if measurement.beside is None:
            self._take_sessions(measurement)
        return measurement.run

    def duel(self, target: Target, opponent: Target, shape: LoadShape, name: str | None) -> Duel:
        """Take the first look at two servers side by side.

        Raises:
            UsageProblem: Another load of this test has that name.
            ServerFailed: A server could not be started.
            LoadFailed: The load engine failed.
        """
        measurement = self._added(name, shape, target, opponent)
        measurement.paired = self.paired_runner.compare_servers(spec_of(self, measurement, None), opponent)
        self._look_first(measurement, "duel")
        return Duel(measurement.run, self)

    def _added(self, name: str | None, shape: LoadShape, *targets: Target) -> Measurement:
        """Check a load of one server, or of two, and add it to the test; the run is the first server's."""
        shape = replace(
            shape,
            late_share=self.policy.late_share,
            requests_wanted=self.policy.requests_wanted,
            foreign_cores=self.policy.foreign_cores,
        )
        for target in targets:
            is_stream = target.protocol == "sse"
            shape.check_target(len(target.requests), is_stream=is_stream, has_turns=bool(target.pauses))
            target.check_schedule(shape.schedule)
        label = name or ("" if not self.measurements else f"load {len(self.measurements) + 1}")
        if any(label == other.run.label for other in self.measurements):
            raise UsageProblem(
                f"two loads of this test are called {label!r}, and would share one baseline",
                remedies=["name each load: load(..., name='...')"],
            )
        measurement = Measurement(
            Run(label, self, [], shape.schedule),
            targets[0],
            shape,
            _workload_of(targets, shape),
            self.baseline_store.key_of(self.nodeid, label),
            self.paired_runner,
        )
        # Other loads end before it is measured.
        self.close()
        self.measurements.append(measurement)
        return measurement

    def _take_sessions(self, measurement: Measurement) -> None:
        policy = self.policy
        stored = self.baseline_store.find(measurement.baseline_key)
        wanted = wants_recording(self, stored)
        # A new recording may have other clocks.
        clock_mhz = None if wanted else recorded_clock_mhz(self, measurement, stored)
        sessions = policy.record_sessions if wanted else 1
        measurement.run.sessions.extend(self._kept(measurement))
        while len(measurement.run.sessions) < sessions:
            if wanted:
                self.on_look(Look("session", len(measurement.run.sessions) + 1, sessions))
            else:
                self.announce("session", 1, 1)
            measurement.take(clock_mhz)
            # A load that will not be recorded anyway need not be measured to its end.
            if measurement.run.invalid or shared_host(self, measurement):
                break

    def _begin_against(self, measurement: Measurement, against: Callable[[], ReferenceBuild]) -> None:
        """Compare with the requested base; if that has no such server, the measurement notes why."""
        stored = self.baseline_store.find(measurement.baseline_key)
        try:
            spec = spec_of(self, measurement, stored)
            measurement.paired = self.paired_runner.compare_builds(spec, against())
            self._look_first(measurement, "against")
        except GpuserveError as problem:
            if measurement.paired is not None and not isinstance(problem, BaseFailed):
                raise
            if measurement.paired is not None:
                measurement.seconds += measurement.paired.seconds
            measurement.paired, measurement.beside = None, None
            measurement.absent = Reason(ReasonKind.NOT_SIDE_BY_SIDE, str(problem))

    def _begin_beside_commit(self, measurement: Measurement) -> None:
        """Begin side by side with the baseline's commit if the stored numbers decide nothing here.

        They decide nothing either if an earlier run has measured rounds of these two builds. A screen after them would
        be a second look, and could pass a REGRESSED build.
        """
        # If that commit cannot be measured, the measurement notes why.
        stored = self.baseline_store.find(measurement.baseline_key)
        if stored is None or wants_recording(self, stored):
            return
        if not may_begin_paired(self, measurement, stored):
            return
        runner, key = self.paired_runner, measurement.baseline_key
        is_screened = not self._was_paired(measurement) and bool(usable_sessions(self, measurement, stored).sessions)
        try:
            spec = spec_of(self, measurement, stored)
            if is_screened and not runner.has_rounds(spec, stored, key):
                return
            measurement.paired = runner.compare_with_base(spec, stored, key)
        except GpuserveError as problem:
            measurement.absent = None if is_screened else not_settled(problem)
            return
        try:
            self._look_first(measurement, "baseline")
        except BaseFailed as problem:
            # The time that it took is the test's.
            measurement.seconds += measurement.paired.seconds
            measurement.paired, measurement.beside = None, None
            measurement.absent = not_settled(problem)

    def _was_paired(self, measurement: Measurement) -> bool:
        """Whether the test continues a load that began side by side; the host is then not read again."""
        if self.earlier is None or not self.goes_on:
            return False
        return any(
            other.beside == "baseline" and other.baseline_key == measurement.baseline_key
            for other in self.earlier.measurements
        )

    def _look_first(self, measurement: Measurement, beside: ReferenceKind) -> None:
        assert measurement.paired is not None
        measurement.beside = beside
        if measurement.paired.rounds:
            measurement.show()
        else:
            self.announce("round", measurement.paired.next_round, LOOKS[-1][0])
            measurement.look()

    def _kept(self, measurement: Measurement) -> list[Session]:
        """Sound sessions of an earlier try of this test under the same load."""
        if self.earlier is None:
            return []
        for other in self.earlier.measurements:
            # Rounds are not sessions; the comparison itself keeps them.
            if (
                other.beside is None
                and other.baseline_key == measurement.baseline_key
                and other.workload.must_match == measurement.workload.must_match
            ):
                return [session for session in other.run.sessions if not session.problems]
        return []

    # -- comparing

    def against_baseline(self, run: Run, metric: Metric) -> Comparison:
        """See ``assertions.Judge``."""
        measurement = self.of(run)
        if measurement.beside == "duel":
            raise UsageProblem(
                "a duel has no baseline: its servers are compared with each other",
                remedies=[
                    "compare the ratios with numbers: duel.throughput >= 1.05",
                    "gate each server with load(...)",
                ],
            )
        stored = self.baseline_store.find(measurement.baseline_key)
        if self.paired_runner.against is not None:
            judgement = self._against(measurement, metric)
        elif wants_recording(self, stored):
            judgement = judge_recording(self, measurement, metric, stored)
            return self._answer(measurement, judgement, "baseline", holds=may_record(self, judgement))
        else:
            judgement = settle_baseline(self, measurement, metric, stored)
        return self._answer(measurement, judgement, "baseline")

    def _against(self, measurement: Measurement, metric: Metric) -> Judgement:
        # A base that could not be started once is not tried again for each metric.
        if measurement.absent is None:
            try:
                return self.settle_beside(measurement, metric)
            except BaseFailed as problem:
                measurement.absent = Reason(ReasonKind.NOT_SIDE_BY_SIDE, str(problem))
        return Judgement.missing(metric, "against", measurement.absent, value=measurement.value(metric))

    def against_limit(self, run: Run, metric: Metric, limit: float) -> Comparison:
        """See ``assertions.Judge``; the value is pooled over the whole measurement."""
        measurement = self.of(run)
        measure_alone(self, measurement)
        judgement = judge_limit(measurement, metric, limit, tolerance=self.policy.tolerance_of(metric))
        return self._answer(measurement, judgement, "limit", holds=judgement.verdict.passes)

    def against_ratio(self, run: Run, metric: Metric, limit: float) -> Comparison:
        """See ``assertions.Judge``."""
        measurement = self.of(run)
        judgement = self.settle_beside(measurement, metric, limit=limit)
        return self._answer(measurement, judgement, "duel")

    def _answer(
        self, measurement: Measurement, judgement: Judgement, asked: ReferenceKind, *, holds: bool | None = None
    ) -> Comparison:
        """Keep an answer, and replace an earlier one to the same comparison.

        By default it holds if it passes, or if the policy lets it skip the test. The rest of the test then goes on,
        because a skip must not hide later failures.
        """
        measurement.answers[judgement.metric.name, asked] = judgement
        if holds is None:
            policy, verdict = self.policy, judgement.verdict
            skips = {Verdict.INCONCLUSIVE: policy.skip_inconclusive, Verdict.MISSING: policy.skip_missing}
            if skips.get(verdict, False):
                self._skips.append(f"{verdict}: {'; '.join(map(str, judgement.reasons))}")
            holds = verdict.passes or skips.get(verdict, False)
        if not holds:
            self._unheld.append(judgement)
        return Comparison(judgement, holds=holds)

    # -- telling what came of it

    def judgement(self, run: Run, metric: Metric, kind: ReferenceKind) -> Judgement:
        """The last answer to a comparison with a baseline, a limit or a duel's opponent, for its explanation."""
        return self.of(run).answers[metric.name, kind]

    def compared(self, run: Run, judgement: Judgement) -> tuple[Sequence[Session], Sequence[Session]]:
        """Compared sessions of a judgement: the reference's and the run's; empty without a comparison."""
        measurement = self.of(run)
        if judgement.reference_kind in {"against", "duel"} and measurement.paired is not None:
            return measurement.paired.sessions("base"), measurement.paired.sessions("candidate")
        stored = self.baseline_store.find(measurement.baseline_key)
        if stored is None or measurement.run.invalid or judgement.reference_kind != "baseline":
            return (), ()
        usable = usable_sessions(self, measurement, stored).sessions
        # Changes on a host of another speed moved with the host.
        return ([session for _, session in usable], measurement.run.sessions) if usable else ((), ())

    def unjudged_problems(self) -> list[str]:
        """Problems of runs without any comparison; a test must not pass over them.

        After ``close`` they include those that show only at the servers' end. A run that Ctrl-C cut short has none,
        because its test has no outcome.
        """
        return [
            problem
            for measurement in self.measurements
            if not measurement.interrupted
            and not any(judgement.verdict is Verdict.INVALID for judgement in measurement.answers.values())
            for problem in dict.fromkeys(map(str, _problems(measurement)))
        ]

    def unheld(self) -> list[Judgement]:
        """Failed comparisons; a test that went on has forgotten an ``assert``."""
        return list(self._unheld)

    def skip_reason(self) -> str:
        """Reason why a test without failures is skipped rather than passed; empty if it passed."""
        return "; ".join(dict.fromkeys(self._skips))

    def record(self) -> list[str]:
        """Write the baselines of this test's comparisons, if this is a recording; return a report, also of proposals.

        Raises:
            BaselineUnusable: A file cannot be read or written.
        """
        written = write_baselines(self)
        return written if self.paired_runner.against is not None else [*written, *proposals(self)]


def _workload_of(targets: Sequence[Target], shape: LoadShape) -> Workload:
    """Workload of a load of one server, or of two side by side, each with its own description."""
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


def _problems(measurement: Measurement) -> tuple[Reason, ...]:
    paired = () if measurement.paired is None else measurement.paired.problems
    return (*measurement.run.invalid, *paired)


def judge_limit(measurement: Measurement, metric: Metric, limit: float, *, tolerance: float) -> Judgement:
    """Compare the pooled measurement with a number in the metric's unit, without statistics.

    Args:
        measurement: The load and its results.
        metric: The metric to compare.
        limit: The number.
        tolerance: The metric's tolerance, which sets the number of requests that a quantile needs.
    """
    run = measurement.run
    if run.invalid:
        return Judgement.invalid(metric, "limit", *run.invalid, reference=limit)
    try:
        demand_own_gpu(metric, measurement.rounds)
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
