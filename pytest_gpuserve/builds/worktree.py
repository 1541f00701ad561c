"""Another revision of the user's project beside the checkout, in a folder that is gone afterwards whatever happens."""

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
from pytest_gpuserve.builds.git import FULL_HISTORY, GitOutput, ask_git, git_environment, git_text
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
    """What stands on the base's side.

    Args:
        name: What people call it: ``origin/main (0123456789ab)``.
        identity: Tells it apart from any other: its commit and interpreter.
        relocation: Moves a server to it.
        options: What compares with it again, on the command line.
        content: As in `Revision`; None where that is not known, or its packages are others.
        left_out: What git ignores in the checkout, and it does not have.
    """

    name: str
    identity: str
    relocation: Relocation
    options: tuple[str, ...] = ()
    content: str | None = None
    left_out: tuple[str, ...] = ()


class ReferenceBuilds:
    """Makes worktrees when they are first needed, and removes them at the end; whoever makes it closes it.

    Args:
        root: A folder of the checkout.
        patterns: As in `Rules`: what of the files that git ignores they share with the checkout.
        baselines: The folder of the baselines, which make no other build.

    Attributes:
        content_of: Gives the `Revision.content` of a commit, None where it is not known.
    """

    def __init__(self, root: Path, patterns: tuple[str, ...] = (), baselines: Path | None = None) -> None:
        self._root = root
        self._rules = Rules(patterns)
        self.content_of = lru_cache(partial(content_of, root, baselines))
        self._stack = ExitStack()
        self._worktrees: dict[str, LinkedFiles] = {}

    def name_of(self, *, revision: str | None, python: str | None, called: str = "") -> str:
        """What people call an opponent: ``origin/main (0123456789ab) with the packages of /old/bin/python``.

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
            revision: As git knows it; None for this checkout.
            python: Absolute path of an interpreter; None for the test's own.
            called: How people call the revision, if not so.

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
        # What is relative is another commit as soon as the next one is made.
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
        """Find the commit that brought an entry of a baseline file as it is now; its full hash.

        Args:
            path: The file.
            is_same: Whether a version of the file has the entry as it is now.

        Raises:
            GpuserveError: As of `find_base`.
            UsageProblem: There is no git, or no checkout.
        """
        return find_base(checkout_of(self._root), path, is_same)

    def remarks(self) -> list[str]:
        """What a report says of the files that they share with the checkout, a line each."""
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
"""Longest time that git may take to write the files of a revision; large ones may have to be fetched."""

_MOVES: Final = frozenset("~^@")
"""In a revision, what counts from another one: ``HEAD~1``."""

_HASH: Final = re.compile(r"[0-9a-fA-F]{7,64}")


def resolve_revision(root: Path, rev: str) -> str:
    """Look up a revision as git does: a branch, a tag, a hash, ``HEAD~3``.

    Args:
        root: A folder of the checkout.
        rev: What the user called it.

    Returns:
        The full hash of its commit.

    Raises:
        RevisionUnknown: git does not know it.
        UsageProblem: There is no git, or no checkout.
    """
    top = checkout_of(root)
    # What begins so would be taken for an option, or for what to leave out.
    answer = GitOutput("", done=False) if rev.startswith(("-", "^")) else ask_git(top, "rev-parse", "--verify", rev)
    if answer.done:
        # In a second step, for a name may be a text to search for, to which nothing can be appended.
        answer = ask_git(top, "rev-parse", "--verify", f"{answer.text}^{{commit}}")
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

    The folder and what git notes of it end with the block, and also when this process ends in any way, SIGKILL
    included. Nothing of the user's checkout is changed: not its files, index, HEAD or branches. Hooks are not run.
    Filters are, as in every checkout, so files of Git LFS are there (those that are not in the local store are fetched,
    without asking for a password). Submodules are empty folders.

    Args:
        root: A folder of the checkout.
        commit: Full hash of the commit.

    Raises:
        GpuserveError: git could not write the files.
    """
    checkout = checkout_of(root)
    # By this name git notes it among its worktrees, where it must be the only one.
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
                "there is no place for a worktree", found=str(problem), remedies=["name another: TMPDIR=DIR"]
            ) from problem
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        # Its supervisor stays after git, as the owner of what it makes.
        process = stack.enter_context(Process.start(command, owned_folders=[folder, notes / name]))
        status = process.wait(CHECKOUT_SECONDS)
        if status != 0:
            raise GpuserveError(
                f"git could not make a worktree of {commit}",
                found=f"no end after {format_seconds(CHECKOUT_SECONDS)}" if status is None else "",
                looked=[str(path)],
                remedies=[f"where there is no space, or no right to write: TMPDIR=DIR; git also writes to {notes}"],
                log_tail=process.tail(),
            )
        yield path


def _near(top: Path, rev: str) -> list[str]:
    """The branch or tag that a mistyped revision is likely to mean; what it counts from there (``~1``) is kept."""
    name = re.split(r"[~^@]", rev, maxsplit=1)[0]
    refs = git_text(top, "for-each-ref", "--format=%(refname:short)", "refs/heads", "refs/remotes", "refs/tags")
    near = difflib.get_close_matches(name, (refs or "").split(), n=1, cutoff=0.8)
    return [f"did you mean {each}{rev[len(name) :]}?" for each in near if each != name]


def _ways_to(top: Path, rev: str) -> list[str]:
    """What makes an unknown revision known."""
    if git_text(top, "rev-parse", "--verify", "--quiet", "HEAD") is None:
        return ["there is no commit yet: commit the build to compare with"]
    ways = []
    if git_text(top, "rev-parse", "--is-shallow-repository") == "true":
        ways.append(FULL_HISTORY)
    remotes = (git_text(top, "remote") or "").split()
    remote, _, branch = rev.partition("/")
    if _HASH.fullmatch(rev):
        ways.extend(f"fetch it: `git fetch {each} {rev}`" for each in remotes)
    elif remote in remotes and branch:
        ways.append(_fetching(remote, branch))
    elif remotes:
        ways.extend(f"{_fetching(each, rev)} and --against={each}/{rev}" for each in remotes)
    return [*ways, "`git branch --all` and `git tag` list what there is"]


def _fetching(remote: str, branch: str) -> str:
    # With the target spelled out, for a clone of a single branch would only note it as FETCH_HEAD.
    return f"if it is a branch of {remote}: `git fetch {remote} {branch}:refs/remotes/{remote}/{branch}`"


def _remove_if_empty(folder: Path) -> None:
    """As git does it with its folder of worktrees after the last one."""
    with suppress(OSError):
        folder.rmdir()
