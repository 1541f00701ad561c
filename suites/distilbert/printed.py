"""A run in the form of the published text: the lines that hey prints, as values."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

from pytest_gpuserve.measure.histogram import seconds_of

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpuserve.measure.histogram import Histogram
    from pytest_gpuserve.measure.window import Window

PERCENTS = (10, 25, 50, 75, 90, 95, 99)
BINS = 11


def as_printed(summary: Window, *, reply_bytes: int) -> dict[str, object]:
    """Describe the result of a load in hey's order; seconds, and latencies by percentile.

    Args:
        summary: Summary of the load.
        reply_bytes: Length of each answer's body; all are equal.
    """
    return {
        "total_seconds": summary.seconds,
        "slowest_seconds": summary.max,
        # The smallest latency is the lowest known quantile.
        "fastest_seconds": summary.quantile(1 / summary.requests),
        "average_seconds": summary.mean,
        "requests_per_second": summary.throughput,
        "response_bytes_each": reply_bytes,
        "response_bytes_total": reply_bytes * summary.requests,
        "histogram_seconds": [[edge, count] for edge, count in bins_of(summary.latency, BINS)],
        "latency_seconds": {f"p{percent}": summary.quantile(percent / 100) for percent in PERCENTS},
        "status_codes": {"200": summary.requests},
        "errors": summary.error_count,
    }


def bins_of(latency: Histogram, bins: int) -> list[tuple[float, int]]:
    """Count latencies in bins of equal width between the smallest and the largest.

    Returns:
        Upper edge in seconds of each bin, and the number of latencies up to it, above the previous edge.
    """
    known = {seconds_of(bucket): count for bucket, count in latency.counts.items()}
    low, high = min(known), max(known)
    width = (high - low) / bins
    counts = [0] * bins
    for seconds, count in known.items():
        place = math.ceil((seconds - low) / width) - 1 if width else 0
        counts[min(max(place, 0), bins - 1)] += count
    return [(low + (number + 1) * width, count) for number, count in enumerate(counts)]


def save_printed(file: Path, summary: Window, *, reply_bytes: int) -> None:
    """Write it as JSON; the folder is made."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(as_printed(summary, reply_bytes=reply_bytes), indent=1) + "\n", encoding="utf-8")
