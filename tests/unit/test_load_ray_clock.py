"""How far a worker's clock is ahead: bounds that hold whatever the ways took, and times that go over and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuserve.load.ray.clock import Exchange, Offset, best_offset, in_our_time
from pytest_gpuserve.load.wire import Latencies, Tick

MS = 1_000_000

clocks = st.integers(-(1 << 62), 1 << 62)
"""Hosts were started years apart, or at the same moment."""

ways = st.integers(0, 10_000 * MS)


def exchange(ahead_ns: int, sent_ns: int, there_ns: int, working_ns: int, back_ns: int) -> Exchange:
    """A call to a worker whose clock is so far ahead; the ways there and back took so long, the worker so long."""
    received_ns = sent_ns + there_ns + ahead_ns
    answered_ns = received_ns + working_ns
    return Exchange(sent_ns, received_ns, answered_ns, answered_ns - ahead_ns + back_ns)


@given(clocks, clocks, ways, ways, ways)
def test_the_true_offset_lies_within_the_uncertainty(
    ahead_ns: int, sent_ns: int, there_ns: int, working_ns: int, back_ns: int
) -> None:
    """Whichever way took longer, and however long the worker took; the uncertainty is half of both ways."""
    made = exchange(ahead_ns, sent_ns, there_ns, working_ns, back_ns)
    offset = made.offset()
    assert made.round_trip_ns == there_ns + back_ns
    assert abs(offset.ns - ahead_ns) <= offset.uncertainty_ns
    assert offset.uncertainty_ns == -(-(there_ns + back_ns) // 2)


@given(clocks, st.lists(st.tuples(ways, ways), min_size=1, max_size=20))
def test_of_many_exchanges_the_shortest_counts(ahead_ns: int, trips: list[tuple[int, int]]) -> None:
    """Its uncertainty is the least of all, in whatever order they were made."""
    made = [exchange(ahead_ns, 5, there_ns, 7, back_ns) for there_ns, back_ns in trips]
    best = best_offset(made)
    assert best.uncertainty_ns == min(each.offset().uncertainty_ns for each in made)
    assert best_offset(reversed(made)).uncertainty_ns == best.uncertainty_ns
    assert abs(best.ns - ahead_ns) <= best.uncertainty_ns


def test_without_an_exchange_there_is_no_offset() -> None:
    """Nothing known of a clock is not an offset of 0."""
    with pytest.raises(ValueError, match="empty"):
        best_offset([])


@given(clocks, ways, clocks)
def test_times_go_over_and_back(ahead_ns: int, uncertainty_ns: int, now_ns: int) -> None:
    """A time that we say by the worker's clock is the same time when it comes back, to the nanosecond."""
    offset = Offset(ahead_ns, uncertainty_ns)
    assert offset.ours(offset.theirs(now_ns)) == now_ns
    assert offset.theirs(now_ns) - now_ns == ahead_ns


@given(clocks, clocks, st.lists(st.tuples(ways, ways), min_size=2, max_size=2), ways)
def test_a_clock_that_kept_time_never_shows_a_gap(
    ahead_ns: int, sent_ns: int, trips: list[tuple[int, int]], later_ns: int
) -> None:
    """Two measurements of one offset, however bad, can always both be true."""
    first, second = (
        exchange(ahead_ns, sent_ns + when_ns, there_ns, 0, back_ns)
        for when_ns, (there_ns, back_ns) in zip((0, later_ns), trips, strict=True)
    )
    assert first.offset().gap_ns(second.offset()) == 0


@given(clocks, st.integers(0, 5 * MS), st.integers(0, 5 * MS), st.integers(0, 10_000 * MS), st.sampled_from([-1, 1]))
def test_a_gap_is_what_no_uncertainty_explains(
    ns: int, uncertainty_ns: int, other_ns: int, away_ns: int, sign: int
) -> None:
    """It is a lower bound of how far a clock went away, and symmetrical."""
    first = Offset(ns, uncertainty_ns)
    second = Offset(ns + sign * away_ns, other_ns)
    assert first.gap_ns(second) == second.gap_ns(first) == max(0, away_ns - uncertainty_ns - other_ns)


def test_a_clock_that_runs_slower_for_a_long_call_makes_no_negative_uncertainty() -> None:
    """A second's wait on a host whose clock runs 0.1 % fast is longer there than here, ways and all."""
    second_ns = 1000 * MS
    made = Exchange(0, 50_000, 50_000 + second_ns + MS, second_ns + 100_000)
    assert made.round_trip_ns < 0
    assert made.offset().uncertainty_ns == 0
    assert abs(made.offset().ns) <= MS


@given(clocks, clocks)
def test_of_a_tick_only_its_times_depend_on_the_clock(ahead_ns: int, begin_ns: int) -> None:
    """Begin and end are told by our clock; durations and counts stay."""
    tick = Tick(3, begin_ns, begin_ns + 100 * MS, requests=7, latency=Latencies({5: 7}, 70, 10), oldest_ns=9, cpu_ns=4)
    ours = in_our_time(tick, Offset(ahead_ns, 12))
    assert (ours.begin_ns, ours.end_ns) == (begin_ns - ahead_ns, begin_ns - ahead_ns + 100 * MS)
    assert (ours.number, ours.requests, ours.latency, ours.oldest_ns, ours.cpu_ns) == (3, 7, tick.latency, 9, 4)
