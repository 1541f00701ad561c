"""Looks and their levels."""

from __future__ import annotations

import pytest

from pytest_gpuserve.verdict.metric import METRICS
from pytest_gpuserve.verdict.sequential import BLOCKS, LEVELS, LOOKS, first_look, look_index


def test_a_p99_is_not_looked_at_after_half_a_round() -> None:
    """Nor a cold start before its second round; every other metric is."""
    late = {name: first_look(metric) for name, metric in METRICS.items() if first_look(metric)}
    second = LOOKS.index((2, BLOCKS))
    tails = {metric.name: 1 for metric in METRICS.values() if metric.quantile == 0.99}
    assert late == {**tails, "cold_start": second}


def test_the_planned_looks_have_the_published_levels() -> None:
    """The levels are fixed numbers, .05 for a PASS and .025 for a claim, independent of data and other comparisons."""
    per_thousand = [[1000 * level for level in levels] for levels in zip(*LEVELS, strict=True)]
    assert per_thousand[0] == pytest.approx([12.89, 10.73, 11.14, 10.91, 11.18, 11.11, 12.17, 12.19, 12.49])
    assert per_thousand[1] == pytest.approx([6.33, 4.75, 5.06, 5.04, 4.96, 5.31, 5.74, 5.31, 6.05])
    assert len(LEVELS) == len(LOOKS)


def test_a_look_is_due_at_its_place_alone() -> None:
    """After half a first round, and after whole ones."""
    assert [look_index(rounds, blocks) for rounds, blocks in LOOKS] == list(range(9))
    assert [look_index(1, 4), look_index(2, 3), look_index(9, 6)] == [None, None, None]
