"""The table at the end of a run: readable at any width, whatever tests are called."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from pytest_gpuserve.report.results import RunResult, TestResult
from pytest_gpuserve.report.terminal import EVIDENCE, LEFT_OUT_FIRST, NARROWEST, is_whole, table
from pytest_gpuserve.verdict.metric import METRICS
from pytest_gpuserve.verdict.verdict import Verdict
from tests.support.builders import judgement, result_of

HOSTILE = [
    "test_z[[red]]",
    "test_z[[/]]",
    "test_z[:smile:]",
    "test_z[漢字かな交じり文]",
    "test_z[ü\u0301]",
    "test_z[\x1b[31mred]",
    "test_z[a\nb\tc\rd]",
    "test_z[\u202eabc]",
    "test_z[\ud800]",
    "test_" + "very_" * 60 + "long",
]
ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


def all_verdicts(nodeid: str = "suites/x/test_y.py::test_z[50]") -> TestResult:
    """A test with every verdict, on metrics of every unit."""
    metrics = list(METRICS)
    return result_of(nodeid, *[judgement(verdict, metrics[i]) for i, verdict in enumerate(Verdict)])


def draw(*tests: TestResult, width: int = 160) -> list[str]:
    """The table without colours, as lines."""
    return table(tests, width=width, color=False).splitlines()


def test_a_line_says_everything_of_a_metric() -> None:
    """The test, the metric, both values in their unit, the change with its interval, and the verdict."""
    head, _, line = draw(result_of("suites/x/test_y.py::test_z[50]", judgement()))
    assert head.split() == [
        "test",
        "metric",
        "now",
        "reference",
        "change",
        "interval",
        "tolerance",
        "detectable",
        "verdict",
    ]
    values = ["1432/s", "2047/s", "-30.1 %", "-34.1 % .. -26.2 %", "5 %", "6 %"]
    assert re.split(r" {2,}", line.strip()) == ["test_z[50]", "throughput", *values, "REGRESSED"]
    *_, line = draw(result_of("t::test_z", judgement(Verdict.MISSING)))
    assert line.split() == ["test_z", "throughput", *["-"] * 6, "MISSING"]
    assert r"test_z[\x1b[31mred]" in draw(result_of("test_y.py::test_z[\x1b[31mred]", judgement()))[2]
    assert draw(all_verdicts(), width=80)[0].split() == ["test", "metric", "now", "reference", "change", "verdict"]
    assert len(draw()) <= 2


@settings(max_examples=60)
@given(
    width=st.integers(-5, 250) | st.sampled_from([0, NARROWEST, 80, 160]),
    look=st.tuples(st.booleans(), st.booleans()),
    name=st.sampled_from(HOSTILE) | st.text(max_size=60),
    label=st.text(max_size=10),
)
def test_metrics_and_verdicts_are_whole_at_any_width(
    width: int, look: tuple[bool, bool], name: str, label: str
) -> None:
    """Whatever is left out for want of space, it is neither the metric nor what was concluded, and no line is wider.

    Nor does it matter what a test is called: markup, escape sequences, wide signs and long names break nothing.
    """
    test = all_verdicts(f"test_y.py::{name}")
    test.runs[0] = RunResult(label, (), test.runs[0].judgements, {}, {})
    color, verbose = look
    text = ESCAPE.sub("", table([test], width=width, color=color, verbose=verbose))
    assert max(map(cell_len, text.splitlines())) <= max(width, NARROWEST)
    assert text.replace("\n", "").isprintable()
    for verdict, metric in zip(Verdict, METRICS, strict=False):
        assert re.search(rf" {re.escape(metric)} .* {verdict} *$", text, re.MULTILINE)


@pytest.mark.parametrize("width", range(NARROWEST, 140, 3))
def test_columns_are_left_out_whole_and_in_order(width: int) -> None:
    """A narrow terminal shows fewer columns rather than cut numbers, the least needed going first."""
    lines = table([all_verdicts()], width=width, color=False, verbose=True).splitlines()
    head = lines[0].split()
    shown = [name for name in LEFT_OUT_FIRST if name in head]
    assert shown == list(LEFT_OUT_FIRST[len(LEFT_OUT_FIRST) - len(shown) :])
    assert is_whole([all_verdicts()], width=width) is (len(shown) == len(LEFT_OUT_FIRST))
    assert "…" not in "".join(lines)
    if shown:
        assert len(lines) == 2 + len(Verdict), "the name was folded although a column could have been left out"


def test_only_a_verbose_table_says_what_a_verdict_rests_on() -> None:
    """Sessions of a stored baseline, rounds and windows side by side; nothing where nothing was measured."""
    paired = replace(judgement(kind="against"), rounds=3, windows=72)
    test = result_of("t::test_z", judgement(), paired, judgement(Verdict.MISSING, "latency.p50"))
    assert EVIDENCE not in draw(test, width=250)[0]
    found = table([test], width=250, color=False, verbose=True).splitlines()
    cells = [re.split(r" {2,}", line.strip())[-2] for line in found if "SSED" in line or "MISSING" in line]
    assert cells == ["2 sessions", "3 rounds, 72 windows", "-"]
    one = table([result_of("t", replace(judgement(), rounds=1))], width=250, color=False, verbose=True)
    assert "  1 session  " in one


def test_a_quiet_table_has_what_keeps_a_test_from_passing() -> None:
    """Not what passed, nor a test that passed in spite of a row; nothing at all where all is well."""
    failed = result_of("t::test_a", judgement(Verdict.PASS, "latency.p50"), judgement())
    skipped = replace(result_of("t::test_b", judgement(Verdict.INCONCLUSIVE)), outcome="skipped")
    passed = replace(result_of("t::test_c", judgement(Verdict.MISSING)), outcome="passed")
    lines = table([failed, skipped, passed], width=160, color=False, only_bad=True).splitlines()
    assert [(line.split()[0], line.split()[-1]) for line in lines[2:]] == [
        ("test_a", "REGRESSED"),
        ("test_b", "INCONCLUSIVE"),
    ]
    assert table([passed], width=160, color=False, only_bad=True) == ""


COLOURED = re.compile(r"\x1b\[(\d+)m([A-Z]+) *\x1b\[0m")


def test_colours_tell_good_from_bad(monkeypatch: pytest.MonkeyPatch) -> None:
    """Passing verdicts are green, failed ones red, undecided ones yellow."""
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("NO_COLOR", "1")
    found = {name: color for color, name in COLOURED.findall(table([all_verdicts()], width=120, color=True))}
    green, red, yellow = "32", "31", "33"
    assert {name for name, color in found.items() if color == green} == {"PASS", "IMPROVED"}
    assert {name for name, color in found.items() if color == red} == {"REGRESSED", "INVALID"}
    assert {name for name, color in found.items() if color == yellow} == {"INCONCLUSIVE", "MISSING"}
