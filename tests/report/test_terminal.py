"""The table at the end of a run, readable at any width, and the lines below it, none of which is repeated."""

from __future__ import annotations

import re
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from pytest_gpuserve.measure.histogram import Histogram, bucket_of
from pytest_gpuserve.report.names import names_of, some_of
from pytest_gpuserve.report.next_step import UPDATE
from pytest_gpuserve.report.results import RunResult, TestResult
from pytest_gpuserve.report.terminal import (
    LEFT_OUT_FIRST,
    NARROWEST,
    client_lines,
    language_model_lines,
    measured_again_lines,
    problem_lines,
    reason_lines,
    table,
    totals_line,
)
from pytest_gpuserve.verdict.metric import METRICS
from pytest_gpuserve.verdict.reason import Reason, ReasonKind
from pytest_gpuserve.verdict.verdict import Judgement, Verdict
from tests.support.builders import judgement, result_of, run_of, session, start, tallied, window
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


def named(nodeid: str, *judgements: Judgement, outcome: str = "failed", problem: str = "") -> TestResult:
    """A test of the file ``t.py``."""
    return result_of(f"t.py::{nodeid}", *judgements, outcome=outcome, problem=problem)


def test_a_reason_of_many_tests_is_said_once() -> None:
    """A reason of several tests has one line, also if only the test's name in it differs."""
    tests = [named(f"test_{name}", judgement(Verdict.MISSING, reasons=("there is no folder",))) for name in "abcde"]
    assert reason_lines(run_of(*tests).rows) == [
        "MISSING: there is no folder (5 tests: test_a, test_b, test_c and 2 others)"
    ]
    assert reason_lines(run_of(*tests[:2]).rows) == ["MISSING: there is no folder (2 tests: test_a, test_b)"]
    tests = [
        named(
            f"test_{n}",
            judgement(
                Verdict.MISSING,
                reasons=(Reason(ReasonKind.NO_ENTRY, f"x.json has no entry 'test_{n}'", about="x.json"),),
            ),
        )
        for n in (1, 2)
    ]
    assert reason_lines(run_of(*tests).rows) == ["MISSING: x.json has no entry '...' (2 tests: test_1, test_2)"]
    assert reason_lines(run_of(*tests[:1]).rows) == ["MISSING: x.json has no entry 'test_1' (test_1)"]


@pytest.mark.parametrize("outcome", ["failed", "skipped", "error", "interrupted"])
def test_a_quiet_run_says_why_tests_do_not_pass(outcome: str) -> None:
    """Every reason of a failed comparison is shown, for each verdict and outcome, and no other."""
    passed = named("test_b", judgement(Verdict.MISSING, reasons=("recorded",)), outcome="passed")
    fine = judgement(Verdict.PASS, "latency.p50", reasons=("fine",))
    for verdict in Verdict:
        test = named("test_a", judgement(verdict, reasons=("why", "and how")), fine, outcome=outcome)
        told = [] if verdict.passes else [f"{verdict}: {why} (test_a throughput)" for why in ("why", "and how")]
        assert reason_lines(row for row in run_of(test, passed).rows if row.is_bad) == told


def test_an_error_before_any_verdict_has_a_line() -> None:
    """Its first line, with the outcome and the test; of many tests once."""
    problem = "\nmosec ended before it was ready\n  found: exit code 3"
    tests = [named(name, outcome="error", problem=problem) for name in ("test_a", "test_b")]
    assert problem_lines(run_of(*tests)) == ["ERROR: mosec ended before it was ready (2 tests: test_a, test_b)"]
    # Not where a verdict explains the failure, nor where nothing failed or pytest gave no words for it.
    tests = [named("a", outcome="passed", problem="x"), named("b", outcome="skipped", problem="x"), named("c")]
    assert problem_lines(run_of(*tests, named("test_d", judgement(), problem="assert REGRESSED"))) == []
    assert problem_lines(run_of(named("test_a", judgement(Verdict.PASS), problem="assert 1 == 2"))) == [
        "FAILED: assert 1 == 2 (test_a)"
    ]
    assert problem_lines(run_of(named("test_a", judgement(), problem="cannot end", outcome="error"))) == [
        "ERROR: cannot end (test_a)"
    ]


