"""Where the time of an average request went, so that two servers can be told apart by more than their latency.

The seven components of `Breakdown` are those of perf_analyzer's tables ("Client Send", "Network+Server Send/Recv",
"Server Queue", "Server Compute Input", "Infer", "Output", "Client Recv"; documentation of Triton's perf_analyzer,
"Metrics"). The server's are means over its requests, each of which Triton charges the whole time of its batch.
`Profile` is of any server: what it counts, and what that leaves.
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
"""By so much of the latency server and client may count more than it: requests that were under way at the begin and the
end of the measured time are counted by one of them."""


@dataclass(frozen=True, slots=True)
class Breakdown:
    """Seconds of an average request; together they are its mean latency.

    Args:
        client_send: From the begin of its send until its last byte was handed to the kernel; 0 where it is small.
        network: The rest: the network, and what the server does before its queue and after its computation. A little
            below 0 where it is small and the requests that are under way at the ends weigh more.
        queue: Its wait in the server.
        compute_input: Carrying its batch's inputs to the model.
        compute_infer: Execution of its batch.
        compute_output: Carrying its batch's outputs back. With an asynchronous device it may hold the execution too:
            compare the sum of the three.
        client_receive: From the first byte of its answer until the last; 0 where that came at once.
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
        """Their sum: the mean latency in seconds."""
        return math.fsum(getattr(self, field.name) for field in fields(self))


def breakdown_of(summary: Summary, counters: Counters | None, client: Client) -> Breakdown:
    """Break a mean latency down by what server and client counted.

    Raises:
        NotMeasured: The server does not count these parts by request, the client does not time its sends, it was an
            open loop, whose latencies hold a wait in the client too, or what was counted is more than the latency.
    """
    if client.service.total:
        raise NotMeasured(
            "the latency of an open loop cannot be broken down: it holds what requests waited in the client",
            remedies=["load(..., concurrency=...)"],
        )
    stages = {} if counters is None else _asked(counters).stages
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
            f"the latency cannot be broken down: a request took {format_seconds(summary.mean)}, and server and client"
            f" count {format_seconds(math.fsum(known))} of it, so they have not counted the same requests"
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


def _asked(counters: Counters) -> Counters:
    """Those of the model that requests name: of an ensemble the whole, not the model in it that batches."""
    time = counters.stages.get(SERVER)
    alike: Iterable[Counters] = (part for part in counters.parts.values() if part.stages.get(SERVER) == time)
    return next(iter(alike), counters) if time is not None else counters


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
        ttft_seconds: Of streams, mean time to the first token: what waits and prefill take.
        tpot_seconds: Mean time for each token after it; None where not every answer says how many it has.
        tokens: Of an average answer; None as above.
        cached_share: Of the prompt tokens, those that came from the prefix cache.
        preemptions: Of sequences, in 1000 requests.
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
        windows: The windows; those without counters add to the latency alone.
        client: What the load engine saw in them; empty where that was not kept, as in a baseline.

    Raises:
        ValueError: No request was answered in them.
    """
    known = list(windows)
    total = Window.total(known)
    mean = total.latency.mean
    if mean is None:
        raise ValueError("without a request there is no latency to explain")
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
