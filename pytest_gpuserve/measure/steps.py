"""Results of the steps of a stepped load."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpuserve.measure.points import NotMeasured
from pytest_gpuserve.measure.steady import mser
from pytest_gpuserve.measure.window import Window
from pytest_gpuserve.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpuserve.measure.window import Start

LEAST_TO_CUT = 4
"""Steps of fewer windows are taken as a whole."""

WHOLE_SHARE = 0.5
"""Share of its step's first window from which a window is whole: the load's last may have any length."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """One step, pooled over the starts.

    Args:
        users: Number of users.
        total: Sum of its windows. Requests count in the step of their end, sent at any time.
        steady_throughput: Throughput without the step's begin, if that was unlike the rest (MSER), and without answers
            after the load's end.
        last_window_throughput: Throughput of the last whole window: a load tool's "current RPS" at the end.
    """

    users: int
    total: Window
    steady_throughput: float
    last_window_throughput: float


def steps_of(steps: Sequence[tuple[int, float]], starts: Sequence[Start]) -> tuple[StepResult, ...]:
    """Assign the windows of a stepped load to its steps: each belongs to the step that contains its middle.

    Args:
        steps: Steps of the schedule: number of users, and seconds.
        starts: Measured starts, each with the whole load.

    Raises:
        NotMeasured: The windows are too long to be assigned: side by side a whole load is one.
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
    """Windows of each step, and the windows in which only requests in flight at the end were still answered."""
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
    whole = [[window for window in start if window.seconds > WHOLE_SHARE * start[0].seconds] for start in starts]
    return StepResult(
        users=users,
        total=Window.total([*itertools.chain(*starts), *drains]),
        steady_throughput=Window.total([window for start in whole for window in start[_cut(start) :]]).throughput,
        last_window_throughput=Window.total([start[-1] for start in whole if start]).throughput,
    )


def _cut(windows: Sequence[Window]) -> int:
    return mser([window.throughput for window in windows]) if len(windows) >= LEAST_TO_CUT else 0
