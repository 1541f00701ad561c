"""The command that comes next: exact, quoted, and of the most important thing."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_gpuserve.gate.verdict import ReferenceKind, Verdict
from pytest_gpuserve.measure.capacity import Objective, Search
from pytest_gpuserve.report.commands import ACCEPT, UPDATE, UPDATE_NEW
from pytest_gpuserve.report.next_step import MENDED_BY, next_step
from pytest_gpuserve.report.results import SessionResult
from tests.support.builders import COMMIT, judgement, result_of, session, start

if TYPE_CHECKING:
    from pytest_gpuserve.gate.verdict import Judgement
    from pytest_gpuserve.report.results import TestResult

UNHURRIED = settings(deadline=None, max_examples=60)  # a busy machine may stall any example

FILE = "suites/x/test_y.py"
SPENT = (
    "not decided after 2 sessions, and another of about 30 s would exceed the test's budget of 300 s; raise it with"
    " --gpuserve-budget=SECONDS"
)
SETTLED = judgement(Verdict.REGRESSED, kind="against", reasons=("that counts",))
"""A regression that was settled side by side with the baseline's commit."""


def named(name: str, *judgements: Judgement, outcome: str = "failed", base: tuple[str, ...] = ()) -> TestResult:
    """A test with one load."""
    test = result_of(f"{FILE}::{name}", *judgements)
    test.runs[0] = replace(test.runs[0], base_options=base)
    return replace(test, outcome=outcome)


def run_of(
    *tests: TestResult, stored: bool = True, commit: str | None = COMMIT, clean: bool = True, update: str = ""
) -> SessionResult:
    """A run of these tests on a T4."""
    return SessionResult({"name": "T4"}, {}, tests, commit=commit, clean=clean, stored=stored, update=update)


def words(line: str) -> list[str]:
    """The command at the end of the line, as a shell reads it."""
    return shlex.split(line[line.index(": pytest ") + 2 :])


# -- REGRESSED


def test_a_settled_regression_is_looked_at_and_then_accepted() -> None:
    """What moved comes first, beside the same base with a report; where the base is not known it can be accepted."""
    accept = (
        "accept the new numbers, if they are worth it: pytest 'suites/x/test_y.py::test_z[50]' --gpu=T4"
        " --baseline-update --reason='why it is worth it'"
    )
    test = named("test_z[50]", judgement(), SETTLED, base=("--against=0123456789ab",))
    assert next_step(run_of(test)) == (
        "next: see what moved: pytest 'suites/x/test_y.py::test_z[50]' --gpu=T4 --against=0123456789ab"
        f" --gpuserve-report=report.html\n  or: {accept}"
    )
    assert next_step(run_of(named("test_z[50]", judgement(), SETTLED))) == f"next: {accept}"


@pytest.mark.parametrize(("clean", "before"), [(True, "HEAD~1"), (False, "HEAD")])
def test_a_stored_regression_is_looked_at_side_by_side(before: str, *, clean: bool) -> None:
    """With the commit before, or, where there are changes, with the commit that they are on."""
    line = next_step(run_of(named("test_z", judgement()), clean=clean))
    assert words(line) == ["pytest", f"{FILE}::test_z", "--gpu=T4", f"--against={before}"]


def test_a_recording_that_would_loosen_lacks_a_reason() -> None:
    """It was asked to accept the number, so that nothing has to be looked at closer."""
    line = next_step(run_of(named("test_z", judgement(reasons=("would loosen",))), update=UPDATE))
    assert words(line)[3:] == list(ACCEPT)


@pytest.mark.parametrize("kind", ["limit", "duel", "published"])
def test_what_has_no_baseline_is_not_recorded(kind: ReferenceKind) -> None:
    """It is mended, and run again."""
    line = next_step(run_of(named("test_z", judgement(kind=kind))))
    assert line == "next: run it again when it is mended: pytest suites/x/test_y.py::test_z --gpu=T4"


def test_another_revision_is_compared_with_again() -> None:
    """By the options of the run; a command that compares with something else would be worse than none."""
    flags = ("--against=origin/main", "--against-python=/an old/python")
    run = run_of(named("test_z", judgement(kind="against"), base=flags), stored=False)
    assert words(next_step(run)) == ["pytest", f"{FILE}::test_z", "--gpu=T4", *flags]
    assert next_step(run_of(named("test_z", judgement(kind="against")), stored=False)) == ""


