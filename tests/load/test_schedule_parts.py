"""However many share an open loop, they send its one schedule: each arrival once, at its very nanosecond."""

from __future__ import annotations

import math
from itertools import islice, takewhile
from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_gpuserve.load.schedule import Burst, Constant, Gamma, OpenSchedule, Poisson, Trace
from pytest_gpuserve.load.wire import Endpoint, Plan
from tests.fakes.simulated_load import HOUR_NS, MS, Simulation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpuserve.load.schedule import Arrival

UNHURRIED = settings(deadline=None)  # a busy machine may stall any example

COUNT = 300
"""Arrivals that are looked at of an endless schedule."""

RATES = st.floats(1e-3, 1e7) | st.integers(1, 10**7)
OPEN: st.SearchStrategy[OpenSchedule] = st.one_of(
    st.builds(Constant, RATES),
    st.builds(Poisson, RATES),
    st.builds(Gamma, RATES, st.floats(0.05, 50) | st.just(1)),
    st.builds(
        Trace,
        st.lists(st.tuples(st.floats(0, 1e3), st.integers(0, 9)), min_size=1, max_size=60).map(
            lambda pairs: tuple(sorted(pairs))
        ),
    ),
    st.builds(Burst, st.integers(1, 60)),
)

NUMBERS = st.integers(1, 60)
TIMES_NS = st.integers(1, 60 * MS)

FIRST_NS: list[tuple[OpenSchedule, list[int]]] = [
    (Constant(700.0), [0, 1428571, 2857143, 4285714]),
    (Poisson(700.0), [1393213, 3327457, 5592728, 9671451]),
    (Gamma(700.0, 0.25), [1223158, 1223164, 9204331, 14556279]),
    (Gamma(700.0, 4.0), [1726971, 4112429, 6233274, 6612244]),
]
"""Of seed 5, written down when each engine drew its arrivals one by one."""


def until(count: int, arrivals: Iterator[Arrival]) -> list[Arrival]:
    """The arrivals whose numbers are below a count."""
    return list(takewhile(lambda arrival: arrival.number < count, arrivals))


@UNHURRIED
@given(schedule=OPEN, seed=st.integers(0, 2**64), parts=st.integers(1, 70))
def test_the_shares_together_are_the_one_schedule(schedule: OpenSchedule, seed: int, parts: int) -> None:
    """To the nanosecond, the number and the payload; nobody sends what is another's, and nothing is left out."""
    shares = [until(COUNT, schedule.arrivals(seed, part, parts)) for part in range(parts)]
    assert all(arrival.number % parts == part for part, share in enumerate(shares) for arrival in share)
    together = sorted((arrival for share in shares for arrival in share), key=lambda arrival: arrival.number)
    assert together == until(COUNT, schedule.arrivals(seed))


@settings(deadline=None, max_examples=60)
@given(
    schedule=st.sampled_from([Constant(1000.0), Poisson(500.0), Gamma(500.0, 0.3), Burst(40)]),
    seed=st.integers(0, 2**32),
    parts=st.integers(1, 12),
    end=st.fixed_dictionaries({"requests": NUMBERS}, optional={"nanoseconds": TIMES_NS})
    | st.fixed_dictionaries({"nanoseconds": TIMES_NS}),
)
def test_engines_together_send_what_one_would(
    schedule: OpenSchedule, seed: int, parts: int, end: dict[str, int]
) -> None:
    """Also where the load ends by number or by time, and where it has fewer requests than there are engines."""
    whole = Plan(Endpoint("http", "simulated"), ((b"0",),), schedule, HOUR_NS, HOUR_NS, seed=seed, **end)  # type: ignore[arg-type]  # an end's are numbers

    def sent_by(part: int, parts: int) -> list[tuple[int, int]]:
        simulation = Simulation(msgspec.structs.replace(whole, part=part, parts=parts)).run()
        assert simulation.ended_ns is not None
        return [(sent.number, sent.at_ns - simulation.begin_ns) for sent in simulation.sent]

    together = [sent for part in range(parts) for sent in sent_by(part, parts)]
    assert sorted(together) == sorted(sent_by(0, 1))
    assert all(
        number < end.get("requests", math.inf) and at_ns < end.get("nanoseconds", math.inf)
        for number, at_ns in together
    )


@pytest.mark.parametrize(("schedule", "times_ns"), FIRST_NS, ids=lambda value: str(value)[:20])
def test_a_seed_means_the_same_in_every_version(schedule: OpenSchedule, times_ns: list[int]) -> None:
    """A load that was measured once can be sent again."""
    assert [arrival.at_ns for arrival in islice(schedule.arrivals(5), 4)] == times_ns
