"""Components of the time of an average request, so that two servers can be told apart by more than their latency.

The seven components of `Breakdown` are those of perf_analyzer's tables (documentation of Triton's perf_analyzer,
"Metrics"): "Client Send", "Network+Server Send/Recv", "Server Queue", "Server Compute Input", "Infer", "Output",
"Client Recv". The server's components are means over its requests. Triton charges each request the whole time of its
batch. `Profile` exists for any server: what it counts, and the rest.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.measure.points import NotMeasured
from pytest_gpuserve.measure.streams import Streams
from pytest_gpuserve.measure.window import COMPUTE, FORMATION, OTHER_COMPUTE, PER_REQUEST, QUEUE, SERVER, Window
from pytest_gpuserve.measure.work import cached_share, preemptions_of_thousand
from pytest_gpuserve.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pytest_gpuserve.measure.counters import Counters
    from pytest_gpuserve.measure.summary import Summary
    from pytest_gpuserve.measure.window import Client


EXCESS_SHARE: Final = 0.10
"""Share of the latency by which server and client may count more than it. Only one of them counts requests that were in
flight at the begin or end of the measured time."""


@dataclass(frozen=True, slots=True)
class Breakdown:
    """Seconds of an average request; together they are its mean latency.

    Args:
        client_send: From the begin of the send until its last byte was handed to the kernel; 0 if the request is small.
        network: The rest: the network, and the server outside its queue and computation. It may be a little below 0 if
            it is small, because of the requests in flight at the ends.
        queue: Wait in the server.
        compute_input: Transfer of the batch's inputs to the model.
        compute_infer: Execution of the batch.
        compute_output: Transfer of the batch's outputs back. With an asynchronous device this may contain the execution
            too: compare the sum of the three.
        client_receive: From the first byte of the answer until the last; 0 if they came together.
    """

    client_send: float
    network: float
    queue: float
    compute_input: float
    compute_infer: float
    compute_output: float
    client_receive: float

    @property
    def total(self) -> float:
        """Sum of the components: the mean latency in seconds."""
        return math.fsum(getattr(self, field.name) for field in fields(self))


def breakdown_of(summary: Summary, counters: Counters | None, client: Client) -> Breakdown:
    """Break a mean latency down by the counts of server and client.

    Raises:
        NotMeasured: The server does not count these parts by request, the client does not time its sends, or the counts
            exceed the latency. Latencies of an open loop contain a wait in the client, so they cannot be broken down.
    """
    if client.service.total:
        raise NotMeasured(
            "the latency of an open loop cannot be broken down: it contains the wait of requests in the client",
            remedies=["load(..., concurrency=...)"],
        )
    stages = {} if counters is None else _requested(counters).stages
    names = (QUEUE, f"{PER_REQUEST}input", f"{PER_REQUEST}infer", f"{PER_REQUEST}output")
    missing = [name for name in names if name not in stages or not stages[name].count]
    if missing:
        raise NotMeasured(
            f"the latency cannot be broken down: the server does not count {', '.join(missing)} by request",
            remedies=["Triton and pytriton do"],
        )
    if client.sending_seconds is None or client.receiving_seconds is None:
        raise NotMeasured("the latency cannot be broken down: over this protocol the client does not time its sends")
    queue, compute_input, compute_infer, compute_output = (stages[name].mean for name in names)
    send, receive = client.sending_seconds / summary.requests, client.receiving_seconds / summary.requests
    known = (send, queue, compute_input, compute_infer, compute_output, receive)
    if math.fsum(known) > summary.mean * (1 + EXCESS_SHARE):
        raise NotMeasured(
            f"the latency cannot be broken down: a request took {format_seconds(summary.mean)}, but server and client"
            f" count {format_seconds(math.fsum(known))} of it, so they did not count the same requests"
        )
    return Breakdown(
        client_send=send,
        network=summary.mean - math.fsum(known),
        queue=queue,
        compute_input=compute_input,
        compute_infer=compute_infer,
        compute_output=compute_output,
        client_receive=receive,
    )


def _requested(counters: Counters) -> Counters:
    """Counters of the model that requests name: of a whole ensemble, not of the batching model inside it."""
    time = counters.stages.get(SERVER)
    alike: Iterable[Counters] = (part for part in counters.parts.values() if part.stages.get(SERVER) == time)
    return next(iter(alike), counters) if time is not None else counters


class QueueFrom(str, Enum):
    """Origin of the time in the queue."""

    COUNTER = "counter"
    """The server counts it."""

    SERVER = "server"
    """The server's own time minus the computation; contains the wait for a batch to fill."""

    LATENCY = "latency"
    """The latency minus the computation; contains network and client."""


