"""Ticks add up exactly: over engines and over time, without growing."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection
from fractions import Fraction
from typing import Any, Literal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pytest_gpuserve.load.engine.tick_counters import (
    ALL_ANSWER_BYTES,
    DISTINCT_ANSWER_BYTES,
    DISTINCT_ANSWERS,
    LARGEST_ANSWER_BYTES,
    ON_TIME_NS,
    SAMPLE_CHARACTERS,
    Beats,
    BusyClock,
    DurationRecorder,
    TickCounters,
)
from pytest_gpuserve.load.tick import aligned, together
from pytest_gpuserve.load.wire import BEAT_NS, MAX_MESSAGE_BYTES, frame
from pytest_gpuserve.measure.histogram import Histogram, requests_to_know
from pytest_gpuserve.measure.window import AnswerCount, Streams, Window, total
from tests.fakes.scripted_engines import taken

COUNTED = ("requests", "due", "sent", "held", "unchecked", "in_flight_ns", "cpu_ns")
SUMS = (*COUNTED, "good", "unjudged", "resent", "sending_ns", "receiving_ns")
"""Fields of a tick that are plain counts, both over engines and over time."""

HISTOGRAMS = ("latency", "service", "lag")


NS = 10**9


def tick(number: int = 0, begin_ns: int = 0, end_ns: int = 10**9, **fields: Any) -> Window:  # noqa: ANN401 -- any of a tick's fields
    """A tick, by default a second long."""
    return Window(number, begin_ns, end_ns, **fields)


def merged(ticks: list[Window]) -> Window:
    """Ticks of several engines as one."""
    return together({f"engine {part}": each for part, each in enumerate(ticks)})


def counted(part: int) -> dict[str, Any]:
    """Another value of each field that adds up."""
    fields: dict[str, Any] = {name: 100 * place + part for place, name in enumerate(SUMS)}
    fields |= {name: taken(range(part, 1000 * part, 17 + place)) for place, name in enumerate(HISTOGRAMS)}
    fields["streams"] = Streams(ttft=taken([part]), tpot=taken([part, 7]), tokens=part, with_usage=1)
    return fields | {"errors": {"reset": part, f"status 50{part}": 1}}


@pytest.mark.parametrize("whole_of", [merged, total], ids=["over engines", "over time"])
def test_what_is_counted_adds_up(whole_of: Callable[[list[Window]], Window]) -> None:
    """Counts, histograms and errors of a whole are exactly those of its parts."""
    parts = [tick(part, part * NS, (part + 1) * NS, **counted(part)) for part in (1, 2, 3)]
    whole = whole_of(parts)
    for name in SUMS:
        assert getattr(whole, name) == sum(getattr(part, name) for part in parts)
    for name in HISTOGRAMS:
        found, each = getattr(whole, name), [getattr(part, name) for part in parts]
        assert Counter(found.counts) == sum((Counter(part.counts) for part in each), Counter())
        assert (found.sum_ns, found.max_ns) == (sum(part.sum_ns for part in each), max(part.max_ns for part in each))
    assert whole.errors == {"reset": 6, "status 501": 1, "status 502": 1, "status 503": 1}
    assert whole.error_count == 9
    assert whole.streams == Streams.pooled(part.streams for part in parts)


@pytest.mark.parametrize(("last", "end_ns"), [(0, 1050), (1, 1100), (2, 1100)])
def test_a_tick_of_several_engines_covers_their_time_on_average(last: int, end_ns: int) -> None:
    """But for the load's last; what is under way adds up, and the same answer stands once, with its first request."""
    one, other = (AnswerCount(0, b"a", 2, 9), AnswerCount(1, b"a", 1, 7)), (AnswerCount(0, b"a", 3, 4),)
    whole = merged(
        [
            tick(5, 0, 1000, under_way=3, oldest_ns=70, answers=list(one), last=last > 0),
            tick(5, 40, 1100, under_way=2, oldest_ns=90, answers=list(other), last=last > 1),
        ]
    )
    assert (whole.number, whole.begin_ns, whole.end_ns, whole.last) == (5, 20, end_ns, last == 2)
    assert (whole.under_way, whole.oldest_ns) == (5, 90)
    assert whole.answers == [AnswerCount(0, b"a", 5, 4), AnswerCount(1, b"a", 1, 7)]


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

    def read(names: Collection[str]) -> dict[str, Window]:
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
    later = tick(2, 3 * NS, 4 * NS, oldest_ns=5)
    # An empty window adds nothing, and makes nothing unknown.
    assert Window() + tick(0, good=1, sending_ns=2, receiving_ns=3) == tick(0, good=1, sending_ns=2, receiving_ns=3)
    # However they are put together; the end is that of the last one.
    assert Window() + totals + later == total([tick(0, 0, 3 * NS, requests=5), tick(1, NS, 2 * NS, requests=2), later])
    assert (totals + later).oldest_ns == 5
    assert total([tick(0, 0, 100), tick(5, 500, 600)]).nanoseconds == 200


