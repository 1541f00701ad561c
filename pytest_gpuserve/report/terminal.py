"""The table at the end of a run: one line a metric, the worst first."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pytest_gpuserve.report.explain import PAIRED, cells
from pytest_gpuserve.report.names import names_of, printable
from pytest_gpuserve.report.ranking import ranked
from pytest_gpuserve.verdict.verdict import Judgement, Verdict

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from pytest_gpuserve.report.ranking import Row
    from pytest_gpuserve.report.results import TestResult

STYLES = {
    Verdict.PASS: "green",
    Verdict.IMPROVED: "green",
    Verdict.REGRESSED: "red",
    Verdict.INVALID: "red",
    Verdict.INCONCLUSIVE: "yellow",
    Verdict.MISSING: "yellow",
}

"""Of a verdict that was settled otherwise: in red it would be taken for the last word."""

UNKNOWN = "-"

NARROWEST = 40
"""Columns below which the table is not made narrower."""

NAME_WIDTH = 20
"""Columns that a test's name should have before it is folded."""

EVIDENCE = "evidence"
"""The column that only a verbose run has."""

LEFT_OUT_FIRST = (EVIDENCE, "detectable", "tolerance", "interval", "reference", "change", "now")
"""What a narrow terminal goes without, in this order; the metric and its verdict are always shown, and whole."""

_HEADINGS = ("metric", "now", "reference", "change", "interval", "tolerance", "detectable", EVIDENCE, "verdict")
_GAP = 2
_EDGES = 2


@dataclass(frozen=True)
class _Line:
    name: str
    style: str
    cells: dict[str, str]


def table(
    tests: Collection[TestResult],
    *,
    width: int,
    color: bool,
    only_bad: bool = False,
    verbose: bool = False,
) -> str:
    """Draw the judgements of all tests, in the order of `report.ranking`; empty where there is no row.

    Args:
        only_bad: Whether to leave out all but what keeps a test from passing.
        verbose: Whether to say what each verdict rests on.
    """
    lines = _lines(tests, only_bad=only_bad)
    if not lines:
        return ""
    width = max(width, NARROWEST)
    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True, expand=False)
    grid.add_column("test", overflow="fold")
    columns = _columns_that_fit(lines, width, verbose=verbose)
    for name in columns:
        grid.add_column(name, justify="left" if name in {"metric", "verdict"} else "right", no_wrap=True)
    for line in lines:
        cells = [Text(line.cells[name], style=line.style if name == "verdict" else "") for name in columns]
        grid.add_row(Text(line.name), *cells)
    console = Console(
        file=io.StringIO(),
        width=width,
        force_terminal=color,
        no_color=not color,
    )
    with console.capture() as captured:
        console.print(grid)
    return "\n".join(line.rstrip() for line in captured.get().splitlines()).strip("\n")


def is_whole(tests: Collection[TestResult], *, width: int) -> bool:
    """Whether a verbose table of this width has all its columns."""
    columns = _columns_that_fit(_lines(tests, only_bad=False), max(width, NARROWEST), verbose=True)
    return columns == list(_HEADINGS)


def _lines(tests: Collection[TestResult], *, only_bad: bool) -> list[_Line]:
    names = names_of(tests)
    lines: list[_Line] = []
    last: Row | None = None
    for row in ranked(tests):
        if only_bad and not row.is_bad:
            continue
        # A load is named in its first line: its others stand right below.
        is_new = last is None or row.run is not last.run
        name = f"{names[row.test.nodeid]} {printable(row.run.label)}".strip() if is_new else ""
        lines.append(_Line(name, STYLES[row.judgement.verdict], _cells(row.judgement)))
        last = row
    return lines


def _columns_that_fit(lines: Sequence[_Line], width: int, *, verbose: bool) -> list[str]:
    columns = [name for name in _HEADINGS if verbose or name != EVIDENCE]
    name_width = min(NAME_WIDTH, max((cell_len(line.name) for line in lines), default=0))
    widths = {name: max(cell_len(text) for text in (name, *(line.cells[name] for line in lines))) for name in columns}
    for left_out in LEFT_OUT_FIRST:
        if _EDGES + name_width + sum(_GAP + widths[name] for name in columns) <= width:
            break
        if left_out in columns:
            columns.remove(left_out)
    return columns


def _cells(judgement: Judgement) -> dict[str, str]:
    return {
        "metric": judgement.metric.name,
        **cells(judgement, unknown=UNKNOWN, between=" .. ", bounds=(">=", "<=")),
        EVIDENCE: _evidence(judgement),
        "verdict": str(judgement.verdict),
    }


def _evidence(judgement: Judgement) -> str:
    """What it rests on: ``2 sessions``, ``3 rounds, 72 windows``."""
    parts = (
        (judgement.rounds, "round" if judgement.reference_kind in PAIRED else "session"),
        (judgement.windows, "window"),
    )
    return ", ".join(f"{count} {unit}{'s' if count != 1 else ''}" for count, unit in parts if count) or UNKNOWN
