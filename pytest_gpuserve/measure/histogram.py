"""A mergeable log-bucket histogram of latencies, so that memory does not grow with the number of requests.

A bucket ``i`` holds the latencies in ``[1.001**i, 1.001**(i+1))`` nanoseconds. Its geometric middle stands for all of
them, so each latency is at most 0.05 % off. A coarser sketch (1 %, as in many tools) would be as coarse as the changes
that a gate must tell apart.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping  # noqa: TC003 -- msgspec reads the annotations
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

BASE = 1.001
LOG_BASE = math.log(BASE)
LOG2_BASE = math.log2(BASE)
LARGEST_BUCKET = 60_000
"""Bucket of about 10**26 ns: a larger one in a file is damage, not a latency."""

LONGEST_SECONDS = 1e12

KEPT_RANKS = (0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0)
"""Quantiles of all metrics, and further ones that show readers the shape."""

ONE_READ_SHARE = 0.2
"""Largest share of the gaps beyond a quantile, on its smaller tail, that may lie within one read: a fifth."""

_SECONDS = r"([0-9][0-9.]{0,11}(?:e[+-][0-9]{2})?)"
_TEXT = re.compile(rf"{_SECONDS} {_SECONDS}((?: [0-9]{{1,5}}\+[1-9][0-9]{{0,15}})+)", re.ASCII)
"""Bounded in length, so that damaged text cannot become a number that takes long to read."""


def bucket_of(latency_ns: int) -> int:
    """Return the bucket of a latency; everything below one nanosecond counts as one."""
    # Python 3.11's math.log takes twice as long as its log2, and the engine does this for each request.
    return int(math.log2(latency_ns) / LOG2_BASE) if latency_ns > 1 else 0


def seconds_of(bucket: int) -> float:
    """Return the latency in seconds that represents a bucket."""
    return math.exp((bucket + 0.5) * LOG_BASE) * 1e-9


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts of latencies by bucket, with their exact sum and maximum.

    Args:
        counts: Bucket to number of latencies, every number at least one.
        sum_ns: Sum of the latencies in nanoseconds; 0 if the histogram is empty.
        max_ns: Largest latency in nanoseconds; 0 likewise.

    Raises:
        ValueError: A count is below one, or a bucket is out of range.
    """

    counts: Mapping[int, int] = field(default_factory=dict)
    sum_ns: int = 0
    max_ns: int = 0

    def __post_init__(self) -> None:
        if not self.counts:
            return
        if min(self.counts.values()) < 1:
            raise ValueError("a histogram's counts are at least one")
        if min(self.counts) < 0 or max(self.counts) > LARGEST_BUCKET:
            raise ValueError(f"a histogram's buckets must be in 0..{LARGEST_BUCKET}")

    @property
    def total(self) -> int:
        """Number of latencies."""
        return sum(self.counts.values())

    @property
    def sum_seconds(self) -> float:
        """Sum of the latencies in seconds."""
        return self.sum_ns / 1e9

    @property
    def max_seconds(self) -> float:
        """Largest latency in seconds."""
        return self.max_ns / 1e9

    @property
    def mean(self) -> float | None:
        """Mean of the latencies in seconds; None if the histogram is empty."""
        total = self.total
        return self.sum_ns / total / 1e9 if total else None

    def slowest_seconds(self, number: int) -> float:
        """Sum of this number of slowest latencies in seconds, each by its bucket; of all if there are fewer."""
        left, seconds = number, 0.0
        for bucket in sorted(self.counts, reverse=True):
            taken = min(left, self.counts[bucket])
            seconds += taken * seconds_of(bucket)
            left -= taken
            if not left:
                break
        return seconds

    def quantile(self, q: float) -> float:
        """Return the nearest-rank quantile in seconds (the smallest latency with a share ``q`` at or below it).

        Raises:
            ValueError: The histogram is empty, or ``q`` is outside (0, 1].
        """
        if not 0 < q <= 1:
            raise ValueError(f"a quantile must be in (0, 1], not {q}")
        total = self.total
        if total == 0:
            raise ValueError("an empty histogram has no quantiles")
        # The tiny subtraction keeps 0.99 * 100 = 99.00000000000001 from selecting the 100th of 100.
        rank = max(1, math.ceil(q * total - 1e-9))
        seen = 0
        for bucket in sorted(self.counts):
            seen += self.counts[bucket]
            if seen >= rank:
                return seconds_of(bucket)
        raise AssertionError("unreachable: the last bucket reaches every rank")

    def known_quantile(self, q: float) -> float | None:
        """Return the nearest-rank quantile in seconds, never above the maximum.

        None if there are fewer than ``requests_to_know(q)``.

        Raises:
            ValueError: ``q`` is outside (0, 1).
        """
        return None if self.total < requests_to_know(q) else min(self.quantile(q), self.max_seconds)

    def thinned(self) -> Histogram:
        """Reduce to the ranks that a file keeps: their quantiles, total, sum and maximum do not change.

        Every time moves up to the next kept rank. The first bucket stays, because it holds the chunks of one read.
        """
        total = self.total
        ends = {max(1, math.ceil(q * total - 1e-9)) for q in KEPT_RANKS} if total else set()
        counts: dict[int, int] = {}
        seen = kept = 0
        for bucket in sorted(self.counts):
            seen += self.counts[bucket]
            if bucket == 0 or any(kept < end <= seen for end in ends):
                end = seen if bucket == 0 else max(end for end in ends if end <= seen)
                counts[bucket] = end - kept
                kept = end
        return Histogram(counts, self.sum_ns, self.max_ns)

    def to_text(self) -> str:
        """Write it as ``SUM MAX first+count gap+count ...``, one token a bucket, seconds to six digits; empty if empty.

        Plain text rather than packed bytes: a reviewer can read it and git compresses it as well.
        """
        if not self.counts:
            return ""
        tokens = [f"{self.sum_seconds:.6g}", f"{self.max_seconds:.6g}"]
        last = 0
        for bucket in sorted(self.counts):
            tokens.append(f"{bucket - last}+{self.counts[bucket]}")
            last = bucket
        return " ".join(tokens)

    @classmethod
    def from_text(cls, text: str) -> Histogram:
        """Read what ``to_text`` wrote.

        Raises:
            ValueError: The text is not of that form, buckets do not rise, or a number is out of range.
        """
        if not text:
            return cls({})
        found = _TEXT.fullmatch(text)
        if found is None:
            raise ValueError(f"{text[:40]!r} is not SUM MAX FIRST+COUNT GAP+COUNT ...")
        counts: dict[int, int] = {}
        bucket = 0
        for token in found[3].split():
            gap, count = map(int, token.split("+"))
            if counts and not gap:
                raise ValueError(f"buckets must rise, but {token!r} does not")
            bucket += gap
            counts[bucket] = count
        sum_seconds, max_seconds = float(found[1]), float(found[2])
        if not max(sum_seconds, max_seconds) < LONGEST_SECONDS:
            raise ValueError(f"{sum_seconds:g} s is not a measured time")
        return cls(counts, round(sum_seconds * 1e9), round(max_seconds * 1e9))


