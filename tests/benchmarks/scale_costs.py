"""What the parts of a load cost on this machine: a request, an arrival of the schedule.

In CPU time, and the least of several tries: whatever else the machine does can only add to it.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.load.driver import Engines
from pytest_gpuserve.load.schedule import Constant, Gamma, Poisson
from pytest_gpuserve.load.totals import total
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


def request_seconds(schedule: OpenSchedule) -> float:
    """CPU time of an engine for a request to a server that does nothing, the least of several runs.

    Args:
        schedule: With a ceiling: where the machine stands still, the server's backlog must not overflow afterwards.
    """
    assert schedule.max_in_flight is not None
    return min(_of_a_run(schedule) for _ in range(REPEATS))


def _of_a_run(schedule: OpenSchedule) -> float:
    with null_server() as server, Engines(plan(server, schedule)) as engines:
        for _ in range(WARM_TICKS):
            engines.next_tick()
        totals = total([engines.next_tick() for _ in range(round(10 * RUN_SECONDS))])
    assert not totals.errors, totals.error_samples
    cost = totals.cpu_seconds_a_request
    assert cost is not None, "no request was answered"
    return cost
