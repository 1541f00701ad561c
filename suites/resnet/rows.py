"""The columns that this suite's table has beside those of every suite."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from pytest_gpuserve.measure.histogram import seconds_of
from suites.resnet.formulas import published_throughput, samples_per_second, weighted_sd

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpuserve.compare.assertions import Run
    from suites.sweep import Row

LOAD = "load weights"
COMPILE_CALL = "compile call"
FIRST_REQUEST = "first request"
"""Parts of a worker's cold start. The call of ``torch.compile`` contains only its imports; the first request
compiles."""


def columns(run: Run, batch: int) -> dict[str, float | int | None]:
    """The benchmark's printed columns of a run, and the missing ones; a repetition is a fresh start.

    Args:
        run: Measurement of the load.
        batch: Images in a request.
    """
    starts = [start for session in run.sessions for start in session.starts]
    summary, parts = run.summary, run.cold_start_parts
    return {
        "samples_per_second": samples_per_second(summary.throughput, batch),
        "published_throughput": published_throughput(summary.mean, batch),
        "sd_seconds": weighted_sd({seconds_of(bucket): count for bucket, count in summary.latency.counts.items()}),
        "min_seconds": seconds_of(min(summary.latency.counts)),
        "repetitions": len(starts),
        **_spread(
            "samples_per_second",
            [samples_per_second(start.total.requests / start.total.seconds, batch) for start in starts],
        ),
        **_spread("mean_seconds", [start.total.mean for start in starts]),
        # Unknown for servers that start side by side.
        **_spread(
            "cold_start_seconds",
            [start.cold_start_seconds for start in starts if start.cold_start_seconds is not None],
        ),
        "load_seconds": parts.get(LOAD),
        "compile_call_seconds": parts.get(COMPILE_CALL),
        "first_request_seconds": parts.get(FIRST_REQUEST),
    }


def _spread(name: str, values: Sequence[float]) -> dict[str, float | None]:
    """Mean and sample standard deviation of repetitions; None if there are too few."""
    return {
        f"{name}_mean": statistics.fmean(values) if values else None,
        f"{name}_sd": statistics.stdev(values) if len(values) > 1 else None,
    }


def number(row: Row, column: str) -> float:
    """A number of a row.

    Raises:
        TypeError: The column is not a number.
    """
    value = row[column]
    if not isinstance(value, (int, float)):
        raise TypeError(f"{column} is {value!r}")
    return value