@dataclass(frozen=True, slots=True)
class Profile:
    """Parts of a server's mean latency. A part that is not counted is None.

    If they are known, ``queue_seconds``, ``compute_seconds``, ``other_compute`` and ``outside_seconds`` add up to
    ``mean_seconds``, except for values that are rounded up to zero. A batch counts once in ``compute_seconds``, for any
    number of requests. If large batches take longer than small ones, part of a request's wait is in the queue.

    Args:
        mean_seconds: Mean latency.
        p99_seconds: 99th percentile of the latency.
        client_cores: Cores that the load engine used, on average.
        client_lag_seconds: 99th percentile of the delay of sends.
        items_per_batch: Items of an average batch.
        formation_seconds: Time in which an average batch filled; partly contained in the queue.
        compute_seconds: Computation of an average batch, in the batching stage.
        other_compute: Computation of an average batch in the pipeline's other stages, by stage.
        queue_seconds: Wait of an average request in the server for its computation; see ``queue_from``.
        queue_from: Origin of ``queue_seconds``.
        outside_seconds: Time of an average request in the network and the client; None if it is in the queue.
        ttft_seconds: Mean time to the first token of streams: waits and prefill.
        tpot_seconds: Mean time for each later token; None if some answers do not report their token count.
        tokens: Tokens of an average answer; None likewise.
        cached_share: Share of the prompt tokens that came from the prefix cache.
        preemptions: Preemptions of sequences in 1000 requests.
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
    ttft_seconds: float | None = None
    tpot_seconds: float | None = None
    tokens: float | None = None
    cached_share: float | None = None
    preemptions: float | None = None

    @property
    def decode_seconds(self) -> float | None:
        """Mean time from the first token to the end."""
        return None if self.ttft_seconds is None else max(0.0, self.mean_seconds - self.ttft_seconds)


def profile_of(windows: Iterable[Window], client: Client) -> Profile:
    """Sum up windows of one server, or of several starts of it.

    Args:
        windows: The windows; those without counters contribute only to the latency.
        client: Observations of the load engine in them; empty if they were not kept, as in a baseline.

    Raises:
        ValueError: No request was answered in the windows.
    """
    known = list(windows)
    total = Window.total(known)
    mean = total.latency.mean
    if mean is None:
        raise ValueError("the latency of windows without answered requests cannot be explained")
    stages = {name: time.mean for name, time in sorted(total.stages.items()) if time.count}
    other = {
        name.removeprefix(OTHER_COMPUTE): seconds for name, seconds in stages.items() if name.startswith(OTHER_COMPUTE)
    }
    queue, queue_from, outside = _rest(mean, stages, math.fsum(other.values()))
    batches = sum(window.batches or 0 for window in known)
    streams = total.streams or Streams()
    return Profile(
        mean_seconds=mean,
        p99_seconds=total.latency.quantile(0.99),
        client_cores=total.client_cpu_seconds / total.seconds,
        client_lag_seconds=client.lag.quantile(0.99) if client.lag.total else None,
        items_per_batch=sum(window.items or 0 for window in known) / batches if batches else None,
        formation_seconds=stages.get(FORMATION),
        compute_seconds=stages.get(COMPUTE),
        other_compute=other,
        queue_seconds=queue,
        queue_from=queue_from,
        outside_seconds=outside,
        ttft_seconds=streams.ttft.mean_of_buckets,
        tpot_seconds=streams.tpot.mean_of_buckets if streams.has_usage else None,
        tokens=streams.usage_tokens / total.requests if streams.has_usage else None,
        cached_share=cached_share(known),
        preemptions=preemptions_of_thousand(known),
    )


def _rest(
    mean: float, stages: Mapping[str, float], other: float
) -> tuple[float | None, QueueFrom | None, float | None]:
    """Queue, its origin, and the time outside the server."""
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
