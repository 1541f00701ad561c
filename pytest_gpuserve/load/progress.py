"""The progress line of a load, and of the test that it is for."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rich.cells import cell_len

from pytest_gpuserve.load.totals import total
from pytest_gpuserve.units import format_change, format_rate, format_seconds

if TYPE_CHECKING:
    from pytest_gpuserve.gate.verdict import Judgement
    from pytest_gpuserve.load.totals import Totals
    from pytest_gpuserve.load.wire import Tick

ANY_WIDTH: Final = 1 << 16
"""Columns of a line that nothing limits."""

_GAP = "  "

_LEFT_OUT_FIRST = ("load left", "budget left", "test", "p99", "interval", "look", "estimate", "errors")
"""What a narrow terminal goes without, in this order; last of all the rate."""


@dataclass(frozen=True, slots=True)
class ProgressContext:
    """Progress of the test that a load is for.

    Args:
        test: Its name, printable.
        look: Which look is taken, of how many: ``round 2 of 8``.
        judgement: What the last look said of the metric that is being decided; None before there was one.
        left_seconds: Of the test's budget; None where it has none.
    """

    test: str = ""
    look: str = ""
    judgement: Judgement | None = None
    left_seconds: float | None = None


NOBODY: Final = ProgressContext()
"""Of a load that is for no test."""


def progress_line(
    totals_so_far: Totals, last_tick: Tick, seconds_left: float | None, width: int, standing: ProgressContext = NOBODY
) -> str:
    """Write the present rate, the p99 and the errors so far, and the time left: ``2147/s  p99 12.3 ms  8 s left``.

    Of a test there is its name, the look and the estimate so far before that, and what is left of its budget behind:
    ``test_a  round 2 of 8  throughput -3.1 % (-6.0 % .. -0.2 %)  2147/s  p99 12.3 ms  budget: 4 min 2 s left``.

    A part that does not fit is left out whole: half a number is a wrong number.

    Args:
        totals_so_far: Since the load began; its p99 is ``-`` below 100 requests.
        last_tick: The last 0.1 s or so, for the rate.
        seconds_left: Until the load ends; None where nobody knows.
        width: Columns that it may take.
        standing: Of the test that it is for.
    """
    rate, p99 = total([last_tick]).throughput, totals_so_far.latency.quantile(0.99)
    errors = totals_so_far.error_count
    parts = {
        "test": standing.test,
        "look": standing.look,
        **_estimate(standing.judgement),
        "rate": "-/s" if rate is None else format_rate(rate),
        "p99": "p99 -" if p99 is None else f"p99 {format_seconds(p99)}",
        "errors": f"{errors} {'error' if errors == 1 else 'errors'}" if errors else "",
        "load left": "" if seconds_left is None else f"{_whole_seconds(seconds_left)} left",
        "budget left": "" if standing.left_seconds is None else f"budget: {_whole_seconds(standing.left_seconds)} left",
    }
    for name in _LEFT_OUT_FIRST:
        if cell_len(_line(parts)) <= width:
            break
        parts[name] = ""
    line = _line(parts)
    return line if cell_len(line) <= width else ""


def _estimate(judgement: Judgement | None) -> dict[str, str]:
    if judgement is None or judgement.change is None:
        return {"estimate": "", "interval": ""}
    interval = ""
    if judgement.interval is not None:
        interval = " ({} .. {})".format(*map(format_change, judgement.interval))
    return {"estimate": f"{judgement.metric.name} {format_change(judgement.change)}", "interval": interval}


def _line(parts: dict[str, str]) -> str:
    # The interval stands close to what it is of, and never alone.
    joined = {**parts, "estimate": parts["estimate"] + parts["interval"] if parts["estimate"] else "", "interval": ""}
    return _GAP.join(filter(None, joined.values()))


def _whole_seconds(seconds: float) -> str:
    # Up: at 0 it is over.
    whole = max(0, math.ceil(seconds))
    return f"{whole} s" if whole < 120 else format_seconds(whole)
