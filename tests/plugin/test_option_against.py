"""``--against``, ``--against-python``, ``--no-confirm`` and their marker: mistakes are told before anything is run."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from pytest_gpuserve.markers import one_at_a_time, tolerances
from pytest_gpuserve.options import read_settings
from tests.plugin.conftest import says_no_traceback, text_of

if TYPE_CHECKING:
    from tests.plugin.conftest import Project


@pytest.mark.parametrize("arguments", [("--against=HEAD",), (f"--against-python={sys.executable}",)])
@pytest.mark.parametrize("update", ["--baseline-update", "--baseline-update-new"])
def test_comparing_and_recording_are_two_runs(project: Project, arguments: tuple[str, ...], update: str) -> None:
    """A run that compares with another revision records nothing, and says so."""
    result = project.run(update, *arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert f"{arguments[0].partition('=')[0]} and an update of baselines are two runs" in text_of(result)
    assert says_no_traceback(result)


def test_an_ini_file_is_named_as_the_cause(project: Project) -> None:
    """What the ini file sets is left out with an option that the message names; then the run may record."""
    project.ini(against="HEAD")
    result = project.run("--baseline-update")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "-o against=" in text_of(result)
    assert project.run("--baseline-update", "-o", "against=", "--collect-only").ret == pytest.ExitCode.OK


@pytest.mark.parametrize("option", ["--against=", "--against= "])
def test_an_empty_revision_is_exit_4(project: Project, option: str) -> None:
    """As from a variable that is not set: never taken for no comparison."""
    result = project.run(option)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "--against=origin/main" in text_of(result)
    assert says_no_traceback(result)


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("", "no name"),
        ("no/such/python", "there is no such file"),
        ("no-such-python", "there is no such file"),
        ("suites", "there is no such file"),
        ("plain.txt", "Permission denied"),
        ("broken.sh", "this broke"),
    ],
)
def test_what_is_no_python_is_exit_4(project: Project, name: str, found: str) -> None:
    """An interpreter that is not there, cannot be executed or is none is told with what it did."""
    (project.path / "plain.txt").write_text("")
    (project.path / "broken.sh").write_text("#!/bin/sh\necho this broke >&2\nexit 1\n")
    (project.path / "broken.sh").chmod(0o755)
    result = project.run(f"--against-python={'./' * ('.' in name)}{name}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert found in text_of(result)
    assert "--against-python=/path/to/.venv/bin/python" in text_of(result)
    assert says_no_traceback(result)


@pytest.mark.parametrize("arguments", [("--against=HEAD",), (f"--against-python={sys.executable}",)])
def test_xdist_is_exit_4(real_project: Project, arguments: tuple[str, ...]) -> None:
    """On `cpu` workers of pytest-xdist would measure each other; without workers it is no matter."""
    result = real_project.run("-n2", *arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "run it with -n0" in text_of(result)
    assert says_no_traceback(result)
    assert real_project.run("-n0", "--collect-only", *arguments).ret == pytest.ExitCode.OK


def test_values_by_option_and_ini(pytester: pytest.Pytester) -> None:
    """The command line wins over the ini file; an interpreter is absolute, relative to where it was written."""
    settings = read_settings(pytester.parseconfig())
    assert (settings.against, settings.against_python, settings.confirm) == (None, None, True)
    settings = read_settings(pytester.parseconfig("--against=v1", f"--against-python={sys.executable}", "--no-confirm"))
    assert (settings.against, settings.against_python, settings.confirm) == ("v1", sys.executable, False)
    (pytester.path / "python").symlink_to(sys.executable)
    pytester.makeini("[pytest]\nagainst = v2\nagainst_python = ./python\nno_confirm = true\n")
    settings = read_settings(pytester.parseconfig())
    expected = ("v2", str(pytester.path / "python"), False)
    assert (settings.against, settings.against_python, settings.confirm) == expected
    assert read_settings(pytester.parseconfig("--against=v3")).against == "v3"
    assert read_settings(pytester.parseconfig("-o", "no_confirm=false")).confirm


def test_one_at_a_time_is_read_from_the_closest_marker(pytester: pytest.Pytester) -> None:
    """A class may set it and a test take it back; tolerances beside it are read as ever."""
    items = pytester.getitems(
        """
        import pytest
        class TestMarked:
            pytestmark = pytest.mark.gpuserve(one_at_a_time=True, p99=0.3)

            def test_class(self): pass

            @pytest.mark.gpuserve(one_at_a_time=False, throughput=0.1)
            def test_own(self): pass

        def test_plain(): pass
        """
    )
    assert [one_at_a_time(item, "cpu") for item in items] == [True, False, False]
    assert [tolerances(item, "cpu") for item in items] == [
        {"latency.p99": 0.3},
        {"throughput": 0.1, "latency.p99": 0.3},
        {},
    ]


def test_a_marker_for_a_device_counts_there_alone(pytester: pytest.Pytester) -> None:
    """Before one of the same place that names none, in whatever order; a closer one comes before both."""
    items = pytester.getitems(
        """
        import pytest

        @pytest.mark.gpuserve(throughput=0.1, p99=0.2)
        @pytest.mark.gpuserve(gpu="cpu", throughput=0.3)
        @pytest.mark.gpuserve(gpu="T4", throughput=0.02, one_at_a_time=True)
        class TestMarked:
            def test_class(self): pass

            @pytest.mark.gpuserve(throughput=0.5)
            def test_own(self): pass
        """
    )
    assert [tolerances(item, "cpu")["throughput"] for item in items] == [0.3, 0.5]
    assert [tolerances(item, "T4")["throughput"] for item in items] == [0.02, 0.5]
    assert [tolerances(item, "H200") for item in items] == [
        {"throughput": 0.1, "latency.p99": 0.2},
        {"throughput": 0.5, "latency.p99": 0.2},
    ]
    assert [one_at_a_time(items[0], gpu) for gpu in ("cpu", "T4")] == [False, True]


@pytest.mark.parametrize("value", ["1", "'yes'", "None"])
def test_one_at_a_time_is_true_or_false(project: Project, value: str) -> None:
    """Another value is a usage error that names the test."""
    project.write(marker=f"@pytest.mark.gpuserve(one_at_a_time={value})")
    result = project.run()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "one_at_a_time=...): it is True or False" in text_of(result)
    assert "test_it" in text_of(result)
    assert says_no_traceback(result)


def test_the_marker_is_described(project: Project) -> None:
    """``pytest --markers`` says what it does."""
    assert "one_at_a_time=True: the two servers" in text_of(project.run("--markers"))
