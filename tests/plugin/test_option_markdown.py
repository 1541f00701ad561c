"""``--gpuserve-markdown`` of real runs: what reaches the pull request, and what does not."""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest

from tests.plugin.conftest import text_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.plugin.conftest import Project

SECRET = "hunter22-hunter22"

NAMES = ["@octocat #1 | <img src=x>", "[x](http://example.org)\n\n# y", f"`{SECRET}`"]


def test_what_pytest_cuts_for_a_terminal_reports_have(project: Project, recorded: Path) -> None:
    """The terminal shows as much of an explanation as pytest lets it, files all."""
    project.store(recorded)
    project.ini(truncation_limit_lines=2)
    project.speed(0.5)
    files = [f"--gpuserve-{name}" for name in ("markdown=out.md", "json=out.json", "report=out.html")]
    result = project.run("--stored-only", *files, "--junitxml=out.xml")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert "Full output truncated" in text_of(result)
    written = [(project.path / f"out.{kind}").read_text() for kind in ("md", "html")]
    for text in (project.result()["problem"], *problems_in(project), *written):
        assert "Full output truncated" not in text
        assert "metrics that moved with it: latency.p50" in text
        assert "to accept the new number: pytest suites/perf" in text


def problems_in(project: Project) -> list[str]:
    """Properties in a JUnit file besides pytest's own report."""
    cases = ET.parse(project.path / "out.xml").iter("property")
    return [case.get("value", "") for case in cases if case.get("name") == "gpuserve.problem"]


def test_hostile_names_and_secrets_of_a_run(project: Project) -> None:
    """Ids that are markup stay text, and the value of a secret variable is not among what is posted."""
    project.environment["DEPLOY_TOKEN"] = SECRET
    project.write(marker=f"@pytest.mark.parametrize('name', {NAMES!r})")
    project.test_file.write_text(project.test_file.read_text().replace("baseline):", "baseline, name):"))
    result = project.run("--gpuserve-markdown=out.md", "--on-missing=skip")
    result.assert_outcomes(skipped=3)
    text = (project.path / "out.md").read_text()
    assert "<h3>⚠️ 0 of 3 tests passed, 3 skipped on <code>cpu</code></h3>" in text
    assert "test_it[@octocat #1 | &lt;img src=x&gt;]</code>" in text
    assert "test_it[`&lt;DEPLOY_TOKEN&gt;`]" in text
    assert SECRET not in text
    assert all(line.startswith("<") for line in text.splitlines())
