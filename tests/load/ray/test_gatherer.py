"""Ticks of several workers become ticks of the load, exactly, in whatever order they come."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuserve.load.durations import Durations
from pytest_gpuserve.load.ray.coordinator import TickGatherer
from pytest_gpuserve.load.totals import together
from pytest_gpuserve.load.wire import AnswerCount, Tick

TICK_NS = 100_000_000


def ticks_of(part: int, count: int) -> list[Tick]:
    """What a worker reports: so many ticks, of which each tells whose it is."""
    return [
        Tick(
            number,
            number * TICK_NS + part,
            (number + 1) * TICK_NS + part,
            requests=1000 * part + number,
            latency=Durations({part + 1: number + 1}, (part + 1) * (number + 1), part + 1),
            answers=[AnswerCount(0, b"yes", 1, part)],
            last=number == count - 1,
        )
        for number in range(count)
    ]


def name(part: int) -> str:
    """What the worker is called."""
    return f"10.0.0.{part}/worker-{part}"


@st.composite
def arrivals(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """How many ticks each worker reports, and in which order those of all of them come."""
    counts = draw(st.lists(st.integers(1, 6), min_size=1, max_size=5))
    order = draw(st.permutations([part for part, count in enumerate(counts) for _ in range(count)]))
    return counts, list(order)


@given(arrivals())
def test_ticks_come_out_whole_in_order_and_once(arrived: tuple[list[int], list[int]]) -> None:
    """Whatever arrives first: number by number, of all who have not ended before, merged as the driver does."""
    counts, order = arrived
    told = [ticks_of(part, count) for part, count in enumerate(counts)]
    gatherer = TickGatherer([name(part) for part in range(len(counts))])
    left = [iter(ticks) for ticks in told]
    taken: list[Tick] = []
    for place, part in enumerate(order):
        gatherer.add(part, next(left[part]))
        taken += gatherer.take()
        assert gatherer.ended == (place == len(order) - 1)
    assert [tick.number for tick in taken] == list(range(max(counts)))
    for number, tick in enumerate(taken):
        expected = {name(part): told[part][number] for part, count in enumerate(counts) if number < count}
        assert list(tick.workers) == list(expected)
        whole = together(expected)
        assert (tick.requests, tick.latency, tick.workers) == (whole.requests, whole.latency, whole.workers)
        assert (tick.begin_ns, tick.end_ns, tick.answers) == (whole.begin_ns, whole.end_ns, whole.answers)
        assert tick.last == (number == max(counts) - 1)


@pytest.mark.parametrize("number", [0, 2, 5])
def test_a_tick_that_is_not_the_next_one_is_refused(number: int) -> None:
    """A lost or repeated report, or one after the end, is never passed over; the worker is named."""
    gatherer = TickGatherer([name(0), name(1)])
    gatherer.add(1, Tick(0, 0, TICK_NS))
    with pytest.raises(ValueError, match=f"10.0.0.1/worker-1 reports tick {number} after 0"):
        gatherer.add(1, Tick(number, 0, TICK_NS))
    gatherer.add(0, Tick(0, 0, TICK_NS, last=True))
    with pytest.raises(ValueError, match=r"10.0.0.0/worker-0 reports after the end"):
        gatherer.add(0, Tick(1, TICK_NS, 2 * TICK_NS))