def test_rates_are_by_hand() -> None:
    """Each derived number of a tick of two seconds is right; an empty one has zero."""
    counts: dict[str, Any] = {"requests": 98, "errors": {"reset": 2}, "due": 200, "sent": 100}
    totals = total([tick(end_ns=2 * NS, in_flight_ns=3 * NS, cpu_ns=10**7, **counts)])
    assert (totals.seconds, totals.throughput) == (2, 49)
    assert (totals.in_flight, totals.cpu_seconds) == (1.5, 0.01)
    empty = Window()
    assert (empty.throughput, empty.in_flight) == (0, 0)
    assert (Histogram().mean, Histogram().known_quantile(0.5)) == (None, None)
    assert total([]) == empty


@pytest.mark.parametrize(("q", "needed"), [(0.1, 2), (0.5, 2), (0.75, 4), (0.9, 10), (0.99, 100), (0.999, 1000)])
def test_a_quantile_is_known_once_something_lies_above_it(q: float, needed: int) -> None:
    """From so many requests on, and not one fewer, the nearest rank is not the last one."""
    assert requests_to_know(q) == needed
    assert math.ceil(Fraction(str(q)) * needed) < needed
    assert math.ceil(Fraction(str(q)) * (needed - 1)) == needed - 1
    assert Histogram({5: needed - 1}, needed, 1).known_quantile(q) is None
    assert Histogram({5: needed}, needed, 1).known_quantile(q) is not None
    # No quantile is beyond the maximum, which no bucket rounds.
    for nanoseconds in (10**6 + 100, 10**6 + 900):
        durations = taken([nanoseconds] * needed)
        assert (durations.known_quantile(q) or 0) <= durations.max_seconds == nanoseconds / 1e9


# -- how an engine counts

SECRET, OTHER = "hf_abcdefghijkl", "sk-ABCDEFGHIJKL"

EDGES = st.integers(1, 35_000).map(lambda around: int(1.001**around))
"""Histogram at a bucket's very edge, which a rounding would put into the next."""
DURATIONS = st.integers(0, 10**13) | st.integers(0, 3000) | EDGES | EDGES.map(lambda edge: max(0, edge - 1))
KEEPING: list[Literal["all", "some"]] = ["all", "some"]


def answer(counters: TickCounters, body: bytes, index: int = 0, number: int = 0, latency_ns: int = 5) -> None:
    """Count a good answer in the way of the loops."""
    counters.latency.note(latency_ns)
    seen = counters.answers[index].get(body)
    if seen is not None:
        seen[0] += 1
    else:
        counters.new_answer(index, number, body)


def close(counters: TickCounters, now_ns: int = 1) -> Window:
    """Close a tick for its answers."""
    return counters.close(now_ns, 0)


@given(pieces=st.lists(st.lists(DURATIONS)))
@example(pieces=[[0, 1, 2, 1_000_000], [], [1_000_000]])
@example(pieces=[[max(0, int(1.001**at) + by) for at in range(1, 35_000) for by in range(-2, 3)]])
def test_a_histogram_is_that_of_its_durations_whenever_it_is_settled(pieces: list[list[int]]) -> None:
    """Buckets equal ``bucket_of`` to the last one, sum and maximum are exact, and the next one begins empty."""
    durations = DurationRecorder()
    for piece in pieces:
        for duration_ns in piece:
            durations.note(duration_ns)
        durations.settle()
    assert durations.close() == taken(duration_ns for piece in pieces for duration_ns in piece)
    assert durations.close() == taken([])


