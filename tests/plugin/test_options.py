"""Options, ini settings and markers: what they mean, and that a mistake is told before anything is measured."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from pytest_gpuserve.plugin.collection import check_markers, one_at_a_time, tolerances
from pytest_gpuserve.plugin.options import Update, read_settings
from pytest_gpuserve.process.ports import free_port
from tests.fakes.scripted_starts import Script
from tests.plugin.conftest import JSON, SERVER, Project, says_no_traceback, text_of

# -- mistakes


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--on-missing=maybe",), "maybe"),
        (("--gpuserve-budget=nan",), "nan"),
        (("--gpuserve-artifacts=taken",), "--gpuserve-artifacts=taken: this is a file"),
        (("-o", "baseline_dir=taken"), "--baseline-dir=taken: this is a file"),
        (("--baseline-update", "--baseline-update-new"), "exclude each other"),
        (("--baseline-update-new", f"--against-python={sys.executable}"), "are two runs"),
        (("--baseline-update", "-o", "against=HEAD"), "-o against="),
        # As from a variable that is not set: never taken for no comparison.
        (("--against=",), "--against=origin/main"),
        (("--against-python=",), "--against-python=/path/to/.venv/bin/python"),
        (("--against-python=./broken.sh",), "this broke"),
        (("--against-python=~nobody_here/python",), "the file does not exist"),
        (("--load-engine=gpu",), "--load-engine=ray://HOST:PORT"),
        (("-o", "gpuserve_load_engine=ray:/head:1"), "gpuserve_load_engine is neither"),
        *(
            (("-o", f"{name}=often"), f"{name} = often: it must be")
            for name in ("gpuserve_budget", "gpuserve_sessions", "on_missing", "gpuserve_lock_wait")
        ),
    ],
)
def test_a_wrong_setting_is_told(pytester: pytest.Pytester, options: tuple[str, ...], named: str) -> None:
    """The error names the value and what is possible; of an interpreter that fails it has the output."""
    (pytester.path / "taken").write_text("mine")
    (pytester.path / "broken.sh").write_text("#!/bin/sh\necho this broke >&2\nexit 1\n")
    (pytester.path / "broken.sh").chmod(0o755)
    with pytest.raises(pytest.UsageError) as problem:
        read_settings(pytester.parseconfig(*options))
    assert named in str(problem.value)


@pytest.mark.parametrize(
    ("marker", "named"),
    [
        ("thruput=0.05", "does not know thruput"),
        ("througput=0.05", "help: did you mean throughput?"),
        ("p99=float('nan')", "nan"),
        ("throughput=1.0", "throughput cannot fall by 100%: its tolerance must be below 1"),
        ("gpu='Tesla T4', p99=0.1", "'Tesla T4'"),
        ("one_at_a_time=1", "one_at_a_time=...) must be True or False"),
    ],
)
def test_a_wrong_marker_is_told(pytester: pytest.Pytester, marker: str, named: str) -> None:
    """The error names the test, and the unknown metric or the invalid tolerance."""
    (item,) = pytester.getitems(f"import pytest\n\n@pytest.mark.gpuserve({marker})\ndef test_it(): pass\n")
    with pytest.raises(pytest.UsageError, match="test_it") as problem:
        check_markers(item)
    assert named in str(problem.value)


def test_a_mistake_is_exit_4(project: Project) -> None:
    """After a wrong setting or marker, and without a cluster or Ray, nothing is measured, and no traceback is shown."""
    # A measurement would end the run like Ctrl-C.
    project.script = Script(interrupted_start=1)
    address = f"127.0.0.1:{free_port()}"
    for options, named in (
        (("--gpuserve-budget=nan",), "nan"),
        ((f"--load-engine={address}",), f"the Ray cluster at {address} could not be joined"),
    ):
        result = project.run(*options)
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        assert named in text_of(result)
        assert says_no_traceback(result)
    (project.path / "conftest.py").write_text("import sys\nsys.modules['ray'] = None\n")
    assert "pip install 'pytest-gpuserve[ray]'" in text_of(project.run("--load-engine=ray"))
    project.write(marker="@pytest.mark.gpuserve(thruput=0.05)")
    result = project.run()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert says_no_traceback(result)


def test_an_unknown_users_home_is_a_plain_name(pytester: pytest.Pytester) -> None:
    """As in a shell, ``~nobody_here`` is the name of a folder if no such user exists."""
    settings = read_settings(pytester.parseconfig("--baseline-dir=~nobody_here/x"))
    assert settings.baseline_dir == pytester.path / "~nobody_here" / "x"


def test_ci_updates_only_when_spelled_out(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """With CI set, an update that comes from the environment is refused and says so."""
    assert read_settings(pytester.parseconfig("--baseline-update"), {"CI": "true"}).update is Update.ALL
    monkeypatch.setenv("PYTEST_ADDOPTS", "--baseline-update")
    with pytest.raises(pytest.UsageError, match="spelled out"):
        read_settings(pytester.parseconfig(), {"CI": "true"})


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


# -- what they mean


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


TWO = (
    SERVER
    + """
