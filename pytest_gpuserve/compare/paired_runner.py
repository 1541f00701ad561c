"""Makes comparisons side by side ready: who stands on the other side, what is remembered, what is believed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpuserve.compare.one_build import OneBuild
from pytest_gpuserve.compare.side_by_side import KEPT_IN_RUN, Memory, SideBySide
from pytest_gpuserve.experiment.pairing import Pairing
from pytest_gpuserve.experiment.shape import Terms
from pytest_gpuserve.measure.points import NotMeasured, value_of_starts
from pytest_gpuserve.store.kept import Pair, Subject
from pytest_gpuserve.verdict.metric import log_cost
from pytest_gpuserve.verdict.paired import learn_prior

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pytest_gpuserve.builds.worktree import ReferenceBuild, ReferenceBuilds
    from pytest_gpuserve.experiment.environment import RunEnvironment
    from pytest_gpuserve.experiment.handle import Target
    from pytest_gpuserve.experiment.shape import LoadShape
    from pytest_gpuserve.experiment.shared_starts import SharedStarts
    from pytest_gpuserve.experiment.watch import Progress
    from pytest_gpuserve.measure.window import Session
    from pytest_gpuserve.store.baseline import Stored
    from pytest_gpuserve.store.kept import KeptFolder
    from pytest_gpuserve.verdict.metric import Metric
    from pytest_gpuserve.verdict.paired import Prior, RoundPoint
    from pytest_gpuserve.verdict.verdict import ReferenceKind


@dataclass(frozen=True)
class PairedSpec:
    """A load that is to be compared side by side.

    Args:
        nodeid: Its test.
        label: Tells it apart from other loads of the test.
        candidate: What is judged.
        shape: How it is loaded.
        workload: What a baseline must have in common with it.
        requests_wanted: As in `Terms`.
        tolerance: As in `Terms`.
        by_turns: Whether only one of the two servers may run at a time.
        foreign_cores: Cores that others may take of the host.
        stored: Its baseline, from which the spread between starts is learned.
        goes_on: Whether the test has run on an earlier start, and runs again on the next one.
    """

    nodeid: str
    label: str
    candidate: Target
    shape: LoadShape
    workload: Mapping[str, str]
    requests_wanted: tuple[int, ...]
    tolerance: float
    by_turns: bool
    foreign_cores: float
    stored: Stored | None
    goes_on: bool = False


class PairedRunner:
    """Where builds are compared side by side in this run.

    Args:
        here: The circumstances.
        reference_builds: Makes other revisions ready.
        kept: Keeps rounds from run to run; None where nothing is to be remembered.
        progress: Told how loads get on.
        read_host: As in `Measurement`.
        against: Whom every comparison is with, where that was asked for; None where baselines are stored.
        starts: Owns the servers that comparisons share; whoever makes it ends it.
    """

    def __init__(
        self,
        *,
        here: RunEnvironment,
        reference_builds: ReferenceBuilds,
        kept: KeptFolder | None,
        progress: Progress,
        read_host: Callable[[], float | None],
        against: Callable[[], ReferenceBuild] | None,
        starts: SharedStarts,
    ) -> None:
        self.here = here
        self.reference_builds = reference_builds
        self.read_host = read_host
        self.progress = progress
        self.against = against
        self.starts = starts
        self._kept = kept
        self._memories: dict[tuple[str, ...], Memory] = {}

    def compare_builds(self, spec: PairedSpec, reference_build: ReferenceBuild) -> SideBySide:
        """Compare a server with that of another revision or interpreter.

        Raises:
            NotInRevision: There is no such server on the other side.
            GpuserveError: It cannot be found out what would run there.
        """
        base = spec.candidate.relocated(reference_build.relocation)
        paired = self._side_by_side(
            spec, base, kind="against", name=reference_build.name, identity=reference_build.identity
        )
        paired.options = reference_build.options
        if reference_build.content is not None and reference_build.content == self.here.revision.content:
            paired.compare_one_build(OneBuild(reference_build.relocation, reference_build.left_out))
        return paired

    def has_rounds(self, spec: PairedSpec, reference_build: ReferenceBuild) -> bool:
        """Whether rounds of these two builds were measured before, in this run or in one whose rounds are kept."""
        return bool(self._memory(spec, reference_build.identity).rounds)

    def compare_servers(self, spec: PairedSpec, base: Target) -> SideBySide:
        """Compare two servers of this checkout."""
        return self._side_by_side(spec, base, kind="duel", name="its opponent", identity="duel")

    def _memory(self, spec: PairedSpec, identity: str) -> Memory:
        here = self.here
        content = here.revision.content
        subject = Subject(spec.nodeid, spec.label, here.host.id, here.device_kind, dict(spec.workload))
        pair = None if content is None else Pair(subject, identity, content, dict(here.software))
        # A retry within this run goes on too, whether or not anything outlasts the run.
        known = (spec.nodeid, spec.label, str(sorted(spec.workload.items())), identity)
        if known not in self._memories:
            self._memories[known] = Memory(self._kept, pair)
        return self._memories[known]

    def _side_by_side(
        self, spec: PairedSpec, base: Target, *, kind: ReferenceKind, name: str, identity: str
    ) -> SideBySide:
        here = self.here
        content = here.revision.content
        memory = self._memory(spec, identity)
        terms = Terms(
            shape=spec.shape,
            requests_wanted=spec.requests_wanted,
            tolerance=spec.tolerance,
            most_foreign_cores=spec.foreign_cores,
            by_turns=spec.by_turns,
            seed=f"{spec.nodeid} {spec.label} {content or here.occasion}",
        )
        # What shows at the end of servers that this load was measured on is known before it goes on.
        self.starts.end_used(terms.seed)
        if not spec.goes_on:
            memory.late, memory.limits = (), {}
        # The candidate's telemetry source is the session's, and looks at all that both servers use.
        pairing = Pairing(base, spec.candidate, terms, self.progress, memory.rounds, starts=self.starts)
        in_run = KEPT_IN_RUN if memory.rounds and not spec.goes_on else None
        return SideBySide(
            pairing,
            kind=kind,
            name=name,
            memory=memory,
            prior_of=_Priors(spec.stored, here.host.id, memory.past()),
            most_foreign_cores=spec.foreign_cores,
            kept=memory.remark or in_run,
        )


class _Priors:
    """What is believed of each metric's spread between starts, learned when it is first asked for."""

    def __init__(self, stored: Stored | None, host: str, past: Mapping[str, Sequence[Sequence[RoundPoint]]]) -> None:
        self._stored = stored
        self._host = host
        self._past = past
        self._known: dict[str, Prior] = {}

    def __call__(self, metric: Metric) -> Prior:
        if metric.name not in self._known:
            stored = self._stored
            sessions = stored.sessions if stored is not None and stored.entry.host.id == self._host else ()
            costs = _costs_of_starts(metric, sessions)
            self._known[metric.name] = learn_prior(metric, costs, self._past.get(metric.name, ()))
        return self._known[metric.name]


def _costs_of_starts(metric: Metric, sessions: Sequence[Session]) -> list[list[float]]:
    costs = []
    for session in sessions:
        try:
            costs.append([log_cost(metric, value_of_starts(metric, [start])) for start in session.starts])
        except NotMeasured:
            continue
    return costs