def test_chunks_count_in_the_tick_of_their_arrival() -> None:
    """A tick in which no stream ends has its chunks; one without chunks and ends has no streams."""
    counters = TickCounters()
    counters.tokens = 2
    counters.itl.note(5)
    assert close(counters).streams == Streams(itl=taken([5]), tokens=2)
    assert close(counters).streams is None


def test_the_next_tick_counts_anew() -> None:
    """A tick has the sums of its own answers, and the next one 0."""
    counters = TickCounters()
    counters.good, counters.sending_ns, counters.receiving_ns = 1, 2, 3
    for expected in ((1, 2, 3), (0, 0, 0)):
        tick = close(counters)
        assert (tick.good, tick.sending_ns, tick.receiving_ns) == expected


@pytest.mark.parametrize("payloads", [1, DISTINCT_ANSWERS + 5])
def test_distinct_bodies_are_kept_up_to_a_number(payloads: int) -> None:
    """A surplus body is unchecked, for any payload; kept ones are counted, and the next tick is empty."""
    counters = TickCounters(payloads)
    for number in range(DISTINCT_ANSWERS + 1):
        answer(counters, b"%d" % number, number % payloads, number)
    answer(counters, b"0", number=1000)
    answer(counters, b"%d" % DISTINCT_ANSWERS, DISTINCT_ANSWERS % payloads)
    tick = close(counters)
    assert (len(tick.answers), tick.unchecked, tick.requests) == (DISTINCT_ANSWERS, 2, DISTINCT_ANSWERS + 3)
    assert AnswerCount(0, b"0", 2, 0) in tick.answers
    answer(counters, b"%d" % DISTINCT_ANSWERS)
    assert close(counters).unchecked == 0


@pytest.mark.parametrize(("keep", "sized"), [("none", (3, 14)), ("some", (0, 0)), ("all", (0, 0))])
def test_answers_that_are_not_reported_are_sized(keep: Literal["all", "some", "none"], sized: tuple[int, int]) -> None:
    """Without ``expect=`` a tick has the number and the bytes of its answers instead of the answers."""
    counters = TickCounters(1, keep)
    for body in (b"right", b"ring", b"right"):
        answer(counters, body)
    tick = close(counters)
    assert (tick.requests, bool(tick.answers)) == (3, keep != "none")
    assert (tick.sized, tick.sized_bytes) == sized
    answer(counters, bytes(LARGEST_ANSWER_BYTES + 1))
    assert close(counters).sized_bytes == (LARGEST_ANSWER_BYTES + 1 if keep == "none" else 0)
    assert close(counters).sized == 0


@pytest.mark.parametrize("keep", KEEPING)
def test_a_body_that_no_report_has_room_for_is_unchecked(keep: Literal["all", "some"]) -> None:
    """Even the first body of a tick, with all answers requested, is counted, but not kept."""
    counters = TickCounters(1, keep)
    answer(counters, bytes(LARGEST_ANSWER_BYTES + 1))
    tick = close(counters)
    assert (tick.requests, tick.unchecked, tick.answers) == (1, 1, [])


