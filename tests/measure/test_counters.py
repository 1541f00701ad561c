"""Counts: the histogram of latencies, and a server's counts between two readings."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pytest_gpuserve.measure.counters import (
    Counters,
    ServerSetting,
    StageTime,
    WentBackwards,
    added,
    counted_between,
    differences,
    moved,
)
from pytest_gpuserve.measure.histogram import LARGEST_BUCKET, Histogram, bucket_of, merge, seconds_of
from pytest_gpuserve.measure.window import COMPUTE

LATENCIES_NS = st.lists(st.integers(1, 10**14), min_size=1, max_size=200)
QUANTILES = st.sampled_from([0.5, 0.9, 0.95, 0.99, 1.0])
HISTOGRAMS = st.dictionaries(st.integers(0, LARGEST_BUCKET), st.integers(1, 10**15), max_size=40).map(Histogram)


def of(latencies_ns: list[int]) -> Histogram:
    """The histogram of some latencies."""
    return Histogram(dict(Counter(map(bucket_of, latencies_ns))))


@given(latencies=LATENCIES_NS, q=QUANTILES)
@example(latencies=list(range(1, 101)), q=0.99)
def test_a_quantile_is_within_half_a_per_mille_of_the_exact_one(latencies: list[int], q: float) -> None:
    """The nearest-rank quantile is off by 0.05 % at most, at any latency from 1 ns to a day."""
    rank = math.ceil(Fraction(str(q)) * len(latencies))
    exact = sorted(latencies)[rank - 1] * 1e-9
    assert of(latencies).quantile(q) == pytest.approx(exact, rel=0.0005 + 1e-9)


@pytest.mark.parametrize("q", [0.07, 0.5, 0.55, 0.9, 0.95, 0.99])
def test_the_rank_is_exact(q: float) -> None:
    """No rounding of ``q * n`` moves the rank by one, seen where the latencies step up just before or after it."""
    for total in (1, 2, 99, 100, 101, 1000, 2000, 99_999, 100_000, 1_000_000):
        rank = math.ceil(Fraction(str(q)) * total)
        below = {1000: rank - 1} if rank > 1 else {}
        above = {2000: total - rank} if total > rank else {}
        assert Histogram({**below, 2000: total - rank + 1}).quantile(q) == seconds_of(2000), total
        assert Histogram({1000: rank, **above}).quantile(q) == seconds_of(1000), total


@given(parts=st.lists(LATENCIES_NS, max_size=6))
def test_merging_parts_is_the_whole(parts: list[list[int]]) -> None:
    """Merged histograms equal the histogram of all latencies, so windows lose no information."""
    assert merge(map(of, parts)) == of([latency for part in parts for latency in part])
    # A clock that stood still is the first bucket, not a crash.
    assert [bucket_of(latency_ns) for latency_ns in (-5, 0, 1)] == [0, 0, 0]


@pytest.mark.parametrize("q", [0.0, -0.1, 1.01, math.nan])
def test_what_has_no_quantile_is_an_error(q: float) -> None:
    """99 for 0.99, and no answers at all, which are never 0 seconds."""
    with pytest.raises(ValueError, match="must be in"):
        Histogram({1: 1}).quantile(q)
    assert merge([]).total == 0
    with pytest.raises(ValueError, match="empty"):
        merge([]).quantile(0.5)


@pytest.mark.parametrize("counts", [{3: 0}, {3: -1}, {-1: 1}, {LARGEST_BUCKET + 1: 1}])
def test_counts_that_cannot_be_are_refused(counts: dict[int, int]) -> None:
    """A bucket with a count of 0 is refused, because it would be read back as one latency."""
    with pytest.raises(ValueError, match="histogram's"):
        Histogram(counts)


@given(histogram=HISTOGRAMS)
def test_text_reads_back_as_the_histogram(histogram: Histogram) -> None:
    """Sum and maximum to six digits, the first bucket, then gaps, each with its count."""
    assert Histogram.from_text(histogram.to_text()) == histogram
    assert Histogram({7: 1, 10: 25, 11: 1}, 333_333_333, 250_000_000).to_text() == "0.333333 0.25 7+1 3+25 1+1"
    assert Histogram({}).to_text() == ""


@given(counts=st.dictionaries(st.integers(0, 500), st.integers(1, 100), min_size=1, max_size=80))
def test_a_thin_histogram_has_the_quantiles_of_metrics(counts: dict[int, int]) -> None:
    """With total, mean and what came within one read, in at most eight buckets; thinning again changes none."""
    whole = Histogram(counts, sum_ns=500 * sum(counts.values()))
    thin = whole.thinned()
    for q in (0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0):
        assert thin.quantile(q) == whole.quantile(q)
    assert (thin.total, thin.counts.get(0)) == (whole.total, whole.counts.get(0))
    assert thin.mean == whole.mean
    assert len(thin.counts) <= 8
    assert thin.thinned() == thin


DAMAGED = [
    *("5", "5+1", "1 1", "1 1 5", "1 1 5+", "1 1 +5", "1 1 5+0", "1 1 5+-1", "1 1 5+٣", "1 1 5+1 ", "1  1 5+1"),
    *("-1 1 5+1", "1 1 5+1 0+1", "nan 1 5+1", "1 1e13 5+1", "1.2.3 1 5+1", "9e99 1 5+1"),
]
HUGE = ["9" * 1_000_000, "1 1 1+" + "9" * 1_000_000, "1 1 60001+1", "1 1 60000+1 1+1", "0" * 1_000_000]


@pytest.mark.parametrize("text", [*DAMAGED, *HUGE], ids=lambda text: text[:14])
def test_what_was_never_written_is_refused(text: str) -> None:
    """A number with a million digits is neither computed nor shown."""
    with pytest.raises(ValueError, match=r".") as caught:
        Histogram.from_text(text)
    assert len(str(caught.value)) < 200


COUNT = st.integers(0, 10**9)
TIMES = st.builds(StageTime, st.floats(0, 1e6), COUNT)
SIZES = st.dictionaries(st.sampled_from(["1", "4", "8"]), st.integers(1, 10**6), max_size=3)
PART = st.builds(
    Counters,
    items=COUNT,
    batches=st.integers(1, 10**9),
    batch_sizes=SIZES,
    stages=st.dictionaries(st.sampled_from([COMPUTE, "queue"]), TIMES),
    requests=st.none() | COUNT,
    tallies=st.dictionaries(st.sampled_from(["prompt_tokens", "preemptions"]), COUNT),
)
READING = st.builds(replace, PART, parts=st.dictionaries(st.sampled_from("ab"), PART))

EARLY = Counters(
    items=10,
    batches=4,
    batch_sizes={"1": 1, "4": 3},
    stages={COMPUTE: StageTime(1.0, 4)},
    requests=9,
    parts={"model": Counters(items=10, batches=4)},
    tallies={"preemptions": 2},
)


@given(before=READING, meanwhile=READING)
def test_what_was_counted_meanwhile_is_found(before: Counters, meanwhile: Counters) -> None:
    """The difference of two readings is the growth in between; equal readings have an empty difference."""
    after = added([before, meanwhile])
    assert after is not None
    found = counted_between(before, after)
    sizes = dict(sorted(meanwhile.batch_sizes.items()))
    assert (found.items, found.batches, found.batch_sizes) == (meanwhile.items, meanwhile.batches, sizes)
    assert {name: count for name, count in found.tallies.items() if count or name in meanwhile.tallies} == dict(
        sorted(meanwhile.tallies.items())
    )
    assert found.requests == (meanwhile.requests if before.requests is not None else None)
    for name, time in meanwhile.stages.items():
        if time.count:
            assert found.stages[name].count == time.count
            assert found.stages[name].seconds == pytest.approx(time.seconds, rel=1e-6, abs=1e-6)
    parts = {name: part.items for name, part in meanwhile.parts.items()}
    assert {name: part.items for name, part in found.parts.items()} == parts
    nothing = counted_between(before, before)
    assert (nothing.items, nothing.batches) == (0, 0)
    assert (dict(nothing.batch_sizes), dict(nothing.stages), dict(nothing.parts)) == ({}, {}, {})


@pytest.mark.parametrize(
    ("late", "named"),
    [
        (replace(EARLY, items=9), "items fell from 10 to 9"),
        (replace(EARLY, requests=8), "requests fell from 9 to 8"),
        (replace(EARLY, tallies={}), "preemptions fell from 2 to 0"),
        (replace(EARLY, batch_sizes={"1": 1}), "batches of 4 fell from 3 to 0"),
        (replace(EARLY, stages={}), "count of compute fell from 4 to 0"),
        (replace(EARLY, stages={COMPUTE: StageTime(0.5, 4)}), "seconds of compute fell from 1.0 to 0.5"),
        (replace(EARLY, items=20, batches=9, parts={"model": Counters(items=12, batches=1)}), "model: batches fell"),
    ],
)
def test_a_counter_that_was_reset_is_named(late: Counters, named: str) -> None:
    """Any counter that is smaller than before says that something was started anew, also where others rose."""
    with pytest.raises(WentBackwards, match=named):
        counted_between(EARLY, late)


def test_what_was_not_told_at_one_end_is_not_known() -> None:
    """A number of requests that is missing in the first reading is unknown."""
    for before, after in ((None, 9), (9, None), (None, None)):
        assert counted_between(replace(EARLY, requests=before), replace(EARLY, requests=after)).requests is None


def test_only_known_differences_of_settings_are_told() -> None:
    """A setting without a requested or reported value does not differ, and has not moved."""
    known = {"same": ("8", "8"), "wait": ("10", "50"), "free": ("4", None), "silent": (None, "4")}
    found = differences({name: ServerSetting(*values) for name, values in known.items()})
    assert found == ["wait: asked for 50, the server uses 10"]
    before, now = (
        {name: ServerSetting(value) for name, value in each.items()}
        for each in (
            {"limit": "32", "wait": "10", "silent": None, "gone": "1"},
            {"limit": "16", "wait": "10", "silent": "3", "new": "2"},
        )
    )
    assert moved(before, now) == ["setting limit: 32 before, 16 now"]
