"""Result files: their options, obstacles to them, whole runs that write them, and the texts that they keep of tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal
from xml.etree import ElementTree as ET

import pytest

from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.plugin import outputs
from pytest_gpuserve.plugin.outcomes import PROBLEM_CHARACTERS, Outcomes, uncut
from pytest_gpuserve.plugin.outputs import Form, Output, read_outputs, write_outputs
from pytest_gpuserve.report.results import SessionResult, TestResult
from tests.plugin.conftest import JSON, Project, says_no_traceback, text_of

Read = Callable[..., tuple[Output, ...]]


@pytest.fixture
def read(pytester: pytest.Pytester) -> Read:
    """Reads options as a run with these arguments would, in the pytester's folder."""

    def parsed(*arguments: str) -> tuple[Output, ...]:
        return read_outputs(pytester.parseconfig(*arguments))

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
    assert all(output.path.parent == pytester.path for output in found)
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


def test_a_run_writes_what_is_asked_and_clears_what_was(project: Project, recorded: Path) -> None:
    """A red run writes its files; a run without measurements removes old ones, and ``--collect-only`` does not."""
    project.store(recorded)
    project.speed(0.5)
    files = (JSON, "--gpuserve-markdown=out.md")
    result = project.run("--stored-only", *files)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines([f"results: {project.path}/out.json", f"*markdown: {project.path}/out.md"])
    assert project.result()["outcome"] == "failed"
    assert "REGRESSED" in (project.path / "out.md").read_text()

    project.run("--collect-only", *files)
    assert (project.path / "out.json").exists()
    project.run("-k", "nothing", *files)
    assert not (project.path / "out.json").exists()
    assert not (project.path / "out.md").exists()


SECRET = "hunter22-hunter22"
SAYS_IT = "assert run.throughput >= baseline.throughput, 'with ' + __import__('os').environ['MODEL_TOKEN']"


def test_files_have_whole_explanations_without_secrets(project: Project, recorded: Path) -> None:
    """Pytest shows a terminal as much of an explanation as it likes; the value of a secret variable is in no file."""
    project.store(recorded)
    project.ini(truncation_limit_lines=2)
    project.environment["MODEL_TOKEN"] = SECRET
    project.write(SAYS_IT)
    project.speed(0.5)
    options = [f"--gpuserve-{name}" for name in ("markdown=out.md", "json=out.json", "report=out.html")]
    result = project.run("--stored-only", *options)
    assert "Full output truncated" in text_of(result)
    result.stdout.fnmatch_lines(["report: *out.html"])
    page, comment = ((project.path / f"out.{kind}").read_text() for kind in ("html", "md"))
    for text in (project.result()["problem"], page, comment):
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


def test_each_test_case_says_what_was_measured(project: Project, recorded: Path) -> None:
    """Pytest's outcome, and the numbers of the JSON result."""
    project.store(recorded)
    project.speed(0.5)
    result = project.run("--stored-only", "--junitxml=junit.xml", JSON)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    (case,) = ET.parse(project.path / "junit.xml").iter("testcase")
    found = {each.attrib["name"]: each.attrib["value"] for each in case.iter("property")}
    (verdict,) = project.result()["verdicts"]
    assert case.find("failure") is not None
    assert found["gpuserve.throughput.verdict"] == verdict["verdict"] == "REGRESSED"
    assert float(found["gpuserve.throughput.value"]) == verdict["value"]


RESULT = SessionResult({"name": "cpu"}, {}, (TestResult("test_a.py::test_it", "passed"),))


