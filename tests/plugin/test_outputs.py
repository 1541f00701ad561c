"""Result files: their options, obstacles to them, and whole runs that write them."""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest

from pytest_gpuserve.plugin.outputs import STEP_SUMMARY, Form, Output, read_outputs
from tests.plugin.conftest import JSON, says_no_traceback, text_of

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
    """Paths of an ini file are relative to it, typed ones to the working folder; a typed one overrides all."""
    pytester.makeini("[pytest]\ngpuserve_json = out.json\ngpuserve_markdown =\ngpuserve_benchmark_json = sub/b.json\n")
    below = pytester.mkdir("sub")
    monkeypatch.chdir(below)
    found = read("--rootdir", str(pytester.path))
    assert [output.path for output in found] == [pytester.path / "out.json", below / "b.json"]
    typed = read("--rootdir", str(pytester.path), "--gpuserve-json=mine.json")
    assert [output.path for output in typed] == [below / "mine.json", below / "b.json"]
    assert [output.form for output in read("--gpuserve-json=")] == [Form.BENCHMARK]


def test_a_runner_asks_for_a_summary(pytester: pytest.Pytester, read: Read, tmp_path: Path) -> None:
    """The summary's file stays the same when a test changes the folder; an empty variable requests none."""
    summary = str(tmp_path / "summary")
    (found,) = read(environment={STEP_SUMMARY: summary})
    assert (found.form, found.path, found.ours) == (Form.STEP_SUMMARY, tmp_path / "summary", False)
    (relative,) = read(environment={STEP_SUMMARY: "summary"})
    assert relative.path == pytester.path / "summary"
    assert read(environment={STEP_SUMMARY: ""}) == ()
    # To write the markdown there as well would remove what the step has written before.
    with pytest.raises(pytest.UsageError, match="name two files"):
        read(f"--gpuserve-markdown={summary}", environment={STEP_SUMMARY: summary})


# -- what cannot be


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--gpuserve-json=no/such/out.json"], "does not exist"),
        (["--gpuserve-markdown=."], "this is a folder"),
        (["--gpuserve-json=nowhere"], "not a plain file"),
        (["--gpuserve-json=a", "--gpuserve-report=sub/../a"], "name two files"),
    ],
)
def test_what_cannot_be_written_is_said_beforehand(
    pytester: pytest.Pytester, read: Read, arguments: list[str], named: str
) -> None:
    """The error has the option as typed and the obstacle; no test measures for a file that cannot be written."""
    (pytester.path / "file").write_text("kept")
    (pytester.path / "nowhere").symlink_to("gone")
    pytester.mkdir("sub")
    with pytest.raises(pytest.UsageError) as problem:
        read(*arguments)
    assert named in str(problem.value)
    assert arguments[0].split("=")[0] in str(problem.value)
    assert (pytester.path / "file").read_text() == "kept"


# -- whole runs


def test_a_run_writes_what_is_asked_and_clears_what_was(project: Project, recorded: Path, tmp_path: Path) -> None:
    """A red run has its JSON, its comment and its step's summary; a run without measurements removes old results.

    ``--collect-only`` runs nothing, so it removes nothing.
    """
    project.store(recorded)
    project.speed(0.5)
    summary = tmp_path / "summary"
    summary.write_text("before\n")
    project.environment[STEP_SUMMARY] = str(summary)
    files = (JSON, "--gpuserve-markdown=out.md")
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


SECRET = "hunter22-hunter22"
SAYS_IT = "assert run.throughput >= baseline.throughput, 'with ' + __import__('os').environ['MODEL_TOKEN']"


def test_files_have_whole_explanations_without_secrets(project: Project, recorded: Path) -> None:
    """pytest shows a terminal as much of an explanation as it likes; the value of a secret variable is in no file."""
    project.store(recorded)
    project.ini(truncation_limit_lines=2)
    project.environment["MODEL_TOKEN"] = SECRET
    project.write(SAYS_IT)
    project.speed(0.5)
    options = [f"--gpuserve-{name}" for name in ("markdown=out.md", "json=out.json", "report=out.html")]
    result = project.run("--stored-only", *options, "--junitxml=out.xml")
    assert "Full output truncated" in text_of(result)
    result.stdout.fnmatch_lines(["report: *out.html"])
    junit = {each.get("name"): each.get("value", "") for each in ET.parse(project.path / "out.xml").iter("property")}
    page, comment = ((project.path / f"out.{kind}").read_text() for kind in ("html", "md"))
    for text in (project.result()["problem"], junit["gpuserve.problem"], page, comment):
        assert "Full output truncated" not in text
        assert "metrics that moved with it: latency.p50" in text
        assert "to accept the new number: pytest suites/perf" in text
        assert SECRET not in text
    assert "with &lt;MODEL_TOKEN&gt;" in page
    assert page.count("<svg") == 1


def test_a_file_that_cannot_be_written_is_exit_4(project: Project, recorded: Path) -> None:
    """A requested file that is missing fails the run for any test outcome, and the last lines name it."""
    project.store(recorded)
    folder = project.path / "results"
    folder.mkdir()
    project.write("assert run.throughput >= baseline.throughput\n    __import__('os').rmdir('results')")
    result = project.run("--gpuserve-json=results/out.json", "--gpuserve-markdown=out.md")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.assert_outcomes(passed=1)
    assert "ERROR: --gpuserve-json=results/out.json: the file cannot be written: " in text_of(result)
    assert "1 of 1 test passed" in (project.path / "out.md").read_text()
    assert says_no_traceback(result)
