"""A load of a test, with the means to measure it: alone, or side by side with another build or server."""

from __future__ import annotations

import time
from dataclasses import InitVar, dataclass, field, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.builds.base import HistoryCut, NotCommitted, NotInGit
from pytest_gpuserve.builds.checkout import NoCheckout
from pytest_gpuserve.builds.worktree import RevisionUnknown
from pytest_gpuserve.compare.assertions import Run
from pytest_gpuserve.compare.baseline_store import why_absent
from pytest_gpuserve.compare.side_by_side import SideBySide
from pytest_gpuserve.device.host_speed import read_speed
from pytest_gpuserve.errors import GpuserveError
from pytest_gpuserve.experiment.pairing import Pairing
from pytest_gpuserve.experiment.sampling import take_session
from pytest_gpuserve.load.driver import LOCAL
from pytest_gpuserve.load.validity import late_share_within
from pytest_gpuserve.measure.points import NotMeasured, pooled_value, value_of_starts
from pytest_gpuserve.report.results import RunResult
from pytest_gpuserve.store.baseline import same_recording
from pytest_gpuserve.store.kept import Memory, Pair, Subject
from pytest_gpuserve.units import format_value
from pytest_gpuserve.verdict.evidence import learn_prior
from pytest_gpuserve.verdict.metric import METRICS, log_cost, requests_needed
from pytest_gpuserve.verdict.reason import Reason, ReasonKind
from pytest_gpuserve.verdict.verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pytest_gpuserve.builds.worktree import ReferenceBuild, ReferenceBuilds
    from pytest_gpuserve.compare.assertions import Comparison
    from pytest_gpuserve.compare.baseline_store import BaselineKey, BaselineStore, RunEnvironment, Workload
    from pytest_gpuserve.device import Device
    from pytest_gpuserve.experiment.handle import Target
    from pytest_gpuserve.experiment.loaded import Progress
    from pytest_gpuserve.experiment.shape import LoadShape
    from pytest_gpuserve.experiment.shared_starts import SharedStarts
    from pytest_gpuserve.measure.rounds import Round
    from pytest_gpuserve.measure.window import Session
    from pytest_gpuserve.store.baseline import Stored
    from pytest_gpuserve.store.kept import KeptFolder
    from pytest_gpuserve.verdict.evidence import Prior, RoundPoint
    from pytest_gpuserve.verdict.metric import Metric
    from pytest_gpuserve.verdict.verdict import Judgement, ReferenceKind


@dataclass(frozen=True, slots=True)
class Policy:
    """Policy of a test: verdicts that fail, skip or record, its budget and its tolerances.

    Args:
        record_new: Whether loads without a baseline are recorded.
        record_all: Whether loads with one are recorded too.
        record_sessions: Sessions that a recording takes.
        reason: Why a recording may loosen a metric.
        skip_missing: Whether a missing baseline skips the test.
        skip_inconclusive: Whether an undecided verdict skips the test.
        budget_seconds: Most measuring time of one test.
        foreign_cores: Cores that others may take before they, not the build, explain a change.
        stored_only: Whether comparisons side by side with the base commit are forbidden.
        one_at_a_time: Whether two servers of the test do not fit into memory together.
        tolerances: Tolerances from a marker of the test, by the names of their metrics.
    """

    record_new: bool
    record_all: bool
    record_sessions: int
    reason: str | None
    skip_missing: bool
    skip_inconclusive: bool
    budget_seconds: float
    foreign_cores: float
    stored_only: bool
    one_at_a_time: bool
    tolerances: Mapping[str, float]

    def tolerance_of(self, metric: Metric) -> float:
        """The tolerance of a metric, as the test states it."""
        return self.tolerances.get(metric.name, metric.default_tolerance)

    def may_record(self, judgement: Judgement) -> bool:
        """Whether a load with this judgement may be recorded."""
        if judgement.verdict is Verdict.INVALID or judgement.value is None:
            return False
        return bool(self.reason) or judgement.verdict is not Verdict.REGRESSED

    def skips(self, verdict: Verdict) -> bool:
        """Whether a comparison with this verdict skips the test."""
        return {Verdict.INCONCLUSIVE: self.skip_inconclusive, Verdict.MISSING: self.skip_missing}.get(verdict, False)

    @property
    def requests_wanted(self) -> tuple[int, ...]:
        """Requests that each start should have for what the test may compare: a start has as many as it can of these.

        The test shows its metrics only when it compares. So these are the usual metrics and those that a marker names.
        """
        # How many gaps a request has is not known before it.
        gated = (
            metric
            for name, metric in METRICS.items()
            if (name in self.tolerances or not metric.on_request) and metric.times != "itl"
        )
        return tuple(sorted({requests_needed(metric, self.tolerance_of(metric)) for metric in gated}))

    @property
    def late_share(self) -> float:
        """Share of a latency that the client may add, larger if a marker names only wider tolerances."""
        return late_share_within(min((self.tolerance_of(METRICS[name]) for name in self.tolerances), default=0.0))


