"""``--gpuserve-full`` with its marker, and ``--gpuserve-artifacts``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.plugin.conftest import JSON, text_of

if TYPE_CHECKING:
    from tests.plugin.conftest import Project


FILE = """
def test_file(artifacts, full_size):
    assert not full_size
    (artifacts / "table.csv").write_text("a,b")
"""

TWO = """
import pytest

pytestmark = pytest.mark.gpuserve(throughput=0.1, p50=0.1, batching_ratio=0.1)

@pytest.fixture(scope="module")
def server(mosec_server):
    return mosec_server("app.py")

@pytest.mark.parametrize("users", [8, *[pytest.param(users, marks=pytest.mark.gpuserve_full) for users in (16, 32)]])
def test_it(server, load, baseline, users):
    run = load(server.post("/inference", body=b"fox", expect=b"FOX"), concurrency=users, seconds=2)
    assert run.throughput >= baseline.throughput

def test_plain():
    pass
"""


def test_published_sizes_are_left_out(project: Project) -> None:
    """A marked test is deselected and does not measure; a line names the option, for what ``-k`` has selected."""
    project.test_file.write_text(TWO)
    result = project.run("--baseline-update", JSON)
    result.assert_outcomes(passed=2, deselected=2)
    line = "gpuserve: {} of the published sizes left out: --gpuserve-full measures {}"
    assert text_of(result).count(line.format("2 tests", "them")) == 1
    assert project.result()["nodeid"].endswith("test_it[8]")
    selected = project.run("-k", "16 or plain")
    selected.assert_outcomes(passed=1, deselected=3)
    assert line.format("1 test", "it") in text_of(selected)


def test_its_baselines_are_not_unused(project: Project) -> None:
    """A file keeps baselines of left out points; unused entries of other files are reported as usual."""
    other = project.test_file.with_name("test_other.py")
    other.write_text(TWO.replace("test_it", "test_other"))
    project.test_file.write_text(TWO)
    project.run("--gpuserve-full", "--baseline-update").assert_outcomes(passed=8)
    other.write_text(other.read_text().replace("marks=pytest.mark.gpuserve_full", "marks=()").replace("(16, 32)", "()"))
    result = project.run()
    result.assert_outcomes(passed=4, deselected=2)
    text = text_of(result)
    assert "test_other[16]: unused" in text
    assert "test_it[16]: unused" not in text


def test_artifacts_lie_where_they_are_wanted(project: Project) -> None:
    """Artifacts are in pytest's cache or the named folder; a file of that name is a usage error."""
    project.test_file.write_text(FILE)
    project.run("--gpuserve-artifacts=made/here")
    assert (project.path / "made" / "here" / "table.csv").read_text() == "a,b"
    project.run()
    assert (project.path / ".pytest_cache" / "d" / "gpuserve-artifacts" / "table.csv").is_file()
    (project.path / "taken").write_text("mine")
    result = project.run("--gpuserve-artifacts=taken")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "--gpuserve-artifacts=taken: this is a file" in text_of(result)
    assert (project.path / "taken").read_text() == "mine"