# -- INVALID


def test_what_is_invalid_says_what_to_mend() -> None:
    """By how its reason begins, of the base too; what the reason says further is not repeated."""
    reason = "no steady state: after 30 windows of 0.5 s the throughput still changed; run `rm -rf /` --now"
    for text in (reason, f"the base: {reason}"):
        line = next_step(run_of(named("test_z", judgement(Verdict.INVALID, reasons=(text,)))))
        assert line == (
            "next: give it longer before it is measured, load(..., warmup_seconds=...), then run it again:"
            " pytest suites/x/test_y.py::test_z --gpu=T4"
        )


def test_what_is_invalid_for_an_unknown_reason() -> None:
    """The reason stands above; the command is there all the same."""
    line = next_step(run_of(named("test_z", judgement(Verdict.INVALID, reasons=("XID 79 on GPU-1",)))))
    assert line.startswith("next: mend what its reason says, then run it again: pytest ")


def test_what_a_shallow_clone_cannot_settle() -> None:
    """There HEAD~1 cannot be looked beside either: what helps is the commit."""
    reasons = (
        "this machine is 1.4 times as fast as when the baseline was recorded",
        "it could not be settled side by side: git does not know the revision 'df11ab42e5e2'",
    )
    test = named("test_z", judgement(Verdict.INCONCLUSIVE, reasons=reasons))
    line = next_step(replace(run_of(test), commit="0123456789ab", clean=True))
    assert line.startswith("next: fetch the commit of the baseline, then run it again: pytest ")


@pytest.mark.parametrize(
    "reason",
    [
        "client saturated: 1 engine used 95 % of a core",
        "client late: requests were sent with a lag p99 of 3 ms",
        "client held up: the load engine did not run",
        "rate not reached: 1 of 2",
        "overloaded: the requests under way grew",
        "stuck requests: at the end",
        "in flight: 3 requests",
        "compiled under load: in 3 executions",
        "the host was shared: others took 1.2",
        "foreign process on GPU-1: 1",
        "another client: the server answered",
        "throttled: 3 of 4",
        "wrong answers: 1 of 2 checked",
        "request errors (reset: 3); first",
        "objective missed: at 20.0/s",
        "objective not shown to be met: at 20.0/s",
        "contradictory: 20.0/s met",
        "replica 127.0.0.1:8000: it answered nothing",
        "latency.p99 at a tolerance of 20 % needs 1000 requests a server start",
    ],
)
def test_reasons_that_are_known(reason: str) -> None:
    """Each has advice of its own."""
    line = next_step(run_of(named("test_z", judgement(Verdict.INVALID, reasons=(reason,)))))
    assert any(f"next: {advice}, then" in line for _, advice in MENDED_BY)


def test_a_search_is_not_told_to_choose_another_rate() -> None:
    """It chooses its rates itself, and its arguments are those of ``load.capacity``."""
    for begin in ("client late: 3 ms", "rate not reached: 1 of 2"):
        test = named("test_z", judgement(Verdict.INVALID, "capacity", reasons=(begin,)))
        searched = session(replace(start(), search=Search(Objective(0.9, 0.05))))
        test.runs[0] = replace(test.runs[0], sessions=(searched,))
        line = next_step(run_of(test))
        assert line.startswith("next: let the client keep up, load.capacity(..., processes=...), then run it again: ")


# -- MISSING


def test_what_is_missing_is_recorded() -> None:
    """Only that: what is there stays as it is."""
    reason = "/b/x.json has no entry 'test_z'"
    line = next_step(run_of(named("test_z", judgement(Verdict.MISSING, reasons=(reason,)), outcome="skipped")))
    assert line == "next: record what is missing: pytest suites/x/test_y.py::test_z --gpu=T4 --baseline-update-new"


def test_what_cannot_be_compared_with_is_replaced() -> None:
    """An entry of another workload is there, so that an update of what is new would not touch it."""
    reasons = ("/b/x.json has another workload under 'test_z'", "concurrency: baseline has '8', this run has '9'")
    line = next_step(run_of(named("test_z", judgement(Verdict.MISSING, reasons=reasons))))
    assert words(line)[-1] == "--baseline-update"