def may_screen(device: Device) -> bool:
    """Whether stored numbers count on a device: time and neighbours move those of a CPU by more than any tolerance."""
    return device.is_gpu


@dataclass(eq=False, kw_only=True)
class Bench:
    """Means of measurement that all loads of a run share.

    Args:
        here: The circumstances.
        baselines: The baselines of the device.
        reference_builds: Prepares other revisions.
        kept: Keeps rounds from run to run, or None.
        progress: Shown the progress of the loads.
        against: Gives the requested base of every comparison; None for stored baselines.
        starts: Owns the servers that comparisons share; its creator ends it.

    Attributes:
        memories: Rounds from one try of a test to the next, by load and base.
    """

    here: RunEnvironment
    baselines: BaselineStore
    reference_builds: ReferenceBuilds
    kept: KeptFolder | None
    progress: Progress
    against: Callable[[], ReferenceBuild] | None
    starts: SharedStarts
    memories: dict[tuple[str, str], Memory] = field(default_factory=dict, init=False)


@dataclass(eq=False)
class Measurement:
    """A load of a test.

    Args:
        nodeid: The test.
        label: Distinguishes several loads of the test; empty for the first.
        target: Requests and their server.
        shape: Schedule and length of the load.
        workload: Description for a baseline.
        bench: See there.
        policy: See there.
        goes_on: Whether the test has waited for a start, and runs again on it.
        judge: Answers a comparison of the run: of a metric with a baseline (None), a limit or the ratio of a duel.

    Attributes:
        run: The test's view of the load.
        baseline_key: Place of its baseline.
        alone: Sessions that were measured alone.
        seconds: Their measuring time.
        interrupted: Whether Ctrl-C cut it short.
        answers: The last answer to each comparison: of a metric, with its baseline, a limit or a duel's opponent.
        paired: The comparison with its base side by side, or None.
        absent: Reason why a side-by-side comparison could not run, or None.
        beside: The base of the run from its first look on; None if it was measured alone, even if a base confirms it.
    """

    nodeid: str
    label: str
    target: Target
    shape: LoadShape
    workload: Workload
    bench: Bench
    policy: Policy
    goes_on: bool
    judge: InitVar[Callable[[Measurement, Metric, ReferenceKind, float | None], Comparison]]
    run: Run = field(init=False)
    baseline_key: BaselineKey = field(init=False)
    alone: list[Session] = field(default_factory=list, init=False)
    seconds: float = field(default=0.0, init=False)
    interrupted: bool = field(default=False, init=False)
    answers: dict[tuple[str, ReferenceKind], Judgement] = field(default_factory=dict, init=False)
    paired: SideBySide | None = field(default=None, init=False)
    absent: Reason | None = field(default=None, init=False)
    beside: ReferenceKind | None = field(default=None, init=False)
    _reading: list[float | None] = field(default_factory=list, init=False)

    def __post_init__(self, judge: Callable[[Measurement, Metric, ReferenceKind, float | None], Comparison]) -> None:
        self.run = Run(self.label, partial(judge, self), lambda: self.sessions, self.shape.schedule)
        self.baseline_key = self.bench.baselines.key_of(self.nodeid, self.label)

    @property
    def sessions(self) -> Sequence[Session]:
        """Sessions of the run: measured alone, or the candidate's beside the base of its first look."""
        if self.beside is None or self.paired is None:
            return self.alone
        return self.paired.sessions("candidate")

    @property
    def rounds(self) -> Sequence[Round]:
        """Rounds of the run; empty if it was measured alone."""
        return self.paired.rounds if self.beside is not None and self.paired is not None else ()

    # -- its baseline

    @property
    def stored(self) -> Stored | None:
        """Its baseline, with any workload. Raises `BaselineUnusable` for a file that cannot be read or trusted."""
        return self.bench.baselines.find(self.baseline_key)

    @property
    def is_recorded(self) -> bool:
        """Whether this run records it."""
        return self.policy.record_all or (self.policy.record_new and self.stored is None)

    @property
    def unlike_stored(self) -> tuple[Reason, ...]:
        """Reasons why it has no baseline to compare with; empty if it has one."""
        return why_absent(self.bench.here, self.baseline_key, self.workload, self.stored)

    def stored_here(self) -> Sequence[Session]:
        """Stored sessions of the same load on this host; empty if they do not count, as on ``cpu``."""
        here, stored = self.bench.here, self.stored
        if stored is None or stored.entry.host.id != here.host.id or not may_screen(here.device) or self.unlike_stored:
            return ()
        return stored.sessions

    @property
    def is_base_build(self) -> bool:
        """Whether this run measures the recorded build, or that of its base commit, with the same packages."""
        here, stored = self.bench.here, self.stored
        if stored is None or here.revision.content is None or stored.entry.software != here.software:
            return False
        if stored.entry.content == here.revision.content:
            return True
        try:
            return self.bench.reference_builds.content_of(self._base_commit()) == here.revision.content
        except GpuserveError:
            return False

    def base_build(self) -> ReferenceBuild:
        """The build of the commit that brought its baseline into git.

        Raises:
            GpuserveError: The commit is unknown, or git lacks it.
        """
        return self.bench.reference_builds.find(
            revision=self._base_commit(), python=None, called="the baseline's commit"
        )

    def _base_commit(self) -> str:
        path, entry = self.baseline_key.path, self.baseline_key.entry
        try:
            return self.bench.reference_builds.base_of(path, same_recording(path.read_bytes(), entry))
        except NotInGit as problem:
            if self.stored is not None and self.stored.entry.commit is not None:
                return self.stored.entry.commit
            where = "outside git or with uncommitted changes"
            raise NotInGit(f"{problem.summary}, and the entry was recorded {where}") from problem

    # -- alone

    def take(self, baseline_clock_mhz: float | None = None) -> None:
        """Measure another session; the clock is as in `LoadShape`.

        Raises:
            ServerFailed: The server could not be started.
            LoadFailed: The load engine failed.
        """
        began = time.monotonic()

        def keep(session: Session) -> None:
            self.alone.append(replace(session, host_reading=reading))

        if self.bench.starts.make_room() or self.alone:
            # The host was read beside running servers, or for another session.
            self._reading.clear()
        reading = self.host_reading()
        try:
            shape = replace(self.shape, baseline_clock_mhz=baseline_clock_mhz)
            take_session(self.target, shape, keep, self.bench.progress)
        except KeyboardInterrupt:
            self.interrupted = True
            raise
        finally:
            self.seconds += time.monotonic() - began

    @property
    def is_own(self) -> bool:
        """Whether the test starts the server; else it runs already, perhaps on another host."""
        return bool(self.target.server.kind.python)

    def host_reading(self) -> float | None:
        """Speed of the host before its next session, read once; None if it is unknown, or does not matter."""
        if not self._reading:
            matters = self.is_own and may_screen(self.bench.here.device)
            self._reading.append(read_speed() if matters else None)
        return self._reading[0]

    def shared_host(self) -> Reason | None:
        """Reason that other processes used too much of the host during a start; None if they did not."""
        starts = (start for session in self.sessions for start in session.starts)
        taken = max((start.foreign_cores for start in starts), default=0.0)
        if taken <= self.policy.foreign_cores:
            return None
        return Reason(
            ReasonKind.HOST_SHARED,
            f"the host was shared: other processes took {taken:.2f} of its {self.bench.here.host.cores} cores during a"
            f" start, {self.policy.foreign_cores:.2f} are allowed (ini gpuserve_foreign_cores)",
        )

    # -- side by side

    def pair_with(self, build: ReferenceBuild, stored: Sequence[Session]) -> None:
        """Prepare the comparison with the server of another revision or interpreter.

        Args:
            build: The other build.
            stored: See `stored_here`; they tell the spread between starts.

        Raises:
            NotInRevision: The other build has no such server.
            GpuserveError: Its server cannot be determined.
        """
        base, here = self.target.relocated(build.relocation), self.bench.here
        is_one_build = build.content is not None and build.content == here.revision.content
        self._pair(
            base,
            "against",
            build.name,
            self._memory(build.identity),
            stored=stored,
            options=build.options,
            left_out=build.left_out if is_one_build else None,
        )

    def pair_with_server(self, opponent: Target) -> None:
        """Prepare the comparison with another server of this checkout."""
        self._pair(opponent, "duel", "its opponent", self._memory("duel"))

    def has_rounds(self, metric: Metric | None = None) -> bool:
        """Whether rounds beside its baseline's commit were measured, in this run or an earlier one.

        Args:
            metric: A metric that these rounds have judged; None for any.
        """
        try:
            memory = self._memory(self.base_build().identity)
        except GpuserveError:
            return False
        return bool(memory.rounds) and (metric is None or metric.name in memory.metrics)

    def _memory(self, identity: str) -> Memory:
        """The rounds and problems that are known of the comparison with this base."""
        here = self.bench.here
        subject = Subject(self.nodeid, self.label, here.host.id, here.device_kind, dict(self.workload.must_match))
        content = here.revision.content
        pair = None if content is None else Pair(subject, identity, content, dict(here.software))
        # A retry within this run goes on too, even if no folder keeps rounds.
        known = (str(subject), identity)
        if known not in self.bench.memories:
            self.bench.memories[known] = Memory(self.bench.kept, pair)
        return self.bench.memories[known]

    def _pair(
        self,
        base: Target,
        kind: ReferenceKind,
        name: str,
        memory: Memory,
        *,
        stored: Sequence[Session] = (),
        options: tuple[str, ...] = (),
        left_out: Sequence[str] | None = None,
    ) -> None:
        here = self.bench.here
        seed = f"{self.nodeid} {self.label} {here.revision.content or here.occasion}"
        # Problems at the end of servers that this load was measured on are known before it goes on.
        self.bench.starts.end_used(seed)
        if not self.goes_on:
            memory.begin_try()
        pairing = Pairing(
            base,
            self.target,
            self.shape,
            self.bench.progress,
            memory.rounds,
            tolerance=self.policy.tolerance_of(METRICS["throughput"]),
            one_at_a_time=self.policy.one_at_a_time,
            seed=seed,
            starts=self.bench.starts,
        )
        self.paired = SideBySide(
            pairing=pairing,
            kind=kind,
            name=name,
            memory=memory,
            prior_of=_priors(stored, memory.past()),
            most_foreign_cores=self.shape.foreign_cores,
            options=options,
            left_out=left_out,
        )

    def look(self) -> None:
        """Measure to the next look beside its base.

        Raises:
            BaseFailed: The base could not be started.
            ServerFailed: The server could not be started.
            LoadFailed: The load engine failed.
        """
        assert self.paired is not None
        try:
            self.paired.more()
        except KeyboardInterrupt:
            self.interrupted = True
            raise

    def give_up(self, absent: Reason) -> None:
        """Note why its base cannot be measured, after a first look at it that failed; that time is the test's."""
        if self.paired is not None:
            self.seconds += self.paired.seconds
        self.paired, self.beside, self.absent = None, None, absent

    # -- results

    @property
    def all_seconds(self) -> float:
        """Measuring time, alone and side by side."""
        return self.seconds + (self.paired.seconds if self.paired is not None else 0.0)

    def value(self, metric: Metric) -> float | None:
        """The metric over the whole measurement; None if unknown."""
        try:
            return pooled_value(metric, self.sessions)
        except NotMeasured:
            return None

    def so_far(self) -> str:
        """One line on the measurement of a load that was cut short."""
        windows = [window for session in self.sessions for window in session.windows]
        requests = sum(window.requests for window in windows)
        values = ", ".join(
            f"{metric.name} {format_value(value, metric.unit)}"
            for metric in METRICS.values()
            if not metric.on_request and (value := self.value(metric)) is not None
        )
        measured = f"{values} of {requests} requests" if values else "no request was measured yet"
        return f"interrupted by Ctrl-C, not decided: {measured}"

    def result(self) -> RunResult:
        """The load's result for reports."""
        kind, source, paired = self.target.server.kind, self.shape.source, self.paired
        engine = {} if source is LOCAL else {"engine": source.name, "workers": str(self.shape.processes)}
        return RunResult(
            label=self.label,
            sessions=tuple(self.sessions),
            judgements=tuple(self.answers.values()),
            load={**self.shape.workload(), **self.target.fingerprint(), **engine},
            server={**kind.workload(), **self.workload.information},
            base=None if paired is None else paired.name,
            base_options=() if paired is None else paired.options,
            base_sessions=() if paired is None else tuple(paired.sessions("base")),
            candidate_sessions=() if paired is None else tuple(paired.sessions("candidate")),
        )


