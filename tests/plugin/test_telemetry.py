"""A whole run of a real server beside a scripted GPU that is not always well: what is measured again."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.fakes.nvml import gpus
from tests.fakes.nvml.gpus import HW_THERMAL, Course, Moment, Step
from tests.plugin.conftest import JSON, MODEL_SERVER, busy_machine

if TYPE_CHECKING:
    from pathlib import Path

    from tests.plugin.conftest import Project

LOADS = f"""
import pytest

@pytest.fixture(scope="module")
def fox(command_server):
    return command_server(["{{python}}", {MODEL_SERVER!r}, "{{port}}"]).post("/infer", body=b"fox", expect=b"FOX")

def test_it(fox, load):
    run = load(fox, concurrency=4, seconds=4, warmup_seconds=0.3)
    assert run.throughput >= 1
"""


def pulses(value: int, *, every_ms: int, length_ms: int) -> Course:
    """A fact that has another value again and again, for minutes."""
    begins = range(every_ms, 300_000, every_ms)
    steps = [
        step
        for begin in begins
        for step in (Step(value, Moment(from_ms=begin)), Step(0, Moment(from_ms=begin + length_ms)))
    ]
    return Course(0, tuple(steps))


def test_hot_windows_are_measured_again(real_project: Project, library: Path) -> None:
    """A GPU that is hot for a moment every few seconds costs windows, visibly, and the run gets its verdict."""
    gpu = replace(
        gpus.T4,
        clock_reasons=pulses(HW_THERMAL, every_ms=4500, length_ms=300),
        # Unused parts cannot report that.
        utilization=None,
        memory_used_bytes=None,
        power_watts=50,
    )
    real_project.with_gpus(library, gpu)
    real_project.test_file.write_text(LOADS)
    result = real_project.run("--gpu=T4", JSON)
    run = real_project.result()["run"]
    # A busy host may have held the client up in others.
    again = [text for text in run["windows_measured_again"] if not text.startswith("client held up")]
    assert again
    assert all("thermal slowdown by the hardware (HW_THERMAL_SLOWDOWN)" in text for text in again)
    # What was thrown away is no part of what was measured.
    assert run["telemetry"]["sm_clock_mhz"] == pytest.approx(1500)
    assert run["telemetry"]["joules"] == pytest.approx(50 * run["seconds"], rel=0.05)
    if not busy_machine(run):
        result.assert_outcomes(passed=1)
        result.stdout.fnmatch_lines(["*throughput*PASS*", "test_it: * windows measured again: *HW_THERMAL_SLOWDOWN*"])
