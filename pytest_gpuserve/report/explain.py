"""A judgement in words: the lines below a failed assertion."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpuserve.units import format_change, format_fraction, format_ratio, format_value
from pytest_gpuserve.verdict.metric import METRICS
from pytest_gpuserve.verdict.reason import Reason, ReasonKind
from pytest_gpuserve.verdict.verdict import Judgement, Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

REFERENCE_WORDS = {
    "baseline": "baseline",
    "against": "base",
    "duel": "opponent",
    "limit": "limit",
}

NOTABLE_CHANGE = 0.03
"""A smaller move of another metric explains nothing."""

EXPLAINED = frozenset({Verdict.REGRESSED, Verdict.IMPROVED, Verdict.INCONCLUSIVE})
"""Verdicts that ask what else moved; the others are about no change, or about none that can be trusted."""

WEIGHTIEST = 2
"""Lines of an attribution that stand before the command: what moved, and how much of it all that is."""

DECIDED = frozenset({Verdict.REGRESSED, Verdict.IMPROVED})
"""Verdicts whose numbers say more than their reasons."""

PAIRED = frozenset({"against", "duel"})
"""Reference kinds that were measured side by side, in rounds; the others rest on sessions."""


def explain(
    judgement: Judgement,
    other_changes: Mapping[str, float],
    command: str,
    attribution: Sequence[str] = (),
    *,
    closer: str = "",
) -> list[str]:
    """Explain a judgement, headline first.

    Args:
        other_changes: How the run's other metrics moved, as fractions; those that only a test asks for are not told.
        command: What to type next; empty if nothing helps.
        attribution: What of the server's time moved with it, a line each; see ``report/attribution.py``.
        closer: How to look closer before that is typed, as `closer_command` says; empty where it was looked at.
    """
    explained = judgement.verdict in EXPLAINED
    # What moved comes right after what happened.
    lines = [headline(judgement), *(attribution[:1] if explained else ())]
    if judgement.interval is not None or judgement.reference_kind in PAIRED:
        lines.extend(filter(None, [basis(judgement)]))
    lines.extend(map(str, _not_shown_within(judgement)))
    reasons = [line for reason in judgement.reasons for line in reason.text.splitlines()]
    moved = [
        f"{name} {format_change(change)}"
        for name, change in other_changes.items()
        if abs(change) >= NOTABLE_CHANGE and not METRICS[name].on_request
    ]
    # For a terminal pytest cuts an explanation after eight lines, so what matters most comes first: the reason, if
    # nothing is decided.
    decided = judgement.verdict in DECIDED
    lines.extend(() if decided else reasons)
    lines.extend(attribution[1:WEIGHTIEST] if explained else ())
    lines.extend([f"first {closer}"] if closer else [])
    if command:
        lines.append(f"{_purpose(judgement.verdict)}{', if that shows it' if closer else ''}: {command}")
    lines.extend(reasons if decided else ())
    if explained:
        if moved:
            lines.append(f"metrics that moved with it: {', '.join(moved)}")
        lines.extend(attribution[WEIGHTIEST:])
    return lines


def headline(judgement: Judgement) -> str:
    """``REGRESSED: throughput is 1432/s, baseline 2047/s: -30.1 % (tolerance 5 %)``; of a duel ratio and limit."""
    unit = judgement.unit
    text = f"{judgement.verdict}: {judgement.metric.name}"
    if judgement.reference_kind == "duel" and judgement.reference is not None:
        least = "at least" if judgement.metric.higher_is_better else "at most"
        ratio = "not known" if judgement.value is None else format_ratio(judgement.value)
        return f"{text} is {ratio} times its opponent's; asked for is {least} {format_ratio(judgement.reference)} times"
    if judgement.value is not None:
        text += f" is {format_value(judgement.value, unit)}"
    if judgement.reference is not None:
        text += f", {REFERENCE_WORDS[judgement.reference_kind]} {format_value(judgement.reference, unit)}"
    if judgement.change is not None:
        text += f": {format_change(judgement.change)}"
    if judgement.tolerance is not None:
        text += f" (tolerance {format_fraction(judgement.tolerance)})"
    return text


def reference_text(judgement: Judgement) -> str:
    """``146/s``, ``base 143/s``, ``at most 50.0 ms``: the reference, by its kind; empty if it is not known."""
    if judgement.reference is None:
        return ""
    value = format_value(judgement.reference, judgement.unit)
    word = {"baseline": "", "against": "base "}.get(judgement.reference_kind)
    if word is None:
        word = "at least " if judgement.metric.higher_is_better else "at most "
    return f"{word}{value}"


def basis(judgement: Judgement) -> str:
    """``interval -4.1 % to -1.2 %, from 3 rounds (72 windows)``; empty if nothing was measured for the verdict.

    An undecided one adds which change it would have seen.
    """
    parts = []
    if judgement.interval is not None:
        low, high = map(format_change, judgement.interval)
        parts.append(f"interval {low} to {high}")
    if judgement.rounds:
        unit = "round" if judgement.reference_kind in PAIRED else "session"
        parts.append(f"from {judgement.rounds} {unit}{'s' if judgement.rounds != 1 else ''}{_windows(judgement)}")
    if judgement.detectable is not None:
        parts.append(f"a change of {format_fraction(judgement.detectable)} would have been seen")
    return ", ".join(parts)


def _windows(judgement: Judgement) -> str:
    count = judgement.windows
    return f" ({count} window{'s' if count != 1 else ''})" if count else ""


def reasons_of(judgement: Judgement) -> tuple[Reason, ...]:
    """Why a verdict is what it is: its reasons, after what its numbers would else seem to contradict."""
    return (*_not_shown_within(judgement), *judgement.reasons)


def _not_shown_within(judgement: Judgement) -> tuple[Reason, ...]:
    """Say of a regression whose estimate is within the tolerance, as of what passes, why it is one."""
    change, tolerance, worst = judgement.change, judgement.tolerance, judgement.worst
    if judgement.verdict is not Verdict.REGRESSED or change is None or tolerance is None or worst is None:
        return ()
    if abs(change) > tolerance or abs(worst) <= tolerance:
        return ()
    within = f"within the tolerance of {format_fraction(tolerance)}"
    text = f"{within} by its estimate, but not shown to be within it: the interval reaches {format_change(worst)}"
    return (Reason(ReasonKind.WITHIN_TOLERANCE, text),)


def _purpose(verdict: Verdict) -> str:
    return {
        Verdict.REGRESSED: "to accept the new number",
        Verdict.MISSING: "to record it",
        Verdict.INCONCLUSIVE: "to look longer",
    }.get(verdict, "next")
