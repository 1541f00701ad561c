"""What git has of a folder's files at a revision, read without a checkout."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.builds.git import FULL_HISTORY, ask_git, git_text
from pytest_gpuserve.errors import UsageProblem

if TYPE_CHECKING:
    from collections.abc import Mapping

HASH_SHOWN: Final = 7
"""Characters of a commit's hash that people are shown."""


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit.

    Args:
        hash: In full.
        seconds: When it was committed, since 1970.
    """

    hash: str
    seconds: int


@dataclass(frozen=True, slots=True)
class Repository:
    """A git repository that is only read.

    Args:
        top: Top folder of its checkout.
    """

    top: Path

    @classmethod
    def around(cls, folder: Path, purpose: str) -> Repository:
        """Find the repository that a folder is in.

        Args:
            folder: The folder.
            purpose: What it is wanted for, for the error.

        Raises:
            UsageProblem: It is in none, or there is no git.
        """
        answer = ask_git(folder, "rev-parse", "--show-toplevel")
        if not answer.done:
            raise UsageProblem(
                f"{purpose} needs git and a checkout of the project",
                found=answer.text,
                looked=[str(folder)],
                remedies=["run in a clone made by git, not in an unpacked archive", "or name result files"],
            )
        return cls(Path(answer.text))

    def commit(self, rev: str) -> Commit:
        """Look up a revision as git does: a branch, a tag, a hash, ``HEAD~3``.

        Raises:
            UsageProblem: Git does not know it.
        """
        # What begins so would be taken for an option, or for what to leave out.
        found = "a revision begins neither with - nor with ^"
        if rev and not rev.startswith(("-", "^")):
            answer = ask_git(self.top, "rev-parse", "--verify", f"{rev}^{{commit}}")
            dated = (
                ask_git(self.top, "rev-list", "--timestamp", "--max-count=1", answer.text) if answer.done else answer
            )
            if dated.done:
                return _commit_of(dated.text)
            found = dated.text
        raise UsageProblem(
            f"git does not know the revision {rev!r}",
            found=found,
            looked=[str(self.top)],
            remedies=[
                *([FULL_HISTORY] if self.is_shallow else []),
                "`git branch --all` and `git tag` list what there is",
            ],
        )

    @property
    def is_shallow(self) -> bool:
        """Whether older commits were not fetched."""
        return git_text(self.top, "rev-parse", "--is-shallow-repository") == "true"

    def has_in_its_past(self, commit: str) -> bool:
        """Whether what is checked out was built upon a commit."""
        return ask_git(self.top, "merge-base", "--is-ancestor", commit, "HEAD").done

    def within(self, path: Path) -> str:
        """A path on the disk as git names it, from the top of the checkout.

        Raises:
            UsageProblem: It lies outside.
        """
        absolute = path.resolve()
        if not absolute.is_relative_to(self.top.resolve()):
            raise UsageProblem(
                f"{path} is not in the checkout whose revisions are asked for",
                looked=[str(self.top)],
                remedies=["--baseline-dir=DIR names the folder of baselines", "REV:PATH names a path in the checkout"],
            )
        return absolute.relative_to(self.top.resolve()).as_posix()

    def files(self, commit: str, path: str) -> Mapping[str, str]:
        """Find the files at a commit that are a path or lie in it, but no links and no submodules.

        Args:
            commit: Its full hash.
            path: From the top of the checkout; ``.`` is all of it.

        Returns:
            For each file's path from the top the hash of what is in it; nothing where the commit has none.

        Raises:
            UsageProblem: Git cannot list them.
        """
        at = [] if path in {"", "."} else [path.removesuffix("/")]
        listing = ask_git(self.top, "--literal-pathspecs", "ls-tree", "-r", "-z", "--full-tree", commit, "--", *at)
        if not listing.done:
            raise UsageProblem(f"git cannot list the files of {commit[:HASH_SHOWN]}", found=listing.text)
        found = {}
        # Each is `mode type hash TAB path`, ended by a NUL.
        for line in filter(None, listing.text.split("\0")):
            facts, _, name = line.partition("\t")
            mode, kind, blob = facts.split(" ")
            if kind == "blob" and mode != "120000":
                found[name] = blob
        return found

    def content(self, blob: str) -> bytes:
        """What is in a file, but for line ends at its end.

        Raises:
            UsageProblem: Git cannot read it, as of a partial clone without its server.
        """
        answer = ask_git(self.top, "cat-file", "blob", blob)
        if not answer.done:
            raise UsageProblem(f"git cannot read what it has as {blob[:HASH_SHOWN]}", found=answer.text)
        return os.fsencode(answer.text)

    def commits(self, path: str, since: str | None = None) -> list[Commit]:
        """The commits that changed a path, oldest first; of a merge only what it brought into this line counts.

        Args:
            path: From the top of the checkout.
            since: The full hash of a commit: only those after it.

        Raises:
            UsageProblem: Git cannot list them.
        """
        head = self.commit("HEAD").hash
        reach = head if since is None else f"{since}..{head}"
        at = [] if path in {"", "."} else [path]
        listing = ask_git(
            self.top,
            "--literal-pathspecs",
            *("rev-list", "--timestamp", "--first-parent", "--reverse", reach, "--", *at),
        )
        if not listing.done:
            raise UsageProblem("git cannot list the commits that changed the baselines", found=listing.text)
        return [_commit_of(line) for line in listing.text.splitlines()]


def _commit_of(line: str) -> Commit:
    seconds, _, name = line.partition(" ")
    return Commit(name, int(seconds))