def test_the_load_engine_tells_how_it_did() -> None:
    """The line has the worst send lag, the share of a core and the repeated sends; it is absent without a load."""
    quick = window(seconds=1.5, lag=Histogram({bucket_of(50_000): 100}))
    late = window(lag=Histogram({bucket_of(3_000_000): 100}))
    again = msgspec.structs.replace(late, resent=7)
    results = [result_of(name, sessions=(session(start(each)),)) for name, each in (("a", quick), ("b", late))]
    assert client_lines(run_of(*results)) == ["load engine: send lag p99 3.00 ms at most, 1 % of a core on average"]
    resent = result_of("c", sessions=(session(start(again)),))
    (line,) = client_lines(run_of(resent))
    assert line.endswith(", 7 requests sent again: the server closed connections that it had kept open")
    assert client_lines(run_of(result_of("a", sessions=(session(),)))) == []
    assert client_lines(run_of()) == []


def test_what_a_language_model_had_in_its_cache_is_told() -> None:
    """Each load has its cache share and preemptions; servers that do not count them have no line."""
    tallies: tuple[dict[str, int], ...] = (
        {"prompt_tokens": 100, "cached_tokens": 62, "preemptions": 0},
        {"preemptions": 4},
        {},
    )
    results = [
        result_of(name, sessions=(session(start(tallied(each))),)) for name, each in zip("abc", tallies, strict=True)
    ]
    assert language_model_lines(run_of(*results)) == [
        "prompt tokens from the prefix cache: 62 % (a)",
        "preemptions, because the KV cache was full: 400 in 1000 requests (b)",
    ]
    assert language_model_lines(run_of(*results[2:])) == []


def test_windows_that_were_measured_again_are_told() -> None:
    """Counts and reasons have a line for each load, or one line in total unless the run is verbose."""
    once = replace(start(), rejected=("GPU-1: thermal slowdown in 2 of 5 samples",), discarded=1)
    twice = replace(start(), rejected=("GPU-1: hot", "GPU-1: hot", "GPU-1: \x1b[31mslow", "GPU-1: hotter"))
    results = [
        result_of("suites/test_y.py::test_a", sessions=(session(once, start()),)),
        result_of("suites/test_y.py::test_b", sessions=(session(start()), session(twice))),
        result_of("suites/test_y.py::test_c", sessions=(session(),)),
    ]
    one = "test_a: 1 of 10 windows measured again: GPU-1: thermal slowdown in 2 of 5 samples"
    other = r"test_b: 4 of 12 windows measured again: GPU-1: hot; GPU-1: \x1b[31mslow; GPU-1: hotter"
    assert measured_again_lines(run_of(*results), verbose=True) == [one, other]
    assert measured_again_lines(run_of(*results)) == ["5 of 22 windows in 2 loads were measured again: -v shows why"]
    assert measured_again_lines(run_of(*results[1:])) == [other]
    assert measured_again_lines(run_of(*results[2:])) == []


def test_a_green_run_is_short() -> None:
    """A green run shows the first reasons, and the number of the others."""
    tests = [named(f"test_{n}", judgement(Verdict.PASS, reasons=(f"reason {n}",)), outcome="passed") for n in range(9)]
    assert len(reason_lines(run_of(*tests).rows)) == 9
    assert reason_lines(run_of(*tests).rows, verbose=False)[2:] == [
        "PASS: reason 2 (test_2)",
        "6 more notes on what passed: -v shows them",
    ]


