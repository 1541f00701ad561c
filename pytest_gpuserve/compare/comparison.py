"""Comparisons of one test: its loads, the first look at each, and the answers to its assertions."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from pytest_gpuserve.compare.assertions import Comparison, Duel
from pytest_gpuserve.compare.baseline_store import Workload
from pytest_gpuserve.compare.measurement import Measurement, not_side_by_side
from pytest_gpuserve.compare.stored import (
    Usable,
    changes_since,
    judge_recording,
    record,
    recorded_clock_mhz,
    screen,
    settled_alone,
    unsound_judgement,
    usable_sessions,
    why_alone,
)
from pytest_gpuserve.errors import GpuserveError, UsageProblem
from pytest_gpuserve.experiment.handle import slots_needed
from pytest_gpuserve.experiment.pairing import BaseFailed
from pytest_gpuserve.measure.points import NotMeasured, TooFewRequests, demand_requests, pooled_value
from pytest_gpuserve.measure.rounds import OF_ONE_SERVER
from pytest_gpuserve.verdict.evidence import LOOKS
from pytest_gpuserve.verdict.reason import Reason, ReasonKind
from pytest_gpuserve.verdict.verdict import Judgement, ReferenceKind, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pytest_gpuserve.builds.worktree import ReferenceBuild
    from pytest_gpuserve.compare.assertions import Run
    from pytest_gpuserve.compare.measurement import Bench, Policy
    from pytest_gpuserve.compare.side_by_side import SideBySide
    from pytest_gpuserve.experiment.handle import Target
    from pytest_gpuserve.experiment.shape import LoadShape
    from pytest_gpuserve.store.baseline import Stored
    from pytest_gpuserve.verdict.metric import Metric


@dataclass(frozen=True, slots=True)
class Look:
    """A look that is about to be taken.

    Args:
        unit: The unit that is measured next.
        number: Number of the unit, from 1.
        most: Largest number of units.
        judgement: The last look's judgement of the undecided metric; None before the first look.
        left_seconds: Rest of the test's budget before this look; None without a budget, as in a recording.
    """

    unit: Literal["session", "round"]
    number: int
    most: int
    judgement: Judgement | None = None
    left_seconds: float | None = None

    def __str__(self) -> str:
        """``round 2 of 8``."""
        return f"{self.unit} {self.number} of {max(self.number, self.most)}"


class WaitsForStart(BaseException):
    """An undecided comparison waits for the next start of its servers, which other tests use too.

    It ends the test's function, which then runs once more. It must pass through ``except Exception`` of the test.
    """


@dataclass(eq=False)
class TestComparison:
    """Comparisons of one test: measures loads, answers assertions, and reports the results.

    Args:
        nodeid: The test.
        bench: Means of measurement that all loads of the run share.
        policy: See there.
        on_look: Called with every look before it is taken.
        may_wait: Called when a comparison needs a fresh start: whether the test ends here, and runs again on it.
        earlier: An earlier try of the test, whose sessions are kept: a retry is more data for the same comparison,
            never another chance.

    Attributes:
        measurements: The test's loads, in order.
        waits: Whether the test ended undecided, to run again on the next start of its servers.
        unheld: Failed comparisons; a test that went on has forgotten an ``assert``.
    """

    # Not a test class, although its name looks like one to pytest.
    __test__ = False

    nodeid: str
    _: KW_ONLY
    bench: Bench
    policy: Policy
    on_look: Callable[[Look], None]
    may_wait: Callable[[], bool]
    earlier: TestComparison | None = None
    measurements: list[Measurement] = field(default_factory=list, init=False)
    waits: bool = field(default=False, init=False)
    unheld: list[Judgement] = field(default_factory=list, init=False)
    _skips: list[str] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        # Whether the test has waited for a start, and runs again on it.
        self._goes_on = self.earlier is not None and self.earlier.waits
        self._spent_before = self.earlier.spent_seconds() if self.earlier is not None and self._goes_on else 0.0

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
        if self.bench.against is not None:
            if self._pair(measurement, self.bench.against):
                self._look_first(measurement, "against")
        elif self._begins_beside_commit(measurement) and self._pair(measurement, measurement.base_build):
            self._look_first(measurement, "baseline")
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
        measurement.pair_with_server(opponent)
        self._look_first(measurement, "duel")
        return Duel(measurement.run)

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
            if target.sharing is not None:
                slots_needed(shape.schedule)
        label = name or ("" if not self.measurements else f"load {len(self.measurements) + 1}")
        if any(label == other.label for other in self.measurements):
            raise UsageProblem(
                f"two loads of this test are called {label!r}, and would share one baseline",
                remedies=["name each load: load(..., name='...')"],
            )
        measurement = Measurement(
            self.nodeid,
            label,
            targets[0],
            shape,
            _workload_of(targets, shape),
            self.bench,
            self.policy,
            self._goes_on,
            self.compare,
        )
        # Other loads end before it is measured.
        self.close()
        self.measurements.append(measurement)
        return measurement

    def _take_sessions(self, measurement: Measurement) -> None:
        wanted = measurement.is_recorded
        # A new recording may have other clocks.
        clock_mhz = None if wanted else recorded_clock_mhz(measurement)
        sessions = self.policy.record_sessions if wanted else 1
        earlier = self._earlier_try(measurement)
        if earlier is not None:
            measurement.alone.extend(session for session in earlier.alone if not session.problems)
        while len(measurement.alone) < sessions:
            if wanted:
                self.on_look(Look("session", len(measurement.alone) + 1, sessions))
            else:
                self._announce("session", 1, 1)
            measurement.take(clock_mhz)
            # A load that will not be recorded anyway need not be measured to its end.
            if measurement.run.invalid or measurement.shared_host():
                break

    def _pair(self, measurement: Measurement, find: Callable[[], ReferenceBuild]) -> bool:
        """Prepare the comparison with another build; if that is impossible, the measurement notes why."""
        stored = measurement.stored_here()
        try:
            measurement.pair_with(find(), stored)
        except GpuserveError as problem:
            measurement.absent = not_side_by_side(problem)
        return measurement.paired is not None

    def _begins_beside_commit(self, measurement: Measurement) -> bool:
        """Whether a load is measured beside its baseline's commit at once, because stored numbers decide nothing here.

        They decide nothing either if an earlier run has measured rounds of these two builds. A screen after them would
        be a second look, and could pass a REGRESSED build.
        """
        stored, shape = measurement.stored, measurement.shape
        if stored is None or measurement.is_recorded or self.policy.stored_only or not measurement.is_own:
            return False
        # If the test decides the end of a start, it may count its finished windows.
        if shape.requests is not None or shape.until is not None or measurement.unlike_stored:
            return False
        earlier = self._earlier_try(measurement)
        if self._goes_on and earlier is not None and earlier.beside == "baseline":
            # It goes on so, and the host is not read again.
            return True
        return not usable_sessions(measurement, stored).sessions or measurement.has_rounds()

    def _earlier_try(self, measurement: Measurement) -> Measurement | None:
        """The same load in an earlier try of this test."""
        for other in () if self.earlier is None else self.earlier.measurements:
            is_same = other.workload.must_match == measurement.workload.must_match
            if is_same and other.baseline_key == measurement.baseline_key:
                return other
        return None

    def _look_first(self, measurement: Measurement, beside: ReferenceKind) -> None:
        """Take the first look beside a base, unless an earlier try has; a base that fails is noted."""
        assert measurement.paired is not None
        measurement.beside = beside
        if measurement.paired.rounds:
            return
        self._announce("round", measurement.paired.next_round, LOOKS[-1][0])
        try:
            measurement.look()
        except BaseFailed as problem:
            if beside == "duel":
                raise
            measurement.give_up(not_side_by_side(problem))

    def _measure_alone(self, measurement: Measurement) -> None:
        """Measure a session of a load that has only been measured beside its baseline's commit.

        A limit applies to a server that has the machine for itself.
        """
        if measurement.beside != "baseline":
            return
        self.close()
        measurement.beside = None
        self._announce("session", 1, 1)
        measurement.take()

    def close(self, *, but: Measurement | None = None) -> None:
        """End the loads that comparisons side by side have left running for their next looks, except one."""
        for measurement in self.measurements:
            if measurement is not but and measurement.paired is not None:
                measurement.paired.stop_load()

    # -- comparing

    def compare(self, measurement: Measurement, metric: Metric, kind: ReferenceKind, limit: float | None) -> Comparison:
        """Compare a metric of a load, and measure until it is decided or must stop.

        Args:
            measurement: One of this test's loads.
            metric: The metric.
            kind: ``baseline``; ``limit``, a number in the metric's unit; or ``duel``, a ratio of its two servers.
            limit: The number or ratio; None for a baseline.

        Raises:
            UsageProblem: The load is a duel's, which has no baseline.
            WaitsForStart: The next look needs a fresh start, and the test has to wait for it.
            ServerFailed: The server could not be started.
            LoadFailed: The load engine failed.
        """
        holds: bool | None = None
        if kind == "duel":
            judgement = self._settle_beside(measurement, metric, limit=limit)
        elif limit is not None:
            self._measure_alone(measurement)
            judgement = judge_limit(measurement, metric, limit, tolerance=self.policy.tolerance_of(metric))
            holds = judgement.verdict.passes
        elif measurement.beside == "duel":
            raise UsageProblem(
                "a duel has no baseline: its servers are compared with each other",
                remedies=[
                    "compare the ratios with numbers: duel.throughput >= 1.05",
                    "gate each server with load(...)",
                ],
            )
        elif self.bench.against is not None:
            found = self._beside(measurement, metric)
            if isinstance(found, Reason):
                found = Judgement.missing(metric, "against", found, value=measurement.value(metric))
            judgement = found
        elif measurement.is_recorded:
            judgement = judge_recording(measurement, metric)
            holds = self.policy.may_record(judgement)
        else:
            judgement = self._settle(measurement, metric)
        return self._answer(measurement, judgement, kind, holds=holds)

    def _settle(self, measurement: Measurement, metric: Metric) -> Judgement:
        """Judge by stored numbers or beside the base commit."""
        stored, unlike = measurement.stored, measurement.unlike_stored
        if unlike or stored is None:
            return Judgement.missing(metric, "baseline", *unlike, value=measurement.value(metric))
        usable, screened = Usable(()), None
        if metric.name in OF_ONE_SERVER and not self.policy.one_at_a_time:
            self._measure_alone(measurement)
        alone = why_alone(measurement, metric)
        if measurement.beside is None:
            unsound = unsound_judgement(measurement, metric)
            if unsound is not None:
                return unsound
            # A screen would be a second look. Also a load that was measured alone for a limit may have rounds.
            if alone or not measurement.has_rounds(metric):
                usable = usable_sessions(measurement, stored)
                screened = screen(measurement, metric, usable)
            if screened is not None and screened.verdict in {Verdict.PASS, Verdict.INVALID}:
                return _noted(screened, stored)
        found = alone or self._beside_commit(measurement, metric, stored)
        if isinstance(found, Reason):
            found = settled_alone(measurement, metric, stored, usable=usable, screened=screened, reason=found)
        return _noted(found, stored)

    def _beside_commit(self, measurement: Measurement, metric: Metric, stored: Stored) -> Judgement | Reason:
        """Judgement beside the baseline's commit, or the reason why that is impossible."""
        if measurement.paired is None and measurement.absent is None:
            self._pair(measurement, measurement.base_build)
        judgement = self._beside(measurement, metric)
        if isinstance(judgement, Reason):
            return judgement
        decided = judgement.verdict is Verdict.REGRESSED or judgement.verdict.passes
        told = f"{'decided' if decided else 'looked at'} side by side with the baseline's commit"
        changed = "; ".join(changes_since(stored, self.bench.here))
        text = f"only the code was compared: both builds now have {changed}"
        shared = (Reason(ReasonKind.SHARED_CHANGES, text),) if changed else ()
        return judgement.because(Reason(ReasonKind.SIDE_BY_SIDE, told), *shared)

    def _beside(self, measurement: Measurement, metric: Metric) -> Judgement | Reason:
        """Judgement beside another build, or the reason why that cannot be measured, which holds for all metrics."""
        if measurement.absent is None:
            try:
                return self._settle_beside(measurement, metric)
            except BaseFailed as problem:
                # The comparison is kept for its measuring time.
                measurement.absent = not_side_by_side(problem)
        return measurement.absent

    def _settle_beside(self, measurement: Measurement, metric: Metric, *, limit: float | None = None) -> Judgement:
        """Judge a load beside its base and measure to the next look, until it is decided or must stop.

        Args:
            measurement: The load, with its comparison side by side.
            metric: Its metric.
            limit: Limit of the ratio to the base's value; None to judge the change by the metric's tolerance.

        Raises:
            WaitsForStart: The look needs a fresh start, and the test has to wait for it.
            BaseFailed: The base could not be started.
            ServerFailed: The server could not be started.
            LoadFailed: The load engine failed.
        """
        paired = measurement.paired
        assert paired is not None
        while True:
            if limit is None:
                judgement = paired.judge(metric, self.policy.tolerance_of(metric))
            else:
                judgement = paired.judge_limit(metric, limit)
            # More rounds do not help a quantile that has too few requests in a single one.
            if judgement.verdict is not Verdict.INCONCLUSIVE or judgement.has(ReasonKind.TOO_FEW_REQUESTS):
                return judgement
            stop = self._why_not(paired)
            if stop is not None:
                return judgement.because(stop)
            if paired.wants_start:
                self.waits = self.may_wait()
                if self.waits:
                    raise WaitsForStart
            self.close(but=measurement)
            self._announce("round", paired.next_round, LOOKS[-1][0], judgement)
            measurement.look()

    def _why_not(self, paired: SideBySide) -> Reason | None:
        """Reason against the next look; None if it may be taken."""
        if paired.exhausted:
            return Reason(ReasonKind.LAST_LOOK, f"not decided after {LOOKS[-1][0]} rounds, the last look")
        taken, seconds, budget = len(paired.rounds), paired.next_seconds, self.policy.budget_seconds
        # The first look is always taken, because without it the change is unknown.
        if not taken or seconds <= self._left_seconds:
            return None
        return Reason(
            ReasonKind.BUDGET_SPENT,
            f"not decided after {taken} round{'s' if taken != 1 else ''}, and another of about {seconds:.0f} s would"
            f" exceed the test's budget of {budget:.0f} s; raise it with --gpuserve-budget=SECONDS, or run the test"
            " again: it keeps its rounds",
            seconds=budget,
        )

    def _announce(
        self, unit: Literal["session", "round"], number: int, most: int, judgement: Judgement | None = None
    ) -> None:
        """Announce a look, with the result of the last one."""
        self.on_look(Look(unit, number, most, judgement, self._left_seconds))

    @property
    def _left_seconds(self) -> float:
        """Rest of the test's budget."""
        return self.policy.budget_seconds - self.spent_seconds()

    def spent_seconds(self) -> float:
        """Measuring time of the test so far."""
        return self._spent_before + sum(measurement.all_seconds for measurement in self.measurements)

    def _answer(
        self, measurement: Measurement, judgement: Judgement, asked: ReferenceKind, *, holds: bool | None
    ) -> Comparison:
        """Keep an answer, and replace an earlier one to the same comparison.

        By default it holds if it passes, or if the policy lets it skip the test. The rest of the test then goes on,
        because a skip must not hide later failures.
        """
        measurement.answers[judgement.metric.name, asked] = judgement
        if holds is None:
            skips = self.policy.skips(judgement.verdict)
            if skips:
                self._skips.append(f"{judgement.verdict}: {'; '.join(map(str, judgement.reasons))}")
            holds = judgement.verdict.passes or skips
        if not holds:
            self.unheld.append(judgement)
        return Comparison(judgement, holds=holds)

    # -- telling what came of it

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

    def skip_reason(self) -> str:
        """Reason why a test without failures is skipped rather than passed; empty if it passed."""
        return "; ".join(dict.fromkeys(self._skips))

    def record(self) -> list[str]:
        """Write the baselines of this test's comparisons, if this is a recording; return a report.

        Raises:
            BaselineUnusable: A file cannot be read or written.
        """
        if self.bench.against is not None:
            return []
        # All loads of a test have one file.
        return [line for measurement in self.measurements for line in record(measurement)]


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


def _noted(judgement: Judgement, stored: Stored) -> Judgement:
    """The judgement with the reason with which the baseline was accepted."""
    accepted = stored.entry.reason
    if not accepted or judgement.verdict is Verdict.INVALID:
        return judgement
    return judgement.because(Reason(ReasonKind.REMARK, f"the baseline was recorded with the reason: {accepted}"))


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
        value = pooled_value(metric, run.sessions)
    except NotMeasured as problem:
        return Judgement.invalid(metric, "limit", problem.reason, reference=limit)
    try:
        if metric.quantile is not None:
            windows = [window for session in run.sessions for window in session.windows]
            demand_requests(metric, [windows], tolerance, "the whole run")
    except TooFewRequests as problem:
        return Judgement(metric, Verdict.INCONCLUSIVE, "limit", value=value, reference=limit, reasons=(problem.reason,))
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
