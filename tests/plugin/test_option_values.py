"""Wrong options, ini settings and markers: exit code 4 with what is wrong, and no traceback."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.plugin.conftest import says_no_traceback, text_of

if TYPE_CHECKING:
    from tests.plugin.conftest import Project


@pytest.mark.parametrize(
    ("option", "named"),
    [
        ("--on-missing=maybe", "maybe"),
        ("--on-inconclusive=pass", "pass"),
        ("--gpuserve-budget=soon", "soon"),
        ("--gpuserve-budget=-1", "-1"),
        ("--gpuserve-budget=nan", "nan"),
        ("--gpuserve-json=no/such/folder/out.json", "no/such/folder"),
        ("--gpuserve-json=.", "a folder"),
        ("--gpu=", "--gpu="),
    ],
)
def test_wrong_option_is_exit_4(project: Project, option: str, named: str) -> None:
    """A wrong option value ends the session before it starts, and the message names the value."""
    result = project.run(option)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert named in text_of(result)
    assert says_no_traceback(result)


@pytest.mark.parametrize("name", ["gpuserve_budget", "gpuserve_sessions", "on_missing", "gpuserve_lock_wait"])
def test_wrong_ini_value_is_exit_4(project: Project, name: str) -> None:
    """A wrong ini value is found like a wrong option."""
    project.ini(**{name: "often"})
    result = project.run()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "often" in text_of(result)
    assert says_no_traceback(result)


@pytest.mark.parametrize(
    ("marker", "named"),
    [
        ("@pytest.mark.gpuserve(thruput=0.05)", "thruput"),
        ("@pytest.mark.gpuserve(p99=0)", "p99"),
        ("@pytest.mark.gpuserve(p99=float('nan'))", "nan"),
        ("@pytest.mark.gpuserve(p99='5%')", "5%"),
        ("@pytest.mark.gpuserve(throughput=1.0)", "throughput cannot fall by 100%: its tolerance must be below 1"),
        ("@pytest.mark.gpuserve(0.05)", "0.05"),
        ("@pytest.mark.gpuserve(gpu=4, p99=0.1)", "gpu=...): it is the name of a device"),
        ("@pytest.mark.gpuserve(gpu='Tesla T4', p99=0.1)", "'Tesla T4'"),
        ("@pytest.mark.gpuserve(gpu='T4', thruput=0.05)", "thruput"),
    ],
)
def test_wrong_marker_is_exit_4(project: Project, marker: str, named: str) -> None:
    """A marker with an unknown metric or a value that is no tolerance is found before anything is measured."""
    project.write(marker=marker)
    result = project.run()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert named in text_of(result)
    assert "test_it" in text_of(result)
    assert says_no_traceback(result)


def test_both_updates_are_exit_4(project: Project) -> None:
    """The two ways to update exclude each other."""
    result = project.run("--baseline-update", "--baseline-update-new")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "exclude each other" in text_of(result)


def test_ci_updates_only_when_spelled_out(project: Project) -> None:
    """With CI set, an update that comes from the environment is refused and says so."""
    project.environment.update({"CI": "true", "PYTEST_ADDOPTS": "--baseline-update"})
    result = project.run()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "spelled out" in text_of(result)
    assert not project.baseline.exists()


def test_bad_load_arguments_name_the_line(project: Project) -> None:
    """A wrong argument of load() is told at the user's line, without a traceback through the package."""
    for wrong, named in (("concurrency=0", "concurrency"), ("concurrency=8, starts=1", "starts=1")):
        project.write()
        project.test_file.write_text(project.test_file.read_text().replace("concurrency=8", wrong))
        result = project.run()
        result.assert_outcomes(failed=1)
        result.stdout.fnmatch_lines([f"*test_perf.py:*{named}*"])
        assert says_no_traceback(result)


def test_missing_app_is_told(project: Project) -> None:
    """An app file that is not there is an error that names it."""
    project.app_file.unlink()
    result = project.run()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*test_perf.py:*there is no app file */suites/perf/app.py*"])
    assert says_no_traceback(result)


SHARED = """
import pytest

@pytest.fixture(scope="module")
def server(mosec_server):
    return mosec_server("app/serve.py")

@pytest.fixture(scope="module")
def repository(triton_server):
    return triton_server("models")

@pytest.mark.parametrize("number", range(3))
def test_shared(server, load, number):
    pass

def test_late(request, load):
    request.getfixturevalue("server")

def test_repository(repository, load):
    pass

def test_worker(torch_worker, load):
    torch_worker("net.py:build")
"""


def test_the_error_of_a_shared_fixture_is_told_alike_in_each_test(project: Project) -> None:
    """Where a server's fixture fails, all tests of its scope show what is wrong, and none a traceback through us."""
    project.test_file.write_text(SHARED)
    result = project.run("-k", "shared or late", "--tb=long")
    result.assert_outcomes(errors=3, failed=1)
    told = [line for line in result.outlines if "there is no app file" in line]
    in_summary = [line for line in told if line.startswith(("ERROR ", "FAILED "))]
    assert len(told) - len(in_summary) >= 4
    assert len({line for line in told if line.startswith("test_perf.py:")}) == 1
    text = text_of(result)
    assert "server_factory.py" not in text
    assert "fixtures.py" not in text
    assert says_no_traceback(result)


def test_what_a_path_may_have_meant_is_told(project: Project) -> None:
    """A file that lies relative to the project's root is named as the calling file has to name it; folders alike."""
    project.test_file.write_text(SHARED)
    for file in ("app/serve.py", "net.py", "models/net/config.pbtxt"):
        (project.path / file).parent.mkdir(parents=True, exist_ok=True)
        (project.path / file).touch()
    text = text_of(project.run("-k", "shared or repository or worker"))
    assert 'help: below the rootdir there is mosec_server("../../app/serve.py")' in text
    assert 'help: below the rootdir there is triton_server("../../models")' in text
    assert 'help: below the rootdir there is torch_worker("../../net.py:build")' in text
    assert "help: name it relative to the file that calls, or give an absolute path" in text
