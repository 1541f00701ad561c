"""What each step of a stepped load came to."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpuserve.measure.histogram import Histogram, merge
from pytest_gpuserve.measure.points import NotMeasured
from pytest_gpuserve.measure.steady import mser
from pytest_gpuserve.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpuserve.measure.window import Start, Window

LEAST_TO_CUT = 4
"""A step of fewer windows is taken as a whole."""

WHOLE_SHARE = 0.5
"""A window is whole that is longer than so much of its step's first one: the load's last may be of any length."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """One step, pooled over the starts.

    Args:
        users: How many there were.
        seconds: Measured time.
        requests: Requests that were answered well in it, whenever they were sent.
        errors: Requests that failed in it.
        throughput: Requests answered a second, over the whole step.
        steady_throughput: The same without its begin, as far as that was unlike the rest (MSER), and without what was
            answered after the load's end.
        last_window_throughput: That of its last whole window: what a load tool's "current RPS" shows at its end.
        latency: Latencies; empty where nothing was answered.
        latency_mean_seconds: Their mean; None where nothing was answered.
        latency_max_seconds: The greatest.
    """

    users: int
    seconds: float
    requests: int
    errors: int
    throughput: float
    steady_throughput: float
    last_window_throughput: float
    latency: Histogram
    latency_mean_seconds: float | None
    latency_max_seconds: float


def steps_of(steps: Sequence[tuple[int, float]], starts: Sequence[Start]) -> tuple[StepResult, ...]:
    """Divide the windows of a stepped load among its steps: each belongs to the one that its middle lies in.

    Args:
        steps: Of the schedule: users, and the seconds that they stay.
        starts: What was measured, each start of it the whole load.

    Raises:
        NotMeasured: Its windows are not short enough to be divided: side by side a whole load is one.
    """
    longest = max((window.seconds for start in starts for window in start.windows), default=0.0)
    if longest > min(seconds for _, seconds in steps) and len(steps) > 1:
        raise NotMeasured(
            f"steps are not known of windows of {format_seconds(longest)}: side by side a whole load is one window"
        )
    ends = list(itertools.accumulate(seconds for _, seconds in steps))
    parts: list[list[list[Window]]] = [[] for _ in steps]
    drains: list[Window] = []
    for start in starts:
        divided, after = _divided(ends, start.windows)
        drains += after
        for found, windows in zip(parts, divided, strict=True):
            found.append(windows)
    return tuple(
        _result(users, found, drains if number == len(steps) - 1 else [])
        for number, ((users, _), found) in enumerate(zip(steps, parts, strict=True))
    )


def _divided(ends: Sequence[float], windows: Sequence[Window]) -> tuple[list[list[Window]], list[Window]]:
    """The windows of each step, and those in which only what was under way at the end was still answered."""
    found: list[list[Window]] = [[] for _ in ends]
    after: list[Window] = []
    passed = 0.0
    for window in windows:
        middle = passed + window.seconds / 2
        passed += window.seconds
        place = next((number for number, end in enumerate(ends) if middle < end), None)
        (after if place is None else found[place]).append(window)
    return found, after


def _result(users: int, starts: Sequence[Sequence[Window]], drains: Sequence[Window]) -> StepResult:
    windows = [*(window for start in starts for window in start), *drains]
    whole = [[window for window in start if window.seconds > WHOLE_SHARE * start[0].seconds] for start in starts]
    steady = [window for start in whole for window in start[_cut(start) :]]
    last = [start[-1] for start in whole if start]
    requests = sum(window.requests for window in windows)
    latency_seconds = sum(window.latency_sum_seconds for window in windows)
    return StepResult(
        users=users,
        seconds=sum(window.seconds for window in windows),
        requests=requests,
        errors=sum(sum(window.errors.values()) for window in windows),
        throughput=_throughput(windows),
        steady_throughput=_throughput(steady),
        last_window_throughput=_throughput(last),
        latency=merge(window.latency for window in windows),
        latency_mean_seconds=latency_seconds / requests if requests else None,
        latency_max_seconds=max((window.latency_max_seconds for window in windows), default=0.0),
    )


def _cut(windows: Sequence[Window]) -> int:
    return mser([window.throughput for window in windows]) if len(windows) >= LEAST_TO_CUT else 0


def _throughput(windows: Sequence[Window]) -> float:
    seconds = sum(window.seconds for window in windows)
    return sum(window.requests for window in windows) / seconds if seconds else 0.0
