"""The command that comes next: exact, of the most important thing, in words that a shell takes as they are meant."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuserve.report.next_step import (
    REMEDIES,
    UPDATE,
    UPDATE_NEW,
    code_before,
    next_step,
    steps_of,
)
from pytest_gpuserve.report.results import SessionResult, TestResult
from pytest_gpuserve.verdict.reason import Reason, ReasonKind
from pytest_gpuserve.verdict.verdict import Judgement, Verdict
from tests.support.builders import judgement, result_of, run_of

FILE = "suites/x/test_y.py"
SETTLED = judgement(Verdict.REGRESSED, kind="against", reasons=("that counts",))
"""A regression that was settled side by side with the baseline's commit."""


SPENT = Reason(ReasonKind.BUDGET_SPENT, "not decided, the budget is spent", seconds=300)


def named(name: str, *judgements: Judgement, outcome: str = "failed", base: tuple[str, ...] = ()) -> TestResult:
    """A test with one load."""
    test = result_of(f"{FILE}::{name}", *judgements, outcome=outcome)
    test.runs[0] = replace(test.runs[0], base_options=base)
    return test


def words(line: str) -> list[str]:
    """The command at the end of the line, as a shell reads it."""
    return shlex.split(line[line.index(": pytest ") + 2 :])


# -- about one test


UNSTEADY = Reason(ReasonKind.NO_STEADY_STATE, "the throughput still changed; run `rm -rf /` --now")
LAST_LOOK = judgement(
    Verdict.INCONCLUSIVE, reasons=(Reason(ReasonKind.LAST_LOOK, "not decided after 8 rounds, the last look"),)
)
SHALLOW = (
    Reason(ReasonKind.NOT_SCREENED, "this host is 40 % faster than when the baseline was recorded"),
    Reason(ReasonKind.COMMIT_UNKNOWN, "git does not know the revision 'df11ab42e5e2'"),
)
FEW = Reason(ReasonKind.TOO_FEW_REQUESTS, "latency.p99 needs 1000 requests")
NO_ENTRY = Reason(ReasonKind.NO_ENTRY, "/b/x.json has no entry 'test_z'")
OTHER_WORKLOAD = Reason(ReasonKind.NOT_COMPARABLE, "/b/x.json has another workload under 'test_z'")
LATE = Reason(ReasonKind.CLIENT_LATE, "client late: 3 ms")
LOOSENS = Reason(ReasonKind.NEEDS_REASON, "would loosen")


def one(*judgements: Judgement, outcome: str = "failed", base: tuple[str, ...] = (), **of_run: Any) -> SessionResult:  # noqa: ANN401 -- see `run_of`
    """A run of one test."""
    return run_of(named("test_z", *judgements, outcome=outcome, base=base), **of_run)


def because(*reasons: Reason, verdict: Verdict = Verdict.INVALID, metric: str = "throughput") -> Judgement:
    """A judgement that gives these reasons."""
    return judgement(verdict, metric, reasons=reasons)


TYPED = "pytest suites/x/test_y.py::test_z --gpu=T4"
AGAIN = f"then run it again: {TYPED}"
RECORD = f"{TYPED} --baseline-update"
ACCEPTING = f"accept the new numbers, if they are worth it: {RECORD} --reason='why it is worth it'"
FIXED = f"run it again when it is fixed: {TYPED}"
STEADIER = f"give the server a longer warm-up, load(..., warmup_seconds=...), {AGAIN}"

