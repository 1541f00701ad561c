"""The comment on a pull request: its content, as inert text of limited length."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given

from pytest_gpuserve.report.html import document as page
from pytest_gpuserve.report.markdown import (
    COMMENT_BYTES,
    CommentPart,
    block,
    comment,
    fitted,
    headline,
    step_summary,
)
from pytest_gpuserve.report.next_step import next_step
from pytest_gpuserve.report.remarks import totals_line
from pytest_gpuserve.report.results import LogTail, TestResult
from pytest_gpuserve.verdict.metric import METRICS
from pytest_gpuserve.verdict.verdict import Verdict
from tests.support.builders import COMMIT, OCCASION, judgement, result_of
from tests.support.markdown_results import (
    GITHUB_COMMENT,
    GITHUB_STEP_SUMMARY,
    HOSTILE,
    TEXTS,
    UNHURRIED,
    Tree,
    a_test,
    gfm,
    hostile_result,
    many,
    only_text,
    result_of_tests,
    rows_in,
)

if TYPE_CHECKING:
    from pytest_gpuserve.verdict.verdict import Judgement


def test_a_row_says_everything_of_a_metric() -> None:
    """The test, the metric, both values, the change with its interval, what would have been seen, the verdict."""
    text = comment(result_of_tests(a_test("suites/x/test_y.py::test_z[50]", "failed", judgement())))
    values = ["1432/s", "2047/s", "-30.1 %", "-34.1 %", "5 %"]
    assert rows_in(text)[0] == ["test_z[50]", "throughput", *values, "REGRESSED"]
    assert "<h3>❌ 1 of 1 test did not pass on <code>T4</code></h3>" in text
    assert f"commit <code>{COMMIT}</code>, <code>{OCCASION}</code>" in text
    text = comment(result_of_tests(a_test("t.py::test_z", "failed", judgement(Verdict.MISSING))))
    assert rows_in(text)[0] == ["test_z", "throughput", *["-"] * 5, "MISSING"]


def test_what_passed_is_folded_away() -> None:
    """Rows that fail their test stand above, what passed below, of one test too."""
    tests = (
        a_test("t.py::test_pass", "passed", judgement(Verdict.PASS)),
        a_test("t.py::test_skipped", "skipped", judgement(Verdict.INCONCLUSIVE)),
        a_test("t.py::test_much", "failed", judgement(Verdict.PASS, "latency.p50"), judgement()),
    )
    above, below = comment(result_of_tests(*tests)).split("<details><summary>Other rows</summary>")
    assert [(row[0], row[-1]) for row in rows_in(above)] == [
        ("test_much", "REGRESSED"),
        ("test_skipped", "INCONCLUSIVE"),
    ]
    assert {(row[0], row[-1]) for row in rows_in(below) if len(row) == 8} == {
        ("test_pass", "PASS"),
        ("test_much", "PASS"),
    }


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
    """Only where all have passed it is green, and what is not known is not."""
    for outcomes, said in HEADLINES.items():
        assert headline([TestResult(f"t{i}", outcome) for i, outcome in enumerate(outcomes.split())]) == said


def test_reasons_are_said_once_and_what_to_do_next_in_whole() -> None:
    """A missing file is missing for every metric; the totals and the command are those of the terminal."""
    missing = [judgement(Verdict.MISSING, metric, reasons=("no file",)) for metric in METRICS]
    nodeid = f"t.py::test_{'z' * 500}"
    result = result_of_tests(a_test(nodeid, "failed", *missing))
    text = comment(result)
    assert text.count("<li>MISSING: <code>no file</code></li>") == 1
    assert f"<code>{totals_line(result)}</code>" in text
    assert f"<code>{next_step(result)}</code>" in text
    assert nodeid in next_step(result)


@pytest.mark.parametrize("outcome", ["passed", "failed"])
def test_why_a_baseline_was_loosened_is_told_where_it_passes(outcome: str) -> None:
    """A reviewer sees the earlier acceptance once, folded, and not as a reason of a failure."""
    reason = "throughput was loosened at 888888888888: a larger model"
    loosened = judgement(Verdict.PASS, reasons=(reason,))
    slow = judgement(metric="latency.p99", reasons=("slow",))
    tests = (
        a_test("t.py::test_y", outcome, loosened, *([slow] if outcome == "failed" else [])),
        a_test("t.py::test_z", "passed", loosened),
    )
    result = result_of_tests(*tests, places=("a place",))
    assert reason in page(result)
    above, below = comment(result).split("<summary>Notes</summary>")
    assert reason not in above
    notes = re.findall("<li>(.*)</li>", below)
    assert notes == ["<code>a note</code>", f"PASS: <code>{reason}</code>", "<code>a place</code>"]


def test_a_test_without_a_verdict_is_there_with_its_problem_and_log() -> None:
    """A server that did not start has no row, but its problem and log; a passed test adds nothing."""
    failed = TestResult("t.py::test_z", "error", [], "ServerFailed: no", (LogTail("001-mosec", "a\nTraceback"),))
    passed = TestResult("t.py::test_y", "passed", [], "", (LogTail("002-mosec", "fine"),))
    text = comment(result_of_tests(failed, passed))
    assert "<code>t.py::test_z</code>: <code>error</code></summary><pre>ServerFailed: no</pre>" in text
    assert "<pre>a&#10;Traceback</pre>" in text
    assert "fine" not in text
    unknown = comment(result_of_tests(TestResult("t.py::test_z", "error")))
    assert "The reason is unknown." in unknown


def test_the_marker_is_that_of_the_job_and_not_of_the_run() -> None:
    """Two runs of one job find each other's comment, those of other devices or other comparisons do not."""
    failed = result_of_tests(a_test("t.py::test_z", "failed", judgement()))
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
    assert rows_in(comment(result_of_tests(result_of("t::test_z", one))))[0][3] == told


