"""What is counted in a tick, without any engine around it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuserve.load.tally import DISTINCT_ANSWER_BYTES, DISTINCT_ANSWERS, SAMPLE_CHARACTERS, Tally
from pytest_gpuserve.load.wire import Answers
from pytest_gpuserve.measure.histogram import bucket_of

ANSWERED = st.tuples(st.integers(0, 10**12), st.binary(max_size=2))
FAILED = st.tuples(st.sampled_from(["timeout", "protocol", "status 503"]), st.text(max_size=3))


@given(answered=st.lists(ANSWERED), failed=st.lists(FAILED))
def test_a_tick_is_the_exact_account_of_its_requests(
    answered: list[tuple[int, bytes]], failed: list[tuple[str, str]]
) -> None:
    """Number, sum, maximum, buckets, bodies and errors are those of a plain recount."""
    tally = Tally(10, 20)
    for latency_ns, body in answered:
        tally.answered(latency_ns, body)
    for kind, sample in failed:
        tally.failed(kind, sample)
    tick = tally.close(1000, 50, 7)
    latencies = [latency_ns for latency_ns, _ in answered]
    buckets = [bucket_of(latency_ns) for latency_ns in latencies]
    bodies = [body for _, body in answered]
    kinds = [kind for kind, _ in failed]
    assert (tick.begin_ns, tick.end_ns, tick.cpu_ns, tick.in_flight) == (10, 1000, 30, 7)
    assert (tick.requests, tick.latency_sum_ns) == (len(latencies), sum(latencies))
    assert tick.latency_max_ns == max(latencies, default=0)
    assert tick.buckets == {bucket: buckets.count(bucket) for bucket in buckets}
    assert {answers.body: answers.count for answers in tick.answers} == {body: bodies.count(body) for body in bodies}
    assert tick.errors == {kind: kinds.count(kind) for kind in kinds}
    assert tick.error_samples == dict(reversed(failed))
    assert tick.unchecked == 0


def test_a_tick_begins_where_the_last_one_ended_and_knows_nothing_of_it() -> None:
    """After close everything is counted from nought, times included."""
    tally = Tally(0, 0)
    tally.answered(5, b"a")
    tally.failed("timeout", "first")
    tally.close(100, 40, 1)
    tick = tally.close(300, 45, 0)
    assert (tick.begin_ns, tick.end_ns, tick.cpu_ns) == (100, 300, 5)
    assert (tick.requests, tick.latency_sum_ns, tick.latency_max_ns, tick.unchecked) == (0, 0, 0, 0)
    assert (tick.buckets, tick.errors, tick.error_samples, tick.answers) == ({}, {}, {}, [])


def test_distinct_bodies_are_kept_up_to_a_number() -> None:
    """One body too many is counted as unchecked; those already kept go on being counted, and the next tick is free."""
    tally = Tally(0, 0)
    for number in range(DISTINCT_ANSWERS + 1):
        tally.answered(1, b"%d" % number)
    tally.answered(1, b"0")
    tally.answered(1, b"%d" % DISTINCT_ANSWERS)
    tick = tally.close(1, 1, 0)
    assert (len(tick.answers), tick.unchecked, tick.requests) == (DISTINCT_ANSWERS, 2, DISTINCT_ANSWERS + 3)
    assert Answers(b"0", 2) in tick.answers
    tally.answered(1, b"%d" % DISTINCT_ANSWERS)
    assert tally.close(2, 2, 0).unchecked == 0


def test_bodies_are_kept_up_to_a_number_of_bytes() -> None:
    """Bodies that exactly fill the bound are kept; one byte more is unchecked."""
    half = DISTINCT_ANSWER_BYTES // 2
    tally = Tally(0, 0)
    for body in (b"a" * half, b"b" * half, b"c"):
        tally.answered(1, body)
    tick = tally.close(1, 1, 0)
    assert [len(answers.body) for answers in tick.answers] == [half, half]
    assert tick.unchecked == 1


def test_a_large_body_is_still_looked_at() -> None:
    """The first body of a tick is kept whatever its size, or a server of large answers would never be checked."""
    tally = Tally(0, 0)
    for _ in range(3):
        tally.answered(1, b"x" * (10 * DISTINCT_ANSWER_BYTES))
    tally.answered(1, b"y" * (10 * DISTINCT_ANSWER_BYTES))
    tick = tally.close(1, 1, 0)
    assert [(len(answers.body), answers.count) for answers in tick.answers] == [(10 * DISTINCT_ANSWER_BYTES, 3)]
    assert tick.unchecked == 1


def test_samples_of_errors_are_short() -> None:
    """A sample is cut, however much a server had to say."""
    tally = Tally(0, 0)
    tally.failed("status 500", "x" * 10_000)
    assert len(tally.close(1, 1, 0).error_samples["status 500"]) == SAMPLE_CHARACTERS
