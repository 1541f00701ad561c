"""How the command's load gets on: a line on the terminal, which is gone when the load is over."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.load.progress import progress_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpuserve.load.totals import RunningTotals
    from pytest_gpuserve.load.wire import Tick

QUIET_SECONDS: Final = 2.0
"""A load as short as this needs no progress line."""


def progress_on_terminal(
    length_ns: int | None,
) -> tuple[Callable[[RunningTotals, Tick], None], Callable[[], None]]:
    """Return what shows a progress line on the terminal, and what removes it; both do nothing elsewhere.

    Args:
        length_ns: How long the load takes; None where nobody knows.
    """
    if not sys.stderr.isatty() or os.environ.get("CI") or os.environ.get("BUILD_NUMBER"):
        return (lambda _totals, _tick: None), (lambda: None)
    begin_ns: int | None = None
    is_shown = False

    def show(totals: RunningTotals, tick: Tick) -> None:
        nonlocal begin_ns, is_shown
        begin_ns = tick.begin_ns if begin_ns is None else begin_ns
        passed_ns = tick.end_ns - begin_ns
        if passed_ns < QUIET_SECONDS * 1e9:
            return
        left = None if length_ns is None else max(0.0, (length_ns - passed_ns) / 1e9)
        # The width of the terminal that the line is on; standard output may be somewhere else.
        width = (os.get_terminal_size(sys.stderr.fileno()).columns or 80) - 1
        is_shown = True
        sys.stderr.write("\r" + progress_line(totals.totals(), tick, left, width) + "\x1b[K")
        sys.stderr.flush()

    def clear() -> None:
        if is_shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    return show, clear
