"""Asks git about a checkout, so that neither the caller's environment nor a user's hook changes the answer."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

GIT_SECONDS = 20.0
"""Longest wait for an answer."""

KEPT_PREFIXES = ("GIT_CONFIG", "GIT_SSH", "GIT_ASKPASS", "GIT_SSL", "GIT_CEILING_", "GIT_DISCOVERY_", "GIT_EXEC_PATH")
"""Variables that say how git works; all others of its own may name another repository, index or reading of paths, as
the ones do that a hook is run with."""

FULL_HISTORY: Final = (
    "this clone is shallow: `git fetch --unshallow`, in GitHub Actions `fetch-depth: 0` of actions/checkout, in GitLab"
    " CI `GIT_DEPTH: 0`"
)
"""What gets the rest of a history."""


@dataclass(frozen=True, slots=True)
class GitOutput:
    """Output of a git command.

    Args:
        text: Its output, or what it complained of.
        done: Whether it did what was asked.
    """

    text: str
    done: bool


def git_environment() -> dict[str, str]:
    """The environment in which git looks only at the folder that it is given, and asks nobody for a password."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("GIT_") or name.startswith(KEPT_PREFIXES)
    }
    return {**kept, "GIT_TERMINAL_PROMPT": "0"}


def ask_git(root: Path, *arguments: str) -> GitOutput:
    """Run a git command that only reads.

    Returns:
        The answer; names in it that are no UTF-8 are escaped as ``os.fsdecode`` does. Where there is no git, or it does
        not answer in `GIT_SECONDS`, that is the complaint.
    """
    # Without the optional lock, a `git commit` at the same time does not fail because of us.
    command = ["git", "--no-optional-locks", "-C", str(root), *arguments]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            # What it complains of is looked at, so it has to be said in one language.
            env={**git_environment(), "LC_ALL": "C"},
            timeout=GIT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as problem:
        return GitOutput(f"git cannot be asked: {problem}", done=False)
    if done.returncode != 0:
        return GitOutput(done.stderr.decode(errors="replace").strip() or f"exit code {done.returncode}", done=False)
    return GitOutput(os.fsdecode(done.stdout).removesuffix("\n"), done=True)


def git_text(root: Path, *arguments: str) -> str | None:
    """The output of a git command that only reads; None if it did not do it."""
    answer = ask_git(root, *arguments)
    return answer.text if answer.done else None
