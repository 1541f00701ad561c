"""A judgement as a row of a table of HTML, for `report.markdown`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pytest_gpuserve.gate.verdict import Verdict
from pytest_gpuserve.report.explain import reference_text
from pytest_gpuserve.report.names import names_of
from pytest_gpuserve.report.ranking import Row, ranked
from pytest_gpuserve.units import format_change, format_fraction, format_value

if TYPE_CHECKING:
    from collections.abc import Collection

    from pytest_gpuserve.gate.verdict import Judgement
    from pytest_gpuserve.report.markdown_text import Inert
    from pytest_gpuserve.report.results import TestResult

HEADINGS: Final = ("test", "metric", "now", "reference", "change", "detectable", "verdict")

UNKNOWN: Final = "unknown"

RED: Final = frozenset({Verdict.REGRESSED, Verdict.INVALID})
"""Verdicts whose rows are the last ones to be left out, whichever test they are of."""


def worst_first(tests: Collection[TestResult]) -> list[Row]:
    """All rows in the order of `report.ranking`, those that are red before all others."""
    return sorted(ranked(tests), key=lambda row: not (row.is_bad and row.judgement.verdict in RED))


def table_rows(rows: Collection[Row], tests: Collection[TestResult], inert: Inert) -> list[str]:
    """Rows of a table of HTML, a line each.

    Args:
        rows: Of these.
        tests: All tests of the run, among which a row's is told apart by its name.
        inert: Writes texts of the run.
    """
    names = names_of(tests, inert.shown)
    return [_table_row(row, f"{names[row.test.nodeid]} {row.run.label}".strip(), inert) for row in rows]


def _table_row(row: Row, name: str, inert: Inert) -> str:
    judgement = row.judgement
    cells = (
        inert.code(name),
        judgement.metric.name,
        UNKNOWN if judgement.value is None else format_value(judgement.value, judgement.unit),
        # In words, for a sign such as `>=` would have to be escaped.
        reference_text(judgement, unknown=UNKNOWN),
        _change(judgement),
        UNKNOWN if judgement.detectable is None else format_fraction(judgement.detectable),
        _verdict(row),
    )
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _verdict(row: Row) -> str:
    if not row.judgement.asserted:
        return f"{row.judgement.verdict}, not asserted"
    return (
        f"{row.judgement.verdict}, settled side by side"
        if row.overruled
        else f"<strong>{row.judgement.verdict}</strong>"
    )


def _change(judgement: Judgement) -> str:
    if judgement.change is None:
        return UNKNOWN
    change = format_change(judgement.change)
    if judgement.interval is None:
        return change
    low, high = (format_change(bound) for bound in judgement.interval)
    return f"{change} ({low} to {high})"