@pytest.mark.parametrize("users", [8, *[pytest.param(users, marks=pytest.mark.gpuserve_full) for users in (16, 32)]])
def test_it(server, load, baseline, users):
    run = load(server.post("/inference", body=b"fox", expect=b"FOX"), concurrency=users, seconds=2)
    assert run.throughput >= baseline.throughput

def test_plain():
    pass
"""
)


def test_published_sizes_are_left_out(project: Project) -> None:
    """A marked test is deselected and does not measure; a line names the option, for what ``-k`` has selected."""
    project.test_file.write_text(TWO)
    result = project.run("--baseline-update", JSON)
    result.assert_outcomes(passed=2, deselected=2)
    line = "gpuserve: {} marked gpuserve_full left out: --gpuserve-full runs {}"
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
    """Artifacts are in pytest's cache or the named folder."""
    test = "def test_file(artifacts, full_size):\n    assert not full_size\n    (artifacts / 'table.csv').touch()\n"
    project.test_file.write_text(test)
    project.run("--gpuserve-artifacts=made/here")
    assert (project.path / "made" / "here" / "table.csv").is_file()
    project.run()
    assert (project.path / ".pytest_cache" / "d" / "gpuserve-artifacts" / "table.csv").is_file()


def test_a_cache_that_cannot_be_written_is_told(project: Project) -> None:
    """As in a read-only checkout: the run measures and passes, artifacts have a place, the next run begins anew."""
    (project.path / ".pytest_cache").write_text("a file of the user's")
    with project.test_file.open("a") as file:
        file.write("\ndef test_file(artifacts):\n    (artifacts / 'table.csv').touch()\n")
    result = project.run("--baseline-update")
    result.assert_outcomes(passed=2)
    assert text_of(result).count("a re-run begins anew, because pytest's cache cannot be written") == 1
    assert says_no_traceback(result)


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


# -- updates


def test_update_new_leaves_what_is_there(project: Project, recorded: Path) -> None:
    """`--baseline-update-new` gates tests with a baseline and records only those without one."""
    project.store(recorded)
    stored = project.entry()
    project.test_file.write_text(
        project.test_file.read_text()
        + "\n\ndef test_new(server, load, baseline):\n    test_it(server, load, baseline)\n"
    )
    result = project.run("--baseline-update-new")
    result.assert_outcomes(passed=2)
    assert "test_new: recorded (2 sessions)" in text_of(result)
    assert "test_it: " not in text_of(result).replace("test_perf.py::test_it: ", "")
    assert project.entry() == stored
    assert "test_new" in json.loads(project.baseline.read_text())["entries"]


def test_unused_entries_are_reported_and_removed_on_update(project: Project, recorded: Path) -> None:
    """An entry without a test is reported by a full run, kept by default, and removed by an update."""
    file = json.loads(recorded.read_text())
    file["entries"]["test_gone"] = file["entries"]["test_it"]
    file["summary"]["test_gone"] = file["summary"]["test_it"]
    project.baseline.parent.mkdir(parents=True)
    project.baseline.write_text(json.dumps(file))
    result = project.run()
    result.assert_outcomes(passed=1)
    assert "test_gone: unused" in text_of(result)
    assert "test_gone" in project.baseline.read_text()

    updated = project.run("--baseline-update")
    updated.assert_outcomes(passed=1)
    assert "test_gone: unused, removed" in text_of(updated)
    assert "test_gone" not in project.baseline.read_text()


def test_what_cannot_be_trusted_is_not_recorded(project: Project, recorded: Path) -> None:
    """A failed test, an INVALID load and a load on a shared host are not recorded."""
    project.write("assert run.throughput >= baseline.throughput\n    assert 1 == 2")
    project.run("--baseline-update").assert_outcomes(failed=1)
    project.write()
    project.ini(gpuserve_foreign_cores="0.25")
    for script, said in (
        (Script(wrong=True), "wrong answers: "),
        (Script(speed=0.3, foreign_cores=1000), "the host was shared: other processes took 1000"),
    ):
        project.script = script
        result = project.run("--baseline-update")
        result.assert_outcomes(failed=1)
        result.stdout.fnmatch_lines(["*INVALID: throughput*", f"*{said}*"])
        assert not project.baseline.exists()
    project.store(recorded)
    result = project.run()
    result.assert_outcomes(failed=1)
    assert "INVALID: throughput" in text_of(result)
    assert "REGRESSED" not in text_of(result)


def test_baseline_dir_is_elsewhere(project: Project) -> None:
    """`--baseline-dir` reads and writes another folder, and leaves the default one alone."""
    project.run("--baseline-update", "--baseline-dir=elsewhere").assert_outcomes(passed=1)
    assert (project.path / "elsewhere" / "cpu" / "perf" / "test_perf.json").exists()
    assert not project.baseline.exists()
    project.run("--baseline-dir=elsewhere").assert_outcomes(passed=1)
