"""git as somebody without settings, in repositories of a test's own."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import pytest


def only_below(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let git have no configuration of the machine, and find no repository around the folder."""
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(folder))


def git(root: Path, *arguments: str) -> str:
    """Run git with a name and an address; its output."""
    who = ("-c", "user.name=A", "-c", "user.email=a@example.invalid", "-c", "commit.gpgsign=false")
    command = ["git", *who, "-C", str(root), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout.strip()


def commit(root: Path, message: str = "change") -> str:
    """Commit all that is there; the hash."""
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--allow-empty", f"--message={message}")
    return git(root, "rev-parse", "HEAD")


def write(root: Path, files: Mapping[str, str]) -> None:
    """Write files, with their folders."""
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def run(command: str, cwd: Path) -> None:
    """Run a command that a message proposes, as a user does in a shell."""
    subprocess.run(command, shell=True, check=True, cwd=cwd, capture_output=True, timeout=60)
