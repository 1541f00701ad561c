"""Why nothing may be concluded from a search."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpuserve.measure.capacity import Finding
from pytest_gpuserve.units import format_fraction, format_rate, format_seconds

if TYPE_CHECKING:
    from pytest_gpuserve.measure.capacity import Probe, Search


def problem_of(search: Search) -> str:
    """Say why there is no capacity, or why it may be the client's; empty where all is well."""
    if not search.probes:
        return "nothing measured: no rate was tried"
    if search.low is None:
        return _never_met(search)
    if search.high is None:
        highest = max(search.probes, key=lambda probe: probe.rate)
        return (
            f"no capacity found: after {len(search.probes)} probes, the highest at {format_rate(highest.rate)}, none"
            f" was shown to miss {_words(search)}"
        ) + (f"; {highest.client}" if highest.client else "")
    return _limited_by_client(search, search.low, search.high)


def _never_met(search: Search) -> str:
    lowest = min(search.probes, key=lambda probe: probe.rate)
    rates = sorted(probe.rate for probe in search.probes if probe.finding is Finding.MET)
    if rates:
        return (
            f"contradictory: {format_rate(rates[0])} met {_words(search)}, while {format_rate(lowest.rate)} missed it;"
            " let nothing else use the host, or allow more time: load.capacity(..., seconds=...)"
        )
    what = "missed" if lowest.finding is Finding.MISSED else "not shown to be met"
    name = search.objective.name
    return (
        f"objective {what}: at {format_rate(lowest.rate)}, the lowest rate that was tried, {_seen(search, lowest)}, and"
        f" {_words(search)} was asked for; ask for less, load.capacity(..., {name}=...), or allow more time to show it,"
        " load.capacity(..., seconds=...)"
    ) + (f"; {lowest.client or lowest.reason}" if lowest.client or lowest.reason else "")


def _limited_by_client(search: Search, low: float, high: float) -> str:
    """Whether at an end of the interval, or within it, the client may have been what was measured."""
    ends = search.at(high, Finding.MISSED)
    if all(probe.client for probe in ends):
        return _told(ends[-1], "the lowest rate that missed the objective")
    between = [probe for probe in search.probes if low < probe.rate < high and probe.finding is Finding.UNDECIDED]
    return next((_told(probe, "a rate that was not decided") for probe in between if probe.client), "")


def _told(probe: Probe, which: str) -> str:
    return (
        f"{probe.client}; so it was at {format_rate(probe.rate)}, {which}, and the capacity may be the client's: share"
        " the load, load.capacity(..., processes=...)"
    )


def _seen(search: Search, probe: Probe) -> str:
    if probe.latency is not None:
        return f"{search.objective.name} is {format_seconds(probe.latency)}"
    share = probe.slow / probe.requests if probe.requests else 1.0
    return f"{format_fraction(share)} of {probe.requests} requests took longer or failed"


def _words(search: Search) -> str:
    return f"{search.objective.name} <= {format_seconds(search.objective.seconds)}"
