"""What is made of a run that came back: baselines, a table, and failures."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.report.result_json import document
from pytest_gpuserve.report.results import SessionResult
from pytest_gpuserve.store.baseline import read, write
from tests.card.read import read_run
from tests.card.records import Record, Writer
from tests.support.builders import entry, result_of, session

if TYPE_CHECKING:
    from pathlib import Path

FILE = "x/test_y.json"
TEST = "test_z[1]"
NODEID = f"suites/x/test_y.py::{TEST}"
OLD, NEW = (entry(session(at=f"2025-01-0{day}T03:04:05+00:00")) for day in (1, 2))


def brought(folder: Path, **result: object) -> Path:
    """A run that recorded a baseline anew; fields of the test's result are those given."""
    kept = folder / "kept"
    test = replace(result_of(NODEID), outcome="passed")
    plain = json.loads(document(SessionResult({"name": "cpu"}, {"id": "host-a"}, (test,))))
    plain["tests"][0].update(result)
    writer = Writer(folder / "out", kept)
    write(kept / "baselines" / "cpu" / FILE, {TEST: NEW})
    (kept / "record-x.json").write_text(json.dumps(plain))
    writer.add(Record("record-x", "passed"))
    writer.add(Record("tests", "failed", why="exit code 1", tail="the last line"))
    return folder / "out"


def test_what_was_recorded_and_what_failed(tmp_path: Path) -> None:
    """A newer baseline takes the place of the old one; each load is a row, and each failure has its log."""
    baselines = tmp_path / "baselines"
    write(baselines / "cpu" / FILE, {TEST: OLD})
    lines, failed = read_run(brought(tmp_path), baselines)
    assert failed
    assert read(baselines / "cpu" / FILE)[TEST].entry == NEW
    assert any(line.startswith(f"| record-x | cpu | `{NODEID}` | 20.0/s | ") for line in lines), lines
    assert "tests: failed: exit code 1\n    the last line" in lines
    assert lines[-1] == "1 of 2 steps passed"


@pytest.mark.parametrize("outcome", ["failed", "passed"])
def test_an_invalid_measurement_overwrites_nothing(tmp_path: Path, outcome: str) -> None:
    """What a test has recorded that did not pass, or was INVALID, is left out, and said."""
    baselines = tmp_path / "baselines"
    write(baselines / "cpu" / FILE, {TEST: OLD})
    verdict = {
        "metric": "throughput",
        "verdict": "INVALID",
        "value": None,
        "reference_kind": "baseline",
        "tolerance": None,
    }
    verdicts = [verdict] if outcome == "passed" else []
    lines, _ = read_run(brought(tmp_path, outcome=outcome, verdicts=verdicts), baselines)
    assert lines[0] == f"left out, for its test did not pass or was INVALID: {NODEID}"
    assert read(baselines / "cpu" / FILE)[TEST].entry == OLD


def test_a_folder_of_no_run_is_refused(tmp_path: Path) -> None:
    """It names what was looked for."""
    with pytest.raises(UsageProblem, match=r"has no results\.jsonl"):
        read_run(tmp_path, tmp_path)
