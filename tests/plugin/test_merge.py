"""What workers of pytest-xdist have measured, in one header, one report and one comment; and merged with others."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from pytest_gpuserve.merge.command import main
from tests.plugin.conftest import text_of
from tests.plugin.test_cards import Machine
from tests.plugin.test_xdist import Workers
from tests.support.html_page import Page

if TYPE_CHECKING:
    from pathlib import Path

    from tests.plugin.conftest import Project


@pytest.fixture
def workers(
    project: Project, library: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Workers:
    """Two tests for two workers on two T4s, in whose project the results are merged."""
    machine = Machine(project, library, tmp_path_factory.mktemp("machine"))
    monkeypatch.chdir(project.path)
    return Workers(machine, tmp_path_factory.mktemp("meetings"))


def test_workers_have_one_header_and_one_report(workers: Workers) -> None:
    """What is measured against what is said once, before the first test, and in the one page and the one comment."""
    files = ("--gpuserve-json=out.json", "--gpuserve-report=out.html", "--gpuserve-markdown=out.md")
    result = workers.run("--gpu=T4", "--baseline-update", *files)
    assert result.ret == 0, text_of(result)
    (header,) = [line for line in result.errlines if "gpuserve: T4" in line]
    assert header.startswith("[gw0] gpuserve: T4 (Tesla T4), recording into ")
    assert header.endswith("2 comparisons planned, 2 workers")
    folder = workers.project.path
    page = Page((folder / "out.html").read_text())
    assert header.removeprefix("[gw0] gpuserve: ") in page.text
    assert all(f"throughput test_it[{users}]" in page.text for users in (4, 8))
    assert {"Latency distribution", "Windows over time"} <= set(page.titles())
    comment = (folder / "out.md").read_text()
    assert "2 of 2 tests passed" in comment
    assert "2 workers" in comment
    assert sorted(path.name for path in folder.glob("out.*")) == ["out.html", "out.json", "out.md"]
    assert main(["out.json", "--json=merged.json"]) == 0
    merged, own = (json.loads((folder / name).read_text()) for name in ("merged.json", "out.json"))
    assert own["ending"] == {"exit_status": 0, "complete": True, "unlisted_failures": 0}
    assert merged["tests"] == own["tests"]
    assert set(merged["gpu"]["workers"]) == {"gw0", "gw1"}


def test_a_failure_that_is_not_listed(workers: Workers, capsys: pytest.CaptureFixture[str]) -> None:
    """A test that measures nothing fails in a worker, and a file is not collected: the one result counts both.

    With ``-q`` no worker says the header.
    """
    besides = workers.project.test_file.with_name("test_z.py")
    besides.write_text("def test_plain():\n    assert False\n")
    workers.project.test_file.with_name("test_odd.py").write_text("import absent_module\n")
    more = ("--gpuserve-json=out.json", "--continue-on-collection-errors", "-q")
    result = workers.run("--gpu=T4", "--baseline-update", *more)
    assert result.ret == pytest.ExitCode.TESTS_FAILED, text_of(result)
    assert "gpuserve: T4" not in result.stderr.str()
    ending = json.loads((workers.project.path / "out.json").read_text())["ending"]
    assert ending == {"exit_status": 1, "complete": True, "unlisted_failures": 2}
    assert main(["out.json"]) == 1
    assert "2 failures of tests that measure nothing" in capsys.readouterr().out
