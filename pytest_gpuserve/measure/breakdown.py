"""Where the time of an average request went: client, network, queue and computation.

The seven components are those of perf_analyzer's tables ("Client Send", "Network+Server Send/Recv", "Server Queue",
"Server Compute Input", "Infer", "Output", "Client Recv"; documentation of Triton's perf_analyzer, "Metrics"). The
server's are means over its requests, each of which Triton charges the whole time of its batch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.measure.points import NotMeasured
from pytest_gpuserve.measure.window import PER_REQUEST, QUEUE, SERVER
from pytest_gpuserve.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterable

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

    Args:
        summary: Of the load.
        counters: What the server counted meanwhile.
        client: What the load engine saw.

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
