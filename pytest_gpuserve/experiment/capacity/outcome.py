"""Whether something may be concluded from the probes of a search, and why not."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

from pytest_gpuserve.experiment.capacity.planning import seconds_to_show
from pytest_gpuserve.experiment.capacity.shape import LONGEST_OBJECTIVE
from pytest_gpuserve.gate.reason import Reason, ReasonKind
from pytest_gpuserve.measure.capacity import ProbeOutcome
from pytest_gpuserve.units import format_fraction, format_rate, format_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpuserve.experiment.capacity.shape import SearchShape
    from pytest_gpuserve.experiment.replicas import ReplicaShares
    from pytest_gpuserve.load.wire import Tick
    from pytest_gpuserve.measure.capacity import Probe, Search
    from pytest_gpuserve.measure.window import Window


class MeasuredProbe(NamedTuple):
    """A probe with what it was made of.

    Args:
        probe: What it showed.
        ticks: What was measured.
        window: The same as a window.
        doubts: Why that may not be what the server does under this load alone.
    """

    probe: Probe
    ticks: list[Tick]
    window: Window
    doubts: tuple[Reason, ...] = ()


ANY_ERRORS: Final = 1.0
"""Share of a replica's requests that may fail where only one that does nothing at all is looked for."""

REQUESTS_EACH: Final = 10
"""Answers for each replica, on average, where a replica without any was sent some."""


def problem_of(search: Search) -> Reason | None:
    """Say why there is no capacity, or why it may be the client's; None where all is well."""
    if not search.probes:
        return Reason(ReasonKind.NOTHING_MEASURED, "nothing measured: no rate was tried")
    if search.low is None:
        return _never_met(search)
    if search.high is None:
        highest = max(search.probes, key=lambda probe: probe.rate)
        text = (
            f"no capacity found: after {len(search.probes)} probes, the highest at {format_rate(highest.rate)}, none"
            f" was shown to miss {search.objective}"
        ) + (f"; {highest.client}" if highest.client else "")
        return Reason(ReasonKind.NO_CAPACITY, text)
    return _limited_by_client(search, search.low, search.high)


def too_slow(shape: SearchShape) -> Reason | None:
    """Say why rates cannot be tried: an answer that meets the objective may take too long; None where it may not."""
    seconds, most = shape.objective.seconds, min(shape.timeout_seconds, LONGEST_OBJECTIVE)
    if seconds <= most:
        return None
    text = (
        f"capacity is not known: an answer that meets {shape.objective.each} takes {format_seconds(seconds)}, and"
        f" {format_seconds(most)} is the most; ask for fewer tokens, or gate a rate: load(...,"
        " schedule=Poisson(rate=...), goodput=Objectives(...))"
    )
    return Reason(ReasonKind.NOT_MEASURED, text)


def not_precise(search: Search) -> Reason | None:
    """Say why a search that has found a capacity is not known well enough to be compared; None where it is."""
    if search.low is None or search.high is None or search.parts:
        return None
    return Reason(
        ReasonKind.CAPACITY_UNSURE,
        "not known well enough: the samples do not tell how far the capacity may be off; allow more time:"
        f" load.capacity(..., seconds={_longer(search)})",
    )


def not_its_own(
    search: Search, taken: Sequence[MeasuredProbe], replicas: ReplicaShares, allowed_errors: float
) -> list[Reason]:
    """Say why the ends of the interval may not be those of the server, with all its replicas, under its load alone.

    A rate that met the objective in spite of another client, or of a compilation, did meet it; one that missed it
    whenever it was tried may have missed it by that. A sample that had one tells too little of the server.

    Args:
        search: What was found.
        taken: Its probes.
        replicas: Tells what each replica did in them.
        allowed_errors: Share of a replica's requests that may fail at a rate that met the objective.
    """
    low = [each for each in taken if each.probe.rate == search.low and each.probe.finding is ProbeOutcome.MET]
    high = [each for each in taken if each.probe.rate == search.high and each.probe.finding is ProbeOutcome.MISSED]
    lowest = [] if low else sorted(taken, key=lambda each: each.probe.rate)[:1]
    samples = [each for each in taken[len(taken) - len(search.samples) :] if each.doubts]
    found: list[Reason] = []
    for ends in (high, lowest, samples[:1]):
        if ends and not found and all(each.doubts for each in ends):
            found += [_at(ends[-1].probe.rate, doubt) for doubt in ends[-1].doubts]
    if not low:
        # All rates, for at the lowest each of many replicas has hardly a request.
        return found + replicas.problems([each.window for each in taken], allowed_errors=allowed_errors)
    for ends, allowed in ((low, allowed_errors), (_telling(high, len(replicas.names)), ANY_ERRORS)):
        problems = replicas.problems([each.window for each in ends], allowed_errors=allowed)
        found += [_at(ends[-1].probe.rate, problem) for problem in problems]
    return found


