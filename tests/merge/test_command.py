"""``python -m pytest_gpuserve.merge``: what it prints and writes, and its exit status."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings

from pytest_gpuserve.merge.__main__ import main
from pytest_gpuserve.merge.merged import merged_text
from pytest_gpuserve.plugin.outputs import STEP_SUMMARY
from tests.merge.merge_files import a_test, ending, merged, regressed, shard
from tests.support.html_page import Page
from tests.support.markdown_results import TEXTS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpuserve.report.results import TestResult
    from pytest_gpuserve.report.schema import Plain


BOTH = ("a.json", "b.json")


class Folder:
    """A folder with result files, in which the command is run.

    Args:
        path: The folder, which is the current one.
        capsys: Reads what it prints.
    """

    def __init__(self, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.path = path
        self._capsys = capsys

    def write(self, name: str, plain: Plain) -> None:
        """Write a result file."""
        (self.path / name).write_text(json.dumps(plain))

    def run(self, *arguments: str) -> tuple[int, str]:
        """Merge; the exit status, and what was said."""
        status = main(arguments)
        captured = self._capsys.readouterr()
        return status, captured.out + captured.err

    def read(self, name: str) -> Plain:
        """A result file."""
        plain: Plain = json.loads((self.path / name).read_text())
        return plain


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Folder:
    """A folder with the results of two shards, of which both have passed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.delenv(STEP_SUMMARY, raising=False)
    made = Folder(tmp_path, capsys)
    made.write("a.json", shard(a_test("test_a"), shard={"number": 1, "of": 2}))
    made.write("b.json", second(a_test("test_b")))
    return made


def second(test: TestResult, **head: Any) -> Plain:  # noqa: ANN401 -- fields of the file
    """The result of the second shard."""
    return shard(test, began=1, shard={"number": 2, "of": 2}, **head)


def fail(folder: Folder) -> None:
    """Let a test of the second shard have REGRESSED."""
    folder.write("b.json", second(regressed("test_b"), comparisons={"planned": 1, "among": 2}))


def test_what_is_printed(folder: Folder) -> None:
    """One header, one table, one line of totals, exit status 0; what failed on one runner fails all, on top."""
    status, said = folder.run(*BOTH)
    assert status == 0
    lines = said.splitlines()
    assert lines[0] == "gpuserve: T4, 2 results merged, 2 comparisons planned"
    assert [line.split()[0] for line in lines if "PASS" in line] == ["test_a", "test_b"]
    assert lines[-1] == "comparisons: 2 passed"
    assert sum("on host host-a" in line for line in lines) == 2
    fail(folder)
    status, said = folder.run(*BOTH)
    assert status == 1
    assert said.index("REGRESSED") < said.index("PASS")
    totals, step = said.splitlines()[-2:]
    assert totals == "comparisons: 1 passed, 1 regressed"
    assert step.startswith("next: ")
    assert "suites/x/test_x.py::test_b" in step


def test_files_are_written(folder: Folder) -> None:
    """A result file, a page and a comment, each with the tests of both."""
    fail(folder)
    status, said = folder.run(*BOTH, "--json=out.json", "--report=out.html", "--markdown=out.md")
    assert status == 1
    assert all(f"{name}" in said for name in ("out.json", "out.html", "out.md"))
    assert [test["outcome"] for test in folder.read("out.json")["tests"]] == ["passed", "failed"]
    page = Page((folder.path / "out.html").read_text())
    assert "REGRESSED throughput test_b" in page.text
    assert "PASS throughput test_a" in page.text
    # What only the shards know is not shown as nothing.
    assert "sessions and starts" not in page.text
    assert "Changes and how surely they are known" in page.titles
    comment = (folder.path / "out.md").read_text()
    assert "1 of 2 tests did not pass" in comment
    assert "test_a" in comment


def test_a_run_that_did_not_end_well_is_told_with_its_file(folder: Folder) -> None:
    """Exit status 1, with the file and the reason, and neither the comment nor the page takes it for a pass."""
    folder.write("b.json", shard(began=1, shard={"number": 2, "of": 2}, ending=ending(2)))
    status, said = folder.run(*BOTH, "--markdown=out.md", "--report=out.html")
    assert (status, "ERROR: b.json: pytest ended with exit status 2" in said) == (1, True)
    assert "1 of 2 tests did not pass" in (folder.path / "out.md").read_text()
    assert "b.json: pytest ended with exit status 2" in (folder.path / "out.html").read_text()


