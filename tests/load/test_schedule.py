"""Schedules have their names' distributions, by counting, and are the same in all places and times."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import islice, pairwise, takewhile
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.load.schedule import (
    Arrival,
    Burst,
    Closed,
    Constant,
    Gamma,
    OpenSchedule,
    Poisson,
    Schedule,
    Steps,
    Trace,
)

SEEDS = (0, 1, 2**63)
MANY = 20_000

OPEN: tuple[OpenSchedule, ...] = (
    Constant(700.0),
    Poisson(700.0),
    Gamma(700.0, 0.25),
    Gamma(700.0, 4.0),
    Trace(tuple((number / 700, number % 3) for number in range(MANY))),
    Burst(MANY),
)


def first(schedule: OpenSchedule, seed: int, count: int = MANY) -> list[Arrival]:
    """The first arrivals."""
    return list(islice(schedule.arrivals(seed), count))


@pytest.mark.parametrize("shape", [1, 4])
@pytest.mark.parametrize("seed", SEEDS)
def test_gaps_are_exponential_or_gamma(shape: int, seed: int) -> None:
    """Sums of as many exponential times as the shape says; chance passes 1.95 once in a thousand times."""
    schedule: OpenSchedule = Poisson(700.0) if shape == 1 else Gamma(700.0, float(shape))
    times = [0, *(arrival.at_ns for arrival in first(schedule, seed))]
    gaps = sorted((later - earlier) / 1e9 for earlier, later in pairwise(times))
    rate, count = shape * 700.0, len(gaps)
    below = [1 - sum((rate * x) ** k / math.factorial(k) for k in range(shape)) * math.exp(-rate * x) for x in gaps]
    # The distance of Kolmogorov and Smirnov, in units of its asymptotic scale.
    distance = max(max(share - at / count, (at + 1) / count - share) for at, share in enumerate(below))
    assert distance * math.sqrt(count) < 1.95


@pytest.mark.parametrize("rate", [3.0, 7_777.7, 1e5 / 3])
def test_constant_does_not_drift(rate: float) -> None:
    """A million arrivals on, each is where exact arithmetic puts it, to half a nanosecond and the float's grain."""
    numerator, denominator = rate.as_integer_ratio()
    checked = list(islice(Constant(rate).arrivals(0, 0, 1000), 1001))
    for arrival in checked:
        exact = Fraction(arrival.number * 10**9 * denominator, numerator)
        assert abs(arrival.at_ns - exact) <= 0.5 + exact * 2**-52
    assert checked[-1].number == 10**6


@pytest.mark.parametrize("schedule", OPEN, ids=lambda schedule: type(schedule).__name__)
def test_a_schedule_is_absolute(schedule: OpenSchedule) -> None:
    """Numbers rise with times, the same one by one and in another process; a seed changes only what is chance."""
    arrivals = first(schedule, 5)
    assert [arrival.number for arrival in arrivals] == list(range(MANY))
    times = [arrival.at_ns for arrival in arrivals]
    assert times == sorted(times)
    assert times[0] >= 0
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(schedule), type=Schedule)
    slow, other = schedule.arrivals(5), again.arrivals(5)
    assert all(next(slow) == next(other) == arrival for arrival in arrivals[:100])
    assert (first(schedule, 1, 50) != first(schedule, 2, 50)) is isinstance(schedule, (Poisson, Gamma))


def test_a_trace_and_a_burst_have_their_requests_and_no_more() -> None:
    """With the payloads that the trace names; what a user writes as a list is compared, hashed and sent as a tuple."""
    trace = Trace(((0.0, 4), (0.5, 2), (0.5, 4)))
    assert list(trace.arrivals(0)) == [Arrival(0, 0, 4), Arrival(500_000_000, 1, 2), Arrival(500_000_000, 2, 4)]
    assert list(Burst(3).arrivals(0)) == [Arrival(0, 0), Arrival(0, 1), Arrival(0, 2)]
    steps, pairs = [[2, 1.5], [4, 3]], [[0.0, 4], [0.5, 2], [0.5, 4]]
    assert Steps(steps) == Steps(((2, 1.5), (4, 3)))  # type: ignore[arg-type]  # on purpose
    assert hash(Trace(pairs)) == hash(trace)  # type: ignore[arg-type]  # on purpose


