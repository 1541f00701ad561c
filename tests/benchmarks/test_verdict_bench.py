"""The comparison bench: what it reads, and that its rules are the ones they are named after."""

from __future__ import annotations

import json
import math
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_gpuserve.verdict.metric import METRICS
from tests.benchmarks import verdicts
from tests.benchmarks.recorded import RecordedBlock, read_rounds
from tests.benchmarks.verdict_rules import mann_whitney_p, welch_p

RECORDED = Path(verdicts.__file__).parent / "recorded_rounds"
SAME = RECORDED / "same_build.jsonl"
SLOWED = RECORDED / "slowed_8_percent.jsonl"


def entry() -> dict[str, Any]:
    """A round of two blocks; the candidate of the second block is slower by a half."""
    measured = {(0, "A"): (100.0, 4.0), (0, "B"): (100.0, 4.0), (1, "A"): (75.0, 4.0), (1, "B"): (50.0, 8.0)}
    order = [(0, "A"), (0, "B"), (0, "B"), (0, "A"), (1, "B"), (1, "A"), (1, "A"), (1, "B")]
    windows = []
    for window in order:
        rate, p99 = measured[window]
        windows.append([*window, rate, 4.0, 1.0, 2.0, 3.0, p99, 1.5, 0.0])
    return {"order": ["A", "B"], "win": windows}


def test_a_round_is_read(tmp_path: Path) -> None:
    """Windows become log costs by block and arm, worse is positive for a rate and for a latency."""
    path = tmp_path / "rounds.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in (entry(), {**entry(), "slow": 0.5, "more": [1]})))
    first, second = read_rounds(path, METRICS["throughput"])
    assert [block.difference for block in first.blocks] == pytest.approx([0.0, math.log(1.5)])
    assert (first.slower, second.slower, first.windows) == (0.0, 0.5, 8)
    (by_latency, _) = read_rounds(path, METRICS["latency.p99"])
    assert [block.difference for block in by_latency.blocks] == pytest.approx([0.0, math.log(2)])
    assert first.swapped().blocks[1] == RecordedBlock(first.blocks[1].candidate, first.blocks[1].base)


def test_the_recorded_rounds_are_read() -> None:
    """The files beside the bench hold what they are said to hold, and the slowed candidate is slower."""
    same, slowed = (read_rounds(path, METRICS["throughput"]) for path in (SAME, SLOWED))
    assert (len(same), {round_.slower for round_ in same}) == (70, {0.0})
    assert (len(slowed), {round_.slower for round_ in slowed}) == (12, {0.08})
    assert {len(round_.blocks) for round_ in same + slowed} == {4}
    assert all(np.mean(round_.candidate) > np.mean(round_.base) for round_ in slowed)


def test_mann_whitney_agrees_with_counting() -> None:
    """Its p-value is the share of all orders of the values in which the candidate ranks as high, nearly."""
    base = np.array([1.0, 2, 4, 5, 7, 8, 10])
    candidate = np.array([3.0, 6, 9, 11, 12, 13, 14])
    u = sum(b < c for b in base for c in candidate)
    lowest = sum(range(1, 8))
    as_high = [sum(ranks) - lowest >= u for ranks in combinations(range(1, 15), 7)]
    assert mann_whitney_p(base, candidate) == pytest.approx(np.mean(as_high), abs=0.002)
    assert mann_whitney_p(candidate, base) > 0.95
    assert mann_whitney_p(base, base) == pytest.approx(0.5, abs=0.03)
    assert mann_whitney_p(np.ones(5), np.ones(5)) == 1.0


def test_welch_agrees_with_a_table() -> None:
    """Equal variances and sizes are Student's two-sample test: t = 2.8284 with 8 degrees of freedom, p = .0111."""
    base = np.array([-2.0, -1, 0, 1, 2])
    assert welch_p(base, base + 2 * math.sqrt(2)) == pytest.approx(0.01110, abs=1e-4)
    assert welch_p(base, base) == pytest.approx(0.5)
    assert (welch_p(np.zeros(3), np.ones(3)), welch_p(np.zeros(3), np.zeros(3))) == (0.0, 1.0)


def test_a_small_run() -> None:
    """On real rounds the paired verdict is never wrong, and rules over windows that were measured apart often are."""
    paired, *others = verdicts.Bench.of([SAME, SLOWED], METRICS["throughput"], 60).rows()
    assert paired.rule == "pytest-gpuserve, paired"
    assert (paired.alarms[0.0], paired.passes[0.05]) == (0.0, 0.0)
    assert paired.alarms[0.1] > 0.9
    assert paired.recorded_alarms[0.08] == 1.0
    assert paired.windows[0.0] < 144
    assert len(others) == 10
    assert {row.windows[0.0] for row in others} == {144}
    assert min(row.alarms[0.0] for row in others if row.servers == "apart") > 0.1


def test_the_command_prints_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    """It has a line for every rule and a column for the growth."""
    verdicts.main([str(SAME), "--metric", "p99", "--repetitions", "5"])
    printed = capsys.readouterr().out
    assert "latency.p99, growth 20 %" in printed
    assert "+20 %" in printed
    assert len([line for line in printed.splitlines() if "| apart" in line]) == 5
