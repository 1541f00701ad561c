"""What a server counts of its own work, and what it counted between two readings."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.measure.points import NotMeasured
from pytest_gpuserve.measure.window import PER_REQUEST, QUEUE, SERVER, StageTime
from pytest_gpuserve.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

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


class WentBackwards(ValueError):
    """A counter is smaller than it was: what counted was started anew in between."""


@dataclass(frozen=True, slots=True)
class Counters:
    """A reading of a server's own counters; they only ever rise while it lives, but for ``pending``.

    Args:
        items: Items executed by its batching stage since it started.
        batches: Executions, that is batches that they were executed in.
        batch_sizes: Executions by batch size; the key is the upper edge of the server's own bucket. Empty where it does
            not tell.
        stages: Where its time went since it started, by the names of ``measure/window.py``, such as ``compute``; a
            stage that it does not count is left out.
        requests: Requests that it answered well, whoever sent them; None where it does not tell.
        pending: Requests that are in it right now, as far as it counts them; None where it does not tell.
        parts: The same for each of its models, or stages of its pipeline, or of several replicas for each of them, by
            name; their own parts are empty.
    """

    items: int
    batches: int
    batch_sizes: Mapping[str, int] = field(default_factory=dict)
    stages: Mapping[str, StageTime] = field(default_factory=dict)
    requests: int | None = None
    pending: int | None = None
    parts: Mapping[str, Counters] = field(default_factory=dict)


def counted_between(before: Counters, after: Counters) -> Counters:
    """What a server counted between two readings; ``pending`` is that of the later one.

    Batch sizes, stages and parts in which nothing happened are left out.

    Raises:
        WentBackwards: A counter is smaller than before, or a part that had counted is gone; names it.
    """
    return _between("", before, after)


def _between(where: str, before: Counters, after: Counters) -> Counters:
    # First, for where the whole has fallen the part that fell says more.
    nothing = Counters(items=0, batches=0)
    parts = {
        name: _between(f"{name}: ", before.parts.get(name, nothing), after.parts.get(name, nothing))
        for name in before.parts.keys() | after.parts.keys()
    }
    stages = {}
    for name in before.stages.keys() | after.stages.keys():
        early = before.stages.get(name, StageTime(0.0, 0))
        late = after.stages.get(name, StageTime(0.0, 0))
        count = _rise(f"{where}count of {name}", early.count, late.count)
        # Sums of floating-point seconds over workers may lose their last digit.
        if late.seconds < early.seconds * (1 - 1e-9) - 1e-9:
            raise WentBackwards(f"{where}seconds of {name} fell from {early.seconds:g} to {late.seconds:g}")
        if count:
            stages[name] = StageTime(max(0.0, late.seconds - early.seconds), count)
    sizes = {
        size: _rise(f"{where}batches of {size}", before.batch_sizes.get(size, 0), after.batch_sizes.get(size, 0))
        for size in before.batch_sizes.keys() | after.batch_sizes.keys()
    }
    known = after.requests is not None and before.requests is not None
    return Counters(
        items=_rise(f"{where}items", before.items, after.items),
        batches=_rise(f"{where}batches", before.batches, after.batches),
        batch_sizes={size: sizes[size] for size in sorted(sizes) if sizes[size]},
        stages={name: stages[name] for name in sorted(stages)},
        requests=_rise(f"{where}requests", before.requests or 0, after.requests or 0) if known else None,
        pending=after.pending,
        parts={name: parts[name] for name in sorted(parts) if parts[name].batches or parts[name].requests},
    )


def _rise(what: str, before: int, after: int) -> int:
    if after < before:
        raise WentBackwards(f"{what} fell from {before} to {after}")
    return after - before


def added(readings: list[Counters]) -> Counters | None:
    """Put together what was counted in several stretches; None of none. ``pending`` has no sum."""
    if not readings:
        return None
    sizes: dict[str, int] = {}
    stages: dict[str, StageTime] = {}
    parts: dict[str, list[Counters]] = {}
    for reading in readings:
        for size, count in reading.batch_sizes.items():
            sizes[size] = sizes.get(size, 0) + count
        for name, time in reading.stages.items():
            known = stages.get(name, StageTime(0.0, 0))
            stages[name] = StageTime(known.seconds + time.seconds, known.count + time.count)
        for name, part in reading.parts.items():
            parts.setdefault(name, []).append(part)
    requests = [reading.requests for reading in readings]
    whole = {name: added(found) for name, found in parts.items()}
    return Counters(
        items=sum(reading.items for reading in readings),
        batches=sum(reading.batches for reading in readings),
        batch_sizes=sizes,
        stages=stages,
        requests=None if None in requests else sum(count or 0 for count in requests),
        parts={name: part for name, part in whole.items() if part is not None},
    )


def together(readings: Mapping[str, Counters]) -> Counters:
    """Add up what several servers say at the same time; what each of them says is kept as a part, by its name.

    Args:
        readings: By the servers' names, one at least; they have no parts of their own.

    Raises:
        ValueError: There are none.
    """
    whole = added(list(readings.values()))
    if whole is None:
        raise ValueError("of no server nothing is counted")
    waiting = [reading.pending for reading in readings.values()]
    return replace(
        whole,
        pending=None if None in waiting else sum(count or 0 for count in waiting),
        parts=dict(readings),
    )
