"""The command that compares, in a repository whose baseline became slower."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from pytest_gpuserve.compare.command import main
from tests.support.baseline_repository import FILE, STEADY, TEST, BaselineRepository, entry_of
from tests.support.plain_git import only_below

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Said = Callable[..., tuple[int, str]]

SLOWER = tuple(0.6 * speed for speed in STEADY)
SAME = f"the same sessions in both: cpu {FILE}::{TEST}"


@pytest.fixture(autouse=True)
def only_this_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No configuration of the machine, and no repository around."""
    only_below(tmp_path, monkeypatch)
    monkeypatch.setenv("COLUMNS", "160")


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository whose baseline became slower with its second commit, of which each test has a copy."""
    made = BaselineRepository(tmp_path_factory.mktemp("recorded"))
    made.record(entry_of(), 1)
    made.record(entry_of(SLOWER, day=2), 2)
    return made.root


@pytest.fixture
def repository(recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BaselineRepository:
    """A copy of it, which is the current folder."""
    monkeypatch.chdir(shutil.copytree(recorded, tmp_path / "project"))
    return BaselineRepository(tmp_path / "project")


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Said:
    """Runs the command; its exit status, argparse's too, and what it said."""

    def run(*arguments: str) -> tuple[int, str]:
        try:
            status = main(arguments)
        except SystemExit as ended:
            status = int(ended.code or 0)
        captured = capsys.readouterr()
        return status, captured.out + captured.err

    return run
