"""Counts of a tick and pauses of an engine, which its beats tell, without an engine."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import Literal

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
from pytest_gpuserve.load.tick import AnswerCount, Tick
from pytest_gpuserve.load.wire import BEAT_NS, MAX_MESSAGE_BYTES, frame
from tests.load.ticks import taken

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


def close(counters: TickCounters, now_ns: int = 1) -> Tick:
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


@given(bodies=st.lists(st.tuples(st.integers(0, 2), st.binary(max_size=2)), max_size=40))
def test_what_was_received_is_kept_or_counted(bodies: list[tuple[int, bytes]]) -> None:
    """Kept and unchecked answers together are all answers, however answers are kept."""
    for keep in KEEPING:
        counters = TickCounters(3, keep)
        for number, (index, body) in enumerate(bodies):
            answer(counters, body, index, number)
        tick = close(counters)
        assert sum(answers.count for answers in tick.answers) + tick.unchecked == tick.requests == len(bodies)


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
