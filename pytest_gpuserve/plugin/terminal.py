"""The end of a run that measured, on the terminal: its table, what is to be said of it, and what to do next."""

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
    """Write what was asked for; where it cannot be, the exit status of pytest says so."""
    written = write_outputs(outputs, _known(closing))
    if written.failed:
        session.exitstatus = pytest.ExitCode.USAGE_ERROR
    return written


def print_closing(writer: pytest.TerminalReporter, closing: SessionResult, written: Written) -> None:
    """Print the table, what was recorded, and what is left over; nothing where there is nothing to say.

    With ``-q`` there is only what keeps tests from passing, what was noted, and the totals; with ``-v`` all that
    verdicts rest on.
    """
    closing = _known(closing)
    verbosity = writer.config.get_verbosity()
    rows = closing.rows if verbosity >= 0 else [row for row in closing.rows if row.is_bad]
    problems = problem_lines(closing)
    # A step's summary nobody has asked for: where nothing was compared it is not worth a section.
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
    # Not `section`, which leaves pytest's own line unended where all tests passed.
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
    """The result without secrets; by now its texts decide nothing any more."""
    known: SessionResult = with_texts(closing, masked)
    return known


def _markup(closing: SessionResult) -> dict[str, bool]:
    """The colour of the totals: pytest's own of its last line."""
    if any(test.failed for test in closing.tests):
        return {"red": True}
    doubtful = any(row.is_bad for row in closing.rows)
    return {"yellow": True} if doubtful else {"green": True}
