"""Whole runs on scripted GPUs: recorded and gated on one, refused on another, and one of several taken."""

from __future__ import annotations

import pytest

from tests.fakes.nvml import gpus
from tests.fakes.nvml.gpus import second
from tests.plugin.conftest import Machine, says_no_traceback, text_of

SECOND_T4 = second(gpus.T4)


@pytest.fixture
def recorded_on_t4(machine: Machine) -> Machine:
    """The same, with a baseline."""
    assert machine.project.run("--gpu=T4", "--baseline-update").ret == 0
    return machine


def test_a_gpu_is_recorded_and_gated(recorded_on_t4: Machine) -> None:
    """`--gpu=T4` records what the GPU is, without its UUID, and a later run on another T4 is judged by it."""
    project = recorded_on_t4.project
    device = project.entry()["device"]
    known = {"name": "T4", "product": "Tesla T4", "power_limit_watts": 70.0, "ecc": True, "compute_capability": "7.5"}
    assert {field: device[field] for field in known} == known
    assert gpus.T4.uuid.removeprefix("GPU-") not in project.baseline.read_text()
    recorded_on_t4.script(SECOND_T4)
    result = project.run("--gpu=T4")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["gpuserve: T4 (Tesla T4)*gating against*baselines/T4*", "*throughput*PASS*"])
    assert "the baseline's is" not in text_of(result)


# -- instances of a divided GPU


def test_an_instance_has_baselines_of_its_own(machine: Machine) -> None:
    """A divided GPU is not the whole one: its instances are offered, go to servers by UUID, and have a folder each."""
    project = machine.project
    machine.script(gpus.DIVIDED_A100)
    whole = project.run("--gpu=A100-SXM4-80GB")
    assert whole.ret == pytest.ExitCode.USAGE_ERROR
    assert says_no_traceback(whole)
    assert "--gpu=A100-SXM4-80GB-MIG-1g.10gb" in text_of(whole)
    assert "--gpu=A100-SXM4-80GB-MIG-3g.40gb" in text_of(whole)
    project.test_file.write_text(
        project.test_file.read_text()
        + "\ndef test_device(device):\n    print('SEES', device.environment()['CUDA_VISIBLE_DEVICES'])\n"
    )
    result = project.run("--gpu=A100-SXM4-80GB-MIG-3g.40gb", "--baseline-update", "-s")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["*SEES MIG-33333333-*"])
    path = project.path / "baselines" / "A100-SXM4-80GB-MIG-3g.40gb" / "perf" / "test_perf.json"
    assert '"mig_profile": "3g.40gb"' in path.read_text()
