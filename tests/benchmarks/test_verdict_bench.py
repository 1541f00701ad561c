"""The comparison bench: what it reads, and that its rules are the ones they are named after."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from pytest_gpuserve.verdict.metric import METRICS
from tests.benchmarks import verdicts

RECORDED = Path(verdicts.__file__).parent / "recorded_rounds"
SAME = RECORDED / "same_build.jsonl"
SLOWED = RECORDED / "slowed_8_percent.jsonl"


def test_mann_whitney_agrees_with_counting() -> None:
    """Its p-value is the share of all orders of the values in which the candidate ranks as high, nearly."""
    base = np.array([1.0, 2, 4, 5, 7, 8, 10])
    candidate = np.array([3.0, 6, 9, 11, 12, 13, 14])
    u = sum(b < c for b in base for c in candidate)
    lowest = sum(range(1, 8))
    as_high = [sum(ranks) - lowest >= u for ranks in combinations(range(1, 15), 7)]
    assert verdicts.mann_whitney_p(base, candidate) == pytest.approx(np.mean(as_high), abs=0.002)
    assert verdicts.mann_whitney_p(np.ones(5), np.ones(5)) == 1.0


def test_a_small_run(capsys: pytest.CaptureFixture[str]) -> None:
    """On real rounds the paired verdict is never wrong, and rules over windows that were measured apart often are."""
    paired, *others = verdicts.Bench.of([SAME, SLOWED], METRICS["throughput"], 60).rows()
    assert paired.rule == "pytest-gpuserve, paired"
    assert (paired.alarms[0.0], paired.passes[0.05]) == (0.0, 0.0)
    assert paired.alarms[0.1] > 0.9
    assert paired.recorded_alarms[0.08] == 1.0
    assert paired.windows[0.0] < 144
    assert {row.windows[0.0] for row in others} == {144}
    assert min(row.alarms[0.0] for row in others if row.servers == "apart") > 0.1
    verdicts.main([str(SAME), "--metric", "p99", "--repetitions", "5"])
    printed = capsys.readouterr().out
    assert "latency.p99, growth 20 %" in printed
    assert printed.count("| apart") == 3
