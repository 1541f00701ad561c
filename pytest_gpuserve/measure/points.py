"""From windows to the numbers that are judged: one log cost a session, with how well the session knows it."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpuserve.errors import GpuserveError
from pytest_gpuserve.gate.metric import Metric, log_cost, requests_needed
from pytest_gpuserve.measure.histogram import merge
from pytest_gpuserve.units import format_fraction, format_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpuserve.measure.window import Session, Start, Window


class NotMeasured(GpuserveError):
    """A metric has no value, or too few requests stand behind it; it is never judged."""


class TooFewRequests(NotMeasured):
    """The measurement is sound, there is only too little of it for the metric and its tolerance."""


@dataclass(frozen=True, slots=True)
class Point:
    """A session on the scale on which it is judged.

    Args:
        y: Mean over its starts of the log cost; for the batching ratio the log cost of the session's ratio of totals.
        u: Squared standard error of ``y``, as the session's own windows show it.
    """

    y: float
    u: float


def point(metric: Metric, session: Session, tolerance: float) -> Point:
    """Reduce a session to a point.

    Raises:
        NotMeasured: The metric is not known of every start.
        TooFewRequests: It is known, but too few requests of a start stand behind it.
    """
    if not session.starts:
        raise NotMeasured(f"{metric.name} is not known: no server start was measured")
    _demand_requests(metric, session, tolerance)
    inside = [_squared_error(metric, start) for start in session.starts]
    costs = [log_cost(metric, value_of(metric, start.windows)) for start in session.starts]
    y = (
        log_cost(metric, value_of(metric, session.windows))
        if metric.name == "batching_ratio"
        else statistics.fmean(costs)
    )
    return Point(y=y, u=statistics.fmean(inside) / len(inside))


def pooled_value(metric: Metric, sessions: Sequence[Session]) -> float:
    """The metric over all windows together, in its unit: what a plain limit is compared with.

    Raises:
        NotMeasured: There is nothing to compute it from.
    """
    return value_of(metric, [window for session in sessions for window in session.windows])


def value_of(metric: Metric, windows: Sequence[Window]) -> float:
    """The metric over some windows, in its unit.

    Raises:
        NotMeasured: There is nothing to compute it from.
    """
    if metric.name == "throughput":
        requests = sum(window.requests for window in windows)
        if requests == 0:
            raise NotMeasured("throughput is not known: no request was answered")
        return requests / sum(window.seconds for window in windows)
    if metric.name == "batching_ratio":
        items, batches = batch_totals(windows)
        if batches == 0 or items == 0:
            raise NotMeasured(
                "the batching ratio is not known: the server executed no batch in the measured windows",
                remedies=["give a stage a max_batch_size above 1, or name it: mosec_server(..., stage='Name_2')"],
            )
        return items / batches
    if metric.quantile is None:
        raise NotMeasured(f"{metric.name} is not measured by a load")
    latency = merge(window.latency for window in windows)
    if latency.total == 0:
        raise NotMeasured(f"{metric.name} is not known: no request was answered")
    return latency.quantile(metric.quantile)


def batch_totals(windows: Sequence[Window]) -> tuple[int, int]:
    """Add up executed items and batches.

    Raises:
        NotMeasured: The server does not count them, or a reading failed.
    """
    items = batches = 0
    for window in windows:
        if window.items is None or window.batches is None:
            raise NotMeasured(
                "the batching ratio is not known: nothing counts this server's batches;"
                " command_server and remote_server take counters=MetricNames(...)"
            )
        items += window.items
        batches += window.batches
    return items, batches


def _demand_requests(metric: Metric, session: Session, tolerance: float) -> None:
    needed = requests_needed(metric, tolerance)
    fewest = min(session.starts, key=lambda start: start.requests)
    if fewest.requests < needed:
        raise TooFewRequests(
            f"{metric.name} at a tolerance of {format_fraction(tolerance)} needs {needed} requests a server start",
            found=f"{fewest.requests} requests in {format_seconds(fewest.seconds)}",
            remedies=[
                f"load(..., seconds={_enough(session, needed)})",
                f"a wider tolerance by the marker gpuserve({metric.option}=...)",
            ],
        )


def _enough(session: Session, needed: int) -> int:
    """Whole seconds in which the slowest start would have answered so many requests, with a fifth to spare."""
    seconds_each = max(start.seconds / max(start.requests, 1) for start in session.starts)
    return math.ceil(1.2 * needed * seconds_each)


def _squared_error(metric: Metric, start: Start) -> float:
    """Squared standard error of a start's mean log cost, from the spread of its windows."""
    costs = []
    for window in start.windows:
        try:
            costs.append(log_cost(metric, value_of(metric, [window])))
        except NotMeasured:
            # A window in which nothing happened has no quantile; the start as a whole is still judged by all requests.
            continue
    return statistics.variance(costs) / len(costs) if len(costs) > 1 else 0.0
