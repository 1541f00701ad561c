"""The base of a baseline entry: the commit that brought its present content into git."""

from __future__ import annotations

import os
import shlex
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pytest_gpuserve.builds.git import FULL_HISTORY, ask_git, git_command, git_environment, git_text
from pytest_gpuserve.errors import GpuserveError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from typing_extensions import Self


class NotCommitted(GpuserveError):
    """The entry is not in HEAD as it is on the disk, so that no commit has brought it yet."""


class NotInGit(GpuserveError):
    """The file is outside of the checkout, or git ignores it."""


class HistoryCut(GpuserveError):
    """The clone is shallow, and its history ends before the commit that brought the entry."""


def find_base(top: Path, path: Path, is_same: Callable[[bytes], bool]) -> str:
    """Find the commit that brought an entry as it is now.

    The history of the file is read newest first, and no further than to that commit. A file that was moved or renamed
    is followed. Where a merge joins two histories, the entry is followed to the side that it comes from.

    Args:
        top: Top folder of the checkout.
        path: The baseline file.
        is_same: Whether a version of the file has the entry as it is now.

    Returns:
        The full hash of the commit.

    Raises:
        NotCommitted: HEAD does not have the entry.
        NotInGit: The file is not git's.
        HistoryCut: It cannot be told, because the clone is shallow.
    """
    place, checkout = path.resolve(), top.resolve()
    if not place.is_relative_to(checkout):
        raise NotInGit(f"{path} is not in the checkout", looked=[str(top)])
    name = place.relative_to(checkout).as_posix()
    with _Versions(checkout, is_same) as versions:
        if not versions.has("HEAD", name):
            if versions.missing and ask_git(checkout, "check-ignore", "--quiet", "--", name).done:
                raise NotInGit(f"git ignores {path}", looked=[str(top)])
            raise NotCommitted(
                "the baseline entry is not committed yet, so it has no base commit",
                looked=[str(path)],
                remedies=[f"commit it, together with the code that it belongs to: {committing(top, name)}"],
            )
        start = "HEAD"
        while True:
            commit = _origin(checkout, versions, start, name)
            moved = _moved_from(checkout, versions, commit, name)
            if moved is None:
                break
            start, name = moved
        # A root may be at the end of a shallow clone too, and nothing was cut off it.
        is_cut = commit in _cut_at(checkout) and versions.parents(commit)
    if is_cut:
        raise HistoryCut(
            "the clone ends before the commit that brought the baseline entry",
            found=f"its history begins at {commit[:12]}",
            remedies=[FULL_HISTORY],
        )
    return commit


def committing(top: Path, name: str) -> str:
    """The command that commits a file, tracked or not, with what is staged already."""
    here = shlex.quote(str(top))
    return f"`git -C {here} add -- {shlex.quote(name)} && git -C {here} commit`"


def _origin(top: Path, versions: _Versions, start: str, name: str) -> str:
    """The newest commit that has the entry and no parent with it."""
    with _lines(top, "rev-list", start, "--", f":(top,literal){name}") as commits:
        for commit in commits:
            # What has another one is before it, or on another side of a merge.
            if versions.has(commit, name) and not any(versions.has(each, name) for each in versions.parents(commit)):
                return commit
    raise GpuserveError("git does not tell the history of a file", looked=[f"{top}: {name}"])


def _moved_from(top: Path, versions: _Versions, commit: str, name: str) -> tuple[str, str] | None:
    """The parent and the name that a commit has moved the file from, with the entry as it is; None if it has not."""
    for parent in versions.parents(commit):
        listed = git_text(top, "diff-tree", "-r", "-M", "--diff-filter=R", "--name-status", "-z", parent, commit) or ""
        # Each is `R<similarity>`, the old name and the new one, each ended by a NUL.
        fields = listed.split("\0")
        for old, new in zip(fields[1::3], fields[2::3], strict=False):
            if new == name and versions.has(parent, old):
                return parent, old
    return None


def _cut_at(top: Path) -> set[str]:
    """The commits whose parents a shallow clone does not have."""
    place = git_text(top, "rev-parse", "--git-path", "shallow")
    try:
        return set((top / (place or "")).read_text(encoding="ascii").split())
    except OSError:
        return set()


class _Versions:
    """Versions of files, read by one git process; a context manager.

    Attributes:
        missing: Whether the last version that was asked for does not exist.
    """

    def __init__(self, top: Path, is_same: Callable[[bytes], bool]) -> None:
        self._top = top
        self._is_same = is_same
        self._known: dict[tuple[str, str], bool] = {}
        self.missing = False

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            git_command(self._top, "cat-file", "--batch"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=git_environment(),
        )
        return self

    def __exit__(self, *_: object) -> None:
        _end(self._process)

    def has(self, commit: str, name: str) -> bool:
        """Whether a commit has the entry in this file."""
        known = self._known.get((commit, name))
        if known is None:
            data = self._read(f"{commit}:{name}")
            self.missing = data is None
            known = self._known[commit, name] = data is not None and self._is_same(data)
        return known

    def parents(self, commit: str) -> list[str]:
        """The parents of a commit, also those that a shallow clone does not have."""
        head, _, _ = (self._read(commit) or b"").partition(b"\n\n")
        fields = (line.split(b" ") for line in head.splitlines())
        return [value.decode("ascii") for key, value, *_ in fields if key == b"parent"]

    def _read(self, what: str) -> bytes | None:
        """The content of an object; None if there is no such."""
        sent, received = self._process.stdin, self._process.stdout
        assert sent is not None
        assert received is not None
        if "\n" in what:
            return None
        sent.write(os.fsencode(what) + b"\n")
        sent.flush()
        # `HASH TYPE SIZE` before the content, which a line end follows; else `NAME missing`.
        *_, size = received.readline().split()
        return received.read(int(size) + 1)[:-1] if size.isdigit() else None


@contextmanager
def _lines(top: Path, *arguments: str) -> Iterator[Iterator[str]]:
    """The lines of a git command while it still works; it ends with the block."""
    process = subprocess.Popen(
        git_command(top, *arguments),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=git_environment(),
    )
    try:
        assert process.stdout is not None
        yield (line.decode("ascii").strip() for line in process.stdout)
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.communicate()
