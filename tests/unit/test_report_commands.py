"""What to type: one rule, whoever says it, and words that a shell takes as they are meant."""

from __future__ import annotations

import shlex
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_gpuserve.gate.verdict import ReferenceKind, Verdict
from pytest_gpuserve.options import Update
from pytest_gpuserve.report.commands import (
    ACCEPT,
    UPDATE,
    UPDATE_NEW,
    command,
    command_for,
    options_for,
    tightening_command,
)
from pytest_gpuserve.report.next_step import next_step
from pytest_gpuserve.report.results import SessionResult
from tests.unit.builders import judgement, result_of

UNHURRIED = settings(deadline=None, max_examples=60)  # a busy machine may stall any example

KINDS: tuple[ReferenceKind, ...] = get_args(ReferenceKind)

NO_ENTRY = "/b/x.json has no entry 'test_z'"
OTHER_WORKLOAD = "/b/x.json has another workload under 'test_z'"


def spent(seconds: int) -> str:
    """The reason of what was not decided within a budget."""
    return (
        f"not decided after 2 sessions, and another of about 30 s would exceed the test's budget of {seconds} s; raise"
        " it with --gpuserve-budget=SECONDS"
    )


CASES = [
    (Verdict.REGRESSED, "", ["--baseline-update", "--reason=why it is worth it"]),
    (Verdict.MISSING, NO_ENTRY, ["--baseline-update-new"]),
    (Verdict.MISSING, OTHER_WORKLOAD, ["--baseline-update"]),
    (Verdict.INCONCLUSIVE, spent(300), ["--gpuserve-budget=1200"]),
    (Verdict.INCONCLUSIVE, spent(90), ["--gpuserve-budget=360"]),
    (Verdict.INCONCLUSIVE, spent(0), ["--gpuserve-budget=4"]),
]


@pytest.mark.parametrize(("verdict", "reason", "options"), CASES)
@pytest.mark.parametrize("nodeid", ["suites/x/test_y.py::test_z[50]", "t.py::test_z['a b' $HOME;ü]"])
def test_the_command_can_be_pasted(verdict: Verdict, reason: str, options: list[str], nodeid: str) -> None:
    """A shell splits it into the very test, the device and the options."""
    found = command_for(judgement(verdict, reasons=(reason,)), nodeid, "A100-SXM4-80GB", stored=True)
    assert shlex.split(found) == ["pytest", nodeid, "--gpu=A100-SXM4-80GB", *options]


@pytest.mark.parametrize(("verdict", "reason", "options"), CASES)
def test_a_failed_assertion_and_the_last_line_say_the_same(verdict: Verdict, reason: str, options: list[str]) -> None:
    """One problem has one command; outside of git, where nothing can be looked at closer."""
    judged = judgement(verdict, reasons=(reason,))
    found = command_for(judged, "t.py::test_z[50]", "T4", stored=True)
    assert next_step(SessionResult({"name": "T4"}, {}, (result_of("t.py::test_z[50]", judged),))).endswith(f": {found}")
    assert shlex.split(found)[3:] == options


def test_options_are_for_all_of_them() -> None:
    """The largest budget that was too small; and what is there has to be replaced, though others are new."""
    undecided = [judgement(Verdict.INCONCLUSIVE, reasons=(spent(seconds),)) for seconds in (300, 500, 90)]
    assert options_for(undecided) == ("--gpuserve-budget=2000",)
    missing = [judgement(Verdict.MISSING, reasons=(reason,)) for reason in (NO_ENTRY, OTHER_WORKLOAD)]
    assert options_for(missing) == (UPDATE,)
    assert options_for(missing[:1]) == (UPDATE_NEW,)
    assert options_for([judgement(), judgement()]) == ACCEPT
    assert options_for([]) == ()


@pytest.mark.parametrize("verdict", [Verdict.PASS, Verdict.IMPROVED, Verdict.INVALID])
def test_no_command_where_none_helps(verdict: Verdict) -> None:
    """An invalid measurement must not be recorded, and a pass needs nothing."""
    assert command_for(judgement(verdict, reasons=(spent(300),)), "t", "cpu", stored=True) == ""


def test_time_does_not_help_after_the_last_look() -> None:
    """Nor too few requests: a larger budget is proposed only where the budget was too small."""
    last = judgement(Verdict.INCONCLUSIVE, reasons=("not decided after 6 sessions, which is the last look",))
    assert command_for(last, "t", "cpu", stored=True) == ""


@pytest.mark.parametrize("kind", KINDS)
def test_a_limit_is_not_recorded_away(kind: ReferenceKind) -> None:
    """Only where a stored baseline was asked can a number be accepted by recording, whoever decided."""
    assert command_for(judgement(kind=kind), "t", "cpu", stored=False) == ""
    assert "--baseline-update" in command_for(judgement(kind=kind), "t", "cpu", stored=True)


def test_an_id_that_cannot_be_typed_makes_no_command() -> None:
    """It would break the explanation's line, or be another test's."""
    assert command_for(judgement(), "t.py::test_z[\x1b]", "cpu", stored=True) == ""


def test_what_got_better_is_held_on_to_without_a_reason() -> None:
    """A baseline that is tightened needs none."""
    assert tightening_command("t.py::test_z[50]", "T4") == "pytest 't.py::test_z[50]' --gpu=T4 --baseline-update"


def test_a_run_is_asked_to_record_by_the_same_options() -> None:
    """What a result says of its run is what a command can repeat."""
    assert [update.option for update in Update] == ["", UPDATE_NEW, UPDATE]


@pytest.mark.parametrize("device", ["", "a\nb", None, 4])
def test_a_device_that_cannot_be_typed_is_left_out(device: object) -> None:
    """As one that is not known, of workers that all crashed."""
    assert command(["t"], device, UPDATE) == "pytest t --baseline-update"


@UNHURRIED
@given(nodeid=st.text(min_size=1), value=st.text())
def test_words_stay_words(nodeid: str, value: str) -> None:
    """Whatever a test or a value is, a shell takes it for that one word."""
    typed = command([nodeid], "T4", f"--against={value}", UPDATE)
    assert shlex.split(typed) == ["pytest", nodeid, "--gpu=T4", f"--against={value}", UPDATE]
