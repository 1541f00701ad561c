"""Metrics of GPUs and starts are recorded and gated like others, but only in tests that name them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from tests.plugin.conftest import text_of

if TYPE_CHECKING:
    from tests.plugin.conftest import Checkout, Project

JSON = "--gpuserve-json=out.json"

GATES = """held = [
        run.energy_per_inference <= baseline.energy_per_inference,
        run.cold_start <= baseline.cold_start,
    ]
    assert all(held)"""
"""Both are judged, also where the first does not hold."""

MEMORY = "assert run.gpu_memory <= baseline.gpu_memory"

ON_REQUEST = ("energy_per_inference", "gpu_memory", "gpu_utilisation", "cold_start")


def gpus(project: Project, **script: Any) -> None:  # noqa: ANN401 -- fields of the script
    """Say what the GPUs of the next runs do."""
    assert project.script is not None
    project.script = msgspec.structs.replace(project.script, gpu=True, **script)


def run(project: Project, *arguments: str) -> pytest.RunResult:
    """Run the project's test on the scripted GPU."""
    return project.run(JSON, *arguments)


def build(project: Project, **factors: float) -> None:
    """Write what the build in the checkout takes, as times of the script's."""
    lines = "".join(f"\n{name} = {factor}" for name, factor in factors.items())
    project.app_file.write_text(f"{project.app_file.read_text()}{lines}\n")


def verdicts(project: Project) -> dict[str, str]:
    """The verdict of each metric that the last run judged."""
    return {each["metric"]: each["verdict"] for each in project.result()["verdicts"]}


@pytest.fixture
def gated(project: Project) -> Project:
    """A project with a test of energy and cold start, and a GPU."""
    project.write(GATES)
    gpus(project)
    return project


@pytest.fixture(scope="module")
def kept() -> list[bytes]:
    """Records of all tests of this module."""
    return []


@pytest.fixture
def recorded_on_gpu(gated: Project, kept: list[bytes]) -> Project:
    """The same with a baseline."""
    if not kept:
        result = run(gated, "--baseline-update")
        assert result.ret == pytest.ExitCode.OK, text_of(result)
        kept.append(gated.baseline.read_bytes())
    gated.baseline.parent.mkdir(parents=True, exist_ok=True)
    gated.baseline.write_bytes(kept[0])
    return gated


def test_an_identical_build_passes_and_shows_its_values(recorded_on_gpu: Project) -> None:
    """The file lists the values and the samples behind them; a run has rows with joules and seconds."""
    file = json.loads(recorded_on_gpu.baseline.read_text())
    assert set(file["summary"]["test_it"]) >= set(ON_REQUEST)
    assert file["summary"]["test_it"]["gpu_memory"] == pytest.approx(2**31, rel=1e-3)
    (start, _) = recorded_on_gpu.entry()["sessions"][0]["starts"]
    assert start["gpus"].items() >= {"memory_bytes": 2147480000.0, "utilisation": 0.8, "sm_clock_mhz": 1350.0}.items()
    result = run(recorded_on_gpu)
    assert result.ret == pytest.ExitCode.OK, text_of(result)
    assert verdicts(recorded_on_gpu) == {"energy_per_inference": "PASS", "cold_start": "PASS"}
    result.stdout.fnmatch_lines_random(["*cold_start * s * PASS", "*energy_per_inference * mJ * PASS"])


def test_a_build_that_starts_and_burns_half_more_is_found(recorded_on_gpu: Project) -> None:
    """Both gates fail."""
    build(recorded_on_gpu, COLD_START=1.5, JOULES=1.5)
    result = run(recorded_on_gpu)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert verdicts(recorded_on_gpu) == {"energy_per_inference": "REGRESSED", "cold_start": "REGRESSED"}


def test_side_by_side(project: Project, checkout: Checkout) -> None:
    """Energy and starts are compared beside the base; shared memory is INVALID, and known with one server at a time."""
    project.write(f"{GATES}\n    {MEMORY}")
    gpus(project)
    checkout.commit("gates")
    run(project, "--against=HEAD")
    assert verdicts(project) == {"energy_per_inference": "PASS", "cold_start": "PASS", "gpu_memory": "INVALID"}
    project.write(MEMORY, marker="@pytest.mark.gpuserve(one_at_a_time=True)")
    result = run(project, "--against=HEAD")
    assert result.ret == pytest.ExitCode.OK, text_of(result)
    assert verdicts(project) == {"gpu_memory": "PASS"}
