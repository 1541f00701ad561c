"""Counts of a tick, without an engine."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Literal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pytest_gpuserve.load.engine.tick_counters import (
    ALL_ANSWER_BYTES,
    DISTINCT_ANSWER_BYTES,
    DISTINCT_ANSWERS,
    LARGEST_ANSWER_BYTES,
    SAMPLE_CHARACTERS,
    DurationRecorder,
    TickCounters,
)
from pytest_gpuserve.load.tick import AnswerCount
from pytest_gpuserve.load.wire import MAX_MESSAGE_BYTES, frame
from pytest_gpuserve.measure.histogram import Histogram, bucket_of

if TYPE_CHECKING:
    from pytest_gpuserve.load.tick import Tick

SECRET, OTHER = "hf_abcdefghijkl", "sk-ABCDEFGHIJKL"

EDGES = st.integers(1, 35_000).map(lambda around: int(1.001**around))
"""Histogram at a bucket's very edge, which a rounding would put into the next."""
DURATIONS = st.integers(0, 10**13) | st.integers(0, 3000) | EDGES | EDGES.map(lambda edge: max(0, edge - 1))
KEEPING: list[Literal["all", "some", "none"]] = ["all", "some", "none"]


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
    noted = [duration_ns for piece in pieces for duration_ns in piece]
    buckets = dict(Counter(map(bucket_of, noted)))
    assert durations.close() == Histogram(buckets, sum(noted), max(noted, default=0))
    assert durations.close() == Histogram()


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
def test_a_body_that_no_report_has_room_for_is_unchecked(keep: Literal["all", "some", "none"]) -> None:
    """Even the first body of a tick, with all answers requested, is counted, but not kept."""
    counters = TickCounters(1, keep)
    answer(counters, bytes(LARGEST_ANSWER_BYTES + 1))
    tick = close(counters)
    assert (tick.requests, tick.unchecked, tick.answers) == (1, 1, [])


def test_all_answers_are_kept_where_all_are_asked_for() -> None:
    """Beyond the number and bytes that bound a report otherwise, up to what fits into the longest message."""
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
        assert keep != "none" or not tick.answers


@pytest.mark.parametrize("before", range(SAMPLE_CHARACTERS - 32, SAMPLE_CHARACTERS + 2))
def test_a_sample_is_short_and_shows_no_secret_nor_the_half_of_one(
    monkeypatch: pytest.MonkeyPatch, before: int
) -> None:
    """Wherever its end falls; what only the owner knows for one is there whole, to be found, or not at all."""
    monkeypatch.setenv("HF_TOKEN", SECRET)
    for kind, secret in (("known here", SECRET), ("known to the owner", OTHER)):
        counters = TickCounters()
        counters.fail(kind, f"{'x' * (before % 2)}{' x' * (before // 2)} {secret}{' x' * 100}")
        sample = close(counters).error_samples[kind]
        assert not any(part in sample.replace(OTHER, "") for part in (SECRET[:5], OTHER[:5]))
        assert len(sample) <= SAMPLE_CHARACTERS + len(OTHER) + 1
