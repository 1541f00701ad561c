"""``--against``, ``--against-python``, ``--stored-only`` and their marker: mistakes are reported before any run."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from pytest_gpuserve.plugin.markers import one_at_a_time, tolerances
from pytest_gpuserve.plugin.options import read_settings
from tests.plugin.conftest import says_no_traceback, text_of

if TYPE_CHECKING:
    from tests.plugin.conftest import Project


def test_comparing_and_recording_are_two_runs(project: Project) -> None:
    """A comparing run refuses to record; for an ini setting it names the option that removes it."""
    result = project.run("--baseline-update-new", f"--against-python={sys.executable}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "--against-python and an update of baselines are two runs" in text_of(result)
    assert says_no_traceback(result)
    project.ini(against="HEAD")
    result = project.run("--baseline-update")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "-o against=" in text_of(result)
    assert project.run("--baseline-update", "-o", "against=", "--collect-only").ret == pytest.ExitCode.OK


@pytest.mark.parametrize(
    ("option", "found"),
    [
        # As from a variable that is not set: never taken for no comparison.
        ("--against=", "--against=origin/main"),
        ("--against-python=", "no name"),
        ("--against-python=./broken.sh", "this broke"),
    ],
)
def test_what_is_no_revision_or_python_is_exit_4(project: Project, option: str, found: str) -> None:
    """An interpreter that is missing, not executable or not a Python is reported with its output."""
    (project.path / "broken.sh").write_text("#!/bin/sh\necho this broke >&2\nexit 1\n")
    (project.path / "broken.sh").chmod(0o755)
    result = project.run(option)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert found in text_of(result)
    assert ("--against-python=/path/to/.venv/bin/python" in text_of(result)) is ("python" in option)
    assert says_no_traceback(result)


def test_values_by_option_and_ini(pytester: pytest.Pytester) -> None:
    """The command line wins over the ini file; an interpreter is absolute, relative to where it was written."""
    settings = read_settings(pytester.parseconfig())
    assert (settings.against, settings.against_python, settings.stored_only) == (None, None, False)
    settings = read_settings(
        pytester.parseconfig("--against=v1", f"--against-python={sys.executable}", "--stored-only")
    )
    assert (settings.against, settings.against_python, settings.stored_only) == ("v1", sys.executable, True)
    (pytester.path / "python").symlink_to(sys.executable)
    pytester.makeini("[pytest]\nagainst = v2\nagainst_python = ./python\nstored_only = true\n")
    settings = read_settings(pytester.parseconfig())
    expected = ("v2", str(pytester.path / "python"), True)
    assert (settings.against, settings.against_python, settings.stored_only) == expected
    assert read_settings(pytester.parseconfig("--against=v3")).against == "v3"
    assert not read_settings(pytester.parseconfig("-o", "stored_only=false")).stored_only


def test_the_closest_marker_counts(pytester: pytest.Pytester) -> None:
    """A test's own marker overrides its class's; in one place the device's own overrides the general one."""
    items = pytester.getitems(
        """
        import pytest

        @pytest.mark.gpuserve(throughput=0.1, p99=0.2)
        @pytest.mark.gpuserve(gpu="cpu", throughput=0.3)
        @pytest.mark.gpuserve(gpu="T4", throughput=0.02, one_at_a_time=True)
        class TestMarked:
            def test_class(self): pass

            @pytest.mark.gpuserve(throughput=0.5, one_at_a_time=False)
            def test_own(self): pass

        def test_plain(): pass
        """
    )
    found = {gpu: [tolerances(item, gpu) for item in items] for gpu in ("cpu", "T4", "H200")}
    own = {"throughput": 0.5, "latency.p99": 0.2}
    assert found == {
        "cpu": [{"throughput": 0.3, "latency.p99": 0.2}, own, {}],
        "T4": [{"throughput": 0.02, "latency.p99": 0.2}, own, {}],
        "H200": [{"throughput": 0.1, "latency.p99": 0.2}, own, {}],
    }
    assert [one_at_a_time(item, "T4") for item in items] == [True, False, False]
    assert not one_at_a_time(items[0], "cpu")
    described = text_of(pytester.runpytest("-p", "pytest_gpuserve.plugin", "--markers"))
    assert "one_at_a_time=True: the servers" in described
