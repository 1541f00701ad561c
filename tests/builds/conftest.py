"""git without the settings of this machine, and a folder for temporary files of each test."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from tests.support.plain_git import only_below


@pytest.fixture(autouse=True)
def only_this_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No configuration of the machine, no repository around, and temporary files where a test can look for them."""
    only_below(tmp_path, monkeypatch)
    monkeypatch.setenv("LC_ALL", "C")
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr(tempfile, "tempdir", None)