def test_what_is_missing_elsewhere_cannot_be_recorded() -> None:
    """The other revision has no such server, or the number was not published."""
    missing = named("test_z", judgement(Verdict.MISSING, kind="against"))
    assert next_step(run_of(missing, stored=False)) == ""
    assert next_step(run_of(named("test_z", judgement(Verdict.MISSING, kind="published")))) == ""


# -- INCONCLUSIVE


def test_a_spent_budget_is_raised() -> None:
    """To four times the largest that was not enough."""
    tests = [
        named("test_a", judgement(Verdict.INCONCLUSIVE, reasons=(SPENT,))),
        named("test_b", judgement(Verdict.INCONCLUSIVE, reasons=(SPENT.replace("of 300 s", "of 500 s"),))),
    ]
    assert words(next_step(run_of(*tests))) == [
        "pytest",
        f"{FILE}::test_a",
        f"{FILE}::test_b",
        "--gpu=T4",
        "--gpuserve-budget=2000",
    ]
    none = SPENT.replace("of 300 s", "of 0 s")
    assert words(next_step(run_of(named("t", judgement(Verdict.INCONCLUSIVE, reasons=(none,))))))[-1].endswith("=4")


def test_a_budget_that_was_not_spent_is_not_raised() -> None:
    """After the last look more time helps nothing; the code before, side by side, may."""
    last = judgement(Verdict.INCONCLUSIVE, reasons=("not decided after 6 sessions, which is the last look",))
    assert words(next_step(run_of(named("test_z", last))))[-1] == "--against=HEAD~1"
    paired = named("test_z", last, replace(last, reference_kind="against"))
    assert next_step(run_of(paired)) == ""


def test_few_requests_need_a_longer_load() -> None:
    """More sessions of too few requests would help nothing."""
    reason = "latency.p99 at a tolerance of 20 % needs 1000 requests a server start\n  found: 300 requests in 2.00 s"
    line = next_step(run_of(named("test_z", judgement(Verdict.INCONCLUSIVE, "latency.p99", reasons=(reason,)))))
    assert line.startswith("next: measure longer, load(..., seconds=...), or widen the tolerance, then run it again: ")


# -- several


def test_the_worst_is_spoken_of() -> None:
    """REGRESSED before INVALID before MISSING before INCONCLUSIVE, and of no other test."""
    tests = {
        verdict: named(f"test_{verdict}", judgement(verdict, reasons=(SPENT,)))
        for verdict in (Verdict.INCONCLUSIVE, Verdict.MISSING, Verdict.INVALID, Verdict.REGRESSED)
    }
    while tests:
        worst = list(tests)[-1]
        assert words(next_step(run_of(*tests.values())))[1] == f"{FILE}::test_{worst}"
        del tests[worst]


def test_what_makes_no_command_makes_room() -> None:
    """Where nothing helps the worst, the next one is spoken of."""
    tests = [
        named("test_a", judgement(kind="against"), base=()),
        named("test_b", judgement(Verdict.INVALID, kind="limit"), base=("--against=main",)),
    ]
    assert words(next_step(run_of(*tests, stored=False)))[1] == f"{FILE}::test_b"


def test_what_got_better_is_recorded() -> None:
    """Where all is well otherwise; not in a recording, which has done it."""
    better = named("test_z", judgement(Verdict.IMPROVED), outcome="passed")
    assert next_step(run_of(better)) == (
        "next: record what got better, so that it stays: pytest suites/x/test_y.py::test_z --gpu=T4 --baseline-update"
    )
    assert next_step(run_of(better, update=UPDATE)) == ""
    bad = named("test_a", judgement(Verdict.INCONCLUSIVE, reasons=(SPENT,)))
    assert words(next_step(run_of(better, bad)))[1] == f"{FILE}::test_a"


# -- which tests


