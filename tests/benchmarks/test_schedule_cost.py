"""What the schedule costs each of many engines that share it, against drawing and skipping one arrival at a time."""

from __future__ import annotations

import random
import time
from collections import deque
from itertools import accumulate, count, islice
from typing import TYPE_CHECKING

import pytest

from pytest_gpuserve.load.schedule import NANOSECONDS, Arrival, Constant, Gamma, Poisson
from pytest_gpuserve.units import format_seconds
from tests.benchmarks.pairs import in_turn, ratio

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pytest_gpuserve.load.schedule import OpenSchedule
    from tests.benchmarks.rows import Table

pytestmark = [pytest.mark.slow, pytest.mark.alone]

RATE = 1e6
SEED = 1
ARRIVALS = 200_000
PAIRS = 8


def one_by_one(gaps: Iterator[float], parts: int) -> Iterator[Arrival]:
    """Every arrival made, and those of others thrown away."""
    for number, seconds in enumerate(accumulate(gaps)):
        arrival = Arrival(round(seconds * NANOSECONDS), number)
        if arrival.number % parts == 0:
            yield arrival


def plain(schedule: OpenSchedule, parts: int) -> Iterator[Arrival]:
    """The share of part 0, by the standard library's generators."""
    draw = random.Random(SEED)
    if isinstance(schedule, Poisson):
        return one_by_one((draw.expovariate(RATE) for _ in count()), parts)
    if isinstance(schedule, Gamma):
        scale = 1 / (RATE * schedule.shape)
        return one_by_one((draw.gammavariate(schedule.shape, scale) for _ in count()), parts)
    every = (Arrival(round(number * NANOSECONDS / RATE), number) for number in count())
    return (arrival for arrival in every if arrival.number % parts == 0)


def seconds_an_arrival(share: Callable[[], Iterator[Arrival]], parts: int) -> float:
    """CPU time by all arrivals, whoever sends them."""
    own = ARRIVALS // parts
    begin_ns = time.process_time_ns()
    deque(islice(share(), own), maxlen=0)
    return (time.process_time_ns() - begin_ns) / 1e9 / (own * parts)


@pytest.mark.parametrize(
    ("schedule", "most"),
    [(Constant(RATE), 0.1), (Poisson(RATE), 0.5), (Gamma(RATE, 0.25), None), (Gamma(RATE, 4.0), None)],
    ids=str,
)
def test_share_of_many(table: Table, schedule: OpenSchedule, most: float | None) -> None:
    """One of 64 engines pays a tenth for a constant schedule and half for a Poisson one; gamma is only told."""
    assert list(islice(schedule.arrivals(SEED, 0, 64), 100)) == list(islice(plain(schedule, 64), 100))
    results = in_turn(
        lambda: seconds_an_arrival(lambda: schedule.arrivals(SEED, 0, 64), 64),
        lambda: seconds_an_arrival(lambda: plain(schedule, 64), 64),
        pairs=PAIRS,
    )
    name = type(schedule).__name__ + (f"({schedule.shape:g})" if isinstance(schedule, Gamma) else "")
    what = f"CPU an arrival of {name}, one engine of 64"
    assert table.compare_seconds(what, "one by one", ratio(results), most=most), format_seconds(results[0][0])


def test_alone(table: Table) -> None:
    """An engine that has a Poisson schedule for itself pays no more for it, within a tenth, than one by one."""
    results = in_turn(
        lambda: seconds_an_arrival(lambda: Poisson(RATE).arrivals(SEED), 1),
        lambda: seconds_an_arrival(lambda: plain(Poisson(RATE), 1), 1),
        pairs=PAIRS,
    )
    assert table.compare_seconds("CPU an arrival of Poisson, one engine", "one by one", ratio(results), most=1.1)