_KINDS: Final[Mapping[type[GpuserveError], ReasonKind]] = {
    RevisionUnknown: ReasonKind.COMMIT_UNKNOWN,
    HistoryCut: ReasonKind.COMMIT_UNKNOWN,
    NotCommitted: ReasonKind.NOT_COMMITTED,
}


def not_side_by_side(problem: GpuserveError) -> Reason:
    """Reason why the base cannot be measured side by side, with a remedy."""
    # Without a checkout, the remedy was given before the first measurement.
    text = problem.summary if isinstance(problem, NoCheckout) else str(problem)
    kind = _KINDS.get(type(problem), ReasonKind.NOT_SIDE_BY_SIDE)
    return Reason(kind, f"the base could not be measured side by side: {text}")


def _priors(stored: Sequence[Session], past: Mapping[str, Sequence[Sequence[RoundPoint]]]) -> Callable[[Metric], Prior]:
    """Prior of each metric's spread between starts, learned when it is first used."""

    @lru_cache
    def prior_of(metric: Metric) -> Prior:
        return learn_prior(metric, _costs_of_starts(metric, stored), past.get(metric.name, ()))

    return prior_of


def _costs_of_starts(metric: Metric, sessions: Sequence[Session]) -> list[list[float]]:
    costs = []
    for session in sessions:
        try:
            costs.append([log_cost(metric, value_of_starts(metric, [start])) for start in session.starts])
        except NotMeasured:
            continue
    return costs
