"""`--gpu`: the device it must be, and what is said when it is another."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.fakes.nvml.gpus import Error, FakeGpu, Script, write
from tests.plugin.conftest import says_no_traceback, text_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.plugin.conftest import Project


DEVICE_TEST = """
def test_device(device, gpuserve_servers):
    print("DEVICE", device.name, device.is_gpu, device.environment(), gpuserve_servers.torch_device)
"""


def with_gpus(project: Project, library: Path, *products: str, errors: tuple[Error, ...] = ()) -> None:
    """Let the project's machine have these GPUs."""
    own = (FakeGpu(product, f"GPU-{number}", f"00000000:{number:02}:00.0") for number, product in enumerate(products))
    project.environment.update(write(Script(tuple(own), errors), project.path, library=library))
    project.test_file.write_text(DEVICE_TEST)


def test_absent_gpu_is_exit_4(project: Project, library: Path) -> None:
    """The error lists the present devices, for option and ini setting; a broken driver has no fallback."""
    assert project.run("--gpu=T4", "--collect-only", "-q").ret == 0

    def told(*arguments: str) -> str:
        result = project.run(*arguments)
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        assert says_no_traceback(result)
        return text_of(result)

    old = project.path / "out.json"
    old.write_text('{"schema": 1, "tests": []}')
    nothing = told("--gpu=T4", "--gpuserve-json=out.json")
    assert not old.exists(), "an old result is never taken for a new one"
    assert "T4" in nothing
    assert "--gpu=cpu" in nothing
    with_gpus(project, library, "NVIDIA H200")
    assert "--gpu=H200" in told("--gpu=T4")
    project.ini(gpu="T4")
    assert "--gpu=H200" in told()
    project.ini()
    with_gpus(project, library, "NVIDIA H200", errors=(Error("nvmlInitWithFlags", 18),))
    assert "mismatch" in told()


def test_servers_get_the_device(project: Project, library: Path) -> None:
    """The GPU that is named among several, by its index; or the CPU, where servers see no GPU."""
    with_gpus(project, library, "NVIDIA H200", "Tesla T4")
    for gpu, line in (
        ("T4", "*DEVICE T4 True*'CUDA_VISIBLE_DEVICES': '1'* cuda"),
        ("cpu", "*DEVICE cpu False*'CUDA_VISIBLE_DEVICES': ''* cpu"),
    ):
        project.run("-s", f"--gpu={gpu}").stdout.fnmatch_lines([line])
