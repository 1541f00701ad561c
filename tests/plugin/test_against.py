"""Side by side: ``--against=REV`` and ``--against-python=EXE`` with a user's suite as it is, and ``duel(a, b)``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_gpuserve.device.lock import DeviceLock
from pytest_gpuserve.units import format_ratio
from tests.fakes.own_locks import LOCKS_VARIABLE
from tests.fakes.scripted_starts import Script
from tests.plugin.conftest import JSON, Checkout, Project, says_no_traceback, text_of

UNDECIDED = "--gpuserve-budget=0.000001"
"""Only the first look, which is always taken."""

EDITOR = """
from pathlib import Path

def pytest_runtest_logreport(report):
    Path(__file__).with_name("notes.txt").touch()
"""
"""Stands for a developer who edits a file while the run goes on."""

FAILING_PLUGIN = """
def pytest_runtest_logreport(report):
    if report.when == "call":
        raise RuntimeError("a plugin of the user's is broken")
"""


def the_verdict(project: Project) -> dict[str, Any]:
    """The one verdict of a run with a JSON result."""
    (verdict,) = project.result()["verdicts"]
    found: dict[str, Any] = verdict
    return found


def test_a_slower_build_fails_and_names_its_base(project: Project, checkout: Checkout) -> None:
    """A slower commit is REGRESSED beside the one before it, with exit code 1 and the base's name and short hash."""
    base = checkout.git("rev-parse", "HEAD")[:12]
    project.speed(0.8)
    checkout.commit("slower")
    result = project.run("--against=HEAD~1", JSON)
    result.assert_outcomes(failed=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        [
            "gpuserve: cpu (*), side by side with HEAD~1*",
            "E*assert REGRESSED: throughput is */s, base */s: -* % (tolerance 10 %)",
            "E*interval -* % to -* %, from * round* (* windows)*",
            "*test_it*throughput*REGRESSED",
            f"side by side: * HEAD~1 ({base})",
        ]
    )
    verdict, run = the_verdict(project), project.result()["run"]
    assert (verdict["verdict"], verdict["reference_kind"]) == ("REGRESSED", "against")
    assert verdict["change"] == pytest.approx(-0.2, abs=0.02)
    assert verdict["value"] == pytest.approx(run["throughput"])
    assert verdict["reference"] == pytest.approx(verdict["value"] / (1 + verdict["change"]))
    assert verdict["windows"] >= 12 * verdict["rounds"] > 0
    assert run["base"]["name"] == f"HEAD~1 ({base})"
    assert run["base"]["options"] == [f"--against={base}"]
    assert run["base"]["latency"]["p99"] < run["latency"]["p99"]


def test_the_same_build_passes_without_a_baseline(project: Project, checkout: Checkout) -> None:
    """The base runs from its own folder, no baseline is stored, and a note names the comparison with itself."""
    result = project.run("--against=HEAD", JSON)
    assert result.ret == pytest.ExitCode.OK
    assert "--against=HEAD: this checkout is that commit, unchanged" in text_of(result)
    assert the_verdict(project)["verdict"] == "PASS"
    assert not project.baseline.parent.exists()
    assert checkout.git("status", "--porcelain") == ""
    (base,) = {Path(line.split()[1]) for line in checkout.servers()} - {project.app_file}
    assert not base.is_relative_to(project.path)
    assert base.parts[-3:] == ("suites", "perf", "app.py")


def test_uncommitted_changes_are_the_candidate(project: Project, checkout: Checkout) -> None:
    """Against HEAD itself an uncommitted change is found, and stays; no other file is left."""
    project.speed(1.3)
    edited = project.app_file.read_bytes()
    result = project.run("--against=HEAD", JSON)
    assert the_verdict(project)["verdict"] == "IMPROVED"
    assert "--baseline-update" not in text_of(result)
    assert project.app_file.read_bytes() == edited
    assert checkout.git("status", "--porcelain") == "M suites/perf/app.py"
    assert checkout.left_behind() == []


