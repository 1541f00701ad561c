"""Servers that are not there."""

from __future__ import annotations

import pytest

from pytest_gpuserve.device.cpu import CpuReading
from pytest_gpuserve.experiment import by_turns, pairing, server_arm
from tests.experiment.stage import Stage


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    """A stage, which takes the place of engines and of the host."""
    made = Stage()
    monkeypatch.setattr(server_arm, "Engines", made.engines)
    for module in (pairing, by_turns):
        monkeypatch.setattr(module, "our_processes", lambda _: [])
        monkeypatch.setattr(module, "read_cpu", lambda _: CpuReading(0.0, 0.0, 0.0, 0.0))
        monkeypatch.setattr(module, "cores_taken_by_others", lambda *_: made.foreign.pop(0) if made.foreign else 0.0)
    return made
