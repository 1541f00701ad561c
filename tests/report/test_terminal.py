"""The table at the end of a run: readable at any width, for any names of tests."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from pytest_gpuserve.report.results import RunResult, TestResult
from pytest_gpuserve.report.terminal import LEFT_OUT_FIRST, NARROWEST, table
from pytest_gpuserve.verdict.metric import METRICS
from pytest_gpuserve.verdict.verdict import Verdict
from tests.support.builders import judgement, result_of, run_of
from tests.support.markdown_results import HOSTILE

ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


def all_verdicts(nodeid: str = "suites/x/test_y.py::test_z[50]") -> TestResult:
    """A test with every verdict, on metrics of every unit."""
    metrics = list(METRICS)
    return result_of(nodeid, *[judgement(verdict, metrics[i]) for i, verdict in enumerate(Verdict)])


@settings(max_examples=60)
@given(
    width=st.integers(-5, 250) | st.sampled_from([0, NARROWEST, 80, 160]),
    color=st.booleans(),
    name=st.sampled_from(HOSTILE) | st.text(max_size=60),
    label=st.text(max_size=10),
)
def test_metrics_and_verdicts_are_whole_at_any_width(width: int, name: str, label: str, *, color: bool) -> None:
    """At any width and for any name, metric and verdict are whole and no line is wider."""
    test = all_verdicts(f"test_y.py::{name}")
    test.runs[0] = RunResult(label, (), test.runs[0].judgements, {}, {})
    text = ESCAPE.sub("", table(run_of(test).rows, width=width, color=color))
    assert max(map(cell_len, text.splitlines())) <= max(width, NARROWEST)
    assert text.replace("\n", "").isprintable()
    for verdict, metric in zip(Verdict, METRICS, strict=False):
        assert re.search(rf" {re.escape(metric)} .* {verdict} *$", text, re.MULTILINE)


@pytest.mark.parametrize("width", range(NARROWEST, 140, 3))
def test_columns_are_left_out_whole_and_in_order(width: int) -> None:
    """A narrow terminal shows fewer columns rather than cut numbers, the least needed going first."""
    lines = table(run_of(all_verdicts()).rows, width=width, color=False).splitlines()
    head = re.split(r" {2,}", lines[0].strip())
    shown = [name for name in LEFT_OUT_FIRST if name in head]
    assert shown == list(LEFT_OUT_FIRST[len(LEFT_OUT_FIRST) - len(shown) :])
    assert "…" not in "".join(lines)
    if shown:
        assert len(lines) == 2 + len(Verdict), "the name was folded although a column could have been left out"


COLOURED = re.compile(r"\x1b\[(\d+)m([A-Z]+) *\x1b\[0m")


def test_colours_tell_good_from_bad(monkeypatch: pytest.MonkeyPatch) -> None:
    """Passing verdicts are green, failed ones red, undecided ones yellow."""
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("NO_COLOR", "1")
    found = {name: color for color, name in COLOURED.findall(table(run_of(all_verdicts()).rows, width=120, color=True))}
    green, red, yellow = "32", "31", "33"
    assert {name for name, color in found.items() if color == green} == {"PASS", "IMPROVED"}
    assert {name for name, color in found.items() if color == red} == {"REGRESSED", "INVALID"}
    assert {name for name, color in found.items() if color == yellow} == {"INCONCLUSIVE", "MISSING"}
