"""Prepares comparisons side by side: the other build or server, remembered rounds, and priors."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.builds.base import HistoryCut, NotCommitted, NotInGit
from pytest_gpuserve.builds.checkout import NoCheckout
from pytest_gpuserve.builds.worktree import RevisionUnknown
from pytest_gpuserve.compare.side_by_side import KEPT_IN_RUN, Memory, SideBySide
from pytest_gpuserve.errors import GpuserveError
from pytest_gpuserve.experiment.pairing import Pairing
from pytest_gpuserve.measure.points import NotMeasured, value_of_starts
from pytest_gpuserve.store.files import same_recording
from pytest_gpuserve.store.kept import Pair
from pytest_gpuserve.verdict.metric import log_cost
from pytest_gpuserve.verdict.paired import learn_prior
from pytest_gpuserve.verdict.reason import Reason, ReasonKind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pytest_gpuserve.builds.worktree import ReferenceBuild, ReferenceBuilds
    from pytest_gpuserve.compare.baseline_store import BaselineKey
    from pytest_gpuserve.experiment.environment import RunEnvironment
    from pytest_gpuserve.experiment.handle import Target
    from pytest_gpuserve.experiment.shape import Terms
    from pytest_gpuserve.experiment.shared_starts import SharedStarts
    from pytest_gpuserve.experiment.watch import Progress
    from pytest_gpuserve.measure.window import Session
    from pytest_gpuserve.store.baseline import Stored
    from pytest_gpuserve.store.kept import KeptFolder, Subject
    from pytest_gpuserve.verdict.metric import Metric
    from pytest_gpuserve.verdict.paired import Prior, RoundPoint
    from pytest_gpuserve.verdict.verdict import ReferenceKind


@dataclass(frozen=True)
class PairedSpec:
    """A load for a comparison side by side.

    Args:
        subject: Its test, its label and its workload here.
        candidate: The judged target.
        terms: Terms of the comparison.
        stored: Its baseline, from which the spread between starts is learned.
        goes_on: Whether the test has run on an earlier start, and runs again on the next one.
    """

    subject: Subject
    candidate: Target
    terms: Terms
    stored: Stored | None
    goes_on: bool


_KINDS: Final[Mapping[type[GpuserveError], ReasonKind]] = {
    RevisionUnknown: ReasonKind.COMMIT_UNKNOWN,
    HistoryCut: ReasonKind.COMMIT_UNKNOWN,
    NotCommitted: ReasonKind.NOT_COMMITTED,
}


def not_settled(problem: GpuserveError) -> Reason:
    """Reason why a stored verdict cannot be settled side by side, with a remedy."""
    # Without a checkout, the remedy was given before the first measurement.
    text = problem.summary if isinstance(problem, NoCheckout) else str(problem)
    kind = _KINDS.get(type(problem), ReasonKind.NOT_SIDE_BY_SIDE)
    return Reason(kind, f"the verdict could not be settled side by side: {text}")


@dataclass(eq=False, kw_only=True)
class PairedRunner:
    """Maker of this run's comparisons side by side.

    Args:
        here: The circumstances.
        reference_builds: Prepares other revisions.
        kept: Keeps rounds from run to run, or None.
        progress: Shown the progress of the loads.
        read_host: Reads the speed of the host; None if that is unknown, or does not matter.
        against: Gives the requested base of every comparison; None for stored baselines.
        starts: Owns the servers that comparisons share; its creator ends it.
    """

    here: RunEnvironment
    reference_builds: ReferenceBuilds
    kept: KeptFolder | None
    progress: Progress
    read_host: Callable[[], float | None]
    against: Callable[[], ReferenceBuild] | None
    starts: SharedStarts
    _memories: dict[tuple[str, str], Memory] = field(default_factory=dict, init=False)

    def compare_builds(self, spec: PairedSpec, reference_build: ReferenceBuild) -> SideBySide:
        """Compare a server with that of another revision or interpreter.

        Raises:
            NotInRevision: The other build has no such server.
            GpuserveError: Its server cannot be determined.
        """
        base = spec.candidate.relocated(reference_build.relocation)
        paired = self._side_by_side(
            spec, base, kind="against", name=reference_build.name, identity=reference_build.identity
        )
        paired.options = reference_build.options
        if reference_build.content is not None and reference_build.content == self.here.revision.content:
            paired.compare_one_build(reference_build.left_out)
        return paired

    def compare_with_base(self, spec: PairedSpec, stored: Stored, key: BaselineKey) -> SideBySide:
        """Compare a server with that of the commit that brought a baseline into git.

        Raises:
            GpuserveError: The commit is unknown, git lacks it, or it has no such server; see `not_settled`.
        """
        return self.compare_builds(spec, self._base_build(stored, key))

    def has_rounds(self, spec: PairedSpec, stored: Stored, key: BaselineKey) -> bool:
        """Whether rounds beside a baseline's commit were measured in this run, or kept by an earlier one.

        Raises:
            GpuserveError: See `compare_with_base`.
        """
        return bool(self._memory(spec, self._base_build(stored, key).identity).rounds)

    def is_base_build(self, stored: Stored, key: BaselineKey) -> bool:
        """Whether this run measures the recorded build, or that of its base commit, with the same packages."""
        here = self.here
        if here.revision.content is None or stored.entry.software != here.software:
            return False
        if stored.entry.content == here.revision.content:
            return True
        try:
            return self.reference_builds.content_of(self._base_commit(stored, key)) == here.revision.content
        except GpuserveError:
            return False

    def _base_build(self, stored: Stored, key: BaselineKey) -> ReferenceBuild:
        commit = self._base_commit(stored, key)
        return self.reference_builds.find(revision=commit, python=None, called="the baseline's commit")

    def _base_commit(self, stored: Stored, key: BaselineKey) -> str:
        try:
            return self.reference_builds.base_of(key.path, same_recording(key.path.read_bytes(), key.entry))
        except NotInGit as problem:
            if stored.entry.commit is not None:
                return stored.entry.commit
            where = "outside git or with uncommitted changes"
            raise NotInGit(f"{problem.summary}, and the entry was recorded {where}") from problem

    def compare_servers(self, spec: PairedSpec, base: Target) -> SideBySide:
        """Compare two servers of this checkout."""
        return self._side_by_side(spec, base, kind="duel", name="its opponent", identity="duel")

    def _memory(self, spec: PairedSpec, identity: str) -> Memory:
        content = self.here.revision.content
        pair = None if content is None else Pair(spec.subject, identity, content, dict(self.here.software))
        # A retry within this run goes on too, even if no folder keeps rounds.
        known = (str(spec.subject), identity)
        if known not in self._memories:
            self._memories[known] = Memory(self.kept, pair)
        return self._memories[known]

    def _side_by_side(
        self, spec: PairedSpec, base: Target, *, kind: ReferenceKind, name: str, identity: str
    ) -> SideBySide:
        memory, terms = self._memory(spec, identity), spec.terms
        # Problems at the end of servers that this load was measured on are known before it goes on.
        self.starts.end_used(terms.seed)
        if not spec.goes_on:
            memory.late, memory.limits = (), {}
        # The candidate's telemetry source is the session's, and covers all GPUs of both servers.
        pairing = Pairing(base, spec.candidate, terms, self.progress, memory.rounds, starts=self.starts)
        in_run = KEPT_IN_RUN if memory.rounds and not spec.goes_on else None
        return SideBySide(
            pairing,
            kind=kind,
            name=name,
            memory=memory,
            prior_of=_priors(spec.stored, spec.subject.host, memory.past()),
            most_foreign_cores=terms.shape.foreign_cores,
            kept=memory.remark or in_run,
        )


def _priors(
    stored: Stored | None, host: str, past: Mapping[str, Sequence[Sequence[RoundPoint]]]
) -> Callable[[Metric], Prior]:
    """Prior of each metric's spread between starts, learned when it is first used."""

    @lru_cache
    def prior_of(metric: Metric) -> Prior:
        sessions = stored.sessions if stored is not None and stored.entry.host.id == host else ()
        return learn_prior(metric, _costs_of_starts(metric, sessions), past.get(metric.name, ()))

    return prior_of


def _costs_of_starts(metric: Metric, sessions: Sequence[Session]) -> list[list[float]]:
    costs = []
    for session in sessions:
        try:
            costs.append([log_cost(metric, value_of_starts(metric, [start])) for start in session.starts])
        except NotMeasured:
            continue
    return costs
