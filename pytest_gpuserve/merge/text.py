"""What a person is shown of merged results: as at the end of a run, but for what only the shards know."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpuserve.report.names import printable
from pytest_gpuserve.report.next_step import next_step
from pytest_gpuserve.report.remarks import bases_lines, problem_lines, reason_lines
from pytest_gpuserve.report.terminal import table
from pytest_gpuserve.report.totals import totals_line

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytest_gpuserve.report.results import SessionResult


def merged_text(
    result: SessionResult,
    written: Sequence[str],
    *,
    width: int,
    color: bool,
    shown: Callable[[str], str] = str,
) -> str:
    """Write what came of it.

    Args:
        result: All results as one.
        written: Where it was written to, a line each.
        width: Columns of the terminal.
        color: Whether it understands colours.
        shown: Makes each text in it fit to be shown, before it is laid out.
    """
    tests = [test for test in result.tests if any(run.judgements for run in test.runs)]
    drawn = table(tests, width=width, color=color, shown=shown)
    lines = (
        *bases_lines(tests),
        *reason_lines(tests),
        *problem_lines(result.tests, shown),
        *result.notes,
        *result.places,
        *written,
        totals_line(result),
        *next_step(result).splitlines(),
    )
    told = [printable(shown(line)) for line in lines if line]
    # The table has colours, and what it takes in is made printable by itself.
    return "\n".join([printable(shown(f"gpuserve: {result.header}")), *(["", drawn, ""] if drawn else []), *told])