def test_a_run_that_breaks_off_leaves_nothing_behind(project: Project, checkout: Checkout) -> None:
    """Ctrl-C in a block, or a crash of pytest, ends all servers; an interrupted test is not decided."""
    project.script = Script(interrupted_start=2)
    result = project.run("--against=HEAD", JSON)
    assert result.ret == pytest.ExitCode.INTERRUPTED
    assert "interrupted by Ctrl-C, not decided" in text_of(result)
    assert project.result()["outcome"] == "interrupted"
    assert checkout.left_behind() == []
    project.script = Script()
    (project.path / "conftest.py").write_text(FAILING_PLUGIN)
    result = project.run("--against=HEAD")
    assert result.ret == pytest.ExitCode.INTERNAL_ERROR
    assert "a plugin of the user's is broken" in text_of(result)
    assert checkout.left_behind() == []


def test_an_app_that_the_base_lacks_is_missing(project: Project, checkout: Checkout) -> None:
    """A new app is MISSING with that reason, or skips on request."""
    base = checkout.git("rev-parse", "HEAD")[:12]
    project.test_file.write_text(project.test_file.read_text().replace('"app.py"', '"new.py"'))
    project.speed(1, app="new.py")
    result = project.run("--against=HEAD", "--on-missing=skip", "-rs")
    result.assert_outcomes(skipped=1)
    assert f"HEAD ({base}) has no suites/perf/new.py" in text_of(result)
    assert checkout.left_behind() == []


@pytest.mark.usefixtures("checkout")
def test_an_unknown_revision_is_exit_4(project: Project) -> None:
    """The error comes before any measurement or wait; a run that measures nothing neither compares nor waits."""
    lock = DeviceLock("cpu", folder=Path(project.environment[LOCKS_VARIABLE] or ""))
    with lock.acquire(wait_seconds=0, on_wait=lambda *notice: None):
        result = project.run("--against=nothing")
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        assert "git does not know the revision 'nothing'" in text_of(result)
        assert "test_perf.py" not in result.stdout.str()
        assert says_no_traceback(result)
        besides = project.test_file.with_name("test_plain.py")
        besides.write_text("def test_plain(device):\n    assert device.name == 'cpu'\n")
        project.run("--against=nothing", str(besides)).assert_outcomes(passed=1)


def test_another_interpreter_is_the_base(project: Project, checkout: Checkout, tmp_path: Path) -> None:
    """Another interpreter's packages are the base, alone or together with a revision."""
    other_python = tmp_path / "python-of-before"
    other_python.symlink_to(sys.executable)
    python = f"--against-python={other_python}"
    project.script = Script(pythons={str(other_python): 1.25})
    result = project.run(python, JSON)
    result.assert_outcomes(failed=1)
    assert the_verdict(project)["change"] == pytest.approx(-0.2, abs=0.03)
    assert project.result()["run"]["base"]["name"] == f"the packages of {other_python}"
    assert f"side by side with the packages of {other_python}" in text_of(result)
    assert {line.split()[1] for line in checkout.servers()} == {str(project.app_file)}
    project.speed(1.25)
    project.run("--against=HEAD", python, JSON).assert_outcomes(passed=1)
    assert the_verdict(project)["change"] == pytest.approx(0, abs=0.02)
    base = checkout.git("rev-parse", "HEAD")[:12]
    assert project.result()["run"]["base"]["name"] == f"HEAD ({base}) with the packages of {other_python}"
    assert checkout.left_behind() == []


@pytest.mark.usefixtures("checkout")
def test_an_undecided_comparison_says_what_to_do(project: Project) -> None:
    """If the budget ends it, it is INCONCLUSIVE with the option that extends it, and skips on request."""
    project.speed(0.91)
    result = project.run("--against=HEAD", UNDECIDED)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E*INCONCLUSIVE: throughput is */s, base */s*", "E*--gpuserve-budget=SECONDS*"])
    project.run("--against=HEAD", UNDECIDED, "--on-inconclusive=skip", "--cache-clear").assert_outcomes(skipped=1)


