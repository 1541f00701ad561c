"""Results of a load, for tables and people: pooled over all measured windows."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpuserve.measure.histogram import Histogram, merge, seconds_of
from pytest_gpuserve.measure.points import NotMeasured
from pytest_gpuserve.measure.steady import mser
from pytest_gpuserve.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pytest_gpuserve.measure.window import Start, Window

LEAST_TO_CUT = 4
"""Steps of fewer windows are taken as a whole."""

WHOLE_SHARE = 0.5
"""Share of its step's first window from which a window is whole: the load's last may have any length."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """One step, pooled over the starts.

    Args:
        users: Number of users.
        seconds: Measured time.
        requests: Requests that were answered well during the step, sent at any time.
        errors: Requests that failed during the step.
        throughput: Requests answered a second, over the whole step.
        steady_throughput: Throughput without the step's begin, if that was unlike the rest (MSER), and without answers
            after the load's end.
        last_window_throughput: Throughput of the last whole window: a load tool's "current RPS" at the end.
        latency: Latencies; empty without answers.
        latency_mean_seconds: Mean latency; None without answers.
        latency_max_seconds: Largest latency; None without answers.
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
    windows = [*(window for start in starts for window in start), *drains]
    whole = [[window for window in start if window.seconds > WHOLE_SHARE * start[0].seconds] for start in starts]
    steady = [window for start in whole for window in start[_cut(start) :]]
    last = [start[-1] for start in whole if start]
    requests = sum(window.requests for window in windows)
    latency = merge(window.latency for window in windows)
    return StepResult(
        users=users,
        seconds=sum(window.seconds for window in windows),
        requests=requests,
        errors=sum(sum(window.errors.values()) for window in windows),
        throughput=_throughput(windows),
        steady_throughput=_throughput(steady),
        last_window_throughput=_throughput(last),
        latency=latency,
        latency_mean_seconds=latency.mean if requests else None,
        latency_max_seconds=latency.max_seconds,
    )


def _cut(windows: Sequence[Window]) -> int:
    return mser([window.throughput for window in windows]) if len(windows) >= LEAST_TO_CUT else 0


def _throughput(windows: Sequence[Window]) -> float:
    seconds = sum(window.seconds for window in windows)
    return sum(window.requests for window in windows) / seconds if seconds else 0.0


@dataclass(frozen=True, slots=True)
class Summary:
    """Counts and latencies of some windows.

    Args:
        requests: Requests that were answered well.
        errors: Requests that failed.
        seconds: Measured time.
        throughput: Requests answered a second.
        mean: Mean latency in seconds, exact.
        max: Largest latency in seconds, exact.
        latency: All latencies, each within 0.05 %.
    """

    requests: int
    errors: int
    seconds: float
    throughput: float
    mean: float
    max: float
    latency: Histogram

    @property
    def in_flight(self) -> float:
        """Mean number of requests in flight, by Little's law: throughput times mean latency.

        For a closed loop without pauses it is the number of users, up to the requests in flight at the ends.
        """
        return self.throughput * self.mean

    def quantile(self, q: float) -> float:
        """Nearest-rank quantile of the latency in seconds. Raises ValueError for q outside (0, 1]."""
        return self.latency.quantile(q)

    def histogram(self, bins: int) -> list[tuple[float, int]]:
        """Count latencies in bins of equal width between the smallest and the largest, as hey prints them.

        Returns:
            Upper edge in seconds of each bin, and the number of latencies up to it, above the previous edge.

        Raises:
            ValueError: The number of bins is below one.
        """
        if bins < 1:
            raise ValueError(f"a histogram needs at least one bin, not {bins}")
        known = {seconds_of(bucket): count for bucket, count in self.latency.counts.items()}
        low, high = min(known), max(known)
        width = (high - low) / bins
        counts = [0] * bins
        for seconds, count in known.items():
            place = math.ceil((seconds - low) / width) - 1 if width else 0
            counts[min(max(place, 0), bins - 1)] += count
        return [(low + (number + 1) * width, count) for number, count in enumerate(counts)]


def summary_of(windows: Iterable[Window]) -> Summary:
    """Pool windows. Raises `NotMeasured` if no request was answered in them."""
    known: Sequence[Window] = list(windows)
    requests = sum(window.requests for window in known)
    seconds = math.fsum(window.seconds for window in known)
    if not requests or seconds <= 0:
        raise NotMeasured("no request was answered in the measured time")
    latency = merge(window.latency for window in known)
    assert latency.mean is not None
    return Summary(
        requests=requests,
        errors=sum(sum(window.errors.values()) for window in known),
        seconds=seconds,
        throughput=requests / seconds,
        mean=latency.mean,
        max=latency.max_seconds,
        latency=latency,
    )