def test_all_answers_are_kept_where_all_are_asked_for() -> None:
    """All requested answers are kept, as far as they fit into the longest message."""
    counters = TickCounters(1, "all")
    bodies = [b"%d" % number + b"." * 100 for number in range(3 * DISTINCT_ANSWERS)]
    assert sum(map(len, bodies)) > 2 * DISTINCT_ANSWER_BYTES
    for number, body in enumerate(bodies):
        answer(counters, body, number=number)
    tick = close(counters)
    assert tick.unchecked == 0
    assert tick.answers == [AnswerCount(0, body, 1, number) for number, body in enumerate(bodies)]
    size = LARGEST_ANSWER_BYTES
    for number in range(2 * ALL_ANSWER_BYTES // size):
        answer(counters, number.to_bytes(size, "little"))
    tick = close(counters)
    assert (len(tick.answers), tick.unchecked) == (ALL_ANSWER_BYTES // size, ALL_ANSWER_BYTES // size)
    assert len(frame(tick)) < MAX_MESSAGE_BYTES


@pytest.mark.parametrize("before", range(SAMPLE_CHARACTERS - 32, SAMPLE_CHARACTERS + 2))
def test_a_sample_is_short_and_shows_no_secret_nor_the_half_of_one(
    monkeypatch: pytest.MonkeyPatch, before: int
) -> None:
    """Wherever a sample ends, a secret that only the owner knows is in it whole, to be found, or not at all."""
    monkeypatch.setenv("HF_TOKEN", SECRET)
    for kind, secret in (("known here", SECRET), ("known to the owner", OTHER)):
        counters = TickCounters()
        counters.fail(kind, f"{'x' * (before % 2)}{' x' * (before // 2)} {secret}{' x' * 100}")
        sample = close(counters).error_samples[kind]
        assert not any(part in sample.replace(OTHER, "") for part in (SECRET[:5], OTHER[:5]))
        assert len(sample) <= SAMPLE_CHARACTERS + len(OTHER) + 1


MS = 1_000_000
TIMER_NS = 60_000


def looked(still_ns: int, after_ns: int, *, cpu_share: float = 0.0) -> tuple[int, int]:
    """Late beats, and their delays, of an engine that works for such a share and stands still once after the first."""
    beats = Beats()
    beats.begin(0, 0)
    now_ns, worked_ns = 0, 0.0
    for _ in range(9):
        next_ns = beats.next_ns + TIMER_NS
        stopped = now_ns <= after_ns < next_ns
        worked_ns += cpu_share * ((after_ns if stopped else next_ns) - now_ns)
        now_ns = max(next_ns, after_ns + still_ns) if stopped else next_ns
        beats.look(now_ns, round(worked_ns))
    return beats.take()


@given(st.integers(0, BEAT_NS - 1), st.floats(0.0, 1.0))
def test_who_runs_has_no_late_beats(after_ns: int, cpu_share: float) -> None:
    """Delays of timers, and other turns on the core as short as a millisecond, are not late beats."""
    assert looked(0, after_ns, cpu_share=cpu_share) == (0, 0)
    assert looked(ON_TIME_NS - TIMER_NS, after_ns) == (0, 0)


@given(st.integers(2 * MS, 400 * MS), st.integers(0, BEAT_NS - 1))
def test_each_beat_of_a_standstill_is_late_until_its_end(still_ns: int, after_ns: int) -> None:
    """Each beat that was due in a standstill is late until its end, and none is missing."""
    end_ns = after_ns + still_ns
    delays = [end_ns - due_ns for due_ns in range(BEAT_NS, end_ns, BEAT_NS) if end_ns - due_ns > ON_TIME_NS]
    assert looked(still_ns, after_ns) == (len(delays), sum(delays))


@given(st.integers(BEAT_NS, 400 * MS))
def test_who_works_for_long_is_busy_and_not_held_up(work_ns: int) -> None:
    """Work for longer than a beat is not a pause; the part of that time without work is."""
    beats = Beats()
    beats.begin(0, 0)
    beats.look(BEAT_NS + work_ns, work_ns)
    assert beats.take() == (0, 0)
    beats.look(2 * BEAT_NS + 2 * work_ns + 3 * MS, 2 * work_ns)
    assert beats.take() == (1, 3 * MS)


def test_waiting_for_a_core_is_no_standstill() -> None:
    """With more busy processes than cores, the busy clock of a process runs like time, its CPU time does not."""
    cores = len(os.sched_getaffinity(0))
    clock = BusyClock()
    burners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2 * cores)]
    try:
        began, cpu, busy = time.perf_counter_ns(), time.process_time_ns(), clock.read_ns(time.process_time_ns())
        while time.perf_counter_ns() < began + 500_000_000:
            pass
        length = time.perf_counter_ns() - began
        worked = time.process_time_ns() - cpu
        known = clock.read_ns(time.process_time_ns()) - busy
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()
        clock.close()
    assert worked < 0.8 * length
    assert known > 0.9 * length


def test_without_the_kernels_word_only_work_is_known() -> None:
    """Without a file in ``/proc``, and after the clock was closed, only CPU time is known."""
    clock = BusyClock()
    clock.close()
    clock.close()
    assert clock.read_ns(123) == 123
