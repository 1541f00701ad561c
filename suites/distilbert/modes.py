"""Uneven latencies of a closed loop against a batching server, and their visibility in a histogram.

The published text says of 50 connections and batches of 32 "the response time is not even due to the request is not
enough". The cause are two modes, whose places and sizes follow from these two numbers (`expected_modes`).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    Bins = Sequence[tuple[float, int]]
    """Upper edges in seconds, rising, and the number of latencies in each bin."""

LEAST_SHARE = 0.10
"""Smallest share of all latencies in a bin that can be the peak of a mode."""

DEEPEST = 0.25
"""A bin between two peaks separates them if it has at most this share of the lower one."""


@dataclass(frozen=True, slots=True)
class Mode:
    """A hump of a histogram.

    Args:
        seconds: Upper edge of its fullest bin.
        share: Share of all latencies in it, from the valley before it to the one after.
    """

    seconds: float
    share: float


def modes_of(histogram: Bins) -> list[Mode]:
    """Find the modes: peaks of at least `LEAST_SHARE`, separated by valleys of at most `DEEPEST`.

    A valley belongs to the mode after it. Without latencies the result is empty.
    """
    counts = [count for _, count in histogram]
    total = sum(counts)
    peaks: list[int] = []
    for place, count in enumerate(counts):
        if not total or count < LEAST_SHARE * total:
            continue
        if peaks and min(counts[peaks[-1] : place + 1]) > DEEPEST * min(counts[peaks[-1]], count):
            if count > counts[peaks[-1]]:
                peaks[-1] = place
            continue
        peaks.append(place)
    # The first of equal valleys, so that empty bins before a mode belong to it.
    starts = [
        0,
        *(min(range(a, b), key=lambda place: (counts[place], place)) for a, b in pairwise(peaks)),
    ]
    ends = [*starts[1:], len(counts)]
    return [
        Mode(histogram[peak][0], sum(counts[start:end]) / total)
        for peak, start, end in zip(peaks, starts, ends, strict=False)
    ]


def expected_modes(concurrency: int, max_batch_size: int) -> dict[int, float]:
    """Expected latencies as multiples of the time of a batch, with the share of the requests at each.

    The model is one inference process that always finds a full batch, a queue in order, and users without pauses. When
    a batch ends, its users send again at once. Then ``c - B`` of ``c`` users wait, so a new request is in the batch
    number ``ceil((c - B + place) / B)`` from now, for its place 1 to ``B`` among the new ones. The mean is ``c / B``
    batches, as by Little's law.

    Args:
        concurrency: ``c``, at least the size of a batch.
        max_batch_size: ``B``.

    Returns:
        Share by number of batches; one entry, or two neighbours.

    Raises:
        ValueError: The batches cannot be full.
    """
    if concurrency < max_batch_size:
        raise ValueError(f"{concurrency} users do not fill batches of {max_batch_size}")
    batches, rest = divmod(concurrency, max_batch_size)
    shares = {batches: 1 - rest / max_batch_size}
    if rest:
        shares[batches + 1] = rest / max_batch_size
    return shares


def without_tail(histogram: Bins, *, share: float = 0.99, bins: int = 11) -> list[tuple[float, int]]:
    """Make a coarse histogram of a fine one's first part, so that one slow request does not compress all others.

    Args:
        histogram: The fine histogram.
        share: Share of all latencies that must be kept.
        bins: Number of bins of the coarse one, if the fine one has as many.
    """
    total = sum(count for _, count in histogram)
    kept: list[tuple[float, int]] = []
    seen = 0
    for edge, count in histogram:
        if seen >= share * total:
            break
        kept.append((edge, count))
        seen += count
    coarse: list[tuple[float, int]] = []
    for number in range(bins):
        group = kept[number * len(kept) // bins : (number + 1) * len(kept) // bins]
        if group:
            coarse.append((group[-1][0], sum(count for _, count in group)))
    return coarse