@pytest.mark.parametrize("text", HOSTILE)
def test_a_hostile_text_is_shown_and_nothing_else(text: str) -> None:
    """For any name of a test, log or setting, the comment has our tags, our words, and the text in code."""
    for write in (comment, step_summary):
        tree = only_text(gfm(write(hostile_result(text))))
        wanted = Tree(block(text)).verbatim[0]
        assert any(wanted == shown for shown in tree.verbatim)
    # No blank line ends the block, and no line is a command to the runner that might print the file.
    first, *lines = comment(hostile_result(text)).removesuffix("\n").split("\n")
    assert re.fullmatch(r"<!-- pytest-gpuserve [A-Za-z0-9.-]{1,64} stored -->", first)
    assert all(line.startswith("<") for line in lines)
    assert all(re.search(r"[\r\x0b\x0c\x1c-\x1f\x85\u2028\u2029]", line) is None for line in lines)


@UNHURRIED
@given(text=TEXTS)
def test_no_text_gets_out_of_its_place(text: str) -> None:
    """The same holds for random texts."""
    only_text(gfm(comment(hostile_result(text))))


@pytest.mark.parametrize("count", [1, 20, 60, 150, 400, 1000])
def test_it_never_is_longer_than_github_takes(count: int) -> None:
    """It fits by characters and by bytes, and stays a whole document."""
    result = many(count)
    for text, most in ((comment(result), GITHUB_COMMENT), (step_summary(result), GITHUB_STEP_SUMMARY)):
        assert len(text.encode()) < most
        only_text(gfm(text))


def test_it_is_never_longer_whatever_its_texts_are() -> None:
    """Escapes make ten characters of one, and references five."""
    for sign in ("\U000e0041", "&", "\n", "漢", "<"):
        text = comment(hostile_result(sign * 20_000))
        assert len(text.encode()) <= COMMENT_BYTES
        only_text(gfm(text))


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
    assert "Left out" not in step_summary(many(100))


def test_a_piece_that_fits_is_whole() -> None:
    """A single byte decides."""
    part = CommentPart("<a>", ["1" * 50, "2" * 50], "</a>", "things")
    whole = "\n".join(("<a>", "1" * 50, "2" * 50, "</a>"))
    assert fitted([part], len(whole) + 1) == whole
    assert "1 of 2 things" in fitted([part], len(whole) + 80) or fitted([part], len(whole) + 80) == whole
    assert "2 of 2 things" in fitted([part], len(whole))
    assert fitted([CommentPart("<a>", [], "</a>", "things")], 100) == ""
