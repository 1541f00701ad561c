"""`--gpuserve-report`: a page for people is written at the end of a run, whatever came of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.html_page import Page

if TYPE_CHECKING:
    from pathlib import Path

    from tests.plugin.conftest import Project

SECRET = "hunter2secret"


def read(project: Project, name: str = "report.html") -> Page:
    """The page that a run wrote."""
    return Page((project.path / name).read_text(encoding="utf-8"))


def test_report_of_a_failed_run(project: Project, recorded: Path) -> None:
    """A build that got slower is told with its change, its interval and what to type next."""
    project.store(recorded)
    project.speed(0.7)
    result = project.run("--gpuserve-report=report.html")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["report: *report.html"])
    page = read(project)
    assert "REGRESSED throughput test_it" in page.text
    assert "suites/perf/test_perf.py::test_it" in page.text
    assert "--baseline-update --reason=" in page.text
    titles = page.titles
    assert titles[:2] == ["Changes and how surely they are known", "Throughput against p99"]
    assert {"Latency distribution", "Windows over time", "Batch sizes"} <= set(titles)


def test_report_by_the_ini_file(project: Project) -> None:
    """The setting is relative to the root, as that of the JSON result; a run without a baseline has a page too."""
    project.ini(gpuserve_report="from-ini.html")
    project.run().assert_outcomes(failed=1)
    assert "MISSING throughput test_it" in read(project, "from-ini.html").text


def test_report_of_a_server_that_does_not_start(project: Project) -> None:
    """The page has the problem; there is nothing to draw."""
    project.app_file.write_text("SPEED = 1\n")
    project.write("assert run.throughput > 0")
    project.test_file.write_text(
        "import pytest\n\n@pytest.fixture\ndef broken(mosec_server):\n    raise RuntimeError('no such model')\n\n"
        "def test_it(broken, load): pass\n"
    )
    project.run("--gpuserve-report=report.html").assert_outcomes(errors=1)
    page = read(project)
    assert "1 error" in page.text
    assert "no such model" in page.text
    assert page.titles == []


def test_secrets_are_masked(project: Project) -> None:
    """The value of a secret variable that a failure's text holds is not in the file."""
    project.environment["MODEL_TOKEN"] = SECRET
    project.write("import os; assert run.throughput >= 1e9, 'called with ' + os.environ['MODEL_TOKEN']")
    project.run("--gpuserve-report=report.html").assert_outcomes(failed=1)
    source = (project.path / "report.html").read_text(encoding="utf-8")
    assert SECRET not in source
    assert "called with &lt;MODEL_TOKEN&gt;" in source


def test_a_session_without_measuring_writes_no_report(project: Project) -> None:
    """A run that measures nothing does not leave a page that looks like a result."""
    project.test_file.write_text("def test_plain(): pass\n")
    project.run("--gpuserve-report=report.html").assert_outcomes(passed=1)
    assert not (project.path / "report.html").exists()
