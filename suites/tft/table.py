"""The published table: 15 columns a run; seven of them make up the average latency."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_gpuserve.measure.breakdown import Breakdown
    from pytest_gpuserve.measure.window import Window

    Row = Mapping[str, float]

BATCH: Final = "Batch"
CONCURRENCY: Final = "Concurrency"
THROUGHPUT: Final = "Inferences/Second"
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

COLUMNS: Final = (BATCH, CONCURRENCY, THROUGHPUT, *COMPONENTS.values(), *PERCENTILES.values(), AVERAGE)

SUM_TOLERANCE_MS: Final = 0.3
"""Largest difference of the components of the published rows, of one decimal each, from the average."""

LEAST_LITTLE: Final = 0.95

DECIMALS: Final = 4
"""Tolerance in milliseconds: the rounding of eight such values is far below a clock's precision."""


def row_of(summary: Window, breakdown: Breakdown, *, batch: int, concurrency: int) -> dict[str, float]:
    """Make a row: `COLUMNS` in their order, latencies in milliseconds, throughput in examples a second.

    Args:
        summary: Of the run.
        breakdown: Of the run.
        batch: Examples of each request.
        concurrency: Users of the closed loop.
    """
    return {
        BATCH: batch,
        CONCURRENCY: concurrency,
        THROUGHPUT: round(batch * summary.throughput, DECIMALS),
        **{title: _ms(getattr(breakdown, name)) for name, title in COMPONENTS.items()},
        **{title: _ms(summary.quantile(percent / 100)) for percent, title in PERCENTILES.items()},
        AVERAGE: _ms(summary.mean),
    }


def check_row(row: Row) -> None:
    """See that the seven components are the average, and percentiles in order.

    Raises:
        AssertionError: They are not.
    """
    total = sum(row[title] for title in COMPONENTS.values())
    if not abs(total - row[AVERAGE]) <= SUM_TOLERANCE_MS:
        raise AssertionError(f"the components are {total:.3f} ms together, the average is {row[AVERAGE]:.3f} ms")
    percentiles = [row[title] for title in PERCENTILES.values()]
    if percentiles != sorted(percentiles):
        raise AssertionError(f"the percentiles {', '.join(f'{value:.3f}' for value in percentiles)} ms do not rise")


def littles_law(row: Row) -> float:
    """Compute the share of the users that throughput and average latency account for; 1 in a plain closed loop.

    J. D. C. Little, "A proof for the queuing formula L = lambda W", Operations Research 9 (1961).
    """
    return row[THROUGHPUT] / row[BATCH] * row[AVERAGE] / 1e3 / row[CONCURRENCY]


def warning_of(row: Row) -> str:
    """Warning on a row; empty if its throughput and its latency agree."""
    share = littles_law(row)
    if share > LEAST_LITTLE:
        return ""
    return f"throughput too low, or latency: Little's law accounts for {share:.3f} of the users"


def components_of(row: Row) -> dict[str, float]:
    """The seven components in seconds, by their published names without the unit."""
    return {title.removesuffix(" (ms)"): row[title] / 1e3 for title in COMPONENTS.values()}


def _ms(seconds: float) -> float:
    return round(1e3 * seconds, DECIMALS)
