"""The files that results go into: which are asked for, what stands in their way, and whole runs that write them."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

import pytest

from pytest_gpuserve.plugin.outputs import STEP_SUMMARY, Form, Output, read_outputs
from pytest_gpuserve.verdict.reason import ReasonKind
from tests.fakes.scripted_sessions import Script
from tests.plugin.conftest import says_no_traceback, text_of
from tests.support.html_page import Page
from tests.support.reasons import because

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.plugin.conftest import Project

    Read = Callable[..., tuple[Output, ...]]


@pytest.fixture
def read(pytester: pytest.Pytester) -> Read:
    """Reads options as a run with these arguments would, in the pytester's folder."""

    def parsed(*arguments: str, environment: dict[str, str] | None = None) -> tuple[Output, ...]:
        return read_outputs(pytester.parseconfig(*arguments), environment or {})

    return parsed


# -- what is asked for


def test_every_form_has_its_option(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, read: Read
) -> None:
    """A plain run leaves no file; a home folder is understood."""
    assert read() == ()
    found = read("--gpuserve-json=a", "--gpuserve-report=b", "--gpuserve-markdown=c", "--gpuserve-benchmark-json=d")
    assert [(output.form, output.path.name) for output in found] == [
        (Form.JSON, "a"),
        (Form.HTML, "b"),
        (Form.MARKDOWN, "c"),
        (Form.BENCHMARK, "d"),
    ]
    assert all(output.ours and output.path.parent == pytester.path for output in found)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert [output.path for output in read("--gpuserve-json=~/a.json")] == [tmp_path / "a.json"]


def test_an_ini_file_asks_too_and_is_overruled(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, read: Read
) -> None:
    """Its paths are relative to where it lies, typed ones to where they are typed; a typed one stands for all."""
    pytester.makeini("[pytest]\ngpuserve_json = out.json\ngpuserve_markdown =\ngpuserve_benchmark_json = sub/b.json\n")
    below = pytester.mkdir("sub")
    monkeypatch.chdir(below)
    found = read("--rootdir", str(pytester.path))
    assert [output.path for output in found] == [pytester.path / "out.json", below / "b.json"]
    typed = read("--rootdir", str(pytester.path), "--gpuserve-json=mine.json")
    assert [output.path for output in typed] == [below / "mine.json", below / "b.json"]
    assert [output.form for output in read("--gpuserve-json=")] == [Form.BENCHMARK]


def test_a_runner_asks_for_a_summary(pytester: pytest.Pytester, read: Read, tmp_path: Path) -> None:
    """Its file is the same wherever a test changes to, and no file of ours; a variable set to nothing asks for none."""
    summary = str(tmp_path / "summary")
    (found,) = read(environment={STEP_SUMMARY: summary})
    assert (found.form, found.path, found.ours) == (Form.STEP_SUMMARY, tmp_path / "summary", False)
    (relative,) = read(environment={STEP_SUMMARY: "summary"})
    assert relative.path == pytester.path / "summary"
    assert read(environment={STEP_SUMMARY: ""}) == ()
    # To write the markdown there as well would remove what the step has written before.
    with pytest.raises(pytest.UsageError, match="name two files"):
        read(f"--gpuserve-markdown={summary}", environment={STEP_SUMMARY: summary})


def test_a_worker_of_xdist_is_asked_for_nothing(pytester: pytest.Pytester) -> None:
    """It may run where the controller's folders are not, and must not fail for want of them."""
    config = pytester.parseconfig("--gpuserve-json=no/such/out.json")
    config.workerinput = {}  # type: ignore[attr-defined]
    assert read_outputs(config, {STEP_SUMMARY: "summary"}) == ()


# -- what cannot be


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--gpuserve-json=no/such/out.json"], "there is no folder"),
        (["--gpuserve-report=file/out.html"], "there is no folder"),
        (["--gpuserve-markdown=."], "this is a folder"),
        (["--gpuserve-json=link"], "no plain file"),
        (["--gpuserve-json=nowhere"], "no plain file"),
        (["--gpuserve-json=pipe"], "no plain file"),
        (["--gpuserve-json=~no-such-user/out.json"], "there is no folder"),
        (["--gpuserve-json=" + "x/" * 3000], "there is no folder"),
        (["--gpuserve-json=a", "--gpuserve-report=sub/../a"], "name two files"),
        (["--gpuserve-json=a", "--gpuserve-markdown=linked/a"], "name two files"),
    ],
)
def test_what_cannot_be_written_is_said_beforehand(
    pytester: pytest.Pytester, read: Read, arguments: list[str], named: str
) -> None:
    """The option as it was typed, and what is wrong with it; nothing is measured for a file that cannot be."""
    (pytester.path / "file").write_text("kept")
    (pytester.path / "link").symlink_to("file")
    (pytester.path / "nowhere").symlink_to("gone")
    pytester.mkdir("sub")
    (pytester.path / "linked").symlink_to(pytester.path)
    os.mkfifo(pytester.path / "pipe")
    with pytest.raises(pytest.UsageError) as problem:
        read(*arguments)
    assert named in str(problem.value)
    assert arguments[0].split("=")[0] in str(problem.value)
    assert (pytester.path / "file").read_text() == "kept"


