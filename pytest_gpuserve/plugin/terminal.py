"""Texts on the terminal: the estimated duration of a run, its progress now and then, and its end."""

from __future__ import annotations

import shutil
import time
from contextlib import nullcontext
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.process.secrets import masked
from pytest_gpuserve.report.names import printable, short_name
from pytest_gpuserve.report.next_step import next_step
from pytest_gpuserve.report.terminal import (
    bases_lines,
    basis_lines,
    client_lines,
    kinds_lines,
    language_model_lines,
    measured_again_lines,
    problem_lines,
    reason_lines,
    settings_lines,
    table,
    totals_line,
)
from pytest_gpuserve.units import format_change, format_rate, format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterable
    from contextlib import AbstractContextManager

    import pytest

    from pytest_gpuserve.compare.comparison import Look
    from pytest_gpuserve.measure.window import Window
    from pytest_gpuserve.plugin.outputs import Written
    from pytest_gpuserve.report.results import SessionResult

COMPARES: Final = frozenset({"baseline", "duel"})
"""Fixtures of a test that compares."""

WORTH_KEEPING_SECONDS: Final = 0.1
"""A test without a comparison is remembered only if it takes longer than this."""

UNKNOWN_SECONDS: Final = 30.0
"""Assumed duration of a new comparing test on two cores, with its share of the others."""


class Durations:
    """Seconds of tests, kept in pytest's cache.

    Args:
        config: Configuration of the run.
        mode: Key of runs that take the same time, such as ``cpu NOTHING``.
    """

    def __init__(self, config: pytest.Config, mode: str) -> None:
        # Absent under `-p no:cacheprovider`.
        self._cache: pytest.Cache | None = getattr(config, "cache", None)
        self._key = f"gpuserve/durations/{mode}"
        kept = {} if self._cache is None else self._cache.get(self._key, {})
        self._kept: dict[str, float] = kept if isinstance(kept, dict) else {}
        self._now: dict[str, float] = {}
        self._comparing: set[str] = set()

    def add(self, report: pytest.TestReport) -> None:
        """Add a phase of a test."""
        self._now[report.nodeid] = self._now.get(report.nodeid, 0.0) + report.duration

    def keep(self) -> None:
        """Write the durations for the next run; a test that was not run keeps its own."""
        if self._cache is not None and self._now:
            now = {nodeid: round(seconds, 1) for nodeid, seconds in self._now.items()}
            known = {**self._kept, **now}
            worth = {
                name: took for name, took in known.items() if took >= WORTH_KEEPING_SECONDS or name in self._comparing
            }
            self._cache.set(self._key, worth)

    def line(self, items: Iterable[pytest.Item]) -> str:
        """``comparisons of 11 tests, about 4 min``; empty if no test compares."""
        known, seconds = 0, 0.0
        for item in items:
            compares = bool(COMPARES.intersection(getattr(item, "fixturenames", ())))
            if compares:
                self._comparing.add(item.nodeid)
            if item.nodeid in self._kept:
                seconds += self._kept[item.nodeid]
                known += compares
            elif compares:
                seconds += UNKNOWN_SECONDS
        compare = len(self._comparing)
        if not compare:
            return ""
        about = f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"
        guess = "" if known else " (a guess, without an earlier run on this device)"
        return f"comparisons of {compare} test{'' if compare == 1 else 's'}, about {about}{guess}"


EVERY_SECONDS: Final = 30.0
"""Shortest interval between progress lines, and shortest test that has one."""


def say(config: pytest.Config, line: str) -> None:
    """Write a line at once to pytest's terminal, past its capture."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    capture = config.pluginmanager.get_plugin("capturemanager")
    uncaptured: AbstractContextManager[None] = nullcontext()
    if capture is not None:
        uncaptured = capture.global_and_fixture_disabled()
    if reporter is not None:
        with uncaptured:
            reporter.write_line(line)
            reporter.flush()


class ProgressLines:
    """Shows the progress of the measured test; silent if pytest is quiet."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._is_quiet = config.get_verbosity() < 0
        self._test = ""
        self._look: Look | None = None
        self._look_seconds = self._told_seconds = time.monotonic()

    def begin(self, nodeid: str) -> None:
        """Set the test that is measured from now on."""
        self._test = printable(masked(short_name(nodeid)))
        self._look = None
        self._told_seconds = time.monotonic()

    def look(self, look: Look) -> None:
        """Set the next look of the measurement, with its reason."""
        self._look, self._look_seconds = look, time.monotonic()

    def show(self, totals: Window) -> None:
        """Take all ticks of a load so far."""
        now = time.monotonic()
        if self._is_quiet or now - self._told_seconds < EVERY_SECONDS:
            return
        self._told_seconds = now
        left = None
        if self._look is not None and self._look.left_seconds is not None:
            left = max(0.0, self._look.left_seconds - (now - self._look_seconds))
        say(self._config, f"gpuserve: {progress_line(self._test, self._look, totals, left)}")


def progress_line(test: str, look: Look | None, so_far: Window, left_seconds: float | None) -> str:
    """Format the progress: ``test_a  round 2 of 8  throughput -3.1 %  2147/s  p99 12.3 ms  budget: 4 min 2 s left``.

    Args:
        test: Name of the test.
        look: The look; None before the first one.
        so_far: Ticks of the load. The rate is ``-`` before the first answer, the p99 below 100 requests.
        left_seconds: Rest of the test's budget; None without a budget.
    """
    rate, p99 = so_far.throughput, so_far.latency.known_quantile(0.99)
    judged = None if look is None else look.judgement
    parts = [
        test,
        "" if look is None else str(look),
        "" if judged is None or judged.change is None else f"{judged.metric.name} {format_change(judged.change)}",
        format_rate(rate) if rate else "-/s",
        "p99 -" if p99 is None else f"p99 {format_seconds(p99)}",
        f"errors: {so_far.error_count}" if so_far.error_count else "",
        "" if left_seconds is None else f"budget: {format_seconds(left_seconds)} left",
    ]
    return "  ".join(filter(None, parts))


def print_closing(writer: pytest.TerminalReporter, closing: SessionResult, written: Written) -> None:
    """Print the table, the recordings, and open points; nothing if all of these are empty.

    With ``-q`` the output has only the tests that did not pass, notes, and the totals. With ``-v`` it has all the
    evidence of verdicts.
    """
    verbosity = writer.config.get_verbosity()
    rows = closing.rows if verbosity >= 0 else [row for row in closing.rows if row.is_bad]
    problems = problem_lines(closing)
    if not (closing.rows or closing.notes or problems or written.missing or (verbosity >= 0 and written.lines)):
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


def _markup(closing: SessionResult) -> dict[str, bool]:
    """Colour of the totals: that of pytest's last line."""
    if any(test.failed for test in closing.tests):
        return {"red": True}
    doubtful = any(row.is_bad for row in closing.rows)
    return {"yellow": True} if doubtful else {"green": True}
