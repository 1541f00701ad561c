"""Components of the time of an average request.

The seven components of `Breakdown` are those of perf_analyzer's tables (documentation of Triton's perf_analyzer,
"Metrics"): "Client Send", "Network+Server Send/Recv", "Server Queue", "Server Compute Input", "Infer", "Output",
"Client Recv". The server's components are means over its requests. Triton charges each request the whole time of its
batch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.measure.points import NotMeasured
from pytest_gpuserve.measure.window import PER_REQUEST, QUEUE, SERVER, Window
from pytest_gpuserve.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterable

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
    if total.sending_ns is None or total.receiving_ns is None:
        raise NotMeasured("the latency cannot be broken down: over this protocol the client does not time its sends")
    known = {
        "client_send": total.sending_ns / 1e9 / total.requests,
        **{part: stages[name].mean for part, name in names.items()},
        "client_receive": total.receiving_ns / 1e9 / total.requests,
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
