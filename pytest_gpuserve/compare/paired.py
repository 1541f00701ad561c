"""Verdicts side by side, look by look, and how the base commit of a baseline is made ready for them."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import msgspec

from pytest_gpuserve.builds.base import HistoryCut, NotCommitted, NotInGit
from pytest_gpuserve.builds.checkout import NoCheckout
from pytest_gpuserve.builds.worktree import RevisionUnknown
from pytest_gpuserve.device.rules import HOST_RULES, changes
from pytest_gpuserve.errors import GpuserveError
from pytest_gpuserve.store.files import same_recording
from pytest_gpuserve.verdict.reason import Reason, ReasonKind

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pytest_gpuserve.builds.worktree import ReferenceBuild
    from pytest_gpuserve.compare.baseline_store import BaselineKey
    from pytest_gpuserve.compare.paired_runner import PairedRunner, PairedSpec
    from pytest_gpuserve.compare.side_by_side import SideBySide
    from pytest_gpuserve.experiment.environment import RunEnvironment
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


def base_failed(problem: GpuserveError) -> Reason:
    """Say that a comparison is not settled, because the base could not be started."""
    return Reason(ReasonKind.NOT_SIDE_BY_SIDE, f"{_NOT_SETTLED}: {problem}")


_NOT_SETTLED: Final = "it could not be settled side by side"


def make_confirmation(paired_runner: PairedRunner, spec: PairedSpec, stored: Stored, key: BaselineKey) -> SideBySide:
    """Make the commit that brought a baseline into git ready to be compared with.

    Raises:
        Unconfirmed: As `base_build`, or it has no such server.
    """
    build = base_build(paired_runner, stored, key)
    with _confirming():
        return paired_runner.compare_builds(spec, build)


def base_build(paired_runner: PairedRunner, stored: Stored, key: BaselineKey) -> ReferenceBuild:
    """Find the build of the commit that brought a baseline into git.

    Raises:
        Unconfirmed: There is no such commit, or git lacks it.
    """
    with _confirming():
        commit = _base_commit(paired_runner, stored, key)
        return paired_runner.reference_builds.find(revision=commit, python=None, called="the baseline's commit")


def is_base_build(paired_runner: PairedRunner, stored: Stored, key: BaselineKey) -> bool:
    """Whether this run measures the build that was recorded, or that of its base commit, with the packages of then."""
    here = paired_runner.here
    if here.revision.content is None or stored.entry.software != here.software:
        return False
    if stored.entry.content == here.revision.content:
        return True
    try:
        commit = _base_commit(paired_runner, stored, key)
        return paired_runner.reference_builds.content_of(commit) == here.revision.content
    except GpuserveError:
        return False


def _base_commit(paired_runner: PairedRunner, stored: Stored, key: BaselineKey) -> str:
    same = same_recording(key.path.read_bytes(), key.entry)
    try:
        return paired_runner.reference_builds.base_of(key.path, same)
    except NotInGit as problem:
        return _recorded_at(stored.entry, problem)


@contextmanager
def _confirming() -> Iterator[None]:
    try:
        yield
    except Unconfirmed:
        raise
    except NoCheckout as problem:
        # What helps was said before anything was measured.
        raise Unconfirmed(f"{_NOT_SETTLED}: {problem.summary}") from problem
    except GpuserveError as problem:
        raise _KINDS.get(type(problem), Unconfirmed)(
            f"{_NOT_SETTLED}: {problem.summary}",
            found=problem.found,
            looked=problem.looked,
            remedies=problem.remedies,
            log_tail=problem.log_tail,
        ) from problem


def _recorded_at(entry: Entry, problem: NotInGit) -> str:
    """The commit at which an entry was recorded whose file is not git's."""
    if entry.commit is not None:
        return entry.commit
    where = "outside of git or with uncommitted changes"
    raise Unconfirmed(f"{_NOT_SETTLED}: {problem.summary}, and the entry was recorded {where}")


def changes_since(stored: Stored, here: RunEnvironment) -> tuple[str, ...]:
    """List the differences from the recording beside the code: packages, driver, settings of the GPU and the host."""
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


def only_code_compared(changed: tuple[str, ...]) -> tuple[Reason, ...]:
    """What a comparison with the base commit cannot see, for both sides have it now."""
    if not changed:
        return ()
    text = f"only the code was compared: both sides now have {'; '.join(changed)}"
    return (Reason(ReasonKind.SHARED_CHANGES, text),)
