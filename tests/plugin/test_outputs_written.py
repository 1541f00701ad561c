"""How the files that were asked for are written: each in one step, and each is there or it is said why not."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from pytest_gpuserve import outputs
from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.outputs import STEP_SUMMARY, STEP_SUMMARY_BYTES, Form, Output, clear_outputs, write_outputs
from pytest_gpuserve.report.results import SessionResult, TestResult

if TYPE_CHECKING:
    from pathlib import Path

RESULT = SessionResult({"name": "cpu"}, {}, (TestResult("test_a.py::test_it", "passed"),))


def names_in(folder: Path) -> list[str]:
    """All that is in a folder."""
    return sorted(path.name for path in folder.iterdir())


def test_what_an_older_run_wrote_is_removed(tmp_path: Path) -> None:
    """But not what is only appended to, and that there is nothing yet is no problem."""
    old, new, summary = tmp_path / "old", tmp_path / "new", tmp_path / "summary"
    old.write_text("old")
    summary.write_text("kept")
    clear_outputs(
        [Output("a", Form.JSON, old), Output("b", Form.JSON, new), Output("c", Form.STEP_SUMMARY, summary, ours=False)]
    )
    assert not old.exists()
    assert summary.read_text() == "kept"
    with pytest.raises(pytest.UsageError, match=r"--gpuserve-json=x: an older one cannot be removed"):
        clear_outputs([Output("--gpuserve-json=x", Form.JSON, tmp_path)])


def test_each_file_is_written_and_named(tmp_path: Path) -> None:
    """What people look for has a name of its own; nothing but the files is left."""
    files = [
        Output("--gpuserve-json=a", Form.JSON, tmp_path / "a"),
        Output("--gpuserve-markdown=b", Form.MARKDOWN, tmp_path / "b"),
        Output(f"${STEP_SUMMARY}", Form.STEP_SUMMARY, tmp_path / "c", ours=False),
    ]
    written = write_outputs(files, RESULT, str)
    assert not written.failed
    assert written.lines == (
        f"results: {tmp_path / 'a'}",
        f"--gpuserve-markdown: {tmp_path / 'b'}",
        f"${STEP_SUMMARY}: {tmp_path / 'c'}",
    )
    assert names_in(tmp_path) == ["a", "b", "c"]


def test_a_failure_takes_no_other_file_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that went away, a package that is missing and a fault of ours are told; the rest is written."""

    def faulty(result: SessionResult, shown: object) -> str:
        raise ZeroDivisionError("by 0")

    def lacking(result: SessionResult, shown: object) -> str:
        raise UsageProblem("the report needs plotting", remedies=["pip install it"])

    made = {Form.HTML: lacking, Form.CSV: faulty}
    renderer = outputs._renderer
    monkeypatch.setattr(outputs, "_renderer", lambda form: made.get(form) or renderer(form))
    files = [
        Output("--gpuserve-markdown=gone/a", Form.MARKDOWN, tmp_path / "gone" / "a"),
        Output("--gpuserve-report=b", Form.HTML, tmp_path / "b"),
        Output("--gpuserve-export=csv:c", Form.CSV, tmp_path / "c"),
        Output("--gpuserve-json=d", Form.JSON, tmp_path / "d"),
    ]
    written = write_outputs(files, RESULT, str)
    assert written.failed
    gone, report, fault, results = written.lines
    assert gone.startswith("ERROR: --gpuserve-markdown=gone/a: it cannot be written: ")
    assert report == "ERROR: --gpuserve-report=b: the report needs plotting\n  help: pip install it"
    assert fault.startswith(
        "ERROR: --gpuserve-export=csv:c: a fault of pytest-gpuserve: ZeroDivisionError at test_outputs"
    )
    assert results == f"results: {tmp_path / 'd'}"
    assert names_in(tmp_path) == ["d"]


def test_a_reader_sees_all_of_it_or_the_last_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be written to its end leaves no half of it, and nothing beside it."""
    path = tmp_path / "out.json"

    def full(self: object, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(type(path), "write_bytes", full)
    written = write_outputs([Output("--gpuserve-json=out.json", Form.JSON, path)], RESULT, str)
    assert written.failed
    assert "No space left" in written.lines[0]
    assert names_in(tmp_path) == []


def test_text_that_is_no_text_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file's name may hold bytes that are no characters, which Python carries as halves of some."""
    monkeypatch.setattr(outputs, "_renderer", lambda form: lambda result, shown: "a\udcffb")
    path = tmp_path / "a"
    assert not write_outputs([Output("--gpuserve-report=a", Form.HTML, path)], RESULT, str).failed
    assert path.read_bytes() == rb"a\udcffb"


def test_texts_are_made_fit_to_be_shown(tmp_path: Path) -> None:
    """Every form gets the means to hide secrets."""
    path = tmp_path / "a"
    write_outputs([Output("a", Form.JSON, path)], RESULT, lambda text: text.replace("test_it", "HIDDEN"))
    assert json.loads(path.read_text())["tests"][0]["nodeid"] == "test_a.py::HIDDEN"


def test_a_summary_is_appended(tmp_path: Path) -> None:
    """What the step wrote before stays, and two runs of one step are both there."""
    path = tmp_path / "summary"
    path.write_text("before\n")
    asked = [Output("$S", Form.STEP_SUMMARY, path, ours=False)]
    for _ in range(2):
        assert write_outputs(asked, RESULT, str).lines == (f"$S: {path}",)
    text = path.read_text()
    assert text.startswith("before\n")
    assert text.count("<h3>") == 2


def test_a_summary_that_cannot_be_written_fails_nothing(tmp_path: Path) -> None:
    """A container often has the variable of its host, and not the file; and nobody has asked."""
    asked = [Output("$S", Form.STEP_SUMMARY, tmp_path / "gone" / "summary", ours=False)]
    written = write_outputs(asked, RESULT, str)
    assert not written.failed
    assert written.lines[0].startswith("not written: $S: it cannot be written: ")


def test_a_summary_grows_no_further_than_a_runner_takes(tmp_path: Path) -> None:
    """Of a larger file it would show nothing at all, what was there before included."""
    path = tmp_path / "summary"
    path.write_bytes(b"x" * (STEP_SUMMARY_BYTES - 100))
    written = write_outputs([Output("$S", Form.STEP_SUMMARY, path, ours=False)], RESULT, str)
    assert not written.failed
    assert "run pytest in a step of its own" in written.lines[0]
    assert path.stat().st_size == STEP_SUMMARY_BYTES - 100


def test_of_nothing_there_is_no_summary(tmp_path: Path) -> None:
    """A run that measured nothing writes none, and does not say so; a file that was asked for is there."""
    nothing = SessionResult({"name": "cpu"}, {}, ())
    asked = [
        Output("$S", Form.STEP_SUMMARY, tmp_path / "summary", ours=False),
        Output("--gpuserve-markdown=a", Form.MARKDOWN, tmp_path / "a"),
    ]
    assert write_outputs(asked, nothing, str).lines == (f"--gpuserve-markdown: {tmp_path / 'a'}",)
    assert "Nothing was measured" in (tmp_path / "a").read_text()
