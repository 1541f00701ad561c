"""What is said of a file that cannot be read, and of a checkout, names a command that works; each is run here."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from pytest_gpuserve.builds.checkout import said_at_start, ways_to_restore
from tests.support.plain_git import commit, git, run

NAME = "it's a [test].json"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository with one baseline file, a branch that has another version of it, and a third on main."""
    root = tmp_path / "project"
    (root / "baselines").mkdir(parents=True)
    git(root, "init", "--quiet", "--initial-branch=main")
    for number, branch in enumerate(("first", "theirs", "ours")):
        git(root, "checkout", "--quiet", "-B", branch, *(["first"] if number else []))
        (root / "baselines" / NAME).write_text(branch)
        commit(root)
    return root


def merged(root: Path) -> None:
    """Merge what conflicts."""
    with pytest.raises(subprocess.CalledProcessError):
        git(root, "merge", "--quiet", "theirs")


def commands(lines: list[str]) -> list[str]:
    """The commands in messages."""
    return [command for line in lines for command in re.findall(r"`([^`]+)`", line)]


@pytest.mark.parametrize("side", ["ours", "theirs"])
def test_either_side_of_a_conflict_can_be_taken(root: Path, side: str) -> None:
    """`git checkout -- FILE` refuses an unmerged path; the commands that are named take one side of it."""
    merged(root)
    path = root / "baselines" / NAME
    assert "<<<<<<<" in path.read_text()
    (command,) = [each for each in commands(ways_to_restore(path)) if f"--{side}" in each]
    run(command, root.parent)
    assert path.read_text() == side


def test_a_changed_file_is_taken_back(root: Path) -> None:
    """The named command restores a file that was edited by hand."""
    path = root / "baselines" / NAME
    path.write_text("{")
    run(commands(ways_to_restore(path))[0], root.parent)
    assert path.read_text() == "ours"


@pytest.mark.parametrize("committed", [True, False])
def test_what_git_has_not_better_is_recorded_again(root: Path, committed: bool) -> None:  # noqa: FBT001 -- a parameter
    """A damage that was committed, and a new file, cannot be taken back."""
    path = root / "baselines" / (NAME if committed else "new.json")
    path.write_text("<<<<<<<")
    if committed:
        commit(root)
    (line,) = ways_to_restore(path)
    assert "--baseline-update" in line
    run(commands([line])[0], root.parent)
    assert not path.exists()


def said(root: Path, *, gates: bool = True) -> list[str]:
    """The warnings before anything is measured."""
    return list(said_at_start(root, gates=gates))


def test_of_a_sound_checkout_nothing_is_said(root: Path) -> None:
    """Changes and untracked files are nothing to warn of."""
    (root / "new").touch()
    (root / "baselines" / NAME).write_text("changed")
    assert said(root) == []


def test_a_shallow_clone_is_told_where_history_is_needed(root: Path, tmp_path: Path) -> None:
    """A recording needs none; the command makes it whole."""
    git(tmp_path, "clone", "--quiet", "--depth=1", f"file://{root}", "shallow")
    clone = tmp_path / "shallow"
    assert said(clone, gates=False) == []
    (text,) = said(clone)
    run(commands([text])[0], clone)
    assert said(clone) == []


def test_without_git_it_is_told(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unpacked archive, and a machine without git."""
    (tmp_path / "archive").mkdir()
    (text,) = said(tmp_path / "archive")
    assert "in a clone made by git" in text
    monkeypatch.setenv("PATH", str(tmp_path))
    (text,) = said(root)
    assert "install git" in text


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_checkout_of_another_user_is_told(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Git reads it once the command was run."""
    monkeypatch.delenv("GIT_CONFIG_GLOBAL")
    monkeypatch.setenv("HOME", str(tmp_path))
    for path in (root, *root.rglob("*")):
        shutil.chown(path, 65534)
    (text,) = said(root)
    assert "another user owns" in text
    run(commands([text])[0], tmp_path)
    assert said(root) == []