STEPS: dict[str, tuple[SessionResult, str]] = {
    "what moved is looked at beside the same base, and then it is accepted": (
        one(SETTLED, base=("--against=0123456789ab",)),
        f"see what moved: {TYPED} --against=0123456789ab --gpuserve-report=report.html\n  or: {ACCEPTING}",
    ),
    "where that base is not known it can be accepted": (one(SETTLED), ACCEPTING),
    # The run was asked to accept it, so that nothing has to be looked at closer.
    "a recording that would loosen lacks a reason": (
        one(judgement(reasons=(LOOSENS,)), update=UPDATE),
        ACCEPTING,
    ),
    "a limit is not recorded": (one(judgement(kind="limit")), FIXED),
    "a duel is not recorded": (one(judgement(kind="duel")), FIXED),
    "another revision is compared with again": (
        one(judgement(kind="against"), base=("--against=origin/main", "--against-python=/an old/python"), stored=False),
        f"{FIXED} --against=origin/main --against-python='/an old/python'",
    ),
    "a command that compares with something else would be worse than none": (
        one(judgement(kind="against"), stored=False),
        "",
    ),
    "the kind of a reason says what to mend; its text is not repeated": (one(because(UNSTEADY)), STEADIER),
    "so does that of the base": (one(because(UNSTEADY.of("the base"))), STEADIER),
    "a reason without a command is fixed by hand": (
        one(because(Reason(ReasonKind.GPU_ERROR, "XID 79 on GPU-1"))),
        f"fix the problem that its reason names, {AGAIN}",
    ),
    # There HEAD~1 cannot be looked beside either.
    "a shallow clone lacks the commit": (
        one(because(*SHALLOW, verdict=Verdict.INCONCLUSIVE)),
        f"fetch the missing history, {AGAIN}",
    ),
    "what is missing is recorded, and what is there stays": (
        one(because(NO_ENTRY, verdict=Verdict.MISSING), outcome="skipped"),
        f"record the missing entries: {RECORD}-new",
    ),
    # An update of what is new would not touch it.
    "an entry of another workload is replaced": (
        one(because(OTHER_WORKLOAD, replace(OTHER_WORKLOAD, text="concurrency: 8"), verdict=Verdict.MISSING)),
        f"record the missing entries: {RECORD}",
    ),
    "what the other revision has not cannot be recorded": (
        one(judgement(Verdict.MISSING, kind="against"), stored=False),
        "",
    ),
    "after the last look no time helps; the code before, side by side, may": (
        one(LAST_LOOK),
        f"compare side by side with the previous code: {TYPED} --against='HEAD~1'",
    ),
    "which it was": (one(replace(LAST_LOOK, reference_kind="against")), ""),
    "few requests need a longer load, not more sessions": (
        one(because(FEW, verdict=Verdict.INCONCLUSIVE, metric="latency.p99")),
        f"measure longer, load(..., seconds=...), or widen the tolerance, {AGAIN}",
    ),
    "what got better is recorded where all is well otherwise": (
        one(judgement(Verdict.IMPROVED), outcome="passed"),
        f"record the better numbers, so that they stay: {RECORD}",
    ),
    "a recording has done it": (one(judgement(Verdict.IMPROVED), outcome="passed", update=UPDATE), ""),
}


@pytest.mark.parametrize(("run", "said"), STEPS.values(), ids=STEPS)
def test_a_single_test_has_its_next_step(run: SessionResult, said: str) -> None:
    """The exact command, of what its verdict and its reasons ask for; none where none helps."""
    assert next_step(run) == (f"next: {said}" if said else "")


@pytest.mark.parametrize("kind", REMEDIES)
def test_what_can_be_fixed_has_its_advice(kind: ReasonKind) -> None:
    """Advice follows the reason's kind, not its text, even after a reason without a remedy."""
    reasons = (Reason(ReasonKind.REMARK, "throttled"), Reason(kind, "client late"))
    assert next_step(one(because(*reasons))).startswith(f"next: {REMEDIES[kind]}, then run it again: ")


# -- of several


def test_a_spent_budget_is_raised() -> None:
    """The proposed budget is four times the largest one that was not enough."""
    reasons = {"test_a": SPENT, "test_b": replace(SPENT, seconds=500)}
    tests = [named(name, because(reason, verdict=Verdict.INCONCLUSIVE)) for name, reason in reasons.items()]
    ids = [f"{FILE}::{name}" for name in reasons]
    assert words(next_step(run_of(*tests))) == ["pytest", *ids, "--gpu=T4", "--gpuserve-budget=2000"]


def test_the_worst_is_spoken_of() -> None:
    """The step is for the worst verdict that a command helps, in the order REGRESSED to INCONCLUSIVE."""
    tests = {
        verdict: named(f"test_{verdict}", because(SPENT, verdict=verdict), outcome="failed")
        for verdict in (Verdict.INCONCLUSIVE, Verdict.MISSING, Verdict.INVALID, Verdict.REGRESSED)
    }
    better = named("test_better", judgement(Verdict.IMPROVED), outcome="passed")
    while tests:
        worst = list(tests)[-1]
        assert words(next_step(run_of(better, *tests.values())))[1] == f"{FILE}::test_{worst}"
        del tests[worst]
    helpless = named("test_a", judgement(kind="against"))
    helped = named("test_b", judgement(Verdict.INVALID, kind="limit"), base=("--against=main",))
    assert words(next_step(run_of(helpless, helped, stored=False)))[1] == f"{FILE}::test_b"


# -- which tests


