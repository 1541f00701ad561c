"""`--gpu`: the device it must be, and what is said when it is another."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.fakes.nvml.build import fake_environment
from tests.plugin.conftest import says_no_traceback, text_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.plugin.conftest import Project


DEVICE_TEST = """
def test_device(device):
    print("DEVICE", device.name, device.is_gpu, device.environment())
"""


def with_cards(project: Project, library: Path, *products: str) -> None:
    """Let the project's machine have these cards."""
    project.environment.update(fake_environment(library, list(products)))
    project.test_file.write_text(DEVICE_TEST)


def test_absent_card_is_exit_4(project: Project) -> None:
    """`--gpu=T4` on a machine without a card ends with exit code 4, naming what was asked and what is there."""
    result = project.run("--gpu=T4")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert says_no_traceback(result)
    assert "T4" in text_of(result)
    assert "--gpu=cpu" in text_of(result)


def test_other_card_is_exit_4(project: Project, library: Path) -> None:
    """`--gpu=T4` beside an H200 is refused before anything is collected, and the H200 is offered."""
    with_cards(project, library, "NVIDIA H200")
    result = project.run("--gpu=T4")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert says_no_traceback(result)
    result.stderr.fnmatch_lines(["*T4*"])
    assert "--gpu=H200" in text_of(result)


def test_card_is_found_by_name(project: Project, library: Path) -> None:
    """`--gpu=T4` takes the T4 among several cards, and gives servers that card alone, by its UUID."""
    with_cards(project, library, "NVIDIA H200", "Tesla T4")
    result = project.run("--gpu=T4", "-s")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*DEVICE T4 True*CUDA_VISIBLE_DEVICES*GPU-*"])


def test_auto_takes_the_card_that_is_there(project: Project, library: Path) -> None:
    """Without `--gpu` the card that is there is measured on, and the header says so."""
    with_cards(project, library, "NVIDIA A100-SXM4-80GB")
    result = project.run("-s")
    result.stdout.fnmatch_lines(["gpuserve: A100-SXM4-80GB (NVIDIA A100-SXM4-80GB)*", "*DEVICE A100-SXM4-80GB True*"])


def test_cpu_hides_the_cards_from_servers(project: Project, library: Path) -> None:
    """`--gpu=cpu` means the CPU also where there is a card: servers see none."""
    with_cards(project, library, "NVIDIA H200")
    result = project.run("--gpu=cpu", "-s")
    result.stdout.fnmatch_lines(["*DEVICE cpu False*'CUDA_VISIBLE_DEVICES': ''*"])


def test_broken_driver_is_no_cpu(project: Project, library: Path) -> None:
    """A driver that NVML cannot talk to is an error, not a quiet fall-back to the CPU's baselines."""
    with_cards(project, library, "NVIDIA H200")
    project.environment["FAKE_NVML_INIT_ERROR"] = "18"
    result = project.run()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert says_no_traceback(result)
    assert "mismatch" in text_of(result)


def test_collecting_needs_no_card(project: Project) -> None:
    """`--collect-only --gpu=T4` works on a laptop."""
    result = project.run("--gpu=T4", "--collect-only", "-q")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["*test_perf.py::test_it*"])


def test_ini_names_the_device(project: Project) -> None:
    """`gpu = T4` in the ini file is like the option."""
    project.ini(gpu="T4")
    result = project.run()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "T4" in text_of(result)
