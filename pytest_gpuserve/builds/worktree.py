"""Another revision of the user's project, in a temporary folder that is removed in any case."""

from __future__ import annotations

import difflib
import re
import shutil
import tempfile
import uuid
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.builds.base import find_base
from pytest_gpuserve.builds.checkout import checkout_of, content_of
from pytest_gpuserve.builds.git import FULL_HISTORY, GitOutput, git_environment, git_text, query_git
from pytest_gpuserve.builds.ignored import LinkedFiles, Rules
from pytest_gpuserve.builds.relocation import Relocation
from pytest_gpuserve.errors import GpuserveError, UsageProblem
from pytest_gpuserve.process.child import Command, Process
from pytest_gpuserve.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SHOWN_DIGITS = 12


class RevisionUnknown(UsageProblem):
    """git does not know a revision."""


@dataclass(frozen=True, slots=True)
class ReferenceBuild:
    """The reference of a comparison.

    Args:
        name: Name for people: ``origin/main (0123456789ab)``.
        identity: Unique name: its commit and interpreter.
        relocation: Moves a server to it.
        options: Options that compare with it again.
        content: As in `Revision`; None if unknown, or if its packages differ.
        left_out: Ignored files of the checkout that it lacks.
    """

    name: str
    identity: str
    relocation: Relocation
    options: tuple[str, ...] = ()
    content: str | None = None
    left_out: tuple[str, ...] = ()


class ReferenceBuilds:
    """Makes worktrees when they are first needed, and removes them at the end. The creator has to close it.

    Args:
        root: A folder of the checkout.
        patterns: As in `Rules`: choice of the ignored files that they share with the checkout.
        baselines: The folder of the baselines, which do not make another build.

    Attributes:
        content_of: Gives the `Revision.content` of a commit, or None.
    """

    def __init__(self, root: Path, patterns: tuple[str, ...] = (), baselines: Path | None = None) -> None:
        self._root = root
        self._rules = Rules(patterns)
        self.content_of = lru_cache(partial(content_of, root, baselines))
        self._stack = ExitStack()
        self._worktrees: dict[str, LinkedFiles] = {}

    def name_of(self, *, revision: str | None, python: str | None, called: str = "") -> str:
        """Name of an opponent for people: ``origin/main (0123456789ab) with the packages of /old/bin/python``.

        The arguments are those of `find`.

        Raises:
            UsageProblem: git does not know the revision.
        """
        parts = []
        if revision is not None:
            shown, short = called or revision, resolve_revision(self._root, revision)[:SHOWN_DIGITS]
            parts.append(shown if shown.startswith(short) else f"{shown} ({short})")
        if python is not None:
            parts.append(f"the packages of {python}")
        return " with ".join(parts)

    def find(self, *, revision: str | None, python: str | None, called: str = "") -> ReferenceBuild:
        """Make an opponent ready.

        Args:
            revision: A revision that git knows; None for this checkout.
            python: Absolute path of an interpreter; None for the test's own.
            called: Another name of the revision for people.

        Raises:
            UsageProblem: git does not know the revision.
            GpuserveError: A worktree could not be made.
        """
        commit = None if revision is None else resolve_revision(self._root, revision)
        linked = None if commit is None else self._worktree(commit)
        name = self.name_of(revision=revision, python=python, called=called)
        relocation = Relocation(
            checkout=self._root if commit is None else checkout_of(self._root),
            worktree=None if linked is None else linked.base,
            python=python,
            revision=name,
        )
        # A relative name means another commit as soon as the next one is made.
        by_hash = called or not _MOVES.isdisjoint(revision or "")
        options = [] if commit is None else [f"--against={commit[:SHOWN_DIGITS] if by_hash else revision}"]
        options += [] if python is None else [f"--against-python={python}"]
        return ReferenceBuild(
            name,
            f"{commit or 'this checkout'} {python or ''}".strip(),
            relocation,
            tuple(options),
            content=None if commit is None or python is not None else self.content_of(commit),
            left_out=() if linked is None else tuple(linked.left_out),
        )

    def base_of(self, path: Path, is_same: Callable[[bytes], bool]) -> str:
        """Find the commit that brought the present content of a baseline file's entry; its full hash.

        Args:
            path: The file.
            is_same: Whether a version of the file has the entry's present content.

        Raises:
            GpuserveError: See `find_base`.
            UsageProblem: git is not installed, or the folder is not in a checkout.
        """
        return find_base(checkout_of(self._root), path, is_same)

    def remarks(self) -> list[str]:
        """Remarks for a report on the files that they share with the checkout, a line each."""
        return list(dict.fromkeys(line for linked in self._worktrees.values() for line in linked.remarks()))

    def close(self) -> None:
        """Remove the worktrees."""
        self._worktrees.clear()
        self._stack.close()

    def _worktree(self, commit: str) -> LinkedFiles:
        if commit not in self._worktrees:
            base = self._stack.enter_context(worktree_of(self._root, commit))
            self._worktrees[commit] = LinkedFiles(checkout_of(self._root), base, self._rules)
        return self._worktrees[commit]


CHECKOUT_SECONDS: Final = 900.0
"""Longest time for git to write the files of a revision; large ones may have to be fetched."""

_MOVES: Final = frozenset("~^@")
"""Suffix of a revision that counts from another one: ``HEAD~1``."""

_HASH: Final = re.compile(r"[0-9a-fA-F]{7,64}")