def _at(rate: float, reason: Reason) -> Reason:
    return reason.with_text(f"{reason}; so it was at {format_rate(rate)}")


def _telling(taken: list[MeasuredProbe], replicas: int) -> list[MeasuredProbe]:
    """These where so many requests were answered that a replica without any is not one by chance; else none."""
    requests = sum(each.window.requests for each in taken)
    return taken if requests >= REQUESTS_EACH * replicas else []


def _never_met(search: Search) -> Reason:
    lowest = min(search.probes, key=lambda probe: probe.rate)
    rates = sorted(probe.rate for probe in search.probes if probe.finding is ProbeOutcome.MET)
    if rates:
        return Reason(
            ReasonKind.CONTRADICTORY,
            f"contradictory: {format_rate(rates[0])} met {search.objective}, while {format_rate(lowest.rate)} missed"
            f" it; let nothing else use the host, or allow more time: load.capacity(..., seconds={_longer(search)})",
        )
    what = "missed" if lowest.finding is ProbeOutcome.MISSED else "not shown to be met"
    name = search.objective.name
    more = ""
    if lowest.finding is ProbeOutcome.UNDECIDED:
        seconds = math.ceil(seconds_to_show(lowest, search.objective))
        more = f", or allow more time to show it, load.capacity(..., seconds={seconds})"
    text = (
        f"objective {what}: at {format_rate(lowest.rate)}, the lowest rate that was tried, {_seen(search, lowest)}, and"
        f" {search.objective} was asked for; ask for less, load.capacity(..., {name}=...){more}"
    ) + (f"; {lowest.client or lowest.reason}" if lowest.client or lowest.reason else "")
    is_missed = lowest.finding is ProbeOutcome.MISSED
    return Reason(ReasonKind.OBJECTIVE_MISSED if is_missed else ReasonKind.OBJECTIVE_NOT_SHOWN, text)


def _longer(search: Search) -> int:
    """Twice the longest time that was looked at a rate."""
    return math.ceil(2 * max(probe.seconds for probe in search.probes))


def _limited_by_client(search: Search, low: float, high: float) -> Reason | None:
    """Whether at an end of the interval, or within it, the client may have been what was measured."""
    ends = search.at(high, ProbeOutcome.MISSED)
    if all(probe.client for probe in ends):
        return _limited_at(ends[-1], "the lowest rate that missed the objective")
    between = [probe for probe in search.probes if low < probe.rate < high and probe.finding is ProbeOutcome.UNDECIDED]
    return next((_limited_at(probe, "a rate that was not decided") for probe in between if probe.client), None)


def _limited_at(probe: Probe, which: str) -> Reason:
    return Reason(
        ReasonKind.CAPACITY_OF_CLIENT,
        f"{probe.client}; so it was at {format_rate(probe.rate)}, {which}, and the capacity may be the client's: share"
        " the load, load.capacity(..., processes=...)",
    )


def _seen(search: Search, probe: Probe) -> str:
    name = search.objective.name
    if search.objective.each is None and probe.latency is not None:
        return f"{name} is {format_seconds(probe.latency)}"
    times = {each: seconds for each in search.objective.limits if (seconds := getattr(probe, each)) is not None}
    shown = "".join(f", {each} {name} is {format_seconds(seconds)}" for each, seconds in times.items())
    return f"{format_fraction(probe.share)} of {probe.requests} requests missed it or failed{shown}"
