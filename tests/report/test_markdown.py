"""The comment on a pull request: its content, as inert text of limited length."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from pytest_gpuserve.report.html import document as page
from pytest_gpuserve.report.markdown import block, comment, headline
from pytest_gpuserve.report.results import LogTail, SessionResult, TestResult
from pytest_gpuserve.verdict.verdict import Judgement, Verdict
from tests.support.builders import judgement, result_of, run_of
from tests.support.markdown_results import (
    GITHUB_COMMENT,
    HOSTILE,
    Tree,
    gfm,
    hostile_result,
    many,
    only_text,
    rows_in,
)

HEADLINES = {
    "": "⚠️ Nothing was measured",
    "passed": "✅ 1 of 1 test passed",
    "passed passed": "✅ 2 of 2 tests passed",
    "passed skipped": "⚠️ 1 of 2 tests passed, 1 skipped",
    "skipped": "⚠️ 0 of 1 test passed, 1 skipped",
    "passed failed skipped": "❌ 1 of 3 tests did not pass, 1 skipped",
    "error interrupted passed": "❌ 2 of 3 tests did not pass",
    "something new": "❌ 2 of 2 tests did not pass",
}


def test_the_headline() -> None:
    """The headline is green only if all tests passed; an unknown outcome is not."""
    for outcomes, said in HEADLINES.items():
        assert headline([TestResult(f"t{i}", outcome) for i, outcome in enumerate(outcomes.split())]) == said


def test_why_a_baseline_was_loosened_is_told_where_it_passes() -> None:
    """A reviewer sees the earlier acceptance once, folded, and not as a reason of a failure."""
    reason = "throughput was loosened at 888888888888: a larger model"
    loosened = judgement(Verdict.PASS, reasons=(reason,))
    slow = judgement(metric="latency.p99", reasons=("slow",))
    tests = result_of("t.py::test_y", loosened, slow), result_of("t.py::test_z", loosened, outcome="passed")
    result = replace(run_of(*tests), notes=("a note",), places=("a place",))
    assert reason in page(result)
    above, below = comment(result).split("<summary>Notes</summary>")
    assert reason not in above
    notes = re.findall("<li>(.*)</li>", below)
    assert notes == ["<code>a note</code>", f"PASS: <code>{reason}</code>", "<code>a place</code>"]


def test_a_test_without_a_verdict_is_there_with_its_problem_and_log() -> None:
    """A server that did not start has no row, but its problem and log; a passed test adds nothing."""
    failed = TestResult("t.py::test_z", "error", [], "ServerFailed: no", (LogTail("001-mosec", "a\nTraceback"),))
    passed = TestResult("t.py::test_y", "passed", [], "", (LogTail("002-mosec", "fine"),))
    text = comment(run_of(failed, passed))
    assert "<code>t.py::test_z</code>: <code>error</code></summary><pre>ServerFailed: no</pre>" in text
    assert "<pre>a&#10;Traceback</pre>" in text
    assert "fine" not in text
    unknown = comment(run_of(TestResult("t.py::test_z", "error")))
    assert "The reason is unknown." in unknown


def test_the_marker_is_that_of_the_job_and_not_of_the_run() -> None:
    """Two runs of one job find each other's comment, those of other devices or other comparisons do not."""
    failed = run_of(result_of("t.py::test_z", judgement()))
    again = replace(failed, tests=(), commit=None, at="later", notes=(), host={}, software={}, header="")
    others = (replace(failed, gpu={"name": "A100"}), replace(failed, stored=False), replace(failed, gpu={}))
    first, *markers = (comment(each).partition("\n")[0] for each in (failed, again, *others))
    assert first == "<!-- pytest-gpuserve T4 stored -->"
    assert markers[0] == first
    assert len({first, *markers[1:]}) == 4


@pytest.mark.parametrize(
    ("one", "told"),
    [
        (judgement(), "2047/s"),
        (judgement(kind="against"), "base 2047/s"),
        (replace(judgement(metric="latency.p99", kind="limit"), reference=0.05), "at most 50.0 ms"),
        (replace(judgement(kind="duel"), reference=1.05), "at least 1.05"),
        (judgement(Verdict.MISSING, kind="limit"), "-"),
    ],
)
def test_a_reference_is_told_by_its_kind(one: Judgement, told: str) -> None:
    """A latency's limit is "at most"; an unknown reference has no number."""
    assert rows_in(comment(run_of(result_of("t::test_z", one))))[0][3] == told


@pytest.mark.parametrize("text", HOSTILE)
def test_a_hostile_text_is_shown_and_nothing_else(text: str) -> None:
    """For any name of a test, log or setting, the comment has our tags, our words, and the text in code."""
    wanted = Tree(block(text)).verbatim[0]
    assert any(wanted == shown for shown in only_text(gfm(comment(hostile_result(text)))).verbatim)
    # No blank line ends the block, and no line is a command to the runner that might print the file.
    first, *lines = comment(hostile_result(text)).removesuffix("\n").split("\n")
    assert re.fullmatch(r"<!-- pytest-gpuserve [A-Za-z0-9.-]{1,64} stored -->", first)
    assert all(line.startswith("<") for line in lines)
    assert all(re.search(r"[\r\x0b\x0c\x1c-\x1f\x85\u2028\u2029]", line) is None for line in lines)


LONG = [*map(many, (1, 20, 60, 150, 400, 1000)), *(hostile_result(sign * 20_000) for sign in "\U000e0041&\n漢<")]


@pytest.mark.parametrize("result", LONG, ids=range(len(LONG)))
def test_it_never_is_longer_than_github_takes(result: SessionResult) -> None:
    """It fits by characters and by bytes, also of signs that escapes make ten of, and stays a whole document."""
    assert len(comment(result).encode()) < GITHUB_COMMENT
    only_text(gfm(comment(result)))


def test_what_is_cut_off_is_said_and_never_the_worst() -> None:
    """First logs go, then what passed, then what tests say; the reddest rows stay."""
    count = 400
    text = comment(many(count))
    kept = [row[0] for row in rows_in(text)]
    assert kept == [f"test_{'long_' * 20}[{i}]" for i in range(count - 1, count - 1 - len(kept), -1)]
    assert len(kept) > 150
    assert f"Left out for length: {count - len(kept)} of {count} rows that do not pass, the least bad ones." in text
    for what in ("reasons", "tests that did not pass", "other rows", "ends of logs"):
        assert re.search(rf"Left out for length: \d+ of {count} {what}\.", text) is not None
    assert f"Left out for length: {count} of {count} other rows." in text
    few = comment(many(20))
    assert [row[-1] for row in rows_in(few)].count("REGRESSED") == 20
    assert re.search(r"Left out for length: \d+ of 20 ", few) is None