def test_only_what_has_a_baseline_could_be_recorded() -> None:
    """A printed number or a limit cannot be; nor can a comparison with another revision, nor in a recording."""
    limit = named("test_a", judgement(Verdict.IMPROVED, kind="limit"), outcome="passed")
    assert totals_line(run_of(limit)) == "comparisons: 1 improved"
    paired = named("test_a", judgement(Verdict.IMPROVED, kind="against"), outcome="passed")
    assert totals_line(run_of(paired, stored=False)) == "comparisons: 1 improved"
    assert totals_line(run_of(paired, update=UPDATE)) == "comparisons: 1 improved"
    assert "could be recorded: test_a" in totals_line(run_of(paired))
    # What was missing is recorded in a recording, if its test passed.
    passed, failed = named("a", judgement(Verdict.MISSING), outcome="passed"), named("b", judgement(Verdict.MISSING))
    assert totals_line(run_of(passed, failed, update=UPDATE)) == "comparisons: 1 missing, 1 recorded"
    assert totals_line(run_of(passed)) == "comparisons: 1 missing"


def test_totals_count_last_words_and_tests_without_any() -> None:
    """Proposed recordings come from passed tests, the largest change first."""
    better = replace(judgement(Verdict.IMPROVED), change=0.12)
    much_better = replace(judgement(Verdict.IMPROVED, "latency.p50"), change=-0.5)
    paired = judgement(Verdict.PASS, kind="against", reasons=("that counts",))
    tests = [
        named("test_a", paired, outcome="passed"),
        named("test_b", better, much_better, outcome="passed"),
        named("test_c", judgement(Verdict.IMPROVED), judgement(Verdict.INVALID)),
        named("test_d", judgement(Verdict.MISSING), outcome="skipped"),
        named("test_e", judgement(), judgement(Verdict.INCONCLUSIVE)),
        named("test_f", outcome="error"),
        named("test_g", outcome="skipped"),
        named("test_h", outcome="passed"),
    ]
    assert totals_line(run_of(*tests)) == (
        "comparisons: 1 passed, 3 improved, 1 regressed, 1 invalid, 1 missing, 1 inconclusive,"
        " 2 tests ended without a comparison; could be recorded: test_b latency.p50 -50.0 %, test_b throughput +12.0 %"
    )
    assert totals_line(run_of()) == ""


def order(*tests: TestResult) -> list[str]:
    """The tests in the order of their rows."""
    return list(dict.fromkeys(row.test.nodeid for row in run_of(*tests).rows))


def test_by_outcome_then_by_verdict() -> None:
    """Rows come by outcome, then by verdict; an unknown outcome ranks with failures."""
    in_order = [
        result_of("regressed", judgement(), outcome="a new one"),
        result_of("invalid", judgement(Verdict.INVALID), outcome="error"),
        result_of("missing", judgement(Verdict.MISSING)),
        result_of("inconclusive", judgement(Verdict.INCONCLUSIVE)),
        result_of("fine", judgement(Verdict.PASS), outcome="failed"),
        result_of("skipped", judgement(Verdict.INVALID), outcome="skipped"),
        result_of("passed", judgement(), outcome="passed"),
    ]
    assert order(*in_order[::-1]) == [test.nodeid for test in in_order]


def test_then_by_the_change_as_a_multiple_of_the_tolerance() -> None:
    """10 % of a tolerance of 5 % is more than 30 % of one of 20 %, in either direction; no change is last."""
    found = ((None, 0.05), (0.30, 0.20), (-0.10, 0.05), (0.12, 0.05))
    rows = [replace(judgement(), change=change, interval=None, tolerance=tolerance) for change, tolerance in found]
    assert [row.judgement.change for row in run_of(result_of("t", *rows)).rows] == [0.12, -0.10, 0.30, None]


def test_names() -> None:
    """Names are short, distinguished by the file if necessary, printable, and limited in number."""
    assert names_of(["a.py::test_z", "b.py::test_z", "b.py::test_q[\x1b]"]) == {
        "a.py::test_z": "a.py::test_z",
        "b.py::test_z": "b.py::test_z",
        "b.py::test_q[\x1b]": r"test_q[\x1b]",
    }
    counts = {"": "", "abc": "a, b, c", "abcd": "a, b, c and 1 other", "abcde": "a, b, c and 2 others"}
    assert {names: some_of([*names]) for names in counts} == counts
