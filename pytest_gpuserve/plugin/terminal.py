"""End of a measuring run on the terminal: the table, remarks, and the next steps."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from pytest_gpuserve.plugin.outputs import Written, write_outputs
from pytest_gpuserve.process.secrets import masked
from pytest_gpuserve.report.names import with_texts
from pytest_gpuserve.report.next_step import next_step
from pytest_gpuserve.report.remarks import (
    bases_lines,
    basis_lines,
    client_lines,
    kinds_lines,
    language_model_lines,
    measured_again_lines,
    problem_lines,
    reason_lines,
    settings_lines,
    totals_line,
)
from pytest_gpuserve.report.terminal import table

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytest_gpuserve.plugin.outputs import Output
    from pytest_gpuserve.report.results import SessionResult


def write_results(session: pytest.Session, outputs: Iterable[Output], closing: SessionResult) -> Written:
    """Write the requested files; if one cannot be written, the exit status of pytest is a failure."""
    written = write_outputs(outputs, _known(closing))
    if written.failed:
        session.exitstatus = pytest.ExitCode.USAGE_ERROR
    return written


def print_closing(writer: pytest.TerminalReporter, closing: SessionResult, written: Written) -> None:
    """Print the table, the recordings, and open points; nothing if all of these are empty.

    With ``-q`` the output has only the tests that did not pass, notes, and the totals. With ``-v`` it has all the
    evidence of verdicts.
    """
    closing = _known(closing)
    verbosity = writer.config.get_verbosity()
    rows = closing.rows if verbosity >= 0 else [row for row in closing.rows if row.is_bad]
    problems = problem_lines(closing)
    # A step summary without a comparison was not requested, and is not worth a section.
    asked = verbosity >= 0 and written.asked
    if not (closing.rows or closing.notes or problems or asked):
        return
    lines = (
        [*reason_lines(rows), *problems, *closing.notes, *map(masked, written.missing)]
        if verbosity < 0
        else [
            *(basis_lines(rows) if verbosity > 0 else ()),
            *bases_lines(rows),
            *reason_lines(rows, verbose=verbosity > 0),
            *kinds_lines(rows),
            *problems,
            *measured_again_lines(closing, verbose=verbosity > 0),
            *settings_lines(closing),
            *language_model_lines(closing),
            *client_lines(closing),
            *closing.notes,
            *closing.places,
            *map(masked, written.lines),
        ]
    )
    # Not `section`, which leaves pytest's own line unended if all tests passed.
    writer.write_sep("-", "gpuserve", blue=True)
    drawn = table(rows, width=shutil.get_terminal_size((120, 24)).columns, color=writer.hasmarkup)
    for line in drawn.splitlines():
        writer.write_line(line)
    for line in lines:
        writer.write_line(line)
    totals = totals_line(closing)
    if totals:
        writer.write_line(totals, **_markup(closing))
    for line in next_step(closing).splitlines():
        writer.write_line(line, bold=True)


def _known(closing: SessionResult) -> SessionResult:
    """The result without secrets; its texts no longer decide anything."""
    known: SessionResult = with_texts(closing, masked)
    return known


def _markup(closing: SessionResult) -> dict[str, bool]:
    """Colour of the totals: that of pytest's last line."""
    if any(test.failed for test in closing.tests):
        return {"red": True}
    doubtful = any(row.is_bad for row in closing.rows)
    return {"yellow": True} if doubtful else {"green": True}
