"""``--gpuserve-full`` with its marker, and ``--gpuserve-artifacts``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.plugin.conftest import text_of

if TYPE_CHECKING:
    from tests.plugin.conftest import Project

MARKED = "@pytest.mark.gpuserve_full"

SIZES = """
import pytest

@pytest.mark.gpuserve_full
def test_marked(device):
    pass

def test_size(full_size):
    assert full_size is {wanted}

def test_file(artifacts):
    (artifacts / "table.csv").write_text("a,b")
"""


def test_full_matrix_is_left_out_on_cpu(project: Project) -> None:
    """A marked test is skipped on cpu, with the option that measures it, and needs no baseline."""
    project.write(marker=MARKED)
    result = project.run("-rs")
    result.assert_outcomes(skipped=1)
    assert "--gpuserve-full measures it" in text_of(result)


def test_full_matrix_is_measured_where_it_is_asked_for(project: Project) -> None:
    """With the option a marked test is like any other, on cpu too: here it records."""
    project.write(marker=MARKED)
    result = project.run("--gpuserve-full", "--baseline-update")
    result.assert_outcomes(passed=1)
    assert project.entry()


@pytest.mark.parametrize("asked", [False, True])
def test_tests_know_the_size_that_is_wanted(project: Project, asked: bool) -> None:  # noqa: FBT001 -- a parameter
    """``full_size`` says whether the option was given, and the marker holds for tests that only ask for the device."""
    project.test_file.write_text(SIZES.format(wanted=asked))
    result = project.run(*(["--gpuserve-full"] if asked else []))
    result.assert_outcomes(passed=3 if asked else 2, skipped=0 if asked else 1)


def test_artifacts_lie_where_they_are_wanted(project: Project) -> None:
    """The folder is made, relative to where the command is typed; the default is in pytest's cache."""
    project.test_file.write_text(SIZES.format(wanted=False))
    project.run("--gpuserve-artifacts=made/here")
    assert (project.path / "made" / "here" / "table.csv").read_text() == "a,b"
    project.run()
    assert (project.path / ".pytest_cache" / "d" / "gpuserve-artifacts" / "table.csv").is_file()


def test_a_file_is_no_folder(project: Project) -> None:
    """A file in the place of the folder is a usage error that names both, before anything is measured."""
    (project.path / "taken").write_text("mine")
    result = project.run("--gpuserve-artifacts=taken")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "--gpuserve-artifacts=taken: this is a file" in text_of(result)
    assert (project.path / "taken").read_text() == "mine"
