"""The histogram of latencies: exact enough, mergeable, and safe to read."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pytest_gpuserve.measure.histogram import LARGEST_BUCKET, Histogram, bucket_of, merge, seconds_of

LATENCIES_NS = st.lists(st.integers(1, 10**14), min_size=1, max_size=200)
QUANTILES = st.sampled_from([0.5, 0.9, 0.95, 0.99, 1.0])
HISTOGRAMS = st.dictionaries(st.integers(0, LARGEST_BUCKET), st.integers(1, 10**15), max_size=40).map(Histogram)


def of(latencies_ns: list[int]) -> Histogram:
    """The histogram of some latencies."""
    return Histogram(dict(Counter(map(bucket_of, latencies_ns))))


def nearest_rank(values: list[int], q: float) -> int:
    """The smallest value with at least ``q`` of all at or below it, by exact arithmetic."""
    return sorted(values)[math.ceil(Fraction(str(q)) * len(values)) - 1]


@given(latencies=LATENCIES_NS, q=QUANTILES)
@example(latencies=list(range(1, 101)), q=0.99)
def test_a_quantile_is_within_half_a_per_mille_of_the_exact_one(latencies: list[int], q: float) -> None:
    """The nearest-rank quantile is off by 0.05 % at most, at any latency from 1 ns to a day."""
    exact = nearest_rank(latencies, q) * 1e-9
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
    whole = Histogram(counts)
    thin = whole.thinned()
    for q in (0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0):
        assert thin.quantile(q) == whole.quantile(q)
    assert (thin.total, thin.counts.get(0)) == (whole.total, whole.counts.get(0))
    assert thin.mean_of_buckets == pytest.approx(whole.mean_of_buckets, abs=1e-9)
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
