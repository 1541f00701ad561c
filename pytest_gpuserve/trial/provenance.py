"""Where the code under test comes from: the commit, and whether the checkout is that commit."""

from __future__ import annotations

import hashlib
import subprocess
from dataclasses import dataclass
from pathlib import Path

GIT_SECONDS = 20


@dataclass(frozen=True, slots=True)
class Revision:
    """A state of a checkout.

    Args:
        commit: The full hash; None outside of git or before the first commit.
        clean: Whether the checkout is that commit, unchanged but for baseline files.
        code: Hash of all files of the commit but the baselines: committing a baseline makes no other code of it.
    """

    commit: str | None
    clean: bool
    code: str | None


def read_revision(root: Path, baseline_dir: Path) -> Revision:
    """Ask git for the state of a checkout; without git, or when it does not answer, nothing is known and not clean.

    Args:
        root: A folder of the checkout, not necessarily its top: code beside it counts as well.
        baseline_dir: Where changes do not count; that it is the whole checkout is no reason to call that clean.
    """
    commit = _git(root, "rev-parse", "--verify", "HEAD")
    top = _git(root, "rev-parse", "--show-toplevel")
    if commit is None or top is None:
        return Revision(None, clean=False, code=None)
    paths = [":(top)"]
    checkout, baselines = Path(top).resolve(), baseline_dir.resolve()
    apart = ""
    if baselines != checkout and baselines.is_relative_to(checkout):
        apart = baselines.relative_to(checkout).as_posix()
        paths.append(f":(top,exclude,literal){apart}")
    # Untracked files are asked for by name, because a user's configuration may hide them.
    changes = _git(root, "status", "--porcelain", "--untracked-files=normal", "--", *paths)
    return Revision(commit, clean=changes == "", code=_code(root, apart))


def _code(root: Path, apart: str) -> str | None:
    """Hash the names, modes and contents of all committed files but those in one folder."""
    listing = _git(root, "ls-tree", "-r", "-z", "--full-tree", "HEAD")
    if listing is None:
        return None
    # Each is `mode type hash TAB path`, ended by a NUL.
    files = [line for line in listing.split("\0") if line]
    kept = [line for line in files if not apart or not line.partition("\t")[2].startswith(f"{apart}/")]
    return hashlib.sha256("\0".join(kept).encode(errors="replace")).hexdigest()


def _git(root: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            # Without the optional lock, a `git commit` at the same time does not fail because of us.
            ["git", "--no-optional-locks", "-C", str(root), *arguments],  # noqa: S607 -- git is wherever the user has it
            capture_output=True,
            text=True,
            # A file name in another encoding is still a change.
            errors="replace",
            timeout=GIT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
