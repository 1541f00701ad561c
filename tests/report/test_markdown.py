"""The comment on a pull request: what of a run stands in it, and in which order."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from pytest_gpuserve.gate.metric import METRICS
from pytest_gpuserve.gate.verdict import Verdict
from pytest_gpuserve.report.html.text import Texts
from pytest_gpuserve.report.html.verdicts import line_of
from pytest_gpuserve.report.markdown import comment, headline, step_summary
from pytest_gpuserve.report.markdown_rows import worst_first
from pytest_gpuserve.report.next_step import next_step
from pytest_gpuserve.report.ranking import rows_of
from pytest_gpuserve.report.results import LogTail, SessionResult, TestResult
from pytest_gpuserve.report.terminal import table
from pytest_gpuserve.report.totals import totals_line
from tests.support.builders import COMMIT, OCCASION, judgement, result_of
from tests.support.markdown_results import a_test, result_of_tests, rows_in

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpuserve.gate.verdict import Judgement


def test_a_row_says_everything_of_a_metric() -> None:
    """The test, the metric, both values, the change with its interval, what would have been seen, the verdict."""
    text = comment(result_of_tests(a_test("suites/x/test_y.py::test_z[50]", "failed", judgement())))
    values = ["1432/s", "2047/s", "-30.1 % (-34.1 % to -26.2 %)", "6 %"]
    assert rows_in(text)[0] == ["test_z[50]", "throughput", *values, "REGRESSED"]
    assert "<h3>❌ 1 of 1 test did not pass on <code>T4</code></h3>" in text
    assert f"commit <code>{COMMIT}</code>, <code>{OCCASION}</code>" in text
    text = comment(result_of_tests(a_test("t.py::test_z", "failed", judgement(Verdict.MISSING))))
    assert rows_in(text)[0] == ["test_z", "throughput", *["unknown"] * 4, "MISSING"]


def test_what_fails_comes_first_and_the_worst_of_it_at_once() -> None:
    """Rows that fail their test, by verdict and size; what passed, or was settled otherwise, is folded away."""
    little = replace(judgement(), change=-0.06)
    latency = replace(judgement(metric="latency.p99"), change=2.0)
    tests = (
        a_test("t.py::test_pass", "passed", judgement(Verdict.PASS)),
        # Side by side with the baseline's commit it passed, and that counted.
        a_test("t.py::test_settled", "passed", judgement(), judgement(Verdict.PASS, kind="against")),
        a_test("t.py::test_skipped", "skipped", judgement(Verdict.INCONCLUSIVE)),
        a_test("t.py::test_missing", "failed", judgement(Verdict.MISSING)),
        a_test(
            "t.py::test_little",
            "failed",
            little,
            judgement(Verdict.PASS, "latency.p50"),
            judgement(metric="latency.p90").unasserted(),
        ),
        a_test("t.py::test_much", "failed", judgement(Verdict.MISSING, "batching_ratio"), judgement(), latency),
        a_test("t.py::test_invalid", "failed", judgement(Verdict.INVALID)),
    )
    text = comment(result_of_tests(*tests))
    above, below = text.split("<details><summary>Other rows</summary>")
    assert [(row[0], row[-1]) for row in rows_in(above)] == [
        ("test_much", "REGRESSED"),
        ("test_much", "REGRESSED"),
        ("test_little", "REGRESSED"),
        ("test_invalid", "INVALID"),
        # What is red is never behind what is not, though it is of a test that is less bad.
        ("test_much", "MISSING"),
        ("test_missing", "MISSING"),
        ("test_skipped", "INCONCLUSIVE"),
    ]
    assert rows_in(above)[0][1] == "latency.p99"
    assert {(row[0], row[-1]) for row in rows_in(below) if len(row) == 7} == {
        ("test_pass", "PASS"),
        ("test_settled", "REGRESSED, settled side by side"),
        ("test_settled", "PASS"),
        ("test_little", "PASS"),
        ("test_little", "REGRESSED, not asserted"),
    }


@pytest.mark.parametrize(
    ("outcomes", "said"),
    [
        ("", "⚠️ Nothing was measured"),
        ("passed", "✅ 1 of 1 test passed"),
        ("passed passed", "✅ 2 of 2 tests passed"),
        ("passed skipped", "⚠️ 1 of 2 tests passed, 1 skipped"),
        ("skipped", "⚠️ 0 of 1 test passed, 1 skipped"),
        ("passed failed skipped", "❌ 1 of 3 tests did not pass, 1 skipped"),
        ("error interrupted passed", "❌ 2 of 3 tests did not pass"),
        ("something new", "❌ 2 of 2 tests did not pass"),
    ],
)
def test_the_headline(outcomes: str, said: str) -> None:
    """Only where all have passed it is green, and what is not known is not."""
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
@pytest.mark.parametrize("document", [comment, step_summary])
def test_why_a_baseline_was_loosened_is_told_where_it_passes(
    document: Callable[[SessionResult], str], outcome: str
) -> None:
    """Whoever reviews a pull request sees what was accepted before it, once and folded: not why this one fails."""
    reason = "throughput was loosened at 888888888888: a larger model"
    loosened = judgement(Verdict.PASS, reasons=(reason,))
    slow = judgement(metric="latency.p99", reasons=("slow",))
    tests = (
        a_test("t.py::test_y", outcome, loosened, *([slow] if outcome == "failed" else [])),
        a_test("t.py::test_z", "passed", loosened),
    )
    above, below = document(result_of_tests(*tests, places=("a place",))).split("<summary>Notes</summary>")
    assert reason not in above
    notes = re.findall("<li>(.*)</li>", below)
    assert notes == ["<code>a note</code>", f"PASS: <code>{reason}</code>", "<code>a place</code>"]


def test_where_all_passed_nothing_is_to_be_done() -> None:
    """Facts are told by name; one that is not known has a reason or is not there."""
    text = comment(result_of_tests(a_test("t.py::test_z", "passed", judgement(Verdict.IMPROVED))))
    assert "<code>next: " not in text
    assert "<code>comparisons: " not in text
    assert {tuple(row) for row in rows_in(text) if len(row) == 3} == {
        ("device", "name", "T4"),
        ("device", "product", "Tesla T4"),
        ("device", "ecc", "yes"),
        ("device", "unknown.power", "not supported"),
        ("host", "id", "host-a"),
        ("host", "cores", "8"),
        ("software", "torch", "2.9.0"),
    }


def test_a_test_without_a_verdict_is_there_with_its_problem_and_log() -> None:
    """A server that did not start has no row, and is not left out; of one that passed nothing is told."""
    failed = TestResult("t.py::test_z", "error", [], "ServerFailed: no", (LogTail("001-mosec", "a\nTraceback"),))
    passed = TestResult("t.py::test_y", "passed", [], "", (LogTail("002-mosec", "fine"),))
    text = comment(result_of_tests(failed, passed))
    assert "<code>t.py::test_z</code>: <code>error</code></summary><pre>ServerFailed: no</pre>" in text
    assert "<pre>a&#10;Traceback</pre>" in text
    assert "fine" not in text
    unknown = comment(result_of_tests(TestResult("t.py::test_z", "error")))
    assert "Nothing is known of why." in unknown


def test_the_marker_is_that_of_the_job_and_not_of_the_run() -> None:
    """Two runs of one job find each other's comment, those of other devices or other comparisons do not."""
    failed = result_of_tests(a_test("t.py::test_z", "failed", judgement()))
    again = replace(failed, tests=(), commit=None, at="later", notes=(), host={}, software={}, header="")
    others = (replace(failed, gpu={"name": "A100"}), replace(failed, stored=False), replace(failed, gpu={}))
    first, *markers = (comment(each).partition("\n")[0] for each in (failed, again, *others))
    assert first == "<!-- pytest-gpuserve T4 stored -->"
    assert markers[0] == first
    assert len({first, *markers[1:]}) == 4


