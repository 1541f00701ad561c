"""`--gpuserve-report`: a page for people is written at the end of a run, whatever came of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.html_page import Page

if TYPE_CHECKING:
    from pathlib import Path

    from tests.plugin.conftest import Project

SECRET = "hunter2secret"


def test_report_of_a_failed_run(project: Project, recorded: Path) -> None:
    """A slower build is told with its change, its interval and what to type next, and no secret of a failure's text."""
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


def test_report_without_a_comparison(project: Project) -> None:
    """Also by the ini file, relative to the root: a run without a baseline has a page, and one of a broken server."""
    project.ini(gpuserve_report="report.html")
    project.run().assert_outcomes(failed=1)
    page = project.path / "report.html"
    assert "MISSING throughput test_it" in Page(page.read_text(encoding="utf-8")).text
    project.test_file.write_text(
        "import pytest\n\n@pytest.fixture\ndef broken(mosec_server):\n    raise RuntimeError('no such model')\n\n"
        "def test_it(broken, load): pass\n"
    )
    project.run().assert_outcomes(errors=1)
    broken = Page(page.read_text(encoding="utf-8"))
    assert "error test_it" in broken.text
    assert "no such model" in broken.text
    assert "svg" not in {tag for tag, _ in broken.elements}