RECORDING = [
    (judgement(Verdict.MISSING, reasons=("x has no entry 'y'",)), "failed", ""),
    (judgement(Verdict.MISSING, reasons=("x has another workload",)), "failed", ""),
    (judgement(Verdict.IMPROVED), "passed", ""),
    (judgement(reasons=("would loosen",)), "failed", UPDATE),
    (judgement(Verdict.INVALID, reasons=("client late: 3 ms",)), "failed", UPDATE),
    (judgement(Verdict.INVALID, reasons=("client late: 3 ms",)), "failed", UPDATE_NEW),
    (judgement(Verdict.INCONCLUSIVE, reasons=(SPENT,)), "failed", UPDATE),
]
"""Judgements, outcomes, and how the run records, after which a recording comes next."""


@pytest.mark.parametrize(("judged", "outcome", "update"), RECORDING)
def test_no_other_test_is_recorded_by_the_way(judged: Judgement, outcome: str, update: str) -> None:
    """Whatever is to be recorded of however many tests, each that is recorded is named."""
    tests = [named(f"test_{n}", judged, outcome=outcome) for n in range(5)]
    line = next_step(run_of(*tests, update=update))
    assert any(word.startswith(UPDATE) for word in words(line))
    assert words(line)[1:4] == [f"{FILE}::test_{n}" for n in range(3)]
    assert "(the first 3 of 5 tests): pytest " in line
    assert "--lf" not in line


def test_what_only_measures_again_takes_those_that_failed_last() -> None:
    """Others that failed may come along, and where none is known to have failed nothing is measured, rather than all.

    So does the look at the code before, side by side, which records nothing either.
    """
    undecided = [named(f"test_{n}", judgement(Verdict.INCONCLUSIVE, reasons=(SPENT,))) for n in range(4)]
    invalid = named("test_y", outcome="error")
    assert words(next_step(run_of(*undecided, invalid)))[1:] == [
        "--lf",
        "--lfnf=none",
        "--gpu=T4",
        "--gpuserve-budget=1200",
    ]
    stored = [named(f"test_{n}", judgement()) for n in range(4)]
    assert words(next_step(run_of(*stored)))[1:] == ["--lf", "--lfnf=none", "--gpu=T4", "--against=HEAD~1"]


def test_what_was_skipped_did_not_fail_last() -> None:
    """So that ``--lf`` would not run it."""
    undecided = judgement(Verdict.INCONCLUSIVE, reasons=(SPENT,))
    line = next_step(run_of(*(named(f"test_{n}", undecided, outcome="skipped") for n in range(5))))
    assert "(the first 3 of 5 tests)" in line
    assert words(line)[1:] == [*(f"{FILE}::test_{n}" for n in range(3)), "--gpu=T4", "--gpuserve-budget=1200"]


def test_a_name_that_cannot_be_typed_is_not_named() -> None:
    """Where no other names it either, the line says so; what only measures again takes those that failed last."""
    untypable = named("test_a[\x1b]", SETTLED)
    assert next_step(run_of(untypable)) == (
        "next: accept the new numbers, if they are worth it: there is no command for it, as the ids of these tests"
        " cannot be typed"
    )
    mixed = run_of(untypable, named("test_b", SETTLED))
    assert "worth it (1 of 2 tests): pytest suites/x/test_y.py::test_b --gpu=T4 --baseline-update" in next_step(mixed)
    undecided = named("test_a[\x1b]", judgement(Verdict.INCONCLUSIVE, reasons=(SPENT,)))
    assert words(next_step(run_of(undecided)))[1:3] == ["--lf", "--lfnf=none"]
    assert next_step(run_of(replace(undecided, outcome="skipped"))).endswith(" cannot be typed")


@UNHURRIED
@given(name=st.text(min_size=1), device=st.text(min_size=1), reason=st.text(min_size=1))
def test_nothing_of_the_run_becomes_a_command(name: str, device: str, reason: str) -> None:
    """Whatever a test is called, it stays one word of the command, in one line."""
    test = named(name, judgement(Verdict.INVALID, reasons=(reason,)))
    line = next_step(replace(run_of(test), gpu={"name": device}))
    assert line.isprintable()
    assert words(line) == [
        "pytest",
        *([f"{FILE}::{name}"] if name.isprintable() else ["--lf", "--lfnf=none"]),
        *([f"--gpu={device}"] if device.isprintable() else []),
    ]
