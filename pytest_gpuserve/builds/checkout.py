"""State of the user's checkout: its commit, its differences from that commit, and remedies for a broken one."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.builds.git import FULL_HISTORY, git_text, query_git
from pytest_gpuserve.errors import UsageProblem

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class NoCheckout(UsageProblem):
    """The folder is not in a checkout, or git does not read it."""


_OTHERWISE: Final = "or compare with the packages of another interpreter: --against-python=EXE"


def checkout_of(root: Path) -> Path:
    """Top folder of the checkout that contains a folder.

    Raises:
        NoCheckout: The folder is not in a checkout, git does not trust it, or git is not installed.
    """
    answer = query_git(root, "rev-parse", "--show-toplevel")
    if answer.done:
        return Path(answer.text)
    trusting = re.search(r"git config --global --add safe\.directory .+", answer.text)
    if trusting is not None:
        summary, way = "git does not read this checkout, which another user owns", f"`{trusting[0].strip()}`"
    elif shutil.which("git") is None:
        summary, way = "there is no git here", "install git, or put it on the PATH"
    else:
        summary, way = "there is no git checkout here", "run in a clone made by git, not in an unpacked archive"
    raise NoCheckout(summary, found=answer.text.splitlines()[0], looked=[str(root)], remedies=[way, _OTHERWISE])


LARGEST_READ_BYTES: Final = 8 * 2**20
"""Largest changed or new file that is read; a larger one is identified by its size and the time of its last change."""

DERIVED: Final = frozenset({"__pycache__"})
"""Folders of bytecode, which is not a change of the code."""


@dataclass(frozen=True, slots=True)
class Revision:
    """A state of a checkout.

    Args:
        commit: The full hash; None outside git or before the first commit.
        clean: Whether the checkout is that commit without changes, except in baseline files.
        content: Hash of all files that would run, without baselines: those of the commit, with changes, additions and
            removals since. A commit of these changes does not alter it, unless git converts files (line ends, for
            example). Ignored files and bytecode are left out. A changed file above `LARGEST_READ_BYTES` counts by size
            and time. None if unknown.
        top: Top folder of the checkout, without links; None outside git.
    """

    commit: str | None
    clean: bool
    content: str | None = None
    top: Path | None = None

    def to_commit(self, path: Path) -> str:
        """Advice to commit a baseline that was recorded here, as the end of a sentence; empty outside git.

        Args:
            path: The baseline file.
        """
        if self.top is None or not path.resolve().is_relative_to(self.top):
            return ""
        return f"; commit it{'' if self.clean else ' together with these changes'}"


def read_revision(root: Path, baseline_dir: Path) -> Revision:
    """Read the state of a checkout. If git is absent or fails, the state is unknown and not clean.

    Args:
        root: A folder of the checkout, not necessarily its top: code beside it counts as well.
        baseline_dir: Folder whose changes do not count. If it is the whole checkout, that is not called clean.
    """
    commit = git_text(root, "rev-parse", "--verify", "HEAD")
    top = git_text(root, "rev-parse", "--show-toplevel")
    if commit is None or top is None:
        return Revision(None, clean=False)
    checkout = Path(top).resolve()
    apart = _apart(checkout, baseline_dir)
    paths = [":(top)", *([f":(top,exclude,literal){apart}"] if apart else [])]
    # All options are given, because a user's configuration may hide some of the output.
    kinds = ("--no-renames", "--untracked-files=all", "--ignore-submodules=none")
    changes = git_text(root, "status", "--porcelain", "-z", *kinds, "--", *paths)
    if changes is not None:
        changes += "".join(f" M {name}\0" for name in _hidden_changes(checkout, paths))
    content = None if changes is None else _content(checkout, apart, "HEAD", changes)
    return Revision(commit, clean=changes == "", content=content, top=checkout)


def _hidden_changes(checkout: Path, paths: Iterable[str]) -> Iterator[str]:
    """Changed files that git was told to overlook (``git update-index --skip-worktree``, ``--assume-unchanged``)."""
    for line in (git_text(checkout, "ls-files", "-v", "-s", "-z", "--", *paths) or "").split("\0"):
        # Each is `tag mode hash stage TAB path`. A sparse checkout skips files that it does not have.
        tag, _, entry = line.partition(" ")
        facts, _, name = entry.partition("\t")
        if tag in {"", "H", "M"} or (tag == "S" and not os.path.lexists(checkout / name)):
            continue
        mode, digest, _ = facts.split(" ")
        try:
            changed = _line(checkout, name) != f"{mode} blob {digest}\t{name}"
        except OSError:
            changed = True
        if changed:
            yield name


def content_of(root: Path, baseline_dir: Path | None, commit: str) -> str | None:
    """The `Revision.content` of a commit's checkout without changes; None without git.

    Args:
        root: A folder of the checkout.
        baseline_dir: As in `read_revision`, or None.
        commit: A commit that git knows.
    """
    checkout = checkout_of(root).resolve()
    return _content(checkout, "" if baseline_dir is None else _apart(checkout, baseline_dir), commit)


def _apart(checkout: Path, baseline_dir: Path) -> str:
    """The folder of the baselines by git's name; empty outside the checkout."""
    baselines = baseline_dir.resolve()
    if baselines == checkout or not baselines.is_relative_to(checkout):
        return ""
    return baselines.relative_to(checkout).as_posix()