def test_what_cannot_be_merged_leaves_no_result(folder: Folder) -> None:
    """Exit status 2, the reason, and no file of an older merge that could be taken for one of this."""
    (folder.path / "out.json").write_text("an older one")
    folder.write("b.json", second(a_test("test_a", outcome="error")))
    status, said = folder.run(*BOTH, "--json=out.json")
    assert (status, "test_a has 2 different results" in said) == (2, True)
    assert not (folder.path / "out.json").exists()


def test_nobody_says_how_many_there_are(folder: Folder) -> None:
    """Where files have no number it is said, and `--expect` minds it."""
    folder.write("a.json", shard(a_test("test_a")))
    status, said = folder.run("a.json")
    assert (status, "--expect=1 refuses to merge fewer" in said) == (0, True)
    assert "--expect" not in folder.run("a.json", "--expect=1")[1]
    status, said = folder.run("a.json", "--expect=2")
    assert (status, "--expect=2: there are only 1 results" in said) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("a.json",), "of 2 results 1 is missing"),
        (("a.json", "absent.json"), "absent.json cannot be read"),
        (("a.json", "."), ". cannot be read"),
        ((*BOTH, "--json=a.json"), "would overwrite a.json"),
        ((*BOTH, "--json=out", "--markdown=./out"), "would overwrite out"),
        ((*BOTH, "--report=absent/out.html"), "absent"),
    ],
)
def test_a_wrong_file_is_told(folder: Folder, arguments: Sequence[str], said: str) -> None:
    """Exit status 2, and the file is named."""
    status, told = folder.run(*arguments)
    assert (status, said in told, bool(folder.read("a.json")["tests"])) == (2, True, True)


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--baselines", "x"),
        ("--into", "x"),
        ("a.json", "--baselines", "x", "--into", "y"),
        ("--baselines", "x", "--into", "y", "--json=z"),
        ("a.json", "--expect=0"),
    ],
)
def test_a_wrong_argument_is_told(folder: Folder, arguments: Sequence[str]) -> None:
    """Exit status 2, as argparse has it."""
    with pytest.raises(SystemExit, match="2"):
        folder.run(*arguments)


def test_it_is_a_command(folder: Folder) -> None:
    """It runs as a module, ends with the totals, and a step of GitHub has its summary behind what was there."""
    summary = folder.path / "summary"
    summary.write_text("before\n")
    root = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-m", "pytest_gpuserve.merge", *BOTH],
        cwd=folder.path,
        env={**os.environ, "PYTHONPATH": root, STEP_SUMMARY: str(summary)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == "comparisons: 2 passed"
    text = summary.read_text()
    assert text.startswith("before\n")
    assert "2 of 2 tests passed" in text


def test_secrets_are_masked(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """What another machine did not know for a secret is none that this one tells."""
    monkeypatch.setenv("MODEL_TOKEN", "hunter2secret")
    failed = a_test("test_b", outcome="error", problem="called with hunter2secret")
    folder.write("b.json", second(failed, notes=["a note: hunter2secret"]))
    status, said = folder.run(*BOTH, "--json=out.json", "--markdown=out.md")
    assert status == 1
    assert "hunter2secret" not in said + (folder.path / "out.json").read_text() + (folder.path / "out.md").read_text()
    assert "<MODEL_TOKEN>" in said


@settings(max_examples=20)
@given(text=TEXTS)
def test_hostile_texts_stay_texts(text: str) -> None:
    """Nothing that a result holds moves or colours the terminal, whatever field it stands in."""
    # Half of a surrogate pair is nothing that a result file can hold.
    text = text.encode(errors="ignore").decode()
    plain = shard(
        a_test(f"test_a[{text}]", outcome="error", problem=text),
        regressed("test_b"),
        notes=[text],
        gpu={"name": text or "T4", "pci_bus_id": text},
        host={"id": text},
    )
    plain["tests"][1]["verdicts"][0]["reasons"] = [text]
    said = merged_text(merged(plain).result(), [text], width=100, color=False)
    assert all(line.isprintable() for line in said.split("\n"))
