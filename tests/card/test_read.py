"""What is made of a run that came back: baselines, a table, and failures."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.store.baseline import read, write
from tests.card.read import read_run
from tests.card.records import Record, Writer
from tests.support.baseline_repository import FILE, NODEID, TEST, entry_of, result_text

if TYPE_CHECKING:
    from pathlib import Path


def brought(folder: Path, **result: object) -> Path:
    """A run that recorded a baseline on day 2; fields of the test's result are those given."""
    kept = folder / "kept"
    plain = json.loads(result_text())
    plain["tests"][0].update(result)
    writer = Writer(folder / "out", kept)
    write(kept / "baselines" / "cpu" / FILE, {TEST: entry_of(day=2)})
    (kept / "record-x.json").write_text(json.dumps(plain))
    writer.add(Record("record-x", "passed"))
    writer.add(Record("tests", "failed", why="exit code 1", tail="the last line"))
    return folder / "out"


def test_what_was_recorded_and_what_failed(tmp_path: Path) -> None:
    """A newer baseline takes the place of the old one; each load is a row, and each failure has its log."""
    baselines = tmp_path / "baselines"
    write(baselines / "cpu" / FILE, {TEST: entry_of(day=1)})
    lines, failed = read_run(brought(tmp_path), baselines)
    assert failed
    assert read(baselines / "cpu" / FILE)[TEST].entry == entry_of(day=2)
    assert any(line.startswith(f"| record-x | cpu | `{NODEID}` | 1000/s | ") for line in lines), lines
    assert "tests: failed: exit code 1\n    the last line" in lines
    assert lines[-1] == "1 of 2 steps passed"


@pytest.mark.parametrize("outcome", ["failed", "passed"])
def test_an_invalid_measurement_overwrites_nothing(tmp_path: Path, outcome: str) -> None:
    """What a test has recorded that did not pass, or was INVALID, is left out, and said."""
    baselines = tmp_path / "baselines"
    write(baselines / "cpu" / FILE, {TEST: entry_of(day=1)})
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
    assert read(baselines / "cpu" / FILE)[TEST].entry == entry_of(day=1)


def test_a_folder_of_no_run_is_refused(tmp_path: Path) -> None:
    """It names what was looked for."""
    with pytest.raises(UsageProblem, match=r"has no results\.jsonl"):
        read_run(tmp_path, tmp_path)
