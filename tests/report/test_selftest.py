"""The report of the self-test, by numbers: what was found, what it proves, how long it took."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from pytest_gpuserve.gate.verdict import Verdict
from pytest_gpuserve.report.selftest import NARROWEST, CaseResult, SelftestResult, selftest_report

ESCAPE = re.compile(r"\x1b\[[0-9;]*m")

IDENTICAL = CaseResult(
    "identical",
    Verdict.PASS,
    4,
    {Verdict.PASS: 2, Verdict.INCONCLUSIVE: 1},
    alarms=0,
    bounds=(0.0, 0.7076),
    median_seconds=17.25,
    p90_seconds=140.0,
    median_share=0.125,
)
SLOWER = CaseResult("10 % slower", Verdict.REGRESSED, 4, {Verdict.REGRESSED: 4}, alarms=4, bounds=(0.398, 1.0))
NEVER = CaseResult("tail only", Verdict.REGRESSED, 4, {}, alarms=0, bounds=(0.0, 1.0))
RESULT = SelftestResult(
    cases=[IDENTICAL, SLOWER, NEVER],
    failures=[],
    problems=[],
    fixed_windows=192,
)


def lines_of(result: SelftestResult = RESULT, *, width: int = 120) -> list[str]:
    """The report without colours."""
    return selftest_report(result, width=width, color=False).splitlines()


def words_of(lines: list[str], first: str, *, nth: int = 0) -> list[str]:
    """The columns of the nth line that begins so."""
    found = [line.strip() for line in lines if line.strip().startswith(first)]
    return re.split(r"\s{2,}", found[nth])


def test_every_verdict_is_counted() -> None:
    """By kind, of those that were planned, with what the alarms prove; where nothing was made that is nothing."""
    lines = lines_of()
    head = ["candidate", "made", "PASS", "REGRESSED", "INCONCLUSIVE", "INVALID", "alarms (95 %)"]
    assert words_of(lines, "candidate") == head
    assert words_of(lines, "identical") == ["identical", "3/4", "2", "0", "1", "0", "0 .. 71 %"]
    assert words_of(lines, "10 % slower") == ["10 % slower", "4/4", "0", "4", "0", "0", "40 .. 100 %"]
    assert words_of(lines, "tail only") == ["tail only", "0/4", "0", "0", "0", "0", "-"]


def test_times_are_written_with_units() -> None:
    """Median, p90 and the share of windows; unknown is a dash."""
    lines = lines_of()
    assert words_of(lines, "identical", nth=1) == ["identical", "17.2 s", "2 min 20 s", "12.5 %"]
    assert words_of(lines, "tail only", nth=1) == ["tail only", "-", "-", "-"]
    assert any("the 192 of a fixed design" in line for line in lines)


def test_the_conclusion_stands_last() -> None:
    """Passed, or failed with every reason; before it what was INVALID, and what was not reached and why."""
    assert "not reached in the time: identical 1, tail only 4" in lines_of()
    assert lines_of()[-1] == "self-test passed"
    lines = lines_of(replace(RESULT, failures=["one", "two"], problems=["INVALID: why"]))
    assert [line.strip() for line in lines[-4:]] == ["INVALID: why", "self-test FAILED", "one", "two"]
    lines = lines_of(replace(RESULT, interrupted=True))
    assert "not reached before Ctrl-C: identical 1, tail only 4" in lines
    assert lines[-1] == "self-test interrupted: not decided"
    assert not any("not reached" in line for line in lines_of(replace(RESULT, cases=[SLOWER])))


@pytest.mark.parametrize("width", [20, 80, 100, 200])
def test_it_is_readable_at_any_width(width: int) -> None:
    """No line is longer than the terminal, no number is cut, and nowhere are two empty lines."""
    text = selftest_report(RESULT, width=width, color=False)
    assert max(map(len, text.splitlines())) <= max(width, NARROWEST)
    for word in ("INCONCLUSIVE", "40 .. 100 %", "2 min 20 s", "10 % slower"):
        assert word in text
    assert "\n\n\n" not in text


def test_colours_change_no_word() -> None:
    """They are there where the terminal understands them, on what is right and what is not."""
    text = selftest_report(RESULT, width=120, color=True)
    assert "\x1b[32m" in text
    assert "\x1b[33m" in text
    assert ESCAPE.sub("", text) == selftest_report(RESULT, width=120, color=False)
