"""`--load-engine`: choice of the load engines; mistakes and missing clusters are reported before any server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpuserve.process.ports import free_port
from tests.plugin.conftest import JSON, says_no_traceback, text_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.plugin.conftest import Project

STARTED = """
import pytest

@pytest.fixture
def anything():
    open("started", "w").close()

def test_it(anything, mosec_server, load):
    pass
"""

NO_RAY = "import sys\nsys.modules['ray'] = None\n"
"""As conftest.py: Ray is not installed."""


def refused(project: Project, *arguments: str) -> str:
    """Output of a run that ends with exit code 4 before any test."""
    project.test_file.write_text(STARTED)
    result = project.run(*arguments, "-p", "no:cacheprovider")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert says_no_traceback(result)
    assert not (project.path / "started").exists()
    return text_of(result)


def test_what_is_no_engine_is_refused(project: Project) -> None:
    """A wrong engine is refused with its value, its option or setting, and the possible ones."""
    told = refused(project, "--load-engine=gpu")
    assert "--load-engine" in told
    assert "'gpu'" in told
    assert "--load-engine=ray://HOST:PORT" in told
    project.ini(gpuserve_load_engine="ray:/head:1")
    told = refused(project)
    assert "gpuserve_load_engine is neither" in told
    assert "'ray:/head:1'" in told


def test_a_cluster_that_is_not_there_is_refused(project: Project) -> None:
    """An absent cluster is refused with its address and the reason, a missing package with its extra."""
    address = f"127.0.0.1:{free_port()}"
    told = refused(project, f"--load-engine={address}")
    assert f"the Ray cluster at {address} could not be joined" in told
    assert "Connection refused" in told
    assert "--load-engine=ray" in told
    project.ini(gpuserve_load_engine=f"ray://{address}")
    assert f"ray://{address} could not be joined" in refused(project)
    (project.path / "conftest.py").write_text(NO_RAY)
    assert "pip install 'pytest-gpuserve[ray]'" in refused(project, "--load-engine=ray")


def test_the_engine_is_named_in_header_and_result(project: Project, recorded: Path) -> None:
    """A run on Ray names it, with its workers; a local run does not; pytest itself never loads the library."""
    project.store(recorded)
    project.write("assert 'ray' not in __import__('sys').modules\n    assert run.throughput >= baseline.throughput")
    result = project.run("--load-engine=ray", JSON)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["gpuserve: cpu *, loads made by Ray, a cluster of this run on this host, at most *"])
    run = project.result()["run"]
    assert (run["load"]["engine"], run["load"]["workers"]) == ("Ray, a cluster of this run on this host", "1")
    local = project.run(JSON)
    assert "loads made by" not in text_of(local)
    assert "engine" not in project.result()["run"]["load"]
