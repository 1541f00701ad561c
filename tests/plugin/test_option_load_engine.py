"""`--load-engine`: what makes loads; a mistake, a missing library or an absent cluster is told before any server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpuserve.process.ports import free_port
from tests.fakes.nvml import cards
from tests.fakes.ray_nodes import folder_of_ray
from tests.plugin.conftest import busy_machine, says_no_traceback, text_of
from tests.plugin.test_cards import SECOND_T4, Machine

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
    """What a run says that ends with exit code 4 before a test is run."""
    project.test_file.write_text(STARTED)
    result = project.run(*arguments, "-p", "no:cacheprovider")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert says_no_traceback(result)
    assert not (project.path / "started").exists()
    return text_of(result)


def test_what_is_no_engine_is_refused(project: Project) -> None:
    """With the value and all that could have been meant."""
    told = refused(project, "--load-engine=gpu")
    assert "--load-engine" in told
    assert "'gpu'" in told
    assert "--load-engine=ray://HOST:PORT" in told


def test_a_wrong_ini_setting_is_named_as_such(project: Project) -> None:
    """Not by the option that nobody typed."""
    project.ini(gpuserve_load_engine="ray:/head:1")
    told = refused(project)
    assert "gpuserve_load_engine is neither" in told
    assert "'ray:/head:1'" in told


@pytest.mark.parametrize("engine", ["ray", "127.0.0.1:1", "ray://127.0.0.1:1"])
def test_without_the_library_the_extra_is_named(project: Project, engine: str) -> None:
    """Whatever is asked of Ray."""
    (project.path / "conftest.py").write_text(NO_RAY)
    assert "pip install 'pytest-gpuserve[ray]'" in refused(project, f"--load-engine={engine}")


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_a_cluster_that_is_not_there_is_refused(project: Project, scheme: str) -> None:
    """With the address that was tried, the reason and what helps."""
    port = free_port()
    told = refused(project, f"--load-engine={scheme}127.0.0.1:{port}")
    assert f"the Ray cluster at {scheme}127.0.0.1:{port} could not be joined" in told
    assert "Connection refused" in told
    assert "--load-engine=ray" in told


def test_a_cluster_of_the_ini_file_is_looked_at_too(project: Project) -> None:
    """A setting is like the option."""
    port = free_port()
    project.ini(gpuserve_load_engine=f"127.0.0.1:{port}")
    told = refused(project)
    assert f"127.0.0.1:{port} could not be joined" in told


def test_the_command_line_wins(project: Project, recorded: Path) -> None:
    """`--load-engine=local` makes loads where the ini file names a cluster that is not there."""
    project.ini(gpuserve_load_engine=f"127.0.0.1:{free_port()}")
    project.store(recorded)
    project.run("--load-engine=local").assert_outcomes(passed=1)


@pytest.mark.parametrize("arguments", [("--collect-only",), ("--markers",)])
def test_who_measures_nothing_needs_no_cluster(project: Project, arguments: tuple[str, ...]) -> None:
    """Options that run no test ask no cluster."""
    result = project.run(f"--load-engine=127.0.0.1:{free_port()}", *arguments)
    assert result.ret == 0


def test_tests_that_load_nothing_need_no_cluster(project: Project) -> None:
    """An ini setting is for the measuring tests of a project, not for its others."""
    project.ini(gpuserve_load_engine=f"127.0.0.1:{free_port()}")
    project.test_file.write_text("def test_it(device):\n    assert device.name == 'cpu'\n")
    project.run().assert_outcomes(passed=1)


def test_the_engine_is_named_in_header_and_result(project: Project, recorded: Path) -> None:
    """A run on Ray says so, with the number of workers; the same load on this host says nothing of it."""
    project.store(recorded)
    result = project.run("--load-engine=ray", "--gpuserve-json=out.json")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["gpuserve: cpu *, loads made by Ray, a cluster of this run on this host, at most *"])
    run = project.result()["run"]
    assert run["load"]["engine"] == "Ray, a cluster of this run on this host"
    assert run["load"]["workers"] == "1"
    assert "engine" not in run["workload"]
    local = project.run("--gpuserve-json=out.json")
    assert "loads made by" not in text_of(local)
    assert "engine" not in project.result()["run"]["load"]


def test_a_run_that_needs_no_cluster_starts_none(project: Project, recorded: Path) -> None:
    """With `--load-engine=ray` a cluster is started by the first load; pytest's own process never loads the library."""
    project.store(recorded)
    project.test_file.write_text(
        f"{project.test_file.read_text()}\n\ndef test_ray(load):\n    import sys\n    assert 'ray' not in sys.modules\n"
    )
    project.run("--load-engine=ray").assert_outcomes(passed=2)


def test_workers_of_xdist_tell_it_once(
    project: Project, library: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Each looks at the cluster, and the controller tells what they found, with exit code 4."""
    Machine(project, library, tmp_path_factory.mktemp("machine")).script(cards.T4, SECOND_T4)
    told = refused(project, "-p", "xdist.plugin", "-n2", f"--load-engine=127.0.0.1:{free_port()}")
    assert told.count("could not be joined") == 1


def test_the_self_test_is_of_this_host(project: Project) -> None:
    """A self-test with another engine would find out nothing of it, and is refused."""
    assert "--load-engine" in refused(project, "--gpuserve-selftest=1", "--load-engine=ray")


@pytest.mark.slow
def test_a_real_server_is_recorded_and_gated_on_ray(real_project: Project) -> None:
    """A load by two workers of a cluster of its own is recorded, with nothing left of Ray at the end of the run."""
    real_project.ini(gpuserve_sessions="1")
    text = real_project.test_file.read_text().replace("concurrency=8", "concurrency=8, processes=2")
    real_project.test_file.write_text(text)
    with folder_of_ray() as folder:
        real_project.environment["TMPDIR"] = str(folder)
        result = real_project.run("--load-engine=ray", "--baseline-update", "--gpuserve-json=out.json", seconds=400)
    run = real_project.result()["run"]
    if not busy_machine(run):
        result.assert_outcomes(passed=1)
        assert real_project.entry()["workload"] == run["workload"]
    assert run["load"]["workers"] == "2"
    assert run["requests"] > 100
    assert run["errors"] == {}