def test_names_are_short_where_no_other_test_has_them() -> None:
    """Two files may have a test of one name; a load's name stands with its test's."""
    tests = [a_test(f"{file}::test_z", "passed", judgement(Verdict.PASS), label="big") for file in ("a.py", "b.py")]
    assert [row[0] for row in rows_in(comment(result_of_tests(*tests)))[:2]] == ["a.py::test_z big", "b.py::test_z big"]
    assert rows_in(comment(result_of_tests(tests[0])))[0][0] == "test_z big"


def test_any_change_has_a_rank() -> None:
    """Also that a throughput is gone altogether, or that it is not known by how much it changed."""
    for change in (-1.0, -2.0, None, 1e300):
        worst = replace(judgement(), change=change)
        assert len(worst_first([a_test("t", "failed", worst, judgement())])) == 2


def told(one: Judgement) -> tuple[str, str, str]:
    """The reference as it stands on the terminal, in a comment and in the HTML report."""
    test = result_of("t::test_z", one)
    drawn = table([test], width=200, color=False).splitlines()[-1]
    (row,) = rows_of(test)
    return (
        re.split(" {2,}", drawn.strip())[3],
        rows_in(comment(result_of_tests(test)))[0][3],
        line_of(row, "t", Texts(str)).cells["reference"],
    )


def test_a_reference_is_told_by_its_kind() -> None:
    """A latency may be at most so long; a reference that is not known is no number of any kind."""
    limit = replace(judgement(metric="latency.p99", kind="limit"), reference=0.05)
    assert told(limit) == ("<= 50.0 ms", "at most 50.0 ms", "limit: at most 50.0 ms")
    for missing in (judgement(Verdict.MISSING), judgement(Verdict.MISSING, kind="limit")):
        assert told(missing) == ("-", "unknown", "not known")
