"""What is said of a load of several replicas, and of a search for a capacity."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pytest_gpuserve.measure.replicas import imbalance_of, replicas_of
from pytest_gpuserve.report.names import names_of, printable
from pytest_gpuserve.units import format_change, format_fraction, format_rate, format_seconds

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from pytest_gpuserve.measure.capacity import Probe, Search
    from pytest_gpuserve.measure.replicas import Imbalance, ReplicaResult
    from pytest_gpuserve.measure.window import Window
    from pytest_gpuserve.report.results import RunResult, TestResult

PROBE_HEADINGS: Final = ("objective", "latency", "slow requests", "requests", "measured time", "because")
"""Of what is said of each rate; the first is what it showed."""


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


def replica_lines(tests: Collection[TestResult]) -> list[str]:
    """Say in a line for each load of several replicas how even it was; none of one server."""
    names = names_of(tests)
    lines = []
    for test in tests:
        for run in test.runs:
            text = imbalance_text(replicas_of(_windows(run)))
            name = f"{names[test.nodeid]} {printable(run.label)}".strip()
            lines.extend([f"replicas of {name}: {text}"] if text else [])
    return lines


def imbalance_text(replicas: Sequence[ReplicaResult]) -> str:
    """Say how unevenly replicas did: ``3, busiest +4.1 % over the mean, p99 12.0 ms to 31.0 ms (slowest: HOST:PORT)``.

    Empty of one server.
    """
    found = imbalance_of(replicas)
    if found is None:
        return ""
    parts = [str(found.replicas)]
    parts.append(
        "nothing was answered" if found.busiest is None else f"busiest {format_change(found.busiest)} over the mean"
    )
    parts.append(_p99(found))
    if found.much_slower:
        parts.append(f"much slower than the others: {', '.join(map(printable, found.much_slower))}")
    by_name = {replica.name: replica for replica in replicas}
    parts += [_failed(by_name[name]) for name in found.failing]
    return ", ".join(parts)


def _windows(run: RunResult) -> list[Window]:
    return [window for session in run.sessions for window in session.windows]


def _p99(found: Imbalance) -> str:
    if found.fastest_p99 is None or found.slowest_p99 is None:
        return "p99 not known"
    low, high = format_seconds(found.fastest_p99), format_seconds(found.slowest_p99)
    return f"p99 {low} to {high} (slowest: {printable(found.slowest)})"


def _failed(replica: ReplicaResult) -> str:
    sent = replica.requests + replica.failed
    return f"failed: {printable(replica.name)} {replica.failed} of {sent} ({format_fraction(replica.failed / sent)})"
