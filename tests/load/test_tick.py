"""Ticks add up exactly: over engines and over time, without growing."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pytest_gpuserve.load.tick import AnswerCount, Tick, aligned, together, total
from pytest_gpuserve.measure.histogram import Histogram, requests_to_know
from pytest_gpuserve.measure.window import Streams
from tests.load.ticks import taken

UNHURRIED = settings(deadline=None, max_examples=40)  # a busy machine may stall any example

COUNTED = ("requests", "due", "sent", "held", "unchecked", "in_flight_ns", "cpu_ns")
SUMS = (*COUNTED, "good", "unjudged", "resent", "sending_ns", "receiving_ns")
"""Fields of a tick that are plain counts, both over engines and over time."""

HISTOGRAMS = ("latency", "service", "lag")


NS = 10**9
COUNTS = st.integers(0, 10**9)
KINDS = st.sampled_from(["reset", "timeout", "status 503"])
LATENCIES = st.lists(st.integers(1, 10**11), max_size=8).map(taken)
STREAMS = st.none() | st.builds(Streams, LATENCIES, LATENCIES, LATENCIES, st.integers(-9, 9), COUNTS, COUNTS)
ANSWERS = st.builds(AnswerCount, st.integers(0, 2), st.sampled_from([b"", b"a", b"b"]), st.integers(1, 99), COUNTS)


@st.composite
def ticks_of_engines(draw: st.DrawFn) -> list[list[Tick]]:
    """Ticks by number, and of each number one of every engine; each engine ends its ticks a little apart."""
    engines = draw(st.integers(1, 3))
    begins = [0] * engines
    rows = []
    for number in range(draw(st.integers(1, 4))):
        row = []
        for engine in range(engines):
            end = (number + 1) * 1000 + draw(st.integers(0, 99))
            fields: dict[str, Any] = {name: draw(COUNTS) for name in (*SUMS, "under_way", "oldest_ns")}
            fields |= {name: draw(LATENCIES) for name in HISTOGRAMS} | {"streams": draw(STREAMS)}
            row.append(
                Tick(
                    number,
                    begins[engine],
                    end,
                    errors=draw(st.dictionaries(KINDS, st.integers(1, 99))),
                    error_samples=draw(st.dictionaries(KINDS, st.text(max_size=3))),
                    answers=draw(st.lists(ANSWERS, max_size=4, unique_by=lambda answer: (answer.index, answer.body))),
                    last=draw(st.booleans()),
                    **fields,
                )
            )
            begins[engine] = end
        rows.append(row)
    return rows


def tick(number: int = 0, begin_ns: int = 0, end_ns: int = 10**9, **fields: Any) -> Tick:  # noqa: ANN401 -- any of a tick's fields
    """A tick, by default a second long."""
    return Tick(number, begin_ns, end_ns, **fields)


def merged(ticks: list[Tick]) -> Tick:
    """Ticks of several engines as one."""
    return together({f"engine {part}": each for part, each in enumerate(ticks)})


def check_sums(whole: Tick, parts: list[Tick]) -> None:
    """Counts, histograms and errors of a whole are those of its parts."""
    for name in SUMS:
        assert getattr(whole, name) == sum(getattr(part, name) for part in parts)
    for name in HISTOGRAMS:
        found, each = getattr(whole, name), [getattr(part, name) for part in parts]
        assert Counter(found.counts) == sum((Counter(part.counts) for part in each), Counter())
        assert (found.sum_ns, found.max_ns) == (sum(part.sum_ns for part in each), max(part.max_ns for part in each))
    assert whole.streams == Streams.pooled(part.streams for part in parts)
    assert Counter(whole.errors) == sum((Counter(part.errors) for part in parts), Counter())


@UNHURRIED
@given(rows=ticks_of_engines())
def test_merged_ticks_hold_what_the_engines_counted(rows: list[list[Tick]]) -> None:
    """Counts and histograms add exactly, distinct answers stand once, and the time is what they cover on average."""
    for row in rows:
        whole = merged(row)
        check_sums(whole, row)
        assert whole.under_way == sum(part.under_way for part in row)
        ends = [part.end_ns for part in row]
        assert whole.begin_ns == sum(part.begin_ns for part in row) // len(row)
        assert whole.end_ns == (max(ends) if any(part.last for part in row) else sum(ends) // len(row))
        assert whole.oldest_ns == max(part.oldest_ns for part in row)
        assert whole.last is all(part.last for part in row)
        assert whole.number == row[0].number
        counts: Counter[tuple[int, bytes]] = Counter()
        numbers: dict[tuple[int, bytes], int] = {}
        for answer in (answer for part in row for answer in part.answers):
            key = (answer.index, answer.body)
            counts[key] += answer.count
            numbers[key] = min(numbers.get(key, answer.number), answer.number)
        assert {(answer.index, answer.body): answer.count for answer in whole.answers} == counts
        assert {(answer.index, answer.body): answer.number for answer in whole.answers} == numbers
        assert len(whole.answers) == len(counts)


def test_clocks_that_went_apart_lengthen_no_window() -> None:
    """Two engines half a tick apart count in five ticks, of which windows consist, as much as in five ticks."""
    tenth = NS // 10
    rows = [
        [tick(number, begin, begin + tenth, requests=50) for begin in (number * tenth, number * tenth + tenth // 2)]
        for number in range(20)
    ]
    ticks = [merged(row) for row in rows]
    windows = [total(ticks[first : first + 5]) for first in range(0, 20, 5)]
    assert {window.throughput for window in windows} == {1000.0}
    assert total(ticks).throughput == 1000.0


@UNHURRIED
@given(rows=ticks_of_engines())
def test_a_stretch_is_the_sum_of_its_ticks(rows: list[list[Tick]]) -> None:
    """Counts, histograms, sums and maxima of a stretch are those of all its ticks."""
    ticks = [merged(row) for row in rows]
    totals = total(ticks)
    check_sums(totals, ticks)
    assert totals.error_count == sum(totals.errors.values())
    assert (totals.under_way, totals.oldest_ns) == (ticks[-1].under_way, ticks[-1].oldest_ns)
    # However the ticks are put together, and with nothing added.
    assert Tick() + total(ticks[:1]) + total(ticks[1:]) == totals
    # Engines overlap, and yet no time counts twice.
    assert totals.nanoseconds == ticks[-1].end_ns - ticks[0].begin_ns
    assert totals.end_ns == ticks[-1].end_ns


def test_the_first_sight_of_an_error_is_kept() -> None:
    """The first engine's, or the first tick's, sample is kept."""
    first, second = tick(error_samples={"reset": "a"}), tick(error_samples={"reset": "b", "timeout": "c"})
    assert merged([first, second]).error_samples == {"reset": "a", "timeout": "c"}
    later = tick(1, 10**9, 2 * 10**9, error_samples={"reset": "b", "timeout": "c"})
    assert total([first, later]).error_samples == {"reset": "a", "timeout": "c"}


def test_a_tick_of_an_engine_that_paused_belongs_to_several_of_the_others() -> None:
    """The others are read on until they have caught up; nothing is lost, and one that has ended is not waited for."""
    one = AnswerCount(0, b"a", 1, 0)
    waiting = {
        "paused": [tick(0, requests=1), tick(3, requests=30)],
        "other": [tick(number, requests=10, answers=[one]) for number in range(4)],
        "ended": [tick(0, requests=100), tick(1, requests=100, last=True)],
    }

    def read(names: Collection[str]) -> dict[str, Tick]:
        return {name: waiting[name].pop(0) for name in names}

    assert together(aligned(read(waiting), read)).requests == 111
    found = together(aligned(read(waiting), read))
    assert (found.number, found.requests, found.last) == (3, 30 + 30 + 100, False)
    assert found.answers == [AnswerCount(0, b"a", 3, 0)]
    assert waiting == {"paused": [], "other": [], "ended": []}


def test_only_the_time_that_ticks_cover_counts_and_once() -> None:
    """An engine that stood still ends its tick late, in the time of the others' next one; windows may be apart."""
    totals = total([tick(0, 0, 3 * NS, requests=5), tick(1, NS, 2 * NS, requests=2)])
    assert (totals.requests, totals.nanoseconds, totals.end_ns) == (7, 3 * NS, 3 * NS)
    assert total([tick(0, 0, 100), tick(5, 500, 600)]).nanoseconds == 200


