"""Verdicts side by side, look by look, and what the commit of a baseline settles of a stored verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from pytest_gpuserve.builds.base import HistoryCut, NotCommitted, NotInGit
from pytest_gpuserve.builds.checkout import NoCheckout
from pytest_gpuserve.builds.worktree import SHOWN_DIGITS, RevisionUnknown
from pytest_gpuserve.comparison.context import NextLook
from pytest_gpuserve.device.rules import HOST_RULES, changes
from pytest_gpuserve.errors import GpuserveError
from pytest_gpuserve.gate.reason import Reason, ReasonKind
from pytest_gpuserve.gate.sequential import LOOKS
from pytest_gpuserve.gate.verdict import Judgement, Verdict
from pytest_gpuserve.store.recording import same_recording

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pytest_gpuserve.comparison.baseline_store import BaselineKey
    from pytest_gpuserve.comparison.context import ComparisonContext
    from pytest_gpuserve.comparison.measurement import Measurement
    from pytest_gpuserve.comparison.paired_runner import PairedRunner, PairedSpec
    from pytest_gpuserve.comparison.side_by_side import SideBySide
    from pytest_gpuserve.experiment.environment import RunEnvironment
    from pytest_gpuserve.gate.metric import Metric
    from pytest_gpuserve.store.baseline import Stored
    from pytest_gpuserve.store.schema import Entry


class Unconfirmed(GpuserveError):
    """A stored verdict cannot be settled side by side; says why and what would help."""

    kind: ReasonKind = ReasonKind.NOT_SIDE_BY_SIDE

    @property
    def reason(self) -> Reason:
        """The same as a verdict gives it."""
        return Reason(self.kind, str(self))


class CommitUnknown(Unconfirmed):
    """git does not know the commit."""

    kind = ReasonKind.COMMIT_UNKNOWN


class EntryNotCommitted(Unconfirmed):
    """The entry has no base commit before it is committed."""

    kind = ReasonKind.NOT_COMMITTED


_KINDS: Final[Mapping[type[GpuserveError], type[Unconfirmed]]] = {
    RevisionUnknown: CommitUnknown,
    HistoryCut: CommitUnknown,
    NotCommitted: EntryNotCommitted,
}


def base_failed(what: str, problem: GpuserveError) -> Reason:
    """Say that something is not settled, because the base could not be started."""
    return Reason(ReasonKind.NOT_SIDE_BY_SIDE, f"{what} could not be settled side by side: {problem}")


def make_confirmation(paired_runner: PairedRunner, spec: PairedSpec, stored: Stored, key: BaselineKey) -> SideBySide:
    """Make the commit that brought a baseline into git ready to be compared with.

    Raises:
        Unconfirmed: It cannot be: there is no such commit, git lacks it, or it has no such server.
    """
    try:
        commit = paired_runner.reference_builds.base_of(key.path, same_recording(key.path.read_bytes(), key.entry))
    except NotInGit as problem:
        commit = _recorded_at(stored.entry, problem)
    except NoCheckout as problem:
        # What helps was said before anything was measured.
        raise Unconfirmed(f"it could not be settled side by side: {problem.summary}") from problem
    except GpuserveError as problem:
        raise _unconfirmed("it", problem) from problem
    return pair_with_commit(paired_runner, spec, commit, called="the baseline's commit", what="it")


def _recorded_at(entry: Entry, problem: NotInGit) -> str:
    """The commit at which an entry was recorded whose file is not git's."""
    if entry.commit is not None and entry.clean:
        return entry.commit
    where = "outside of git"
    if entry.commit is not None:
        where = f"with uncommitted changes on top of {entry.commit[:SHOWN_DIGITS]}"
    raise Unconfirmed(f"it could not be settled side by side: {problem.summary}, and the entry was recorded {where}")


def pair_with_commit(
    paired_runner: PairedRunner, spec: PairedSpec, commit: str, *, called: str, what: str
) -> SideBySide:
    """Make a commit ready to be compared with.

    Args:
        paired_runner: Where builds are compared.
        spec: The load.
        commit: Which.
        called: What people call it.
        what: Is not settled where that fails.

    Raises:
        Unconfirmed: git lacks the commit, or it has no such server.
    """
    try:
        reference_build = paired_runner.reference_builds.find(revision=commit, python=None, called=called)
        return paired_runner.compare_builds(spec, reference_build)
    except GpuserveError as problem:
        raise _unconfirmed(what, problem) from problem


def _unconfirmed(what: str, problem: GpuserveError) -> Unconfirmed:
    return _KINDS.get(type(problem), Unconfirmed)(
        f"{what} could not be settled side by side: {problem.summary}",
        found=problem.found,
        looked=problem.looked,
        remedies=problem.remedies,
        log_tail=problem.log_tail,
    )