def test_a_decided_pair_is_not_measured_again(project: Project, checkout: Checkout) -> None:
    """A decision stays, when it is committed too, until ``--cache-clear`` forgets it; no server is started."""
    project.speed(0.8)
    assert project.run("--against=HEAD", JSON).ret == pytest.ExitCode.TESTS_FAILED
    assert checkout.servers() != []
    first = the_verdict(project)
    result = project.run("--against=HEAD", JSON)
    result.assert_outcomes(failed=1)
    assert checkout.servers() == []
    again = the_verdict(project)
    assert (again["verdict"], again["rounds"]) == ("REGRESSED", first["rounds"])
    assert again["value"] == pytest.approx(first["value"], rel=1e-4)
    assert "decided by an earlier run of the same two builds" in text_of(result)
    assert "`--cache-clear` forgets that run" in text_of(result)
    checkout.commit("slower")
    project.run("--against=HEAD~1").assert_outcomes(failed=1)
    assert checkout.servers() == []
    project.run("--against=HEAD~1", "--cache-clear").assert_outcomes(failed=1)
    assert checkout.servers() != []


def test_rounds_of_files_that_changed_in_the_run_are_not_kept(project: Project, checkout: Checkout) -> None:
    """The run says so, and a re-run measures again; a run without a change is kept."""
    project.speed(0.7)
    (project.path / "conftest.py").write_text(EDITOR)
    changed = project.run("--against=HEAD", JSON)
    assert "files of this checkout changed during the run" in text_of(changed)
    assert checkout.servers() != []
    for is_measured in (True, False):
        result = project.run("--against=HEAD", JSON)
        assert "files of this checkout changed" not in text_of(result)
        assert the_verdict(project)["verdict"] == "REGRESSED"
        assert bool(checkout.servers()) is is_measured


TEST = """
import pytest

pytestmark = pytest.mark.gpuserve(throughput=0.1, p50=0.1, batching_ratio=0.1)

@pytest.fixture(scope="module")
def new(mosec_server):
    return mosec_server("new.py")

@pytest.fixture(scope="module")
def old(mosec_server):
    return mosec_server("app.py")

def test_it(new, old, duel, load, baseline):
    fox = {{"body": b"fox", "expect": b"FOX"}}
    a, b = new.post("/inference", **fox), old.post("/inference", **fox)
    d = duel(a, b, concurrency=8)
    {body}
"""


def write(project: Project, body: str, *, speed: float) -> None:
    """Write a test with a duel of a server that is so fast against one of speed 1."""
    project.speed(1)
    project.speed(speed, app="new.py")
    project.test_file.write_text(TEST.format(body=body))


def test_a_faster_first_server_passes(project: Project, checkout: Checkout) -> None:
    """10 % faster passes a limit of 5 % without a baseline, and leaves no server."""
    write(project, "assert d.throughput >= 1.05\n    assert d.latency.p50 <= 0.95", speed=1.1)
    project.run(JSON).assert_outcomes(passed=1)
    throughput, p50 = project.result()["verdicts"]
    assert throughput["verdict"] == p50["verdict"] == "PASS"
    assert throughput["reference_kind"] == "duel"
    assert throughput["value"] == pytest.approx(1.1, abs=0.02)
    assert p50["value"] == pytest.approx(1 / 1.1, abs=0.02)
    assert project.result()["run"]["base"]["throughput"] < project.result()["run"]["throughput"]
    assert not project.baseline.exists()
    assert checkout.left_behind() == []


def test_equal_servers_are_not_faster(project: Project) -> None:
    """Equal servers fail a limit of 5 % with exit code 1, and the explanation names the ratio and the limit."""
    write(project, "assert d.throughput >= 1.05", speed=1.0)
    result = project.run(JSON)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    (verdict,) = project.result()["verdicts"]
    ratio = format_ratio(verdict["value"])
    result.stdout.fnmatch_lines(
        [f"*assert REGRESSED: throughput is {ratio} *1.05*", f"*test_it*throughput*{ratio}*at least 1.05*REGRESSED"]
    )
    assert "--baseline-update" not in text_of(result)


def test_a_server_that_does_not_start_fails_its_duel(project: Project, checkout: Checkout) -> None:
    """Both servers are needed, so that ``--on-missing=skip`` does not skip."""
    write(project, "assert d.throughput >= 1.05", speed=1.1)
    project.speed(0)
    result = project.run("--on-missing=skip")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert "no weights here" in text_of(result)
    assert says_no_traceback(result)
    assert checkout.left_behind() == []
