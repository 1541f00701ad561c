"""The state of the user's checkout: its commit, and what of it is not that commit."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.builds.git import ask_git, git_text
from pytest_gpuserve.errors import UsageProblem

if TYPE_CHECKING:
    from collections.abc import Iterable


class NoCheckout(UsageProblem):
    """There is no checkout, or git does not read it."""


_OTHERWISE: Final = "or compare with the packages of another interpreter: --against-python=EXE"


def checkout_of(root: Path) -> Path:
    """The top folder of the checkout that a folder is in.

    Raises:
        NoCheckout: It is in none, git does not trust it, or there is no git.
    """
    answer = ask_git(root, "rev-parse", "--show-toplevel")
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
"""A changed or new file above this is known by its size and the time of its last change, not by what is in it."""

DERIVED: Final = frozenset({"__pycache__"})
"""Folders of files that Python makes of the sources: a run that writes them has not changed the code."""


@dataclass(frozen=True, slots=True)
class Revision:
    """A state of a checkout.

    Args:
        commit: The full hash; None outside of git or before the first commit.
        clean: Whether the checkout is that commit, unchanged but for baseline files.
        content: Hash of all files that would run, but the baselines: those of the commit, with what was changed, added
            or removed since. Committing these changes leaves it as it is (but where git turns what is on the disk into
            something else, line ends for instance). Files that git ignores are no part of it, nor is bytecode; of a
            changed file above `LARGEST_READ_BYTES` only size and time count. None where that is not known.
        top: Top folder of the checkout, without links; None outside of git.
    """

    commit: str | None
    clean: bool
    content: str | None = None
    top: Path | None = None

    def counts(self, path: Path) -> str:
        """From when on a baseline that was recorded here counts, as an end of a sentence; empty outside of git.

        Args:
            path: Its file.
        """
        if self.top is None or not path.resolve().is_relative_to(self.top):
            return ""
        return f"; it counts from the commit that brings it{'' if self.clean else ' together with these changes'}"


def read_revision(root: Path, baseline_dir: Path) -> Revision:
    """Ask git for the state of a checkout; without git, or when it does not answer, nothing is known and not clean.

    Args:
        root: A folder of the checkout, not necessarily its top: code beside it counts as well.
        baseline_dir: Where changes do not count; that it is the whole checkout is no reason to call that clean.
    """
    commit = git_text(root, "rev-parse", "--verify", "HEAD")
    top = git_text(root, "rev-parse", "--show-toplevel")
    if commit is None or top is None:
        return Revision(None, clean=False)
    checkout = Path(top).resolve()
    apart = _apart(checkout, baseline_dir)
    paths = [":(top)", *([f":(top,exclude,literal){apart}"] if apart else [])]
    # All is asked for by name, because a user's configuration may hide some of it.
    kinds = ("--no-renames", "--untracked-files=all", "--ignore-submodules=none")
    changes = git_text(root, "status", "--porcelain", "-z", *kinds, "--", *paths)
    committed = _committed(checkout, apart, "HEAD")
    return Revision(
        commit,
        clean=changes == "",
        content=None if committed is None or changes is None else _content(checkout, committed, changes),
        top=checkout,
    )


def content_of(root: Path, baseline_dir: Path | None, commit: str) -> str | None:
    """The `Revision.content` of a checkout of a commit, unchanged; None without git.

    Args:
        root: A folder of the checkout.
        baseline_dir: As in `read_revision`; None where there is none.
        commit: As git knows it.
    """
    checkout = checkout_of(root).resolve()
    files = _committed(checkout, "" if baseline_dir is None else _apart(checkout, baseline_dir), commit)
    return None if files is None else _hash_of(files[path] for path in sorted(files))


def _apart(checkout: Path, baseline_dir: Path) -> str:
    """The folder of the baselines as git names it; empty where it is not a part of the checkout."""
    baselines = baseline_dir.resolve()
    if baselines == checkout or not baselines.is_relative_to(checkout):
        return ""
    return baselines.relative_to(checkout).as_posix()


def _committed(checkout: Path, apart: str, commit: str) -> dict[str, str] | None:
    """Names, modes and contents of all committed files but those in one folder, each as git lists it."""
    listing = git_text(checkout, "ls-tree", "-r", "-z", "--full-tree", commit)
    if listing is None:
        return None
    # Each is `mode type hash TAB path`, ended by a NUL.
    files = {line.partition("\t")[2]: line for line in listing.split("\0") if line}
    return {path: line for path, line in files.items() if not apart or not path.startswith(f"{apart}/")}


def _content(checkout: Path, committed: dict[str, str], changes: str) -> str | None:
    """Hash what is on the disk, of which only what git's status names has to be read."""
    files = dict(committed)
    # Each is `XY path`, ended by a NUL; the path is relative to the top.
    for path in [line[3:] for line in changes.split("\0") if line]:
        if DERIVED.intersection(Path(path).parts):
            continue
        try:
            line = _line(checkout, path)
        except OSError:
            # A file that cannot be read now may well be read by the server.
            return None
        files.pop(path, None)
        if line:
            files[path] = line
    return _hash_of(files[path] for path in sorted(files))


def _line(checkout: Path, path: str) -> str:
    """A file on the disk as git would list it after a commit; empty if it is gone."""
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
    """A folder on the disk as git would list it: a repository of its own, or nothing."""
    if not (place / ".git").exists():
        # A folder where there was a file: the files in it are listed by themselves.
        return ""
    inner = read_revision(place, place)
    if inner.content is None:
        raise IsADirectoryError(path)
    return f"160000 commit {inner.commit if inner.clean else inner.content}\t{path.rstrip('/')}"


def _blob(content: bytes) -> str:
    """The hash by which git names a file's content: of ``blob SIZE NUL content``."""
    return hashlib.sha1(b"blob %d\0%s" % (len(content), content), usedforsecurity=False).hexdigest()


def _hash_of(lines: Iterable[str]) -> str:
    return hashlib.sha256("\0".join(lines).encode(errors="surrogateescape")).hexdigest()
