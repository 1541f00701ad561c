"""The rates that a search for a capacity tried, as plain values and as the cells of a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pytest_gpuserve.units import format_fraction, format_rate, format_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpuserve.measure.capacity import Probe, Search
    from pytest_gpuserve.measure.window import Start

PROBE_HEADINGS: Final = ("objective", "latency", "slow requests", "requests", "measured time", "because")
"""Of what is said of each rate; the first is what it showed."""


def plain_searches(starts: Sequence[Start]) -> list[dict[str, Any]] | None:
    """The search of each start for a result file; None of a load that was no search."""
    found = [start.search for start in starts if start.search is not None]
    return [_plain(search) for search in found] if found else None


def search_title(number: int, search: Search) -> str:
    """``start 1: capacity 812/s (790/s .. 830/s) with p99 <= 50.0 ms``."""
    low, value, high = ("?" if each is None else format_rate(each) for each in (search.low, search.value, search.high))
    objective = f"{search.objective.name} <= {format_seconds(search.objective.seconds)}"
    return f"start {number}: capacity {value} ({low} .. {high}) with {objective}"


def probe_rows(search: Search) -> list[tuple[str, tuple[str, ...]]]:
    """For each probe, by its rate: the rate, and what stands below `PROBE_HEADINGS`."""
    return [(format_rate(probe.rate), _cells(probe)) for probe in sorted(search.probes, key=lambda each: each.rate)]


def _cells(probe: Probe) -> tuple[str, ...]:
    return (
        str(probe.finding),
        "-" if probe.latency is None else format_seconds(probe.latency),
        format_fraction(probe.slow / probe.requests) if probe.requests else "-",
        str(probe.requests),
        format_seconds(probe.seconds),
        "; ".join(filter(None, (probe.reason, probe.client))),
    )


def _plain(search: Search) -> dict[str, Any]:
    return {
        "quantile": search.objective.quantile,
        "objective_seconds": search.objective.seconds,
        "capacity": search.value,
        "low": search.low,
        "high": search.high,
        "probes": [
            {
                "rate": probe.rate,
                "finding": str(probe.finding),
                "latency": probe.latency,
                "requests": probe.requests,
                "slow": probe.slow,
                "effective": probe.effective,
                "seconds": probe.seconds,
                "reason": probe.reason,
                "client": probe.client,
            }
            for probe in search.probes
        ],
    }
