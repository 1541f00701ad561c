"""How far a worker's clock is ahead: bounds that hold whatever the ways took and however it drifts; times by ours."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from pytest_gpuserve.errors import LoadFailed
from pytest_gpuserve.load.durations import Durations
from pytest_gpuserve.load.ray.clock import MOST_DRIFT_PPM, Exchange, Track
from pytest_gpuserve.load.ray.worker import MOST_ASTRAY_NS, MOST_MOVED_NS, check_kept
from pytest_gpuserve.load.wire import Tick

MS = 1_000_000
SECOND = 1000 * MS

clocks = st.integers(-(1 << 62), 1 << 62)
"""Hosts were started years apart, or at the same moment."""

ways = st.integers(0, 10_000 * MS)

drifts = st.integers(-MOST_DRIFT_PPM, MOST_DRIFT_PPM)


@dataclass
class Clock:
    """A worker's clock, by ours.

    Args:
        ahead_ns: How far it is ahead at our time 0.
        drift_ppm: How much faster it runs.
        set_ns: By how much it was set.
    """

    ahead_ns: int = 0
    drift_ppm: int = 0
    set_ns: int = 0

    def offset_ns(self, ours_ns: int) -> int:
        """How far it is ahead at this time of ours."""
        return self.ahead_ns + self.set_ns + ours_ns * self.drift_ppm // 1_000_000

    def exchange(self, sent_ns: int, there_ns: int, working_ns: int = 0, back_ns: int = 0) -> Exchange:
        """A call at our time: the way there, the worker and the way back took so long, by our clock."""
        called_ns = sent_ns + there_ns
        returned_ns = called_ns + working_ns
        return Exchange(
            sent_ns,
            called_ns + self.offset_ns(called_ns),
            returned_ns + self.offset_ns(returned_ns),
            returned_ns + back_ns,
        )


def heard(*exchanges: Exchange) -> Track:
    """What is known of a clock after these calls."""
    track = Track()
    for exchange in exchanges:
        track.hear(exchange)
    track.settle()
    return track


# -- one call


@given(clocks, clocks, ways, ways, ways)
def test_the_true_offset_lies_within_the_uncertainty(
    ahead_ns: int, sent_ns: int, there_ns: int, working_ns: int, back_ns: int
) -> None:
    """Whichever way took longer, and however long the worker took; it is half of both ways and of a drift meanwhile."""
    made = Clock(ahead_ns).exchange(sent_ns, there_ns, working_ns, back_ns)
    offset = heard(made).offset
    assert made.round_trip_ns == there_ns + back_ns
    assert abs(offset.ns - ahead_ns) <= offset.uncertainty_ns
    drift_ns = (there_ns + working_ns + back_ns) * MOST_DRIFT_PPM / 1e6
    assert offset.uncertainty_ns == pytest.approx((there_ns + back_ns + drift_ns) / 2, abs=2)
    # A time that we say by the worker's clock is the same time when it comes back, to the nanosecond.
    assert offset.ours(offset.theirs(sent_ns)) == sent_ns
    assert offset.theirs(sent_ns) - sent_ns == offset.ns


# -- many calls

calls = st.lists(
    st.tuples(st.integers(0, 1000 * MS), st.integers(0, 50 * MS), st.integers(0, 1000 * MS), st.integers(0, 50 * MS)),
    min_size=1,
    max_size=40,
)
"""Of each how long after the one before, and how long the way there, the worker and the way back took."""


@given(st.integers(-(1 << 50), 1 << 50), drifts, calls)
def test_the_offset_of_a_clock_that_drifts_stays_within_its_bounds(
    ahead_ns: int, drift_ppm: int, made: list[tuple[int, int, int, int]]
) -> None:
    """Call after call, at any rate that it can have; nothing that it does counts as going astray.

    Without a drift it stays what it was as long as that can be true: the length of calls says nothing of a clock.
    """
    clock, track, now_ns = Clock(ahead_ns, drift_ppm), Track(), 0
    for after_ns, there_ns, working_ns, back_ns in made:
        exchange = clock.exchange(now_ns + after_ns, there_ns, working_ns, back_ns)
        now_ns = exchange.heard_ns
        track.hear(exchange)
        # Times are whole nanoseconds, and the clock's are rounded.
        assert abs(track.offset.ns - clock.offset_ns(now_ns)) <= track.offset.uncertainty_ns + 4
        assert track.astray_ns <= 4 * len(made)
        assert track.uncertainty_ns <= track.offset.uncertainty_ns + 1
    even = Clock(ahead_ns)
    steady = heard(even.exchange(0, MS, 0, MS))
    before_ns = steady.offset.ns
    steady.hear(even.exchange(SECOND // 10, MS + made[0][1], 0, MS + made[0][3]))
    assert steady.offset.ns == before_ns


@pytest.mark.parametrize("drift_ppm", [-200, 0, 37])
def test_a_clock_that_drifts_is_followed(drift_ppm: int) -> None:
    """Half an hour of reports a tenth of a second apart, of ways up to 2 ms: it is known to 3 ms, not to 360."""
    clock = Clock(7 * SECOND, drift_ppm)
    track = heard(clock.exchange(0, MS, 0, MS))
    track.begin()
    for number in range(1, 18_001):
        exchange = clock.exchange(number * SECOND // 10, MS // 5 + number % 7 * MS // 4, 0, number % 3 * MS // 2)
        track.hear(exchange)
    error_ns = abs(track.offset.ns - clock.offset_ns(exchange.heard_ns))
    assert error_ns <= track.offset.uncertainty_ns < 3 * MS
    assert track.astray_ns == 0
    assert track.moved_ns == pytest.approx(abs(drift_ppm) * 1800 * 1000, abs=3 * MS)


@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize("in_a_call", [False, True])
def test_a_clock_that_is_set_goes_astray(sign: int, *, in_a_call: bool) -> None:
    """By as much as no way and no drift explains; from the next call on it is known anew."""
    clock = Clock(SECOND)
    track = heard(clock.exchange(0, MS, 0, MS))
    track.begin()
    under_way = clock.exchange(SECOND // 10, MS, 50 * MS, MS)
    clock.set_ns = sign * 30 * MS
    if in_a_call:
        later = clock.exchange(SECOND // 10, MS, 50 * MS, MS)
        track.hear(under_way._replace(answered_ns=later.answered_ns))
    track.hear(clock.exchange(SECOND // 5, MS, 0, MS))
    assert 27 * MS < track.astray_ns <= 30 * MS
    with pytest.raises(LoadFailed, match="went away from this host's"):
        check_kept("a", track)
    track.hear(clock.exchange(SECOND // 4, MS, 0, MS))
    assert abs(track.offset.ns - clock.offset_ns(SECOND // 4)) <= track.offset.uncertainty_ns < 3 * MS
    track.begin()
    assert track.astray_ns == track.moved_ns == 0


def test_many_small_steps_go_astray_together() -> None:
    """A clock that is set by 2 ms again and again keeps no time; before the first call nothing is known."""
    clock = Clock()
    track = heard(clock.exchange(0, 0, 0, 0))
    track.begin()
    for number in range(1, 5):
        clock.set_ns += 2 * MS
        track.hear(clock.exchange(number * SECOND // 10, 0, 0, 0))
    assert track.astray_ns > MOST_ASTRAY_NS
    assert Track().uncertainty_ns > 365 * 86_400 * SECOND
    with pytest.raises(LoadFailed, match="not known"):
        check_kept("a", Track())


def test_a_drift_by_half_a_tick_is_too_much() -> None:
    """However well it is known; up to there it is borne."""
    clock = Clock(0, 100)
    track = heard(clock.exchange(0, 0, 0, 0))
    track.begin()
    for number in range(1, 499):
        track.hear(clock.exchange(number * SECOND, 0, 0, 0))
        check_kept("a", track)
    for number in range(499, 512):
        track.hear(clock.exchange(number * SECOND, 0, 0, 0))
    assert track.moved_ns > MOST_MOVED_NS
    with pytest.raises(LoadFailed, match=r"has drifted by 51\.\d ms .* NTP"):
        check_kept("a", track)


# -- ticks


@given(st.integers(-(1 << 50), 1 << 50), drifts)
def test_ticks_of_a_clock_that_drifts_are_without_gaps_and_in_time(ahead_ns: int, drift_ppm: int) -> None:
    """Each begins where the one before ended, and was when it was to within 1 ms, for a minute; all else stays."""
    clock = Clock(ahead_ns, drift_ppm)
    track = heard(clock.exchange(0, MS // 4, 0, MS // 4))
    track.begin()
    ours, ends_ns = [], range(SECOND // 10, 60 * SECOND, SECOND // 10)
    counted = Tick(0, 0, 0, requests=7, latency=Durations({5: 7}, 70, 10), oldest_ns=9, cpu_ns=4)
    for number, (begin_ns, end_ns) in enumerate(pairwise((0, *ends_ns))):
        track.hear(clock.exchange(end_ns, MS // 4, 0, MS // 4))
        begin_there_ns, end_there_ns = (at_ns + clock.offset_ns(at_ns) for at_ns in (begin_ns, end_ns))
        ours.append(track.in_our_time(replace(counted, number=number, begin_ns=begin_there_ns, end_ns=end_there_ns)))
    assert all(earlier.end_ns == later.begin_ns for earlier, later in pairwise(ours))
    assert all(abs(tick.end_ns - end_ns) < MS for tick, end_ns in zip(ours, ends_ns, strict=True))
    assert all(replace(tick, number=0, begin_ns=0, end_ns=0) == counted for tick in ours)


def test_a_tick_never_ends_before_it_begins() -> None:
    """Not even where the clock was set in it, and a load that begins anew begins where it does."""
    track = heard(Clock().exchange(0, 0, 0, 0))
    first = track.in_our_time(Tick(0, 0, 100 * MS))
    track.hear(Clock(300 * MS).exchange(SECOND, 0, 0, 0))
    second = track.in_our_time(Tick(1, 100 * MS, 200 * MS))
    assert (first.end_ns, second.begin_ns, second.end_ns) == (100 * MS, 100 * MS, 100 * MS)
    anew = track.in_our_time(Tick(0, 900 * MS, 1000 * MS))
    assert (anew.begin_ns, anew.end_ns) == (600 * MS, 700 * MS)
