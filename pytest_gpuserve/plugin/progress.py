"""Progress of a test that measures: a line now and then, on the terminal or in a log."""

from __future__ import annotations

import time
from contextlib import nullcontext
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.process.secrets import masked
from pytest_gpuserve.report.names import printable, short_name
from pytest_gpuserve.units import format_change, format_rate, format_seconds

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    import pytest

    from pytest_gpuserve.compare.comparison import Look
    from pytest_gpuserve.load.tick import Tick

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

    def show(self, totals: Tick) -> None:
        """Take all ticks of a load so far."""
        now = time.monotonic()
        if self._is_quiet or now - self._told_seconds < EVERY_SECONDS:
            return
        self._told_seconds = now
        left = None
        if self._look is not None and self._look.left_seconds is not None:
            left = max(0.0, self._look.left_seconds - (now - self._look_seconds))
        say(self._config, f"gpuserve: {progress_line(self._test, self._look, totals, left)}")


def progress_line(test: str, look: Look | None, so_far: Tick, left_seconds: float | None) -> str:
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