@pytest.mark.parametrize(
    ("schedule", "workload"),
    [
        (Closed(2, think_seconds=0.2), {"load": "closed loop", "concurrency": "2", "think_seconds": "0.2"}),
        (Steps(((1, 0.5), (3, 60.0))), {"load": "stepped users", "steps": "1 for 0.5 s, 3 for 60 s"}),
        (Constant(5.0, max_in_flight=2), {"load": "open loop, constant", "rate": "5", "max_in_flight": "2"}),
        (Poisson(0.5), {"load": "open loop, Poisson", "rate": "0.5"}),
        (Burst(12), {"load": "burst", "requests": "12"}),
        (Gamma(5.0, 0.5), {"load": "open loop, gamma", "rate": "5", "shape": "0.5"}),
    ],
)
def test_a_workload_has_the_words_that_baselines_keep(schedule: Schedule, workload: dict[str, str]) -> None:
    """And that reports show."""
    assert schedule.workload() == workload
    assert Trace(((0.0, 0), (1.5, 1))).workload()["load"] == "trace"


NO_RATES: tuple[Any, ...] = (0, -1.0, math.nan, math.inf, -math.inf, True, "5", None, 10**400, 1e-300)
NO_PAUSES = tuple(value for value in NO_RATES if value not in {0, 1e-300})
NO_COUNTS: tuple[Any, ...] = (0, -1, 1.0, True, "5", math.nan)


@pytest.mark.parametrize(
    ("build", "values"),
    [
        (Constant, NO_RATES),
        (Poisson, NO_RATES),
        (lambda value: Gamma(value, 1.0), NO_RATES),
        (lambda value: Gamma(1.0, value), NO_RATES),
        (lambda value: Steps(((1, value),)), NO_RATES),
        (lambda value: Closed(1, think_seconds=value), NO_PAUSES),
        (lambda value: Steps(((1, 1.0),), think_seconds=value), NO_PAUSES),
        (lambda value: Trace(((value, 0),)), NO_PAUSES),
        (lambda value: Trace(((0.0, value),)), NO_COUNTS[1:]),
        (Closed, (*NO_COUNTS, None)),
        (Burst, (*NO_COUNTS, None)),
        (lambda value: Steps(((value, 1.0),)), (*NO_COUNTS, None)),
        (lambda value: Constant(1, max_in_flight=value), NO_COUNTS),
        (lambda value: Poisson(1, max_in_flight=value), NO_COUNTS),
        (lambda value: Burst(1, max_in_flight=value), NO_COUNTS),
        (lambda value: Gamma(1.0, 1.0, max_in_flight=value), NO_COUNTS),
        (lambda value: Trace(((0.0, 0),), max_in_flight=value), NO_COUNTS),
        (Steps, ((), 5, None, [1], "ab", [(1,)], ((1, 1.0, 2),))),
        (Trace, ((), 5, None, [1], "ab", [(1,)], ((0.5, 0), (0.4, 0)))),
    ],
)
def test_what_is_no_schedule_is_refused(build: Callable[[Any], Schedule], values: tuple[Any, ...]) -> None:
    """An invalid or out of range number is a user's mistake, and never an endless or empty load."""
    for value in values:
        with pytest.raises(UsageProblem):
            build(value)


COUNT = 300
"""Arrivals that are looked at of an endless schedule."""

ANY_RATES = st.floats(1e-3, 1e7) | st.integers(1, 10**7)
ANY_OPEN: st.SearchStrategy[OpenSchedule] = st.one_of(
    st.builds(Constant, ANY_RATES),
    st.builds(Poisson, ANY_RATES),
    st.builds(Gamma, ANY_RATES, st.floats(0.05, 50) | st.just(1)),
    st.builds(
        Trace,
        st.lists(st.tuples(st.floats(0, 1e3), st.integers(0, 9)), min_size=1, max_size=60).map(
            lambda pairs: tuple(sorted(pairs))
        ),
    ),
    st.builds(Burst, st.integers(1, 60)),
)

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


@settings(deadline=None)  # a busy machine may stall any example
@given(schedule=ANY_OPEN, seed=st.integers(0, 2**64), parts=st.integers(1, 70))
def test_the_shares_together_are_the_one_schedule(schedule: OpenSchedule, seed: int, parts: int) -> None:
    """Times, numbers and payloads agree to the nanosecond; every arrival belongs to exactly one share."""
    shares = [until(COUNT, schedule.arrivals(seed, part, parts)) for part in range(parts)]
    assert all(arrival.number % parts == part for part, share in enumerate(shares) for arrival in share)
    together = sorted((arrival for share in shares for arrival in share), key=lambda arrival: arrival.number)
    assert together == until(COUNT, schedule.arrivals(seed))


@pytest.mark.parametrize(("schedule", "times_ns"), FIRST_NS, ids=lambda value: str(value)[:20])
def test_a_seed_means_the_same_in_every_version(schedule: OpenSchedule, times_ns: list[int]) -> None:
    """A load that was measured once can be sent again."""
    assert [arrival.at_ns for arrival in islice(schedule.arrivals(5), 4)] == times_ns
