"""Components of the time of an average request, so that two servers can be told apart by more than their latency.

The seven components of `Breakdown` are those of perf_analyzer's tables (documentation of Triton's perf_analyzer,
"Metrics"): "Client Send", "Network+Server Send/Recv", "Server Queue", "Server Compute Input", "Infer", "Output",
"Client Recv". The server's components are means over its requests. Triton charges each request the whole time of its
batch. A profile exists for any server: what it counts, and the rest.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.measure.counters import added
from pytest_gpuserve.measure.points import NotMeasured
from pytest_gpuserve.measure.streams import Streams
from pytest_gpuserve.measure.window import COMPUTE, FORMATION, OTHER_COMPUTE, PER_REQUEST, QUEUE, SERVER, Window
from pytest_gpuserve.measure.work import cached_share, preemptions_of_thousand
from pytest_gpuserve.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pytest_gpuserve.measure.counters import Counters

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


def breakdown_of(total: Window) -> Breakdown:
    """Break the mean latency of a load's total down by the counts of server and client.

    Raises:
        NotMeasured: The server does not count these parts by request, the client does not time its sends, or the counts
            exceed the latency. Latencies of an open loop contain a wait in the client, so they cannot be broken down.
    """
    if total.service.total:
        raise NotMeasured(
            "the latency of an open loop cannot be broken down: it contains the wait of requests in the client",
            remedies=["load(..., concurrency=...)"],
        )
    stages = {} if total.counters is None else _requested(total.counters).stages
    names = {"queue": QUEUE, **{f"compute_{part}": f"{PER_REQUEST}{part}" for part in ("input", "infer", "output")}}
    missing = [name for name in names.values() if name not in stages or not stages[name].count]
    if missing:
        raise NotMeasured(
            f"the latency cannot be broken down: the server does not count {', '.join(missing)} by request",
            remedies=["Triton and pytriton do"],
        )
    if total.sending_seconds is None or total.receiving_seconds is None:
        raise NotMeasured("the latency cannot be broken down: over this protocol the client does not time its sends")
    known = {
        "client_send": total.sending_seconds / total.requests,
        **{part: stages[name].mean for part, name in names.items()},
        "client_receive": total.receiving_seconds / total.requests,
    }
    counted = math.fsum(known.values())
    if counted > total.mean * (1 + EXCESS_SHARE):
        raise NotMeasured(
            f"the latency cannot be broken down: a request took {format_seconds(total.mean)}, but server and client"
            f" count {format_seconds(counted)} of it, so they did not count the same requests"
        )
    return Breakdown(network=total.mean - counted, **known)


def _requested(counters: Counters) -> Counters:
    """Counters of the model that requests name: of a whole ensemble, not of the batching model inside it."""
    time = counters.stages.get(SERVER)
    alike: Iterable[Counters] = (part for part in counters.parts.values() if part.stages.get(SERVER) == time)
    return next(iter(alike), counters) if time is not None else counters


MEAN: Final = "mean latency"
P99: Final = "latency.p99"
CLIENT: Final = "client lag p99"
CLIENT_CORES: Final = "client"
"""Cores that the load engine used, on average."""

OUTSIDE: Final = "network and client"
"""Time of an average request there; unknown if it is in the queue."""

QUEUE_COUNTED: Final = "queue"
"""Wait of an average request in the server for its computation."""

QUEUE_OF_SERVER: Final = "the server's time less compute"
"""A queue that is not counted, with the wait for a batch to fill."""

QUEUE_OF_LATENCY: Final = "the latency less compute"
"""The same if the server's time is not counted either, with network and client."""

FORMATION_ITEMS: Final = "batch formation"
"""Items of an average batch."""

FILLING: Final = "time to fill a batch"
"""Partly contained in the queue."""

COMPUTE_OF_BATCH: Final = "compute per batch"
"""Computation of an average batch in the batching stage."""

COMPUTE_OF: Final = "compute of "
"""Prefix of the computation of an average batch in another stage of the pipeline."""

TTFT: Final = "queue and prefill (TTFT)"
DECODE: Final = "decode"
"""Mean time from the first token to the end."""

TPOT: Final = "decode a token (TPOT)"
TOKENS: Final = "tokens an answer"
CACHED: Final = "prompt tokens from the prefix cache"
PREEMPTED: Final = "preemptions"
"""Preemptions of sequences in 1000 requests."""


def profile_of(windows: Iterable[Window]) -> dict[str, float]:
    """Known parts of a server's mean latency by the names above, in seconds, items, cores or as shares.

    If they are known, queue, computation and the time outside add up to the mean, except for values that are rounded
    up to zero. A batch counts once in its computation, for any number of requests. If large batches take longer than
    small ones, part of a request's wait is in the queue.

    Args:
        windows: Windows of one server, or of several starts of it; those without counters add only to the latency.

    Raises:
        ValueError: No request was answered in the windows.
    """
    known = list(windows)
    total = Window.total(known)
    mean = total.latency.mean
    if mean is None:
        raise ValueError("the latency of windows without answered requests cannot be explained")
    counters = added(window.counters for window in known if window.counters is not None)
    stages = {} if counters is None else {name: time.mean for name, time in counters.stages.items() if time.count}
    streams = total.streams or Streams()
    ttft = streams.ttft.mean_of_buckets
    found = {
        MEAN: mean,
        P99: total.quantile(0.99),
        CLIENT_CORES: total.client_cpu_seconds / total.seconds,
        CLIENT: total.lag.quantile(0.99) if total.lag.total else None,
        FORMATION_ITEMS: counters.items / counters.batches if counters is not None and counters.batches else None,
        FILLING: stages.get(FORMATION),
        COMPUTE_OF_BATCH: stages.get(COMPUTE),
        **_rest(mean, stages),
        TTFT: ttft,
        DECODE: None if ttft is None else max(0.0, mean - ttft),
        TPOT: streams.tpot.mean_of_buckets if streams.has_usage else None,
        TOKENS: streams.usage_tokens / total.requests if streams.has_usage else None,
        CACHED: cached_share(known),
        PREEMPTED: preemptions_of_thousand(known),
    }
    return {name: value for name, value in found.items() if value is not None}


def _rest(mean: float, stages: Mapping[str, float]) -> dict[str, float | None]:
    """Computation in other stages, the queue by its origin, and the time outside the server."""
    other = {
        name.replace(OTHER_COMPUTE, COMPUTE_OF, 1): seconds
        for name, seconds in stages.items()
        if name.startswith(OTHER_COMPUTE)
    }
    server, queue = stages.get(SERVER), stages.get(QUEUE)
    outside = None if server is None else max(0.0, mean - server)
    if COMPUTE not in stages:
        return {**other, QUEUE_COUNTED: queue, OUTSIDE: outside}
    compute = stages[COMPUTE] + math.fsum(other.values())
    if queue is not None:
        return {**other, QUEUE_COUNTED: queue, OUTSIDE: max(0.0, mean - queue - compute) if server is None else outside}
    if server is not None:
        return {**other, QUEUE_OF_SERVER: max(0.0, server - compute), OUTSIDE: outside}
    return {**other, QUEUE_OF_LATENCY: max(0.0, mean - compute)}