def test_a_failure_takes_no_other_file_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A vanished folder, a missing package and our own fault are reported; the other files are written."""

    def faulty(result: SessionResult) -> str:
        raise ZeroDivisionError("by 0")

    def lacking(result: SessionResult) -> str:
        raise UsageProblem("the report needs plotting", remedies=["pip install it"])

    # Half of a character, as a file's name may hold it.
    made = {Form.HTML: lacking, Form.BENCHMARK: faulty, Form.JSON: lambda result: "a\udcffb"}
    renderer = outputs._renderer
    monkeypatch.setattr(outputs, "_renderer", lambda form: made.get(form) or renderer(form))
    files = [
        Output("--gpuserve-markdown=gone/a", Form.MARKDOWN, tmp_path / "gone" / "a"),
        Output("--gpuserve-report=b", Form.HTML, tmp_path / "b"),
        Output("--gpuserve-benchmark-json=c", Form.BENCHMARK, tmp_path / "c"),
        Output("--gpuserve-json=d", Form.JSON, tmp_path / "d"),
    ]
    written = write_outputs(files, RESULT)
    gone, report, fault, results = written.lines
    assert written.missing == (gone, report, fault)
    assert gone.startswith("ERROR: --gpuserve-markdown=gone/a: the file cannot be written: ")
    assert report == "ERROR: --gpuserve-report=b: the report needs plotting\n  help: pip install it"
    assert fault.startswith("ERROR: --gpuserve-benchmark-json=c: a fault of pytest-gpuserve: ZeroDivisionError at ")
    assert results == f"results: {tmp_path / 'd'}"
    assert {path.name for path in tmp_path.iterdir()} == {"d"}
    assert (tmp_path / "d").read_bytes() == rb"a\udcffb"


NODEID = "test_x.py::test_a"


def kept(outcomes: Outcomes, problem: str) -> TestResult:
    """The result of a test that failed with these words and ended."""
    phases: tuple[tuple[Literal["call", "teardown"], Literal["failed", "passed"], str | None], ...] = (
        ("call", "failed", problem),
        ("teardown", "passed", None),
    )
    for when, outcome, words in phases:
        outcomes.keep(NODEID, pytest.TestReport(NODEID, ("test_x.py", 1, "test_a"), {}, outcome, words, when))
    (result,) = outcomes.results(lambda _: [])
    return result


def test_an_error_after_a_skip_is_what_is_told() -> None:
    """A test that is skipped late and whose end then fails is an error, for the reason of its end."""
    outcomes, where = Outcomes(), ("test_x.py", 1, "test_a")
    skipped = ("test_x.py", 1, "Skipped: MISSING")
    outcomes.keep(NODEID, pytest.TestReport(NODEID, where, {}, "skipped", skipped, "call"))
    outcomes.keep(NODEID, pytest.TestReport(NODEID, where, {}, "failed", "INVALID: late", "teardown"))
    (result,) = outcomes.results(lambda _: [])
    assert (result.outcome, result.problem) == ("error", "INVALID: late")


@pytest.mark.parametrize("missing", [1, 8, len(SECRET) - 1])
def test_a_secret_across_a_cut_is_none_of_it(missing: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Secrets of this process are masked in a test's text; those of a server also in its log."""
    log, filling = tmp_path / "001-mosec.log", "x" * (400 - missing)
    log.write_text(f"{filling}{SECRET}\n")
    outcomes = Outcomes()
    outcomes.begin(NODEID)
    outcomes.logged(log, {"PORT": "8000", "A_TOKEN": SECRET})
    outcomes.logged(log, {"PORT": "8001", "A_TOKEN": SECRET})
    result = kept(outcomes, f"it said {SECRET}")
    assert result.problem == "it said <A_TOKEN>"
    (_, tail) = result.logs
    masked = f"{filling}<A_TOKEN>"
    assert tail.text == (masked if len(masked) <= 400 else f"{masked[:200]} … {masked[-200:]}")
    monkeypatch.setenv("A_TOKEN", SECRET)
    filling = "x" * (PROBLEM_CHARACTERS - missing)
    problem = kept(Outcomes(), f"{filling}{SECRET} and more").problem
    assert problem == f"{filling}<A_TOKEN> and more"[:PROBLEM_CHARACTERS] + " ..."


EXPLAINED = ("REGRESSED: throughput is 1/s", "interval -9 %", "to accept it: pytest", "  compute +80 %")
SHORT = ("REGRESSED: p50 is 2 ms", "interval +9 %")
MARK = "\n  \n  ...Full output truncated (2 lines hidden), use '-vv' to show"


@pytest.mark.parametrize("left", ["\n  interval -9 %...", "\n  inter...", "..."])
def test_a_cut_explanation_is_put_back_where_it_stood(left: str) -> None:
    """The last explanation that pytest shows is whole again, behind the test's words; other texts stay as they are."""
    text = f"AssertionError: slow\nassert REGRESSED: throughput is 1/s{left}{MARK}"
    whole = "\n".join(EXPLAINED)
    assert uncut(text, [EXPLAINED, SHORT]) == f"AssertionError: slow\nassert {whole}"
    for other in (f"assert [1] == [2]...{MARK}", whole, ""):
        assert uncut(other, [EXPLAINED]) == other


def test_an_explanation_belongs_to_one_run_of_a_test() -> None:
    """A repeated test begins without those of its last run."""
    outcomes = Outcomes()
    outcomes.begin(NODEID)
    outcomes.explained(EXPLAINED)
    cut = f"{EXPLAINED[0]}...{MARK}"
    assert kept(outcomes, cut).problem == "\n".join(EXPLAINED)
    outcomes.begin(NODEID)
    assert kept(outcomes, cut).problem == cut
