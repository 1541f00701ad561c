"""What all comparisons of a run came to, in one line."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.gate.verdict import Verdict
from pytest_gpuserve.report.names import names_of, some_of
from pytest_gpuserve.report.ranking import FAILED, ranked, rows_of
from pytest_gpuserve.units import format_change

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_gpuserve.report.ranking import Row
    from pytest_gpuserve.report.results import SessionResult

RECORDABLE: Final = frozenset({"baseline", "against"})
"""Kinds of reference that a stored baseline is behind; a printed number or a limit is nobody's to record."""

_WORDS: Final[Mapping[Verdict, str]] = {
    Verdict.PASS: "passed",
    Verdict.IMPROVED: "improved",
    Verdict.REGRESSED: "regressed",
    Verdict.INVALID: "invalid",
    Verdict.MISSING: "missing",
    Verdict.INCONCLUSIVE: "inconclusive",
}

_OTHER_WORDS: Final = ("recorded", "not asserted")


def totals_line(result: SessionResult) -> str:
    """Count the last words by verdict: ``comparisons: 12 passed, 1 regressed, 2 inconclusive``.

    Args:
        result: Of the run. Where it records baselines, what was missing in a test that passed is recorded, and what has
            improved need not be proposed.

    Returns:
        The line, with the improvements that could be recorded; empty where nothing was compared.
    """
    recording = bool(result.update)
    rows = [row for test in result.tests for row in rows_of(test) if not row.judgement.overruled]
    counts = Counter(_word(row, recording=recording) for row in rows)
    parts = [f"{counts[word]} {word}" for word in (*_WORDS.values(), *_OTHER_WORDS) if counts[word]]
    without = sum(test.outcome in FAILED and not rows_of(test) for test in result.tests)
    if without:
        parts.append(f"{without} test{'s' if without > 1 else ''} ended without any")
    if not parts:
        return ""
    improved = [] if recording else improvements(result)
    names = names_of(result.tests)
    what = [f"{names[row.test.nodeid]} {row.judgement.metric.name}{_change(row)}" for row in improved]
    proposed = f"; could be recorded: {some_of(what)}" if what else ""
    return f"comparisons: {', '.join(parts)}{proposed}"


def improvements(result: SessionResult) -> list[Row]:
    """What could be recorded, for the gate to be stricter from then on: the largest change first.

    Only of tests that passed: where one metric has improved for another that regressed, it has to be said why.
    """
    if not result.stored:
        return []
    return [
        row
        for row in ranked(result.tests)
        if row.counts
        and row.test.outcome == "passed"
        and row.judgement.verdict is Verdict.IMPROVED
        and row.judgement.reference_kind in RECORDABLE
    ]


def _word(row: Row, *, recording: bool) -> str:
    verdict = row.judgement.verdict
    recorded, not_asserted = _OTHER_WORDS
    if not row.judgement.asserted:
        return not_asserted
    return recorded if recording and verdict is Verdict.MISSING and row.test.outcome == "passed" else _WORDS[verdict]


def _change(row: Row) -> str:
    change = row.judgement.change
    return "" if change is None else f" {format_change(change)}"