RECORDING = [
    (judgement(Verdict.MISSING, reasons=(NO_ENTRY,)), "failed", ""),
    (judgement(Verdict.MISSING, reasons=(OTHER_WORKLOAD,)), "failed", ""),
    (judgement(Verdict.IMPROVED), "passed", ""),
    (judgement(reasons=(LOOSENS,)), "failed", UPDATE),
    (judgement(Verdict.INVALID, reasons=(LATE,)), "failed", UPDATE),
    (judgement(Verdict.INVALID, reasons=(LATE,)), "failed", UPDATE_NEW),
    (judgement(Verdict.INCONCLUSIVE, reasons=(SPENT,)), "failed", UPDATE),
]
"""Judgements, outcomes, and how the run records, after which a recording comes next."""


@pytest.mark.parametrize(("judged", "outcome", "update"), RECORDING)
def test_no_other_test_is_recorded_by_the_way(judged: Judgement, outcome: str, update: str) -> None:
    """A command that records names each of its tests."""
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


def test_a_name_that_cannot_be_typed_is_not_named() -> None:
    """If all names cannot be typed, the line says so; a repeat then selects the last failed tests."""
    untypable = named("test_a[\x1b]", SETTLED)
    assert next_step(run_of(untypable)) == (
        "next: accept the new numbers, if they are worth it: select the tests by hand, because their ids"
        " cannot be typed"
    )
    mixed = run_of(untypable, named("test_b", SETTLED))
    assert "worth it (1 of 2 tests): pytest suites/x/test_y.py::test_b --gpu=T4 --baseline-update" in next_step(mixed)
    undecided = named("test_a[\x1b]", judgement(Verdict.INCONCLUSIVE, reasons=(SPENT,)))
    assert words(next_step(run_of(undecided)))[1:3] == ["--lf", "--lfnf=none"]
    assert next_step(run_of(replace(undecided, outcome="skipped"))).endswith(" cannot be typed")


@given(name=st.text(min_size=1), device=st.text(min_size=1), reason=st.text(min_size=1))
def test_nothing_of_the_run_becomes_a_command(name: str, device: str, reason: str) -> None:
    """Any test id stays one word of the command, in one line."""
    test = named(name, judgement(Verdict.INVALID, reasons=(reason,)))
    line = next_step(replace(run_of(test), gpu={"name": device}))
    assert line.isprintable()
    assert words(line) == [
        "pytest",
        *([f"{FILE}::{name}"] if name.isprintable() else ["--lf", "--lfnf=none"]),
        *([f"--gpu={device}"] if device.isprintable() else []),
    ]


# -- commands, whoever says them


@pytest.mark.parametrize(("clean", "before"), [(True, "HEAD~1"), (False, "HEAD")])
def test_a_closer_look_is_the_same_in_both(before: str, *, clean: bool) -> None:
    """In git, a regression that only a stored number shows is looked at first, by the same command in both places."""
    judged = judgement(reasons=(Reason(ReasonKind.COMMIT_UNKNOWN, "git has no such commit"),))
    run = replace(run_of(result_of("t.py::test_z[50]", judged)), commit="0123456789ab", clean=clean)
    command = f"pytest 't.py::test_z[50]' --gpu=T4 --against={shlex.quote(before)}"
    found = f"compare side by side with the previous code: {command}"
    steps = steps_of(judged, "t.py::test_z[50]", "T4", before=code_before("0123456789ab", clean=clean))
    accepted = "pytest 't.py::test_z[50]' --gpu=T4 --baseline-update --reason='why it is worth it'"
    assert steps == [f"first {found}", f"to accept the new number, if that confirms it: {accepted}"]
    assert next_step(run) == f"next: {found}"


@pytest.mark.parametrize("verdict", [Verdict.PASS, Verdict.IMPROVED, Verdict.INVALID, Verdict.INCONCLUSIVE])
def test_a_test_has_no_step_where_none_helps(verdict: Verdict) -> None:
    """An invalid number must not be recorded, a pass needs no command, and no time helps after the last look."""
    assert steps_of(replace(LAST_LOOK, verdict=verdict), "t", "cpu", before="HEAD~1") == []


def test_an_id_that_cannot_be_typed_makes_no_command() -> None:
    """Such an id would break the line, or select another test; outside git a closer look is impossible."""
    assert steps_of(judgement(), "t.py::test_z[\x1b]", "cpu", before="HEAD~1") == []
    assert code_before(None, clean=True) == code_before(None, clean=False) == ""
    assert len(steps_of(judgement(), "t", "cpu", before="")) == 1
