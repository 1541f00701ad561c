"""Metrics of GPUs and starts are recorded and gated like others, but only in tests that name them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import msgspec
import pytest

from tests.plugin.conftest import JSON, text_of

if TYPE_CHECKING:
    from tests.plugin.conftest import Project

GATES = """held = [
        run.energy_per_inference <= baseline.energy_per_inference,
        run.cold_start <= baseline.cold_start,
    ]
    assert all(held)"""
"""Both are judged, also where the first does not hold."""


@pytest.fixture
def on_gpu(project: Project) -> Project:
    """A project whose loads are scripted with a GPU."""
    assert project.script is not None
    project.script = msgspec.structs.replace(project.script, gpu=True)
    return project


def test_energy_and_cold_start_are_recorded_and_gated(on_gpu: Project) -> None:
    """An identical build passes and shows joules and seconds; one that starts and burns half more fails both gates."""
    on_gpu.write(GATES)
    assert on_gpu.run("--baseline-update").ret == pytest.ExitCode.OK
    summary = json.loads(on_gpu.baseline.read_text())["summary"]["test_it"]
    assert set(summary) >= {"energy_per_inference", "gpu_memory", "gpu_utilisation", "cold_start"}
    result = on_gpu.run(JSON)
    assert result.ret == pytest.ExitCode.OK, text_of(result)
    assert on_gpu.verdicts() == {"energy_per_inference": "PASS", "cold_start": "PASS"}
    result.stdout.fnmatch_lines_random(["*cold_start * s * PASS", "*energy_per_inference * mJ * PASS"])
    on_gpu.app_file.write_text(f"{on_gpu.app_file.read_text()}\nCOLD_START = 1.5\nJOULES = 1.5\n")
    assert on_gpu.run(JSON).ret == pytest.ExitCode.TESTS_FAILED
    assert on_gpu.verdicts() == {"energy_per_inference": "REGRESSED", "cold_start": "REGRESSED"}
