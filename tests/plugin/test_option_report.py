"""`--gpuserve-report`: a page for people is written at the end of a run, for any outcome."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.html_page import Page

if TYPE_CHECKING:
    from pathlib import Path

    from tests.plugin.conftest import Project

SECRET = "hunter2secret"


def test_report_of_a_failed_run(project: Project, recorded: Path) -> None:
    """A slower build is shown with its change, its interval and the next command, without secrets."""
    project.store(recorded)
    project.environment["MODEL_TOKEN"] = SECRET
    project.write(
        "assert run.throughput >= baseline.throughput, 'called with ' + __import__('os').environ['MODEL_TOKEN']"
    )
    project.speed(0.7)
    result = project.run("--gpuserve-report=report.html")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["report: *report.html"])
    source = (project.path / "report.html").read_text(encoding="utf-8")
    assert SECRET not in source
    assert "called with &lt;MODEL_TOKEN&gt;" in source
    page = Page(source)
    assert "REGRESSED throughput test_it" in page.text
    assert "suites/perf/test_perf.py::test_it" in page.text
    assert "--baseline-update --reason=" in page.text
    assert source.count("<svg") == 1
