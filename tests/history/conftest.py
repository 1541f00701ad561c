"""The command that draws the history of baselines, in a repository without a commit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpuserve.history.__main__ import main
from tests.support.baseline_repository import BaselineRepository
from tests.support.plain_git import only_below

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Said = Callable[..., tuple[int, str]]


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BaselineRepository:
    """A repository without a commit, which is the current folder; git has no configuration of the machine."""
    only_below(tmp_path, monkeypatch)
    monkeypatch.setenv("COLUMNS", "100")
    made = BaselineRepository(tmp_path / "project")
    monkeypatch.chdir(made.root)
    return made


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Said:
    """Runs the command for throughput without change points; its exit status and what it said."""

    def run(*arguments: str) -> tuple[int, str]:
        status = main(["--metric=throughput", "--no-change-points", *arguments])
        captured = capsys.readouterr()
        return status, captured.out + captured.err

    return run