def merge(histograms: Iterable[Histogram]) -> Histogram:
    """Add histograms exactly: every quantile of the result is that of the pooled latencies."""
    known = [histogram for histogram in histograms if histogram.counts]
    if len(known) < 2:
        return known[0] if known else Histogram()
    # A load's sum is much longer than the tick that is added to it: it is copied, not counted again.
    known.sort(key=lambda histogram: len(histogram.counts), reverse=True)
    counts = dict(known[0].counts)
    for histogram in known[1:]:
        for bucket, count in histogram.counts.items():
            counts[bucket] = counts.get(bucket, 0) + count
    return Histogram(counts, sum(each.sum_ns for each in known), max(each.max_ns for each in known))


def requests_to_know(q: float) -> int:
    """Return the smallest number of requests that makes a quantile known, with at least one of them above it.

    With fewer, the nearest rank is the last one, and the quantile is only the maximum: below 100 for p99.

    Raises:
        ValueError: ``q`` is outside (0, 1).
    """
    if not 0 < q < 1:
        raise ValueError(f"a quantile that can be unknown must be in (0, 1), not {q}")
    # Rounded first: 1 - 0.9 is not quite 0.1.
    return math.ceil(round(1 / (1 - q), 6))


def within_one_read(times: Histogram) -> float:
    """Return the share of the times between a stream's chunks that lies within one read.

    Chunks that come in one read have the same time of arrival; other chunks are never a nanosecond apart.
    """
    return times.counts.get(0, 0) / times.total if times.total else 0.0


def is_quantile_known(times: Histogram, q: float) -> bool:
    """Whether a quantile of the times between chunks is known.

    A gap within one read counts as zero, and the gap before it as longer than it was. Their sum, and so the mean, is
    right.
    """
    # Rounded: 1 - 0.9 is not quite 0.1.
    return within_one_read(times) <= round(ONE_READ_SHARE * min(q, 1 - q), 9)
