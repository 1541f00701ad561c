"""What to type: which options help a judgement, and the command that runs its test with them.

One rule for a failed assertion and for the last line of a run, which speak of the same test.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.gate.reason import ReasonKind
from pytest_gpuserve.gate.verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pytest_gpuserve.gate.verdict import Judgement

BUDGETS: Final = 4
"""How many times the budget that was too small is proposed."""

UPDATE: Final = "--baseline-update"
UPDATE_NEW: Final = "--baseline-update-new"
ACCEPT: Final = (UPDATE, "--reason=why it is worth it")

CLOSER: Final = "look closer, beside the code before"
CLOSER_BY_ANCHOR: Final = "look closer, beside the code of its anchor"
"""What comes before a regression is accepted that only a stored number shows: the machine may have drifted."""


def command(selection: Iterable[str], device: object, *options: str) -> str:
    """``pytest 'a.py::test_z[50]' --gpu=T4 --baseline-update``, as a shell takes it.

    Args:
        selection: Ids of tests, or options without a value that select some.
        device: The baseline set; one that is not known, or that cannot be typed, is left out.
        options: What else is asked; their values are quoted here.
    """
    known = isinstance(device, str) and device and device.isprintable()
    typed = map(_typed, (*([f"--gpu={device}"] if known else ()), *options))
    return " ".join(["pytest", *map(shlex.quote, selection), *typed])


def options_for(judgements: Sequence[Judgement]) -> tuple[str, ...]:
    """The options that accept, record or decide what was not upheld by a stored baseline; none where none helps.

    Args:
        judgements: Of one verdict; the options are for all of them.
    """
    verdicts = {judgement.verdict for judgement in judgements}
    if verdicts == {Verdict.REGRESSED}:
        return ACCEPT
    if verdicts == {Verdict.MISSING}:
        # What is there but cannot be compared with has to be replaced, which the other one does not do.
        return (UPDATE_NEW if all(judgement.has(ReasonKind.NO_ENTRY) for judgement in judgements) else UPDATE,)
    if verdicts == {Verdict.INCONCLUSIVE}:
        seconds = BUDGETS * max(map(_spent_budget, judgements))
        return (f"--gpuserve-budget={seconds}",) if seconds else ()
    return ()


def command_for(judgement: Judgement, nodeid: str, gpu: str, *, stored: bool) -> str:
    """The exact command that accepts, records or decides what a test asserted; empty where no command helps.

    Args:
        judgement: What came of it.
        nodeid: The test.
        gpu: The baseline set.
        stored: Whether a stored baseline was asked, whoever decided.
    """
    options = options_for([judgement]) if stored else ()
    return command([nodeid], gpu, *options) if options and nodeid.isprintable() else ""


def closer_command(judgement: Judgement, nodeid: str, gpu: str, *, before: str) -> str:
    """``look closer, ...: pytest ...`` for a regression that only a stored number shows; empty for anything else.

    Args:
        judgement: What came of it.
        nodeid: The test.
        gpu: The baseline set.
        before: As `code_before` says.
    """
    alone = judgement.verdict is Verdict.REGRESSED and judgement.reference_kind == "baseline"
    if not alone or not nodeid.isprintable() or judgement.has(ReasonKind.SIDE_BY_SIDE):
        return ""
    anchor = anchor_of(judgement)
    revision = before if anchor is None else anchor
    what = CLOSER if anchor is None else CLOSER_BY_ANCHOR
    return f"{what}: {command([nodeid], gpu, f'--against={revision}')}" if before and revision else ""


def code_before(commit: str | None, *, clean: bool) -> str:
    """The revision that a measurement is looked at beside: of a checkout with changes its commit; empty without git.

    Args:
        commit: The code under test; None where it is not known.
        clean: Whether it was that commit, unchanged.
    """
    if commit is None:
        return ""
    return "HEAD~1" if clean else "HEAD"


def anchor_of(judgement: Judgement) -> str | None:
    """The commit of the anchor from which it has drifted, empty where that cannot be asked; None of what has not."""
    drift = next((reason for reason in judgement.reasons if reason.kind is ReasonKind.DRIFT), None)
    if drift is None:
        return None
    was_tried = judgement.has(ReasonKind.SIDE_BY_SIDE, ReasonKind.NOT_SIDE_BY_SIDE, ReasonKind.COMMIT_UNKNOWN)
    return "" if was_tried else drift.commit


def tightening_command(nodeid: str, gpu: str) -> str:
    """The exact command that holds on to what got better; a baseline is tightened without a reason.

    Args:
        nodeid: The test.
        gpu: The baseline set.
    """
    return command([nodeid], gpu, UPDATE)


def _spent_budget(judgement: Judgement) -> int:
    """The budget in seconds that was too small, at least 1; 0 where it was not for the budget."""
    found = [reason.seconds for reason in judgement.reasons if reason.seconds is not None]
    return max((max(1, round(seconds)) for seconds in found), default=0)


def _typed(option: str) -> str:
    name, equals, value = option.partition("=")
    return f"{name}={shlex.quote(value)}" if equals else name
