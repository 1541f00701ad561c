"""How a run gets on: a line that is rewritten on a terminal or written now and then in a log, and how long it takes."""

from __future__ import annotations

import statistics
import sys
import time
from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import msgspec

from pytest_gpuserve.load.progress import ANY_WIDTH, ProgressContext, progress_line
from pytest_gpuserve.process.secrets import masked
from pytest_gpuserve.report.names import printable, short_name
from pytest_gpuserve.store import write_whole
from pytest_gpuserve.units import format_about

if TYPE_CHECKING:
    from collections.abc import Collection
    from contextlib import AbstractContextManager
    from pathlib import Path

    import pytest

    from pytest_gpuserve.comparison.context import Look
    from pytest_gpuserve.load.totals import RunningTotals
    from pytest_gpuserve.load.wire import Tick


QUIET_SECONDS: Final = 2.0
"""A test whose loads are as short as this needs no progress line."""

EVERY_SECONDS: Final = 0.5
LEAST_COLUMNS: Final = 20

LOG_SECONDS: Final = 30.0
"""In a log a test that takes longer than this says so, and no more often."""

_SAVE: Final = "\x1b7"
_RESTORE: Final = "\x1b8"
_ERASE_REST: Final = "\x1b[K"

_NO_WRAP: Final = "\x1b[?7l"
_WRAP: Final = "\x1b[?7h"
"""Where a line is longer than we believe there is room, as in a window made narrower, its end is cut off: a line that
goes on in the next row scrolls the screen, and the cursor's place is lost."""


def say(config: pytest.Config, line: str) -> None:
    """Tell a line at once on pytest's terminal."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None:
        reporter.write_line(line)


class ProgressLine:
    """Shows how far the test has come that is being measured.

    On a terminal it writes behind what pytest has written of the present line, and leaves the cursor where pytest left
    it. Elsewhere, and where others write to the terminal while a test runs, it writes lines of their own. Where pytest
    is quiet or has no terminal it writes nothing.

    Args:
        rewrites: Whether a line may be rewritten: a log of CI keeps them all.
    """

    def __init__(self, config: pytest.Config, *, rewrites: bool) -> None:
        self._config = config
        reporter: pytest.TerminalReporter | None = config.pluginmanager.get_plugin("terminalreporter")
        self._reporter = None if config.get_verbosity() < 0 else reporter
        # Colours may be forced into a file; what moves the cursor has no business there.
        terminal = reporter is not None and reporter.isatty and reporter.hasmarkup
        self._rewrites = rewrites and terminal and sys.__stdout__ is not None and not _others_write(config)
        self._standing = ProgressContext()
        self._budget_ends_seconds: float | None = None
        self._told_seconds = time.monotonic()
        self._begun_seconds: float | None = None
        self._shown_seconds = 0.0

    def begin(self, nodeid: str) -> None:
        """Hear which test is measured from here on."""
        self._standing = ProgressContext(test=printable(masked(short_name(nodeid))))
        self._budget_ends_seconds = None
        self._told_seconds = time.monotonic()
        self._begun_seconds = None

    def look(self, look: Look) -> None:
        """Hear what is measured next, and why."""
        self._standing = replace(self._standing, look=str(look), judgement=look.judgement)
        left = look.left_seconds
        self._budget_ends_seconds = None if left is None else time.monotonic() + left

    def show(self, totals: RunningTotals, tick: Tick, seconds_left: float | None) -> None:
        """Show how the load gets on, unless the test's first one has only just begun."""
        if self._reporter is None:
            return
        now = time.monotonic()
        if self._begun_seconds is None:
            self._begun_seconds = now
        if not self._rewrites:
            if now - self._told_seconds >= LOG_SECONDS:
                self._told_seconds = now
                self._tell(progress_line(totals.totals(), tick, seconds_left, ANY_WIDTH, self._standing_at(now)))
            return
        if now - self._begun_seconds < QUIET_SECONDS or now - self._shown_seconds < EVERY_SECONDS:
            return
        self._shown_seconds = now
        writer = self._config.get_terminal_writer()
        writer.flush()
        with _uncaptured(self._config):
            # Where output is captured the terminal does not tell its width.
            columns = writer.fullwidth - writer.width_of_current_line - 3
            if columns < LEAST_COLUMNS:
                return
            line = progress_line(totals.totals(), tick, seconds_left, columns, self._standing_at(now))
            if line:
                # Past the writer, which would count it as part of pytest's own line.
                _write_out(f"{_SAVE}{_NO_WRAP}  {line}{_WRAP}{_ERASE_REST}{_RESTORE}")

    def clear(self) -> None:
        """Remove the line: the load is over."""
        if self._shown_seconds:
            self._config.get_terminal_writer().flush()
            with _uncaptured(self._config):
                _write_out(_ERASE_REST)
        self._shown_seconds = 0.0

    def _standing_at(self, now_seconds: float) -> ProgressContext:
        ends = self._budget_ends_seconds
        return self._standing if ends is None else replace(self._standing, left_seconds=ends - now_seconds)

    def _tell(self, line: str) -> None:
        assert self._reporter is not None
        with _uncaptured(self._config):
            self._reporter.write_line(f"gpuserve: {line}")
            self._reporter.flush()


