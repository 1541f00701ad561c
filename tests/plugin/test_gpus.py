"""Whole runs on scripted GPUs: the device that ``--gpu`` must be, and a baseline that is recorded and gated on one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.fakes.nvml import gpus
from tests.fakes.nvml.gpus import second
from tests.plugin.conftest import JSON, says_no_traceback, text_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.plugin.conftest import Project

DEVICE_TEST = """
def test_device(device, gpuserve_servers):
    print("DEVICE", device.name, device.is_gpu, device.environment(), gpuserve_servers.torch_device)
"""


def test_a_gpu_is_recorded_and_gated(project: Project, library: Path) -> None:
    """`--gpu=T4` records what the GPU is, without its UUID, and a later run on another T4 is judged by it."""
    project.with_gpus(library, gpus.T4)
    project.baseline = project.path / "baselines" / "T4" / "perf" / "test_perf.json"
    assert project.run("--gpu=T4", "--baseline-update").ret == 0
    device = project.entry()["device"]
    known = {"name": "T4", "product": "Tesla T4", "power_limit_watts": 70.0, "ecc": True, "compute_capability": "7.5"}
    assert {field: device[field] for field in known} == known
    assert gpus.T4.uuid.removeprefix("GPU-") not in project.baseline.read_text()
    project.with_gpus(library, second(gpus.T4))
    result = project.run("--gpu=T4")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["gpuserve: T4 (Tesla T4)*gating against*baselines/T4*", "*throughput*PASS*"])
    assert "the baseline's is" not in text_of(result)


def test_absent_gpu_is_exit_4(project: Project) -> None:
    """The error names a device that is there, and an old result is not left for a new one; collecting needs no GPU."""
    project.ini(gpu="T4")
    assert project.run("--collect-only", "-q").ret == 0
    old = project.path / "out.json"
    old.write_text('{"schema": 1, "tests": []}')
    result = project.run(JSON)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "--gpu=cpu" in text_of(result)
    assert not old.exists()
    assert says_no_traceback(result)


def test_servers_get_the_device(project: Project, library: Path) -> None:
    """The GPU that is named among several, by its index; or the CPU, where servers see no GPU."""
    project.with_gpus(library, gpus.H200, second(gpus.T4))
    project.test_file.write_text(DEVICE_TEST)
    for gpu, line in (
        ("T4", "*DEVICE T4 True*'CUDA_VISIBLE_DEVICES': '1'* cuda"),
        ("cpu", "*DEVICE cpu False*'CUDA_VISIBLE_DEVICES': ''* cpu"),
    ):
        project.run("-s", f"--gpu={gpu}").stdout.fnmatch_lines([line])