def settled(stored: Judgement, paired: Judgement, changed: tuple[str, ...], *, decides: bool = True) -> Judgement:
    """The verdict after both were asked.

    Args:
        stored: What the stored baseline says.
        paired: What its commit, side by side, says.
        changed: What else has changed since the recording, which both sides now share.
        decides: Whether the stored numbers are evidence here: they were recorded by a machine as fast as this one.
    """
    name = "with the baseline's commit"
    is_settled = paired.verdict is Verdict.REGRESSED or paired.verdict.passes
    is_missing = stored.verdict is Verdict.MISSING
    if not decides and not is_missing:
        # There is no other evidence: what the pair leaves open is open, and what of it cannot be trusted is INVALID.
        how = "settled" if is_settled else "looked at"
        return paired.because(*stored.reasons, side_by_side(f"{how} side by side {name}"), *_shared(changed))
    if paired.verdict is Verdict.INVALID and (stored.verdict.passes or paired.has(ReasonKind.OUTSIDE_GIT)):
        # What showed beside its commit is of this build too: it must not pass by a number from before.
        return paired.because(side_by_side(f"the stored baseline alone says {stored.verdict}"))
    if is_settled and is_missing:
        return paired.because(side_by_side(f"settled side by side {name}"), *_shared(changed))
    if paired.verdict is Verdict.REGRESSED or (paired.verdict.passes and not changed):
        told = f"the stored baseline alone says {stored.verdict}; side by side {name} it is {paired.verdict}"
        return paired.because(side_by_side(f"{told}, and that counts"), *_shared(changed))
    if paired.verdict.passes:
        return stored.because(
            side_by_side(
                f"side by side {name} it is {paired.verdict}, but that cannot see what both sides share now:"
                f" {'; '.join(changed)}"
            ),
            Reason(
                ReasonKind.SHARED_CHANGES,
                "compare with the old packages: --against-python=EXE of an environment that has them, or record anew",
            ),
        )
    return stored.because(side_by_side(f"not settled side by side {name} either: {paired.verdict}"), *paired.reasons)


def changes_since(stored: Stored, here: RunEnvironment) -> tuple[str, ...]:
    """What else than the code is not as it was recorded: packages, driver, settings of the card and of the host."""
    last = stored.entry.sessions[-1]
    changed = [
        f"{name} {last.software.get(name, 'absent')} -> {here.software.get(name, 'absent')}"
        for name in sorted({*last.software, *here.software})
        if last.software.get(name) != here.software.get(name)
    ]
    changed += changes(msgspec.to_builtins(last.device), msgspec.to_builtins(here.device_record()))
    if last.host.id == here.host.id:
        changed += changes(msgspec.to_builtins(last.host), msgspec.to_builtins(here.host_record()), HOST_RULES)
    return tuple(changed)


def unsettled_by(changed: tuple[str, ...]) -> tuple[Reason, ...]:
    """Why a stored verdict that is not decided is not settled side by side, where more than the code has changed."""
    if not changed:
        return ()
    shared = "; ".join(changed)
    return (
        Reason(
            ReasonKind.NOT_SIDE_BY_SIDE,
            "not settled side by side with the baseline's commit, which cannot see what both sides share now:"
            f" {shared}",
        ),
        Reason(
            ReasonKind.SHARED_CHANGES,
            "record anew, or compare with the old packages: --against-python=EXE of an environment that has them",
        ),
    )


def side_by_side(text: str) -> Reason:
    """What was seen side by side, whatever came of it."""
    return Reason(ReasonKind.SIDE_BY_SIDE, text)


def _shared(changed: tuple[str, ...]) -> tuple[Reason, ...]:
    if not changed:
        return ()
    text = f"only the code was compared: both sides now have {'; '.join(changed)}"
    return (Reason(ReasonKind.SHARED_CHANGES, text),)


class PairedComparison:
    """Judges loads of one test that are measured beside a base.

    Args:
        case: The test.
    """

    def __init__(self, case: ComparisonContext) -> None:
        self._case = case

    def settle(self, measurement: Measurement, metric: Metric) -> Judgement:
        """Judge a metric against the base.

        Raises:
            BaseFailed: The base could not be started.
            ServerFailed: The server could not be started.
            LoadFailed: The load engine failed.
        """
        tolerance = self._case.tolerance_of(metric)
        return self._settle(measurement, lambda paired: paired.judge(metric, tolerance))

    def settle_ratio(self, measurement: Measurement, metric: Metric, limit: float) -> Judgement:
        """Judge the ratio of a metric to the base's against a limit.

        Raises:
            BaseFailed: The base could not be started.
            ServerFailed: The server could not be started.
            LoadFailed: The load engine failed.
        """
        return self._settle(measurement, lambda paired: paired.judge_limit(metric, limit))

    def _settle(self, measurement: Measurement, judge: Callable[[SideBySide], Judgement]) -> Judgement:
        paired = measurement.paired
        assert paired is not None

        def judged() -> tuple[Judgement, bool]:
            judgement = judge(paired)
            # More rounds do not help a quantile that a single one has too few requests for.
            in_vain = judgement.has(ReasonKind.TOO_FEW_REQUESTS)
            return judgement, judgement.verdict is Verdict.INCONCLUSIVE and not in_vain

        return self._case.settle(measurement, judge=judged, next_look=lambda: next_round(paired), take=measurement.look)


def next_round(paired: SideBySide) -> NextLook:
    """The next look at a comparison side by side."""
    return NextLook(
        "round",
        number=paired.next_round,
        most=LOOKS[-1][0],
        taken=len(paired.rounds),
        is_beyond=paired.exhausted,
        seconds=paired.next_seconds,
        is_kept=True,
        wants_start=paired.wants_start,
    )
