"""The base of a baseline entry: the commit that brought its present content into git."""

from __future__ import annotations

import os
import shlex
from functools import cache
from typing import TYPE_CHECKING

from pytest_gpuserve.builds.git import FULL_HISTORY, git_text, query_git
from pytest_gpuserve.errors import GpuserveError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path


class NotCommitted(GpuserveError):
    """HEAD does not have the entry as it is on disk, so no commit has brought it yet."""


class NotInGit(GpuserveError):
    """The file is outside the checkout, or git ignores it."""


class HistoryCut(GpuserveError):
    """The clone is shallow, and its history ends before the commit that brought the entry."""


def find_base(top: Path, path: Path, is_same: Callable[[bytes], bool]) -> str:
    """Find the commit that brought the present content of an entry.

    The history of the file is read newest first, and only up to that commit. A moved or renamed file is followed. If a
    merge joins two histories, the entry is followed into the one that it comes from.

    Args:
        top: Top folder of the checkout.
        path: The baseline file.
        is_same: Whether a version of the file has the entry's present content.

    Returns:
        The full hash of the commit.

    Raises:
        NotCommitted: HEAD does not have the entry.
        NotInGit: git does not track the file.
        HistoryCut: The clone is shallow, so the commit is unknown.
        GpuserveError: git does not read a version of the file.
    """
    place, checkout = path.resolve(), top.resolve()
    if not place.is_relative_to(checkout):
        raise NotInGit(f"{path} is not in the checkout", looked=[str(top)])
    name, here = place.relative_to(checkout).as_posix(), shlex.quote(str(top))

    def has(commit: str, name: str) -> bool:
        version = _known(checkout, "cat-file", "blob", f"{commit}:{name}")
        if version is None and _known(checkout, "ls-tree", commit, "--", f":(literal){name}"):
            what = shlex.quote(f"{commit}:{name}")
            raise GpuserveError(
                "git could not read a version of a baseline file",
                looked=[f"{commit}:{name}"],
                remedies=[f"see what is missing: `git -C {here} cat-file -p {what}`"],
            )
        return version is not None and is_same(os.fsencode(version))

    head = git_text(checkout, "rev-parse", "--verify", "--quiet", "HEAD") or "HEAD"
    if not has(head, name):
        is_new = _known(checkout, "cat-file", "blob", f"{head}:{name}") is None
        if is_new and query_git(checkout, "check-ignore", "--quiet", "--", name).done:
            raise NotInGit(f"git ignores {path}", looked=[str(top)])
        commits = f"git -C {here} add -- {shlex.quote(name)} && git -C {here} commit"
        raise NotCommitted(
            "the baseline entry is not committed yet, so it has no base commit",
            looked=[str(path)],
            remedies=[f"commit it, together with the code that it belongs to: `{commits}`"],
        )
    start = head
    while True:
        # This is the newest commit that changed the file, so it has the entry's present content.
        commit = _known(checkout, "rev-list", "-1", start, "--", f":(top,literal){name}")
        if not commit:
            raise GpuserveError("git could not list the history of a file", looked=[f"{checkout}: {name}"])
        parents = _parents(checkout, commit)
        earlier = next((place for place in _places(checkout, commit, parents, name) if has(*place)), None)
        if earlier is None:
            break
        start, name = earlier
    if not all(query_git(checkout, "cat-file", "-e", parent).done for parent in parents):
        raise HistoryCut(
            "the clone ends before the commit that brought the baseline entry",
            found=f"its history begins at {commit[:12]}",
            remedies=[FULL_HISTORY],
        )
    return commit


@cache
def _known(top: Path, *arguments: str) -> str | None:
    """Output of a git command on commits by their hashes, cached for other entries of the file."""
    return git_text(top, *arguments)


def _parents(top: Path, commit: str) -> list[str]:
    """The parents of a commit, including those that a shallow clone does not have."""
    head, _, _ = (_known(top, "cat-file", "commit", commit) or "").partition("\n\n")
    return [line.removeprefix("parent ") for line in head.splitlines() if line.startswith("parent ")]


def _places(top: Path, commit: str, parents: Iterable[str], name: str) -> Iterator[tuple[str, str]]:
    """Possible places of a commit's file in its parents: the same name, or the one that it was moved from."""
    yield from ((parent, name) for parent in parents)
    for parent in parents:
        listed = _known(top, "diff-tree", "-r", "-M", "--diff-filter=R", "--name-status", "-z", parent, commit) or ""
        # Each is `R<similarity>`, the old name and the new one, each ended by a NUL.
        fields = listed.split("\0")
        yield from ((parent, old) for old, new in zip(fields[1::3], fields[2::3], strict=False) if new == name)
