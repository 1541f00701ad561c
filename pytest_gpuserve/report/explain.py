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
"""Smallest move of another metric that explains anything."""

EXPLAINED = frozenset({Verdict.REGRESSED, Verdict.IMPROVED, Verdict.INCONCLUSIVE})
"""Verdicts with other moved metrics; the remaining ones are about no change, or about one that cannot be trusted."""

WEIGHTIEST = 2
"""Lines of an attribution before the command: the parts that moved, and their shares."""

DECIDED = frozenset({Verdict.REGRESSED, Verdict.IMPROVED})
"""Verdicts whose numbers say more than their reasons."""

PAIRED = frozenset({"against", "duel"})
"""Reference kinds that were measured in rounds; the others rest on sessions."""


def explain(
    judgement: Judgement,
    other_changes: Mapping[str, float],
    steps: Sequence[str] = (),
    attribution: Sequence[str] = (),
) -> list[str]:
    """Explain a judgement, headline first.

    Args:
        other_changes: Changes of the run's other metrics, as fractions; metrics on request are left out.
        steps: Next steps with their commands, a line each; see `next_step.steps_of`.
        attribution: Parts of the server's time that moved with it, a line each; see ``report/attribution.py``.
    """
    explained = judgement.verdict in EXPLAINED
    # The parts that moved come right after the headline.
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
    # pytest cuts an explanation on a terminal after eight lines, so the most important one comes first: the reason, if
    # the comparison is undecided.
    decided = judgement.verdict in DECIDED
    lines.extend(() if decided else reasons)
    lines.extend(attribution[1:WEIGHTIEST] if explained else ())
    lines.extend(steps)
    lines.extend(reasons if decided else ())
    if explained:
        if moved:
            lines.append(f"metrics that moved with it: {', '.join(moved)}")
        lines.extend(attribution[WEIGHTIEST:])
    return lines


def headline(judgement: Judgement) -> str:
    """``REGRESSED: throughput is 1432/s, baseline 2047/s: -30.1 % (tolerance 5 %)``; for a duel ratio and limit."""
    unit = judgement.unit
    text = f"{judgement.verdict}: {judgement.metric.name}"
    if judgement.reference_kind == "duel" and judgement.reference is not None:
        least = "at least" if judgement.metric.higher_is_better else "at most"
        ratio = "not known" if judgement.value is None else format_ratio(judgement.value)
        return f"{text} is {ratio} times its opponent's; the limit is {least} {format_ratio(judgement.reference)} times"
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
    """``146/s``, ``base 143/s``, ``at most 50.0 ms``: the reference, by its kind; empty if unknown."""
    if judgement.reference is None:
        return ""
    value = format_value(judgement.reference, judgement.unit)
    word = {"baseline": "", "against": "base "}.get(judgement.reference_kind)
    if word is None:
        word = "at least " if judgement.metric.higher_is_better else "at most "
    return f"{word}{value}"


def basis(judgement: Judgement) -> str:
    """``interval -4.1 % to -1.2 %, from 3 rounds (72 windows)``; empty if the verdict did not need a measurement.

    An undecided verdict adds the detectable change.
    """
    parts = []
    if judgement.interval is not None:
        low, high = map(format_change, judgement.interval)
        parts.append(f"interval {low} to {high}")
    if judgement.rounds:
        unit = "round" if judgement.reference_kind in PAIRED else "session"
        count = judgement.windows
        windows = f" ({count} window{'s' if count != 1 else ''})" if count else ""
        parts.append(f"from {judgement.rounds} {unit}{'s' if judgement.rounds != 1 else ''}{windows}")
    if judgement.detectable is not None:
        parts.append(f"a change of {format_fraction(judgement.detectable)} would have been seen")
    return ", ".join(parts)


def reasons_of(judgement: Judgement) -> tuple[Reason, ...]:
    """Reasons of a verdict, after a note if its numbers seem to contradict it."""
    return (*_not_shown_within(judgement), *judgement.reasons)


def _not_shown_within(judgement: Judgement) -> tuple[Reason, ...]:
    """Note why a change within the tolerance by its estimate is still a regression."""
    change, tolerance, worst = judgement.change, judgement.tolerance, judgement.worst
    if judgement.verdict is not Verdict.REGRESSED or change is None or tolerance is None or worst is None:
        return ()
    if abs(change) > tolerance or abs(worst) <= tolerance:
        return ()
    within = f"the change is within the tolerance of {format_fraction(tolerance)}"
    text = f"{within}, but the interval reaches {format_change(worst)}"
    return (Reason(ReasonKind.WITHIN_TOLERANCE, text),)
