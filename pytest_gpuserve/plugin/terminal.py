"""The end of a run that measured, on the terminal: its table, what is to be said of it, and what to do next."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from pytest_gpuserve.plugin.outputs import Written, write_outputs
from pytest_gpuserve.process.secrets import masked
from pytest_gpuserve.report.names import with_texts
from pytest_gpuserve.report.next_step import next_step
from pytest_gpuserve.report.ranking import FAILED, rows_of
from pytest_gpuserve.report.remarks import (
    bases_lines,
    client_lines,
    detail_lines,
    kinds_lines,
    language_model_lines,
    measured_again_lines,
    problem_lines,
    reason_lines,
    settings_lines,
    totals_line,
)
from pytest_gpuserve.report.terminal import is_whole, table

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pytest_gpuserve.plugin.outputs import Output
    from pytest_gpuserve.report.results import SessionResult, TestResult


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
    tests = [test for test in closing.tests if any(run.judgements for run in test.runs)]
    problems = problem_lines(closing.tests)
    verbosity = writer.config.get_verbosity()
    # A step's summary nobody has asked for: where nothing was compared it is not worth a section.
    asked = verbosity >= 0 and written.asked
    if not (tests or closing.notes or problems or written.missing or asked):
        return
    lines = (
        [*reason_lines(tests, only_bad=True), *problems, *closing.notes, *map(masked, written.missing)]
        if verbosity < 0
        else [
            *bases_lines(tests),
            *reason_lines(tests, verbose=verbosity > 0),
            *kinds_lines(tests),
            *problems,
            *measured_again_lines(tests, verbose=verbosity > 0),
            *settings_lines(tests),
            *language_model_lines(tests),
            *client_lines(tests),
            *closing.notes,
            *closing.places,
            *map(masked, written.lines),
        ]
    )
    # Not `section`, which leaves pytest's own line unended where all tests passed.
    writer.write_sep("-", "gpuserve", blue=True)
    for line in _table(writer, tests, verbosity):
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


def _table(writer: pytest.TerminalReporter, tests: Sequence[TestResult], verbosity: int) -> list[str]:
    width = shutil.get_terminal_size((120, 24)).columns
    drawn = table(
        tests,
        width=width,
        color=writer.hasmarkup,
        only_bad=verbosity < 0,
        verbose=verbosity > 0,
    )
    details = detail_lines(tests) if verbosity > 0 and not is_whole(tests, width=width) else []
    return [*([drawn] if drawn else []), *details]


def _markup(closing: SessionResult) -> dict[str, bool]:
    """The colour of the totals: pytest's own of its last line."""
    if any(test.outcome in FAILED for test in closing.tests):
        return {"red": True}
    doubtful = any(row.is_bad for test in closing.tests for row in rows_of(test))
    return {"yellow": True} if doubtful else {"green": True}