def test_a_folder_that_refuses_is_found_beforehand(monkeypatch: pytest.MonkeyPatch, read: Read) -> None:
    """An hour of measuring is not lost to a folder that belongs to somebody else."""
    monkeypatch.setattr("os.access", lambda path, mode, **_: False)
    with pytest.raises(pytest.UsageError, match="nothing may be written into the folder"):
        read("--gpuserve-json=out.json")


# -- whole runs


def test_a_run_writes_what_is_asked_and_clears_what_was(project: Project, recorded: Path, tmp_path: Path) -> None:
    """A red run has its JSON, its comment and its step's summary; another that measures nothing leaves no old result.

    ``--collect-only`` runs nothing, so it removes nothing.
    """
    project.store(recorded)
    project.speed(0.5)
    summary = tmp_path / "summary"
    summary.write_text("before\n")
    project.environment[STEP_SUMMARY] = str(summary)
    files = ("--gpuserve-json=out.json", "--gpuserve-markdown=out.md")
    result = project.run("--stored-only", *files)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        [f"results: {project.path}/out.json", f"*markdown: {project.path}/out.md", f"*SUMMARY: {summary}"]
    )
    assert project.result()["outcome"] == "failed"
    assert "REGRESSED" in (project.path / "out.md").read_text()
    assert summary.read_text().startswith("before\n\n\n<h3>❌ 1 of 1 test did not pass on <code>cpu</code></h3>")
    written = summary.read_text()

    project.run("--collect-only", *files)
    assert (project.path / "out.json").exists()
    project.run("-k", "nothing", *files)
    assert not (project.path / "out.json").exists()
    assert not (project.path / "out.md").exists()
    assert summary.read_text() == written


def test_a_file_that_cannot_be_written_is_exit_4(project: Project, recorded: Path) -> None:
    """However well the tests went: what was asked for is not there, and the last lines say so."""
    project.store(recorded)
    folder = project.path / "results"
    folder.mkdir()
    project.write("assert run.throughput >= baseline.throughput\n    __import__('os').rmdir('results')")
    result = project.run("--gpuserve-json=results/out.json", "--gpuserve-markdown=out.md")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.assert_outcomes(passed=1)
    assert "ERROR: --gpuserve-json=results/out.json: it cannot be written: " in text_of(result)
    assert "1 of 1 test passed" in (project.path / "out.md").read_text()
    assert says_no_traceback(result)


def test_a_run_that_compares_nothing_says_where_its_files_are(project: Project, tmp_path: Path) -> None:
    """What was asked for is found; a quiet run, a CI's summary alone, and no measuring at all say nothing more."""
    project.write("pass")
    told = project.run("--gpuserve-json=out.json")
    told.assert_outcomes(passed=1)
    told.stdout.fnmatch_lines(["*- gpuserve -*", f"results: {project.path}/out.json"])
    assert "- gpuserve -" not in text_of(project.run("-q", "--gpuserve-json=out.json"))
    project.environment[STEP_SUMMARY] = str(tmp_path / "summary")
    assert "- gpuserve -" not in text_of(project.run())
    assert "1 of 1 test passed" in (tmp_path / "summary").read_text()
    project.test_file.write_text("def test_plain(): pass\n")
    project.run("--gpuserve-json=out.json", "--gpuserve-report=out.html").assert_outcomes(passed=1)
    assert not list(project.path.glob("out.*"))


def test_the_files_of_a_recording_say_what_its_terminal_says(project: Project) -> None:
    """What was missing is recorded and not missing, and what comes next is a recording again."""
    files = ("--gpuserve-markdown=out.md", "--gpuserve-report=report.html")
    assert project.run("--baseline-update-new", *files).ret == 0
    assert "comparisons: 1 recorded" in Page((project.path / "report.html").read_text(encoding="utf-8")).text
    project.script = Script(problems=because("client late: 3 ms", kind=ReasonKind.CLIENT_LATE))
    result = project.run("--baseline-update", *files)
    result.assert_outcomes(failed=1)
    totals, step = re.findall(r"^(?:comparisons|next): .*$", text_of(result), re.MULTILINE)
    assert step.endswith(" pytest suites/perf/test_perf.py::test_it --gpu=cpu --baseline-update")
    page = Page((project.path / "report.html").read_text(encoding="utf-8")).text
    comment = (project.path / "out.md").read_text()
    for line in (totals, step):
        assert line in page
        assert f"<p><code>{line}</code></p>" in comment