def resolve_revision(root: Path, rev: str) -> str:
    """Look up a revision as git does: a branch, a tag, a hash, ``HEAD~3``.

    Args:
        root: A folder of the checkout.
        rev: The user's name of it.

    Returns:
        The full hash of its commit.

    Raises:
        RevisionUnknown: git does not know it.
        UsageProblem: git is not installed, or the folder is not in a checkout.
    """
    top = checkout_of(root)
    # Such a begin would be taken for an option, or for an exclusion.
    is_name = not rev.startswith(("-", "^"))
    answer = query_git(top, "rev-parse", "--verify", f"{rev}^{{commit}}") if is_name else GitOutput("", done=False)
    if answer.done:
        return answer.text
    raise RevisionUnknown(
        f"git does not know the revision {rev!r}",
        found=answer.text,
        looked=[str(top)],
        remedies=[*_near(top, rev), *_ways_to(top, rev)],
    )


@contextmanager
def worktree_of(root: Path, commit: str) -> Iterator[Path]:
    """The files of a commit, in a temporary folder, for as long as the block lasts.

    The folder and git's notes of it end with the block, and also with this process in any case, even after SIGKILL. The
    user's checkout does not change: not its files, index, HEAD or branches. Hooks do not run. Filters do, as in every
    checkout, so files of Git LFS exist; those outside the local store are fetched, without a prompt for a password.
    Submodules are empty folders.

    Args:
        root: A folder of the checkout.
        commit: Full hash of the commit.

    Raises:
        GpuserveError: git could not write the files.
    """
    checkout = checkout_of(root)
    # git uses this name among its worktrees, where it must be unique.
    name = f"gpuserve-{uuid.uuid4().hex}"
    folder = Path(tempfile.gettempdir()) / name
    path = folder / name
    notes = (checkout / (git_text(checkout, "rev-parse", "--git-common-dir") or ".git")).resolve() / "worktrees"
    settings = ("core.hooksPath=/dev/null", "core.fsmonitor=false", "advice.detachedHead=false")
    command = Command(
        argv=(
            "git",
            *(word for setting in settings for word in ("-c", setting)),
            *("-C", str(checkout), "worktree", "add", "--quiet", "--detach", str(path), commit),
        ),
        env=git_environment(),
        cwd=folder,
        log=folder / "git.log",
    )
    with ExitStack() as stack:
        stack.callback(_remove_if_empty, notes)
        try:
            folder.mkdir(mode=0o700)
        except OSError as problem:
            raise GpuserveError(
                "a worktree cannot be created", found=str(problem), remedies=["name another folder: TMPDIR=DIR"]
            ) from problem
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        # Its supervisor stays after git, as the owner of the files.
        process = stack.enter_context(Process.start(command, owned_folders=[folder, notes / name]))
        status = process.wait(CHECKOUT_SECONDS)
        if status != 0:
            raise GpuserveError(
                f"git could not make a worktree of {commit}",
                found=f"no end after {format_seconds(CHECKOUT_SECONDS)}" if status is None else "",
                looked=[str(path)],
                remedies=[f"if space or permissions are missing: TMPDIR=DIR; git also writes to {notes}"],
                log_tail=process.tail(),
            )
        yield path


def _near(top: Path, rev: str) -> list[str]:
    """The likely branch or tag of a mistyped revision; a suffix (``~1``) stays."""
    name = re.split(r"[~^@]", rev, maxsplit=1)[0]
    refs = git_text(top, "for-each-ref", "--format=%(refname:short)", "refs/heads", "refs/remotes", "refs/tags")
    near = difflib.get_close_matches(name, (refs or "").split(), n=1, cutoff=0.8)
    return [f"did you mean {each}{rev[len(name) :]}?" for each in near if each != name]


def _ways_to(top: Path, rev: str) -> list[str]:
    """Remedies that make an unknown revision known."""
    if git_text(top, "rev-parse", "--verify", "--quiet", "HEAD") is None:
        return ["make the first commit, which is the build to compare with"]
    ways = []
    if git_text(top, "rev-parse", "--is-shallow-repository") == "true":
        ways.append(FULL_HISTORY)
    remotes = (git_text(top, "remote") or "").split()
    remote, _, branch = rev.partition("/")
    name = re.split(r"[~^@]", rev, maxsplit=1)[0]
    if name not in {"", rev} and git_text(top, "rev-parse", "--verify", "--quiet", name) is not None:
        ways.append(f"list the commits of {name}: `git log --oneline {name}`")
    elif _HASH.fullmatch(rev):
        ways.extend(f"fetch it: `git fetch {each} {rev}`" for each in remotes)
    elif remote in remotes and branch:
        ways.append(_fetching(remote, branch))
    elif remotes:
        ways.extend(f"{_fetching(each, rev)} and --against={each}/{rev}" for each in remotes)
    else:
        ways.append("compare with the last commit: --against=HEAD")
    return [*ways, "list them with `git branch --all` and `git tag`"]


def _fetching(remote: str, branch: str) -> str:
    # With an explicit target, because a clone of a single branch would only note it as FETCH_HEAD.
    return f"if it is a branch of {remote}: `git fetch {remote} {branch}:refs/remotes/{remote}/{branch}`"


def _remove_if_empty(folder: Path) -> None:
    """Remove git's folder of worktrees if it is empty, as git does after the last one."""
    with suppress(OSError):
        folder.rmdir()
