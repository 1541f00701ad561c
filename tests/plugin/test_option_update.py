"""`--baseline-update`, `--baseline-update-new`: what is written, what is left alone, what is left over."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tests.fakes.scripted_starts import Script
from tests.plugin.conftest import text_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.plugin.conftest import Project


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
