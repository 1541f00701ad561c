"""Why a comparison does not hold, where pytest explains a failed assertion."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pytest_gpuserve.process.secrets import without_secrets
from pytest_gpuserve.report.commands import closer_command, command_for
from pytest_gpuserve.report.explain import explain
from pytest_gpuserve.trial.assertions import Measured, Reference
from pytest_gpuserve.trial.changes import attributed, other_changes
from pytest_gpuserve.trial.dueling import Ratio
from pytest_gpuserve.trial.judging import TestJudge

if TYPE_CHECKING:
    from pytest_gpuserve.gate.verdict import ReferenceKind


def explained(left: object, right: object, *, gpu: str, stored: bool, before: str) -> list[str] | None:
    """Explain a failed comparison, headline first; None where it is none of ours.

    Args:
        left: What stands on the left in the assertion: a metric of a run or of a duel.
        right: What it was compared with.
        gpu: The baseline set.
        stored: Whether ``baseline`` is a stored one.
        before: The revision beside which it can be looked at more closely; empty where there is none.
    """
    if not isinstance(left, (Measured, Ratio)) or not isinstance(right, (Reference, int, float)):
        return None
    judge = left.run.judge
    assert isinstance(judge, TestJudge)
    kind: ReferenceKind = "duel" if isinstance(left, Ratio) else "limit"
    if isinstance(right, Reference):
        kind = right.kind
    judgement = judge.judgement(left.run, left.metric, kind)
    compared = judge.compared(left.run, judgement)
    by_stored = kind == "baseline" and stored
    lines = explain(
        judgement,
        other_changes(left.metric, *compared),
        command_for(judgement, judge.nodeid, gpu, stored=by_stored),
        attributed(*compared),
        closer=closer_command(judgement, judge.nodeid, gpu, before=before) if by_stored else "",
    )
    return [without_secrets(line, os.environ) for line in lines]
