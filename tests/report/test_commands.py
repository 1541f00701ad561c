"""What to type: one rule, whoever says it, and words that a shell takes as they are meant."""

from __future__ import annotations

import shlex
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuserve.gate.verdict import Judgement, ReferenceKind, Verdict
from pytest_gpuserve.report.commands import (
    UPDATE,
    closer_command,
    code_before,
    command,
    command_for,
    tightening_command,
)
from pytest_gpuserve.report.next_step import next_step
from pytest_gpuserve.report.results import SessionResult
from tests.support.builders import judgement, result_of


def spent(seconds: int) -> str:
    """The reason of what was not decided within a budget."""
    return (
        f"not decided after 2 sessions, and another of about 30 s would exceed the test's budget of {seconds} s; raise"
        " it with --gpuserve-budget=SECONDS"
    )


CASES = [
    (Verdict.REGRESSED, "", ["--baseline-update", "--reason=why it is worth it"]),
    (Verdict.MISSING, "/b/x.json has no entry 'test_z'", ["--baseline-update-new"]),
    (Verdict.MISSING, "/b/x.json has another workload under 'test_z'", ["--baseline-update"]),
    (Verdict.INCONCLUSIVE, spent(300), ["--gpuserve-budget=1200"]),
    (Verdict.INCONCLUSIVE, spent(90), ["--gpuserve-budget=360"]),
    (Verdict.INCONCLUSIVE, spent(0), ["--gpuserve-budget=4"]),
]


@pytest.mark.parametrize(("verdict", "reason", "options"), CASES)
def test_the_command_can_be_pasted(verdict: Verdict, reason: str, options: list[str]) -> None:
    """A shell splits it into the very test, the device and the options."""
    nodeid = "t.py::test_z['a b' $HOME;ü]"
    found = command_for(judgement(verdict, reasons=(reason,)), nodeid, "A100-SXM4-80GB", stored=True)
    assert shlex.split(found) == ["pytest", nodeid, "--gpu=A100-SXM4-80GB", *options]


@pytest.mark.parametrize(("clean", "before"), [(True, "HEAD~1"), (False, "HEAD")])
def test_a_closer_look_is_the_same_in_both(before: str, *, clean: bool) -> None:
    """In git a regression that only a stored number shows is looked at first, by one command, whoever says it."""
    judged = judgement(reasons=("it could not be settled side by side: git has no such commit",))
    run = SessionResult(
        {"name": "T4"}, {}, (result_of("t.py::test_z[50]", judged),), commit="0123456789ab", clean=clean
    )
    found = closer_command(judged, "t.py::test_z[50]", "T4", before=code_before("0123456789ab", clean=clean))
    assert found == (
        f"look closer, beside the code before: pytest 't.py::test_z[50]' --gpu=T4 --against={shlex.quote(before)}"
    )
    assert next_step(run) == f"next: {found}"


def test_a_drift_is_looked_at_beside_its_anchor() -> None:
    """Beside the code before, what has come in small steps is one of them, and passes."""
    drift = (
        "drift: the baseline here is the anchor, 1601/s accepted at 86559212ec23 on 2026-11-22. What has come since"
        " adds up to -9.1 %, in steps that were let pass one by one; the tolerance is 5 %"
    )
    found = closer_command(judgement(reasons=(drift,)), "t", "cpu", before="HEAD~1")
    assert found == "look closer, beside the code of its anchor: pytest t --gpu=cpu --against=86559212ec23"
    unknown = drift.replace("86559212ec23", "code without a commit")
    assert closer_command(judgement(reasons=(unknown,)), "t", "cpu", before="HEAD~1") == ""


@pytest.mark.parametrize(
    "judged",
    [
        judgement(kind="against"),
        judgement(kind="limit"),
        judgement(Verdict.INCONCLUSIVE),
        judgement(Verdict.PASS),
        judgement(reasons=("side by side with the baseline's commit it is PASS, but that cannot see: a driver",)),
        judgement(reasons=("not settled side by side with the baseline's commit either: INCONCLUSIVE",)),
    ],
)
def test_what_was_looked_at_side_by_side_is_not_again(judged: Judgement) -> None:
    """Nor what is no regression by a stored number."""
    assert closer_command(judged, "t", "cpu", before="HEAD~1") == ""


def test_an_id_that_cannot_be_typed_makes_no_command() -> None:
    """It would break the explanation's line, or be another test's; outside of git there is no closer look."""
    assert command_for(judgement(), "t.py::test_z[\x1b]", "cpu", stored=True) == ""
    assert closer_command(judgement(), "t[\x1b]", "cpu", before="HEAD~1") == ""
    assert code_before(None, clean=True) == code_before(None, clean=False) == ""
    assert closer_command(judgement(), "t", "cpu", before="") == ""


def test_no_command_where_none_helps() -> None:
    """An invalid measurement must not be recorded, a pass needs nothing, and no time helps after the last look."""
    for verdict in (Verdict.PASS, Verdict.IMPROVED, Verdict.INVALID):
        assert command_for(judgement(verdict, reasons=(spent(300),)), "t", "cpu", stored=True) == ""
    last = judgement(Verdict.INCONCLUSIVE, reasons=("not decided after 6 sessions, which is the last look",))
    assert command_for(last, "t", "cpu", stored=True) == ""


def test_a_limit_is_not_recorded_away() -> None:
    """Only where a stored baseline was asked can a number be accepted by recording, whoever decided."""
    for kind in get_args(ReferenceKind):
        assert command_for(judgement(kind=kind), "t", "cpu", stored=False) == ""
        assert "--baseline-update" in command_for(judgement(kind=kind), "t", "cpu", stored=True)
    # A baseline that is tightened needs no reason.
    assert tightening_command("t.py::test_z[50]", "T4") == "pytest 't.py::test_z[50]' --gpu=T4 --baseline-update"


@given(nodeid=st.text(min_size=1), value=st.text())
def test_words_stay_words(nodeid: str, value: str) -> None:
    """Whatever a test or a value is, a shell takes it for that one word."""
    typed = command([nodeid], "T4", f"--against={value}", UPDATE)
    assert shlex.split(typed) == ["pytest", nodeid, "--gpu=T4", f"--against={value}", UPDATE]
