"""A machine that is made up."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.compare.world import World

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """A machine without baselines."""
    return World(tmp_path).standing_in(monkeypatch)
