"""Queries to git about a checkout, independent of the caller's environment and a user's hooks."""

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
"""Variables on git's own operation. Its other variables may name another repository, index or reading of paths, as
those of a hook do."""

FULL_HISTORY: Final = (
    "this clone is shallow: `git fetch --unshallow`, in GitHub Actions `fetch-depth: 0` of actions/checkout, in GitLab"
    " CI `GIT_DEPTH: 0`"
)
"""Remedy for a missing part of a history."""


@dataclass(frozen=True, slots=True)
class GitOutput:
    """Output of a git command.

    Args:
        text: Its output, or its error.
        done: Whether it succeeded.
    """

    text: str
    done: bool


def git_environment() -> dict[str, str]:
    """Environment in which git reads only the given folder, and never prompts for a password."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("GIT_") or name.startswith(KEPT_PREFIXES)
    }
    return {**kept, "GIT_TERMINAL_PROMPT": "0"}


def query_git(root: Path, *arguments: str) -> GitOutput:
    """Run a git command that only reads.

    Returns:
        The answer; names in it that are not UTF-8 are escaped like ``os.fsdecode`` does. If git is absent, or does not
        answer in `GIT_SECONDS`, the text says so.
    """
    # Without the optional lock, a concurrent `git commit` does not fail because of us.
    command = ["git", "--no-optional-locks", "-C", str(root), *arguments]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            # Error texts are parsed, so they must be in one language.
            env={**git_environment(), "LC_ALL": "C"},
            timeout=GIT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as problem:
        return GitOutput(f"git cannot be run: {problem}", done=False)
    if done.returncode != 0:
        return GitOutput(done.stderr.decode(errors="replace").strip() or f"exit code {done.returncode}", done=False)
    return GitOutput(os.fsdecode(done.stdout).removesuffix("\n"), done=True)


def git_text(root: Path, *arguments: str) -> str | None:
    """Output of a git command that only reads; None if it failed."""
    answer = query_git(root, *arguments)
    return answer.text if answer.done else None
