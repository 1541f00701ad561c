"""A run in the form of the published text: the lines that hey prints, as values."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpuserve.measure.summary import Summary

PERCENTS = (10, 25, 50, 75, 90, 95, 99)
BINS = 11


def as_printed(summary: Summary, *, reply_bytes: int) -> dict[str, object]:
    """Describe the result of a load in hey's order; seconds, and latencies by percentile.

    Args:
        summary: Summary of the load.
        reply_bytes: Length of each answer's body; all are equal.
    """
    histogram = summary.histogram(BINS)
    return {
        "total_seconds": summary.seconds,
        "slowest_seconds": summary.max,
        # The smallest latency is the lowest known quantile.
        "fastest_seconds": summary.quantile(1 / summary.requests),
        "average_seconds": summary.mean,
        "requests_per_second": summary.throughput,
        "response_bytes_each": reply_bytes,
        "response_bytes_total": reply_bytes * summary.requests,
        "histogram_seconds": [[edge, count] for edge, count in histogram],
        "latency_seconds": {f"p{percent}": summary.quantile(percent / 100) for percent in PERCENTS},
        "status_codes": {"200": summary.requests},
        "errors": summary.errors,
    }


def save_printed(file: Path, summary: Summary, *, reply_bytes: int) -> None:
    """Write it as JSON; the folder is made."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(as_printed(summary, reply_bytes=reply_bytes), indent=1) + "\n", encoding="utf-8")
