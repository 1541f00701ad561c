"""A judgement in words: the lines below a failed assertion, and the command that helps."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from pytest_gpuserve.gate.verdict import Judgement, Verdict
from pytest_gpuserve.units import format_change, format_fraction, format_value

if TYPE_CHECKING:
    from collections.abc import Mapping

REFERENCE_WORDS = {
    "baseline": "baseline",
    "against": "base",
    "published": "published",
    "duel": "opponent",
    "limit": "limit",
}

NOTABLE_CHANGE = 0.03
"""A smaller move of another metric explains nothing."""


def explain(judgement: Judgement, other_changes: Mapping[str, float], command: str) -> list[str]:
    """Explain a judgement, headline first.

    Args:
        judgement: What to explain.
        other_changes: How the run's other metrics moved, as fractions.
        command: What to type next; empty if nothing helps.
    """
    lines = [headline(judgement)]
    if judgement.interval is not None:
        low, high = judgement.interval
        lines.append(f"interval {format_change(low)} to {format_change(high)}, {evidence(judgement)}")
    for reason in judgement.reasons:
        lines.extend(reason.splitlines())
    moved = [
        f"{name} {format_change(change)}" for name, change in other_changes.items() if abs(change) >= NOTABLE_CHANGE
    ]
    if moved and judgement.verdict in {Verdict.REGRESSED, Verdict.INCONCLUSIVE}:
        lines.append(f"moved with it: {', '.join(moved)}")
    if command:
        lines.append(f"{_purpose(judgement.verdict)}: {command}")
    return lines


def headline(judgement: Judgement) -> str:
    """``REGRESSED: throughput is 1432/s, baseline 2047/s: -30.1 % (tolerance 5 %)``."""
    unit = judgement.metric.unit
    text = f"{judgement.verdict}: {judgement.metric.name}"
    if judgement.value is not None:
        text += f" is {format_value(judgement.value, unit)}"
    if judgement.reference is not None:
        text += f", {REFERENCE_WORDS[judgement.reference_kind]} {format_value(judgement.reference, unit)}"
    if judgement.change is not None:
        text += f": {format_change(judgement.change)}"
    if judgement.tolerance is not None:
        text += f" (tolerance {format_fraction(judgement.tolerance)})"
    return text


def evidence(judgement: Judgement) -> str:
    """What the verdict rests on, and what it could have seen."""
    text = f"from {judgement.rounds} session{'s' if judgement.rounds != 1 else ''}"
    if judgement.detectable is not None:
        text += f"; a change of {format_fraction(judgement.detectable)} would have been seen"
    return text


def command_for(judgement: Judgement, nodeid: str, gpu: str) -> str:
    """The exact command that accepts or records the new number; empty where no command helps."""
    if judgement.reference_kind != "baseline":
        return ""
    base = f"pytest {shlex.quote(nodeid)} --gpu={shlex.quote(gpu)}"
    if judgement.verdict is Verdict.REGRESSED:
        return f"{base} --baseline-update --reason='why it is worth it'"
    if judgement.verdict is Verdict.MISSING:
        return f"{base} --baseline-update"
    if judgement.verdict is Verdict.INCONCLUSIVE:
        return f"{base} --gpuserve-budget=1200"
    return ""


def _purpose(verdict: Verdict) -> str:
    return {
        Verdict.REGRESSED: "to accept the new number",
        Verdict.MISSING: "to record it",
        Verdict.INCONCLUSIVE: "to look longer",
    }.get(verdict, "next")
