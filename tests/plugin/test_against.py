"""``--against=REV`` and ``--against-python=EXE``: a user's suite, as it is, side by side with another build."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuserve.device import DeviceLock
from tests.fakes.own_locks import LOCKS_VARIABLE
from tests.fakes.scripted_starts import Script
from tests.plugin.conftest import Checkout, says_no_traceback, text_of

if TYPE_CHECKING:
    from tests.plugin.conftest import Project

JSON = "--gpuserve-json=out.json"

UNDECIDED = "--gpuserve-budget=0.000001"
"""Only the first look, which is always taken."""

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
    """The base runs from a folder of its own, and no baseline is stored.

    That a commit is compared with itself is said: whoever commits first compares nothing.
    """
    result = project.run("--against=HEAD", JSON)
    assert result.ret == pytest.ExitCode.OK
    assert "--against=HEAD: this checkout is that commit, unchanged" in text_of(result)
    assert the_verdict(project)["verdict"] == "PASS"
    assert not project.baseline.parent.exists()
    assert checkout.git("status", "--porcelain") == ""
    (base,) = {Path(line.split()[1]) for line in checkout.servers()} - {project.app_file}
    assert not base.is_relative_to(project.path)
    assert base.parts[-3:] == ("suites", "perf", "app.py")


@pytest.mark.parametrize(("speed", "verdict"), [(0.8, "REGRESSED"), (1.3, "IMPROVED")])
def test_uncommitted_changes_are_the_candidate(
    project: Project, checkout: Checkout, speed: float, verdict: str
) -> None:
    """Against HEAD itself an uncommitted change is found, and stays; no other file is left."""
    project.speed(speed)
    edited = project.app_file.read_bytes()
    result = project.run("--against=HEAD", JSON)
    assert the_verdict(project)["verdict"] == verdict
    assert "--baseline-update" not in text_of(result)
    assert project.app_file.read_bytes() == edited
    assert checkout.git("status", "--porcelain") == "M suites/perf/app.py"
    assert checkout.left_behind() == []


def test_a_run_that_breaks_off_leaves_nothing_behind(project: Project, checkout: Checkout) -> None:
    """After Ctrl-C in a block the run reports its state and decides nothing; after a crash of pytest, all ends too."""
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
    """A new app is MISSING with that reason, or skips on request; the test's other assertions still count."""
    base = checkout.git("rev-parse", "HEAD")[:12]
    project.write("assert run.throughput >= baseline.throughput\n    assert run.latency.p50 <= 0.02")
    project.test_file.write_text(project.test_file.read_text().replace('"app.py"', '"new.py"'))
    project.speed(1, app="new.py")
    result = project.run("--against=HEAD")
    result.assert_outcomes(failed=1)
    text = text_of(result)
    assert "MISSING: throughput is " in text
    assert f"HEAD ({base}) has no suites/perf/new.py" in text
    assert "--baseline-update" not in text
    assert says_no_traceback(result)
    assert checkout.left_behind() == []
    skipped = project.run("--against=HEAD", "--on-missing=skip", "-rs")
    skipped.assert_outcomes(skipped=1)
    assert "has no suites/perf/new.py" in text_of(skipped)
    project.test_file.write_text(project.test_file.read_text().replace("0.02", "0.0001"))
    project.run("--against=HEAD", "--on-missing=skip").assert_outcomes(failed=1)


def test_a_server_that_does_not_start(project: Project, checkout: Checkout) -> None:
    """A base that does not is MISSING, beside which plain limits hold; a candidate that does not fails its test."""
    project.write("assert run.latency.p50 <= 0.02\n    assert run.throughput >= baseline.throughput")
    for side, expected in (
        ("base", ("MISSING: throughput", "the base of the comparison could not be started")),
        ("candidate", ()),
    ):
        project.speed(0)
        if side == "base":
            checkout.commit("a base that does not start")
            project.speed(1)
        result = project.run("--against=HEAD", *(() if side == "base" else ("--on-missing=skip",)))
        assert result.ret == pytest.ExitCode.TESTS_FAILED
        text = text_of(result)
        assert "no weights here" in text
        assert all(words in text for words in expected)
        assert bool(re.search(r"latency.p50 .*PASS", text)) is ("MISSING" in text) is (side == "base")
        assert says_no_traceback(result)
        assert checkout.left_behind() == []


def test_an_unknown_revision_is_exit_4(project: Project, checkout: Checkout) -> None:
    """The error comes before any measurement or wait, with git's text; without git it has the alternative.

    Who measures nothing is compared with nothing, and waits for nobody.
    """
    lock = DeviceLock("cpu", command="another", folder=Path(project.environment[LOCKS_VARIABLE] or ""))
    with lock.acquire(wait_seconds=0, on_wait=lambda *notice: None):
        for revision in ("nothing", "--help"):
            result = project.run(f"--against={revision}")
            assert result.ret == pytest.ExitCode.USAGE_ERROR
            assert f"git does not know the revision '{revision}'" in text_of(result)
            assert "test_perf.py" not in result.stdout.str()
            assert says_no_traceback(result)
            assert checkout.left_behind() == []
        besides = project.test_file.with_name("test_plain.py")
        besides.write_text("def test_plain(device):\n    assert device.name == 'cpu'\n")
        project.run("--against=nothing", str(besides)).assert_outcomes(passed=1)
    shutil.rmtree(project.path / ".git")
    project.environment["GIT_CEILING_DIRECTORIES"] = str(project.path.parent)
    result = project.run("--against=HEAD")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "--against-python=EXE" in text_of(result)
    assert says_no_traceback(result)


def test_another_interpreter_is_the_base(project: Project, checkout: Checkout, tmp_path: Path) -> None:
    """By its packages alone, of this checkout's code; with a revision its code and packages make up for each other."""
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


def test_an_undecided_comparison_says_what_to_do(project: Project, checkout: Checkout) -> None:
    """If the budget ends it, it is INCONCLUSIVE with the option that extends it, and skips on request."""
    project.speed(0.91)
    result = project.run("--against=HEAD", UNDECIDED, JSON)
    result.assert_outcomes(failed=1)
    assert the_verdict(project)["verdict"] == "INCONCLUSIVE"
    result.stdout.fnmatch_lines(["E*INCONCLUSIVE: throughput is */s, base */s*", "E*--gpuserve-budget=SECONDS*"])
    assert "run it again: it goes on where this run ends" in text_of(result)
    project.run("--against=HEAD", UNDECIDED, "--on-inconclusive=skip", "--cache-clear").assert_outcomes(skipped=1)
