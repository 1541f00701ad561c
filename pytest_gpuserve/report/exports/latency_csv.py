"""CSV in the columns of NVIDIA's published tables of Triton, which are perf_analyzer's, and a few of our own behind.

Published: Deploying the TFT model on Triton Inference Server (NVIDIA DeepLearningExamples), "Results Table". The seven
components are together the average latency; they are empty where the server does not count them by request.
"""

from __future__ import annotations

import csv
import io
import math
import re
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.measure.breakdown import Breakdown, breakdown_of
from pytest_gpuserve.measure.counters import added
from pytest_gpuserve.measure.points import NotMeasured
from pytest_gpuserve.measure.window import Client
from pytest_gpuserve.report.exports import ExportedLoad, loads_of
from pytest_gpuserve.report.names import with_texts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_gpuserve.measure.counters import Counters
    from pytest_gpuserve.measure.summary import Summary
    from pytest_gpuserve.measure.window import Start
    from pytest_gpuserve.report.results import SessionResult

    Cell = str | int | float | None

BATCH: Final = "Batch"
CONCURRENCY: Final = "Concurrency"
INFERENCES: Final = "Inferences/Second"
AVERAGE: Final = "avg latency (ms)"

COMPONENTS: Final = {
    "client_send": "Client Send (ms)",
    "network": "Network+Server Send/Recv (ms)",
    "queue": "Server Queue (ms)",
    "compute_input": "Server Compute Input (ms)",
    "compute_infer": "Server Compute Infer (ms)",
    "compute_output": "Server Compute Output (ms)",
    "client_receive": "Client Recv (ms)",
}
"""Published names of the parts of `Breakdown`."""

PERCENTILES: Final = {50: "p50 latency (ms)", 90: "p90 latency (ms)", 95: "p95 latency (ms)", 99: "p99 latency (ms)"}

PUBLISHED: Final = (BATCH, CONCURRENCY, INFERENCES, *COMPONENTS.values(), *PERCENTILES.values(), AVERAGE)

REQUESTS: Final = "Requests/Second"
OURS: Final = (REQUESTS, "Requests", "Errors", "Test", "Load", "Verdicts")
"""Behind the published ones, so that who reads those by their place still finds them."""

DECIMALS: Final = 4
"""Of milliseconds and rates: what is rounded off is far below what a clock can tell."""

WHOLE_WITHIN: Final = 0.05
"""A mean batch so near to a whole number is that number: of requests that were under way at the ends of the measured
time the server has counted the one half, or the other."""

_FORMULA: Final = re.compile(r"(^|;)(\s*)(?=[=+\-@\uff1d\uff0b\uff0d\uff20])")
"""Where a spreadsheet would begin to compute: at the begin of a cell, or what one takes for it that parts cells by
semicolons; the wide signs are the same ones as East Asian keyboards type them."""


def document(result: SessionResult) -> str:
    """Write a row for each load, sorted by batch and concurrency as the published tables; unknown ones come last.

    A text that a spreadsheet would take for a formula begins with an apostrophe, which it takes for the mark of a text.
    """
    # Before names are told apart, which else might become the same.
    rows = [_row(load) for load in loads_of(with_texts(result, _no_formula))]
    text = io.StringIO()
    writer = csv.DictWriter(text, (*PUBLISHED, *OURS), lineterminator="\n")
    writer.writeheader()
    writer.writerows(sorted(rows, key=lambda row: (_place(row[BATCH]), _place(row[CONCURRENCY]))))
    return text.getvalue()


def _row(load: ExportedLoad) -> dict[str, Cell]:
    summary = load.summary
    numbers: Mapping[str, Cell] = {} if summary is None else _numbers(summary, load.starts)
    return {
        **dict.fromkeys(PUBLISHED),
        **numbers,
        CONCURRENCY: load.run.users,
        "Test": load.test,
        "Load": load.label,
        "Verdicts": " ".join(f"{row.judgement.metric.name}={row.judgement.verdict}" for row in load.rows if row.counts),
    }


def _numbers(summary: Summary, starts: Sequence[Start]) -> dict[str, Cell]:
    counted = [start.counters for start in starts if start.counters is not None]
    # Counts of some starts say nothing of the requests of all.
    counters = added(counted) if len(counted) == len(starts) else None
    batch = None if counters is None else _items_a_request(counters)
    breakdown = _breakdown(summary, counters, starts)
    return {
        BATCH: batch,
        INFERENCES: None if batch is None else round(batch * summary.throughput, DECIMALS),
        **{title: None if breakdown is None else _ms(getattr(breakdown, name)) for name, title in COMPONENTS.items()},
        **{title: _ms(summary.quantile(percent / 100)) for percent, title in PERCENTILES.items()},
        AVERAGE: _ms(summary.mean),
        REQUESTS: round(summary.throughput, DECIMALS),
        "Requests": summary.requests,
        "Errors": summary.errors,
    }


def _items_a_request(counters: Counters) -> int | float | None:
    """How many items a request carries, on average, by the server's own counts."""
    if not counters.requests or not counters.items:
        return None
    mean = counters.items / counters.requests
    whole = round(mean)
    return whole if whole and abs(mean - whole) <= WHOLE_WITHIN else round(mean, DECIMALS)


def _breakdown(summary: Summary, counters: Counters | None, starts: Sequence[Start]) -> Breakdown | None:
    try:
        return breakdown_of(summary, counters, Client.pooled(start.client for start in starts))
    except NotMeasured:
        return None


def _ms(seconds: float) -> float:
    return round(1e3 * seconds, DECIMALS)


def _place(cell: Cell) -> float:
    return cell if isinstance(cell, (int, float)) else math.inf


def _no_formula(text: str) -> str:
    return _FORMULA.sub(r"\1\2'", text)
