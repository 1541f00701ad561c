"""Servers that are not there."""

from __future__ import annotations

import pytest

from tests.experiment.stage import Stage
from tests.fakes.scripted_engines import stand_in


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    """A stage, which takes the place of engines and of the host."""
    made = Stage()
    stand_in(monkeypatch, made.engines, lambda *_: made.foreign.pop(0) if made.foreign else 0.0)
    return made
