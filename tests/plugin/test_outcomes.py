"""Texts that are kept of a test for its reports: cut, and without any part of a secret."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import pytest

from pytest_gpuserve.plugin.outcomes import PROBLEM_CHARACTERS, Outcomes, uncut

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpuserve.report.results import TestResult

SECRET = "hunter22-hunter22"
NODEID = "test_x.py::test_a"


def kept(outcomes: Outcomes, problem: str) -> TestResult:
    """The result of a test that failed with these words and ended."""
    phases: tuple[tuple[Literal["call", "teardown"], Literal["failed", "passed"], str | None], ...] = (
        ("call", "failed", problem),
        ("teardown", "passed", None),
    )
    for when, outcome, words in phases:
        outcomes.keep(NODEID, pytest.TestReport(NODEID, ("test_x.py", 1, "test_a"), {}, outcome, words, when))
    (result,) = outcomes.results(lambda _: [])
    return result


@pytest.mark.parametrize("missing", [1, 8, len(SECRET) - 1])
def test_a_secret_across_a_cut_is_none_of_it(missing: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Secrets of this process are masked in a test's text; those of a server also in its log."""
    log, filling = tmp_path / "001-mosec.log", "x" * (400 - missing)
    log.write_text(f"{filling}{SECRET}\n")
    outcomes = Outcomes()
    outcomes.begin(NODEID)
    outcomes.logged(log, {"PORT": "8000", "A_TOKEN": SECRET})
    outcomes.logged(log, {"PORT": "8001", "A_TOKEN": SECRET})
    result = kept(outcomes, f"it said {SECRET}")
    assert result.problem == "it said <A_TOKEN>"
    (_, tail) = result.logs
    masked = f"{filling}<A_TOKEN>"
    assert tail.text == (masked if len(masked) <= 400 else f"{masked[:400]}…")
    monkeypatch.setenv("A_TOKEN", SECRET)
    filling = "x" * (PROBLEM_CHARACTERS - missing)
    problem = kept(Outcomes(), f"{filling}{SECRET} and more").problem
    assert problem == f"{filling}<A_TOKEN> and more"[:PROBLEM_CHARACTERS] + " ..."


def test_an_error_after_a_skip_is_what_is_told() -> None:
    """A test that is skipped late and whose end then fails is an error for the reason of its end."""
    outcomes = Outcomes()
    skipped = ("test_x.py", 1, "Skipped: MISSING")
    where = ("test_x.py", 1, "test_a")
    outcomes.keep(NODEID, pytest.TestReport(NODEID, where, {}, "skipped", skipped, "call"))
    outcomes.keep(NODEID, pytest.TestReport(NODEID, where, {}, "failed", "INVALID: late", "teardown"))
    (result,) = outcomes.results(lambda _: [])
    assert (result.outcome, result.problem) == ("error", "INVALID: late")


EXPLAINED = ("REGRESSED: throughput is 1/s", "interval -9 %", "to accept it: pytest", "  compute +80 %")
SHORT = ("REGRESSED: p50 is 2 ms", "interval +9 %")
MARK = "\n  \n  ...Full output truncated{}, use '-vv' to show"


@pytest.mark.parametrize("hidden", ["", " (2 lines hidden)"])
@pytest.mark.parametrize("left", ["\n  interval -9 %...", "\n  inter...", "..."])
def test_a_cut_explanation_is_put_back_where_it_stood(left: str, hidden: str) -> None:
    """Wherever pytest has cut, and whichever pytest: what stands around it stays, as does what is not ours or whole."""
    whole = "AssertionError: slow\nassert (REGRESSED: throughput is 1/s\n  interval -9 %\n  to accept it: pytest\n"
    text = f"AssertionError: slow\nassert (REGRESSED: throughput is 1/s{left}{MARK.format(hidden)}\n and 0)"
    assert uncut(text, [EXPLAINED]) == f"{whole}    compute +80 %\n and 0)"
    text = f"assert (REGRESSED: p50 is 2 ms\n  interval +9 % or REGRESSED: throughput is 1/s...{MARK.format('')})"
    put_back = "assert (REGRESSED: p50 is 2 ms\n  interval +9 % or REGRESSED: throughput is 1/s\n  interval -9 %\n"
    assert uncut(text, [SHORT, EXPLAINED]) == f"{put_back}  to accept it: pytest\n    compute +80 %)"
    for other in (f"assert [1] == [2]...{MARK.format('')}", "\n  ".join(EXPLAINED), ""):
        assert uncut(other, [EXPLAINED]) == other


def test_what_pytest_cut_is_told_beside_its_report() -> None:
    """It holds until the test runs again; a text that pytest has shown whole is not repeated."""
    outcomes = Outcomes()
    outcomes.begin(NODEID)
    outcomes.explained(EXPLAINED)
    cut = f"{EXPLAINED[0]}...{MARK.format('')}"
    assert kept(outcomes, cut).problem == "\n  ".join(EXPLAINED)
    assert outcomes.beyond_pytest(NODEID) == "\n  ".join(EXPLAINED)
    outcomes.begin(NODEID)
    assert kept(outcomes, cut).problem == cut
    assert outcomes.beyond_pytest(NODEID) == ""