def _write_out(text: str) -> None:
    assert sys.__stdout__ is not None
    sys.__stdout__.write(text)
    sys.__stdout__.flush()


def _uncaptured(config: pytest.Config) -> AbstractContextManager[None]:
    """While what is written reaches the terminal, whatever is captured of the test."""
    capture = config.pluginmanager.get_plugin("capturemanager")
    found: AbstractContextManager[None] = nullcontext() if capture is None else capture.global_and_fixture_disabled()
    return found


def _others_write(config: pytest.Config) -> bool:
    """Whether tests, or logs of theirs, are shown while they run: then nobody knows where the cursor is."""
    try:
        live_logs = config.getoption("log_cli_level", None) is not None or config.getini("log_cli")
    except ValueError:
        live_logs = False  # without pytest's logging plugin
    return bool(live_logs) or config.getoption("capture", "no") in {"no", "tee-sys"}


FILE: Final = "durations.json"
KEPT: Final = 5
"""Runs of a test whose median counts."""

_Durations = dict[str, dict[str, list[float]]]
"""Seconds of the last runs, by mode and test."""


class ExpectedDurations:
    """What tests took, kept beside what comparisons remember.

    A file that cannot be read or written costs an estimate and nothing else, so that nobody is told of it.

    Args:
        folder: Where it is kept; None for nowhere.
        mode: How the run measures; runs of one mode take as long as each other.
    """

    def __init__(self, folder: Path | None, mode: str) -> None:
        self._path = None if folder is None else folder / FILE
        self._mode = mode
        self._taken: dict[str, float] = {}
        self._before = self._read()

    def text(self, nodeids: Collection[str]) -> str:
        """Say how long these tests will take, and how many of them are not known; empty where none is."""
        known = [self._before[nodeid] for nodeid in nodeids if self._before.get(nodeid)]
        if not known:
            return ""
        about = format_about(sum(map(statistics.median, known)))
        missing = len(nodeids) - len(known)
        return f"{about} without {missing} test{'s' if missing != 1 else ''} not timed before" if missing else about

    def add(self, nodeid: str, seconds: float) -> None:
        """Take in a phase of a test, or another run of it."""
        self._taken[nodeid] = self._taken.get(nodeid, 0.0) + seconds

    def save(self, nodeids: Collection[str]) -> None:
        """Keep what these tests took: those that measured, to their end."""
        if self._path is None:
            return
        added = {nodeid: seconds for nodeid, seconds in self._taken.items() if nodeid in nodeids}
        with suppress(OSError, msgspec.DecodeError):
            known = self._all()
            ours = known.setdefault(self._mode, {})
            for nodeid, seconds in added.items():
                ours[nodeid] = [*ours.get(nodeid, []), round(seconds, 1)][-KEPT:]
            write_whole(self._path, msgspec.json.encode(known))

    def _read(self) -> dict[str, list[float]]:
        with suppress(OSError, msgspec.DecodeError):
            return self._all().get(self._mode, {})
        return {}

    def _all(self) -> _Durations:
        if self._path is None or not self._path.exists():
            return {}
        return msgspec.json.decode(self._path.read_bytes(), type=_Durations)
