"""Paths of the files that the tests of this room write and damage."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Path of a baseline file."""
    return tmp_path / "baselines" / "cpu" / "test_y.json"
