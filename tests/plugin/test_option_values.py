"""Wrong options, ini settings and markers: exit code 4 with what is wrong, and no traceback."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.plugin.conftest import says_no_traceback, text_of

if TYPE_CHECKING:
    from tests.plugin.conftest import Project


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--on-missing=maybe",), "maybe"),
        (("--gpuserve-budget=nan",), "nan"),
        (("--gpuserve-json=no/such/folder/out.json",), "no/such/folder"),
        (("--baseline-update", "--baseline-update-new"), "exclude each other"),
        *(
            (("-o", f"{name}=often"), "often")
            for name in ("gpuserve_budget", "gpuserve_sessions", "on_missing", "gpuserve_lock_wait")
        ),
    ],
)
def test_wrong_option_is_exit_4(project: Project, options: tuple[str, ...], named: str) -> None:
    """A wrong value of an option or ini setting ends the session before it starts, and the message names the value."""
    result = project.run(*options)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert named in text_of(result)
    assert says_no_traceback(result)


def test_ci_updates_only_when_spelled_out(project: Project) -> None:
    """With CI set, an update that comes from the environment is refused and says so."""
    project.environment.update({"CI": "true", "PYTEST_ADDOPTS": "--baseline-update"})
    result = project.run()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "spelled out" in text_of(result)
    assert not project.baseline.exists()


@pytest.mark.parametrize(
    ("marker", "named"),
    [
        ("thruput=0.05", "thruput"),
        ("p99=float('nan')", "nan"),
        ("throughput=1.0", "throughput cannot fall by 100%: its tolerance must be below 1"),
        ("gpu='Tesla T4', p99=0.1", "'Tesla T4'"),
        ("one_at_a_time=1", "one_at_a_time=...) must be True or False"),
    ],
)
def test_wrong_marker_is_exit_4(project: Project, marker: str, named: str) -> None:
    """A marker with an unknown metric or an invalid tolerance is found before the first measurement."""
    project.write(marker=f"@pytest.mark.gpuserve({marker})")
    result = project.run()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert named in text_of(result)
    assert "test_it" in text_of(result)
    assert says_no_traceback(result)


SHARED = """
import pytest

@pytest.fixture(scope="module")
def server(mosec_server):
    return mosec_server("app/serve.py")

@pytest.mark.parametrize("number", range(3))
def test_shared(server, load, number):
    pass

def test_late(request, load):
    request.getfixturevalue("server")
"""


def test_the_error_of_a_shared_fixture_is_told_alike_in_each_test(project: Project) -> None:
    """If a server's fixture fails, all tests of its scope show the cause, and none a traceback through our code."""
    project.test_file.write_text(SHARED)
    result = project.run("--tb=long")
    result.assert_outcomes(errors=3, failed=1)
    told = [line for line in result.outlines if "the app file" in line]
    in_summary = [line for line in told if line.startswith(("ERROR ", "FAILED "))]
    assert len(told) - len(in_summary) >= 4
    assert len({line for line in told if line.startswith("test_perf.py:")}) == 1
    text = text_of(result)
    assert "server_factory.py" not in text
    assert "fixtures.py" not in text
    assert says_no_traceback(result)