def _content(checkout: Path, apart: str, commit: str, changes: str = "") -> str | None:
    """Hash the files of a commit, except those in one folder; changed files are read from the disk.

    Args:
        changes: Output of git's status: ``XY path`` entries, each ended by a NUL, with paths relative to the top.
    """
    listing = git_text(checkout, "ls-tree", "-r", "-z", "--full-tree", commit)
    if listing is None:
        return None
    # Each is `mode type hash TAB path`, ended by a NUL.
    files = {line.partition("\t")[2]: line for line in listing.split("\0") if line}
    files = {path: line for path, line in files.items() if not apart or not path.startswith(f"{apart}/")}
    for path in [line[3:] for line in changes.split("\0") if line]:
        if DERIVED.intersection(Path(path).parts):
            continue
        try:
            line = _line(checkout, path)
        except OSError:
            # A file that cannot be read now may be readable for the server.
            return None
        files.pop(path, None)
        if line:
            files[path] = line
    lines = "\0".join(files[path] for path in sorted(files))
    return hashlib.sha256(lines.encode(errors="surrogateescape")).hexdigest()


def _line(checkout: Path, path: str) -> str:
    """A file on disk as git would list it after a commit; empty if it was removed."""
    place = checkout / path
    try:
        status = place.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return ""
    if stat.S_ISDIR(status.st_mode):
        return _inner(place, path)
    if stat.S_ISLNK(status.st_mode):
        return f"120000 blob {_blob(os.fsencode(place.readlink()))}\t{path}"
    mode = "100755" if status.st_mode & stat.S_IXUSR else "100644"
    if status.st_size > LARGEST_READ_BYTES or not stat.S_ISREG(status.st_mode):
        return f"{mode} unread {status.st_size} {status.st_mtime_ns}\t{path}"
    return f"{mode} blob {_blob(place.read_bytes())}\t{path}"


def _inner(place: Path, path: str) -> str:
    """A folder on disk as git would list it: a repository of its own, or empty."""
    if not (place / ".git").exists():
        # A folder that replaces a file: the files in it are listed separately.
        return ""
    inner = read_revision(place, place)
    if inner.content is None:
        raise IsADirectoryError(path)
    return f"160000 commit {inner.commit if inner.clean else inner.content}\t{path.rstrip('/')}"


def _blob(content: bytes) -> str:
    """Hash of git for a file's content: of ``blob SIZE NUL content``."""
    return hashlib.sha1(b"blob %d\0%s" % (len(content), content), usedforsecurity=False).hexdigest()


# -- what helps

_SIDES: Final = {"2": "--ours", "3": "--theirs"}
"""The stages of an unmerged file, and what takes them."""


def ways_to_restore(path: Path) -> list[str]:
    """Remedies for a file that cannot be read; each has a command that works in the state of the checkout.

    Args:
        path: The file, which exists.
    """
    git, name, only = f"git -C {shlex.quote(str(path.parent))}", shlex.quote(path.name), f":(literal){path.name}"
    again = f"record it again: `rm {shlex.quote(str(path))}`, then run pytest with --baseline-update"
    # Each line is `mode hash stage TAB path`.
    stages = git_text(path.parent, "ls-files", "--unmerged", "--", only) or ""
    takes = [f"`{git} checkout {side} -- {name}`" for stage, side in _SIDES.items() if f" {stage}\t" in stages]
    if takes:
        return [
            f"take the entries of one side: {' or '.join(takes)}; then record what neither side measured",
            f"or {again}",
        ]
    # The index has another version of the file, which may be undamaged.
    if git_text(path.parent, "diff", "--name-only", "--", only):
        return [f"take back what was changed in it: `{git} checkout -- {name}`", f"or {again}"]
    return [again]


def said_at_start(root: Path, *, gates: bool) -> Iterator[str]:
    """Yield a text for each reason that no measurement of this checkout can be compared, before the first one.

    Args:
        root: A folder of the checkout.
        gates: Whether stored baselines are compared with, which takes their history.
    """
    try:
        top = checkout_of(root)
    except NoCheckout as problem:
        yield f"nothing can be compared side by side: {problem.summary}\n  help: {problem.remedies[0]}"
        return
    if gates and git_text(top, "rev-parse", "--is-shallow-repository") == "true":
        yield f"a baseline older than this clone's history cannot be compared side by side\n  help: {FULL_HISTORY}"
