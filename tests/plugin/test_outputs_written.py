"""Writing of the result files: each atomically, and a failure is reported."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.plugin import outputs
from pytest_gpuserve.plugin.outputs import STEP_SUMMARY, STEP_SUMMARY_BYTES, Form, Output, write_outputs
from pytest_gpuserve.report.results import SessionResult, TestResult

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

RESULT = SessionResult({"name": "cpu"}, {}, (TestResult("test_a.py::test_it", "passed"),))


def summary(path: Path) -> Output:
    """The summary of a runner's step, which no option requests."""
    return Output(f"${STEP_SUMMARY}", Form.STEP_SUMMARY, path, ours=False)


def test_a_failure_takes_no_other_file_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A vanished folder, a missing package and our own fault are reported; the other files are written."""

    def faulty(result: SessionResult) -> str:
        raise ZeroDivisionError("by 0")

    def lacking(result: SessionResult) -> str:
        raise UsageProblem("the report needs plotting", remedies=["pip install it"])

    # Half of a character, as a file's name may hold it.
    made = {Form.HTML: lacking, Form.BENCHMARK: faulty, Form.STEP_SUMMARY: lambda result: "a\udcffb"}
    renderer = outputs._renderer
    monkeypatch.setattr(outputs, "_renderer", lambda form: made.get(form) or renderer(form))
    files = [
        Output("--gpuserve-markdown=gone/a", Form.MARKDOWN, tmp_path / "gone" / "a"),
        Output("--gpuserve-report=b", Form.HTML, tmp_path / "b"),
        Output("--gpuserve-benchmark-json=c", Form.BENCHMARK, tmp_path / "c"),
        Output("--gpuserve-json=d", Form.JSON, tmp_path / "d"),
        Output("--odd=e", Form.STEP_SUMMARY, tmp_path / "e"),
    ]
    written = write_outputs(files, RESULT)
    assert written.failed
    gone, report, fault, results, _ = written.lines
    assert gone.startswith("ERROR: --gpuserve-markdown=gone/a: the file cannot be written: ")
    assert report == "ERROR: --gpuserve-report=b: the report needs plotting\n  help: pip install it"
    assert fault.startswith("ERROR: --gpuserve-benchmark-json=c: a fault of pytest-gpuserve: ZeroDivisionError at ")
    assert results == f"results: {tmp_path / 'd'}"
    assert {path.name for path in tmp_path.iterdir()} == {"d", "e"}
    assert (tmp_path / "e").read_bytes() == rb"a\udcffb"


def test_a_summary_is_appended(tmp_path: Path) -> None:
    """Earlier text of the step stays; a summary that cannot be written, or is too large, does not fail the run."""
    path = tmp_path / "summary"
    path.write_text("before\n")
    for _ in range(2):
        assert write_outputs([summary(path)], RESULT).lines == (f"${STEP_SUMMARY}: {path}",)
    text = path.read_text()
    assert text.startswith("before\n")
    assert text.count("<h3>") == 2
    absent = write_outputs([summary(tmp_path / "gone" / "summary")], RESULT)
    assert not absent.failed
    assert absent.lines[0].startswith(f"not written: ${STEP_SUMMARY}: the file cannot be written: ")
    # Of a larger file the runner would show nothing at all.
    path.write_bytes(b"x" * (STEP_SUMMARY_BYTES - 100))
    large = write_outputs([summary(path)], RESULT)
    assert not large.failed
    assert "run pytest in a step of its own" in large.lines[0]
    assert path.stat().st_size == STEP_SUMMARY_BYTES - 100
