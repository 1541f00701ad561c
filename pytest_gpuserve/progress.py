"""The progress line of a load that takes a while, on a terminal that somebody looks at."""

from __future__ import annotations

import sys
import time
from contextlib import nullcontext
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.load.progress import progress_line

if TYPE_CHECKING:
    import pytest

    from pytest_gpuserve.load.totals import RunningTotals
    from pytest_gpuserve.load.wire import Tick

QUIET_SECONDS: Final = 2.0
"""A load as short as this needs no progress line."""

EVERY_SECONDS: Final = 0.5
LEAST_COLUMNS: Final = 20

_SAVE: Final = "\x1b7"
_RESTORE: Final = "\x1b8"
_ERASE_REST: Final = "\x1b[K"


def say(config: pytest.Config, line: str) -> None:
    """Tell a line at once: on pytest's terminal, or from a worker of pytest-xdist, without one, as an error message."""
    if hasattr(config, "workerinput"):
        capture = config.pluginmanager.get_plugin("capturemanager")
        with nullcontext() if capture is None else capture.global_and_fixture_disabled():
            sys.stderr.write(f"[{config.workerinput['workerid']}] {line}\n")
            sys.stderr.flush()
        return
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None:
        reporter.write_line(line)


class ProgressLine:
    """Writes behind what pytest has written of the present line, and leaves the cursor where pytest left it.

    Args:
        config: Of the session.
        wanted: False silences it: in CI, or where pytest itself is to be quiet.
    """

    def __init__(self, config: pytest.Config, *, wanted: bool) -> None:
        self._config = config
        reporter: pytest.TerminalReporter | None = config.pluginmanager.get_plugin("terminalreporter")
        # Colours may be forced into a file; what moves the cursor has no business there.
        terminal = reporter is not None and reporter.isatty and reporter.hasmarkup
        self._wanted = wanted and terminal and sys.__stdout__ is not None
        self._begun_seconds: float | None = None
        self._shown_seconds = 0.0

    def show(self, totals: RunningTotals, tick: Tick, seconds_left: float | None) -> None:
        """Show how the load gets on, unless it has only just begun."""
        now = time.monotonic()
        if self._begun_seconds is None:
            self._begun_seconds = now
        if not self._wanted or now - self._begun_seconds < QUIET_SECONDS or now - self._shown_seconds < EVERY_SECONDS:
            return
        self._shown_seconds = now
        writer = self._config.get_terminal_writer()
        columns = writer.fullwidth - writer.width_of_current_line - 3
        line = progress_line(totals.totals(), tick, seconds_left, columns) if columns >= LEAST_COLUMNS else ""
        if line:
            self._write(f"{_SAVE}  {line}{_ERASE_REST}{_RESTORE}")

    def clear(self) -> None:
        """Remove the line; the next load begins anew."""
        if self._shown_seconds:
            self._write(_ERASE_REST)
        self._begun_seconds = None
        self._shown_seconds = 0.0

    def _write(self, text: str) -> None:
        self._config.get_terminal_writer().flush()
        capture = self._config.pluginmanager.get_plugin("capturemanager")
        if capture is None:
            _write_out(text)
            return
        # Past the writer, which would count it as part of pytest's own line.
        with capture.global_and_fixture_disabled():
            _write_out(text)


def _write_out(text: str) -> None:
    assert sys.__stdout__ is not None
    sys.__stdout__.write(text)
    sys.__stdout__.flush()
