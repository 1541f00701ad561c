"""What a server's time went into, so that two of them can be told apart by more than their latency."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from pytest_gpuserve.measure.counters import StageTime
from pytest_gpuserve.measure.histogram import merge
from pytest_gpuserve.measure.window import COMPUTE, FORMATION, OTHER_COMPUTE, QUEUE, SERVER

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pytest_gpuserve.measure.window import Client, Window


class QueueFrom(str, Enum):
    """How the time in the queue is known."""

    COUNTER = "counter"
    """The server counts it."""

    SERVER = "server"
    """It is what computation leaves of the server's own time; the wait for a batch to fill is in it."""

    LATENCY = "latency"
    """It is what computation leaves of the latency: the network and the client are in it too."""


@dataclass(frozen=True, slots=True)
class Profile:
    """Where the mean latency of a server came from. What is not counted is None.

    Where they are known, ``queue_seconds``, ``compute_seconds``, ``other_compute`` and ``outside_seconds`` add up to
    ``mean_seconds``, but for what is rounded up to zero. A batch counts once in ``compute_seconds`` however many
    requests wait for it: where large batches take longer than small ones, some of a request's wait is in the queue.

    Args:
        mean_seconds: Mean latency.
        p99_seconds: 99th percentile of the latency.
        client_cores: Cores that the load engine used, on average.
        client_lag_seconds: 99th percentile of how late requests were sent.
        items_per_batch: Items of an average batch.
        formation_seconds: Time in which an average batch filled; of it the queue has a part.
        compute_seconds: Computation of an average batch, in the stage that batches.
        other_compute: The same of the pipeline's other stages, by stage.
        queue_seconds: What an average request waits in the server for its computation; see ``queue_from``.
        queue_from: How ``queue_seconds`` is known.
        outside_seconds: What an average request spends in the network and the client; None if it is in the queue.
        clock_mhz: Clock of the GPU under load.
    """

    mean_seconds: float
    p99_seconds: float
    client_cores: float
    client_lag_seconds: float | None = None
    items_per_batch: float | None = None
    formation_seconds: float | None = None
    compute_seconds: float | None = None
    other_compute: Mapping[str, float] = field(default_factory=dict)
    queue_seconds: float | None = None
    queue_from: QueueFrom | None = None
    outside_seconds: float | None = None
    clock_mhz: float | None = None


def profile_of(windows: Iterable[Window], client: Client) -> Profile:
    """Sum up windows of one server, or of several starts of it.

    Args:
        windows: The windows; those without counters add to the latency alone.
        client: What the load engine saw in them; empty where that was not kept, as in a baseline.

    Raises:
        ValueError: No request was answered in them.
    """
    known = list(windows)
    requests = sum(window.requests for window in known)
    if not requests:
        raise ValueError("without a request there is no latency to explain")
    latency = merge(window.latency for window in known)
    mean = latency.mean
    stages = _means(known)
    other = {
        name.removeprefix(OTHER_COMPUTE): seconds for name, seconds in stages.items() if name.startswith(OTHER_COMPUTE)
    }
    queue, queue_from, outside = _rest(mean, stages, math.fsum(other.values()))
    batches = sum(window.batches or 0 for window in known)
    return Profile(
        mean_seconds=mean,
        p99_seconds=latency.quantile(0.99),
        client_cores=math.fsum(window.client_cpu_seconds for window in known)
        / math.fsum(window.seconds for window in known),
        client_lag_seconds=client.lag.quantile(0.99) if client.lag.total else None,
        items_per_batch=sum(window.items or 0 for window in known) / batches if batches else None,
        formation_seconds=stages.get(FORMATION),
        compute_seconds=stages.get(COMPUTE),
        other_compute=other,
        queue_seconds=queue,
        queue_from=queue_from,
        outside_seconds=outside,
    )


def _means(windows: list[Window]) -> dict[str, float]:
    """Seconds of one request or batch in each stage."""
    seconds: dict[str, float] = {}
    counts: Counter[str] = Counter()
    for window in windows:
        for name, time in window.stages.items():
            seconds[name] = seconds.get(name, 0.0) + time.seconds
            counts[name] += time.count
    return {name: StageTime(seconds[name], counts[name]).mean for name in sorted(seconds) if counts[name]}


def _rest(
    mean: float, stages: Mapping[str, float], other: float
) -> tuple[float | None, QueueFrom | None, float | None]:
    """Queue, how it is known, and what is spent outside of the server."""
    server = stages.get(SERVER)
    if COMPUTE not in stages:
        queue = stages.get(QUEUE)
        outside = None if server is None else max(0.0, mean - server)
        return queue, None if queue is None else QueueFrom.COUNTER, outside
    compute = stages[COMPUTE] + other
    if QUEUE in stages:
        within = stages[QUEUE] + compute if server is None else server
        return stages[QUEUE], QueueFrom.COUNTER, max(0.0, mean - within)
    if server is not None:
        return max(0.0, server - compute), QueueFrom.SERVER, max(0.0, mean - server)
    return max(0.0, mean - compute), QueueFrom.LATENCY, None