def test_rates_are_by_hand() -> None:
    """Each derived number of a tick of two seconds is right; an empty tick has none, not even zero."""
    counts: dict[str, Any] = {"requests": 98, "errors": {"reset": 2}, "due": 200, "sent": 100}
    totals = total([tick(end_ns=2 * NS, in_flight_ns=3 * NS, cpu_ns=10**7, **counts)])
    assert (totals.seconds, totals.throughput) == (2, 49)
    assert (totals.in_flight, totals.cpu_seconds) == (1.5, 0.01)
    empty = Tick()
    derived = ("throughput", "in_flight")
    assert [getattr(empty, name) for name in derived] == [None] * len(derived)
    assert (Histogram().mean, Histogram().known_quantile(0.5)) == (None, None)
    assert total([]) == empty


@UNHURRIED
@given(values=st.lists(st.integers(1, 10**11), min_size=1, max_size=300))
@example(values=[10**6 + 100] * 100)
@example(values=[10**6 + 900] * 100)
def test_mean_and_maximum_are_exact_and_bound_quantiles(values: list[int]) -> None:
    """Mean and maximum are not rounded to buckets, and no quantile is beyond the maximum."""
    durations = taken(values)
    assert durations.mean == pytest.approx(sum(values) / len(values) / 1e9, rel=1e-12)
    assert durations.max_seconds == max(values) / 1e9
    assert all((durations.known_quantile(q) or 0) <= durations.max_seconds for q in (0.5, 0.9, 0.99))


@pytest.mark.parametrize(("q", "needed"), [(0.1, 2), (0.5, 2), (0.75, 4), (0.9, 10), (0.99, 100), (0.999, 1000)])
def test_a_quantile_is_known_once_something_lies_above_it(q: float, needed: int) -> None:
    """From so many requests on, and not one fewer, the nearest rank is not the last one."""
    assert requests_to_know(q) == needed
    assert math.ceil(Fraction(str(q)) * needed) < needed
    assert math.ceil(Fraction(str(q)) * (needed - 1)) == needed - 1
    assert Histogram({5: needed - 1}, needed, 1).known_quantile(q) is None
    assert Histogram({5: needed}, needed, 1).known_quantile(q) is not None
