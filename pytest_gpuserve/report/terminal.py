"""The table at the end of a run: one line a metric, the worst first."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Final

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pytest_gpuserve.report.results import HEADINGS
from pytest_gpuserve.verdict.verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpuserve.report.results import Row

STYLES: Final = {
    Verdict.PASS: "green",
    Verdict.IMPROVED: "green",
    Verdict.REGRESSED: "red",
    Verdict.INVALID: "red",
    Verdict.INCONCLUSIVE: "yellow",
    Verdict.MISSING: "yellow",
}

NARROWEST: Final = 40
"""Width in columns below which the table is not made narrower."""

NAME_WIDTH: Final = 20
"""Fewest columns of a test's name before it is folded."""

LEFT_OUT_FIRST: Final = ("tolerance", "at worst", "reference", "change", "now")
"""Headings that a narrow terminal leaves out, in this order; the metric and its verdict are always shown whole."""

_GAP: Final = 2
_EDGES: Final = 2


def table(rows: Sequence[Row], *, width: int, color: bool) -> str:
    """Draw rows; empty without rows."""
    if not rows:
        return ""
    width = max(width, NARROWEST)
    # A load is named in its first line; its other rows follow.
    cells = [dict(zip(HEADINGS, row.cells, strict=True)) for row in rows]
    for number in range(1, len(rows)):
        if rows[number].run is rows[number - 1].run:
            cells[number]["test"] = ""
    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True, expand=False)
    columns = _columns_that_fit(cells, width)
    for name in columns:
        left = name in {"test", "metric", "verdict"}
        grid.add_column(name, justify="left" if left else "right", overflow="fold", no_wrap=name != "test")
    for row, texts in zip(rows, cells, strict=True):
        style = STYLES[row.judgement.verdict]
        grid.add_row(*(Text(texts[name], style=style if name == "verdict" else "") for name in columns))
    console = Console(file=io.StringIO(), width=width, force_terminal=color, no_color=not color)
    with console.capture() as captured:
        console.print(grid)
    return "\n".join(line.rstrip() for line in captured.get().splitlines()).strip("\n")


def _columns_that_fit(rows: Sequence[dict[str, str]], width: int) -> list[str]:
    columns = list(HEADINGS)
    widths = {name: max(cell_len(text) for text in (name, *(row[name] for row in rows))) for name in columns}
    widths["test"] = min(NAME_WIDTH, max(cell_len(row["test"]) for row in rows))
    for left_out in LEFT_OUT_FIRST:
        if _EDGES + sum(widths[name] for name in columns) + _GAP * (len(columns) - 1) <= width:
            break
        columns.remove(left_out)
    return columns
