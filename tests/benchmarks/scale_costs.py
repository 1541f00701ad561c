"""What the parts of a load cost on this machine: a request, an arrival of the schedule.

In CPU time, and the least of several tries: whatever else the machine does can only add to it.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from itertools import islice
from statistics import median
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.load.driver import Engines
from pytest_gpuserve.load.schedule import Constant, Gamma, Poisson
from pytest_gpuserve.load.totals import total
from pytest_gpuserve.load.wire import frame
from tests.benchmarks.nothing_served import null_server, plan

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpuserve.load.schedule import OpenSchedule

REPEATS: Final = 5
RUN_SECONDS: Final = 3.0
WARM_TICKS: Final = 5

ARRIVALS: Final = 200_000
PARTS: Final = 64
"""Of a schedule that is shared by so many nearly all is drawn for others."""


def schedules(rate: float) -> dict[str, OpenSchedule]:
    """Those that are measured, by name."""
    return {
        "constant": Constant(rate),
        "Poisson": Poisson(rate),
        "gamma, shape 0.25": Gamma(rate, 0.25),
        "gamma, shape 4": Gamma(rate, 4.0),
    }


def cpu_seconds(action: Callable[[], object], *, repeats: int = REPEATS) -> float:
    """Least CPU time of this process for an action."""
    spent_ns = []
    for _ in range(repeats):
        begin_ns = time.process_time_ns()
        action()
        spent_ns.append(time.process_time_ns() - begin_ns)
    return min(spent_ns) / 1e9


@dataclass(frozen=True)
class ArrivalCost:
    """CPU seconds for an arrival of a schedule.

    Args:
        own: Of those that a worker sends itself, beyond `drawn`.
        drawn: Of every one, whoever sends it.
    """

    own: float
    drawn: float


def arrival_cost(schedule: OpenSchedule, *, arrivals: int = ARRIVALS) -> ArrivalCost:
    """Measure what a schedule costs a worker that has it for itself, and one of many: the difference tells both."""

    def each(parts: int) -> float:
        share = schedule.arrivals(1, 0, parts)
        count = max(1, arrivals // parts)
        return cpu_seconds(lambda: deque(islice(share, count), maxlen=0)) / (count * parts)

    alone, one_of_many = each(1), each(PARTS)
    # alone = own + drawn, one_of_many = own / PARTS + drawn; noise may put what is nothing below it.
    own = (alone - one_of_many) * PARTS / (PARTS - 1)
    return ArrivalCost(own, max(0.0, alone - own))


@dataclass(frozen=True)
class EngineCost:
    """What an engine process did against a server that does nothing.

    Args:
        per_second: Requests answered a second.
        request_seconds: CPU time of the engine for each.
        core_share: Of a core that it used.
        lag_p99_seconds: How late it was.
        tick_bytes: Median size of a report.
    """

    per_second: float
    request_seconds: float
    core_share: float
    lag_p99_seconds: float
    tick_bytes: float


def engine_cost(schedule: OpenSchedule) -> EngineCost:
    """Run an engine several times; the run in which a request took the least is told.

    Args:
        schedule: With a ceiling: where the machine stands still, the server's backlog must not overflow afterwards.
    """
    assert schedule.max_in_flight is not None
    return min((_engine_run(schedule) for _ in range(REPEATS)), key=lambda run: run.request_seconds)


def _engine_run(schedule: OpenSchedule) -> EngineCost:
    with null_server() as server, Engines(plan(server, schedule)) as engines:
        for _ in range(WARM_TICKS):
            engines.next_tick()
        ticks = [engines.next_tick() for _ in range(round(10 * RUN_SECONDS))]
    totals = total(ticks)
    assert not totals.errors, totals.error_samples
    cost, rate, lag = totals.cpu_seconds_a_request, totals.throughput, totals.lag.quantile(0.99)
    assert cost is not None, "no request was answered"
    assert rate is not None
    assert lag is not None, "fewer than 100 requests were sent"
    return EngineCost(
        per_second=rate,
        request_seconds=cost,
        core_share=totals.cpu_seconds / totals.seconds,
        lag_p99_seconds=lag,
        tick_bytes=median(len(frame(tick)) for tick in ticks),
    )
