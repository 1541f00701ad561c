"""Whether a measurement may be believed: what shows that the client, not the server, was measured.

What is not known is never taken for good: each check that lacks its numbers says so, as a reason of its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from statistics import fmean
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.load.schedule import Closed, Constant, Gamma, Poisson, Steps, is_open
from pytest_gpuserve.units import format_fraction, format_rate, format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpuserve.load.schedule import Schedule
    from pytest_gpuserve.load.totals import Durations, Totals

SATURATED_SHARE: Final = 0.9
"""Above this share of a core for each process the client measures itself."""

LAG_SECONDS: Final = 1e-3
LAG_SHARE: Final = 0.01
"""A send lag p99 above both, the second a share of the measured p99, is late."""

ACHIEVED_SHARE: Final = 0.99
"""Of the requests that were due, so many at least are sent."""

IN_FLIGHT_TOLERANCE: Final = 0.05
"""How far the average number of requests under way may be from what the latencies say."""


LATENCIES_LONG: Final = 20
"""So many mean latencies make the edges of a stretch, where requests are cut, small enough for Little's law."""

GROWTH_SHARE: Final = 0.05
LEAST_COURSE: Final = 20

OPENING_SECONDS: Final = 1.0


class ReasonKind(str, Enum):
    """Why a measurement cannot be believed."""

    NOTHING = "nothing answered"
    UNKNOWN = "unknown"
    SATURATED = "client saturated"
    LATE = "client late"
    RATE = "rate not reached"
    IN_FLIGHT = "in flight"
    GROWING = "overloaded"
    ERRORS = "errors"
    WRONG = "wrong answers"
    INTERRUPTED = "interrupted"
    LOST = "lost in mid-load"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, slots=True)
class Reason:
    """One reason.

    Args:
        kind: Of which sort.
        text: In one line, with the numbers.
    """

    kind: ReasonKind
    text: str

    def __str__(self) -> str:
        return self.text


def reasons(
    totals: Totals,
    *,
    schedule: Schedule,
    processes: int,
    cores: int | None = None,
    allowed_errors: float = 0.0,
    ceiling_per_second: float | None = None,
) -> tuple[Reason, ...]:
    """Return why nothing may be concluded from a measurement; empty if something may.

    Args:
        totals: What was measured.
        schedule: The load.
        processes: Engines that shared it.
        cores: That they may use together; None for one each.
        allowed_errors: Share of the requests that may fail.
        ceiling_per_second: Requests a second that the client reaches on this host at most, to be named where it was
            saturated; None where it is not known. Its CPU time decides whether it was: a ceiling that was measured in
            another hour would cry wolf.

    Raises:
        ValueError: An argument is out of range.
    """
    if processes < 1:
        raise ValueError(f"one engine at least makes a load, not {processes}")
    if not 0 <= allowed_errors < 1:
        raise ValueError(f"the allowed share of errors lies in [0, 1), not at {allowed_errors}")
    if ceiling_per_second is not None and not (math.isfinite(ceiling_per_second) and ceiling_per_second > 0):
        raise ValueError(f"a ceiling is a number of requests a second above 0, not {ceiling_per_second}")
    at_once = processes if cores is None else min(processes, cores)
    return tuple(_reasons(totals, schedule, at_once, allowed_errors, ceiling_per_second))


def _reasons(
    totals: Totals, schedule: Schedule, processes: int, allowed_errors: float, ceiling_per_second: float | None
) -> Iterator[Reason]:
    yield from _errors(totals, allowed_errors)
    if totals.requests == 0 or totals.nanoseconds <= 0:
        yield Reason(
            ReasonKind.NOTHING,
            f"nothing measured: {totals.requests} requests were answered well in {format_seconds(totals.seconds)}",
        )
        return
    service = totals.service if is_open(schedule) else totals.latency
    yield from _unknown(totals, service)
    yield from _saturated(totals, processes, ceiling_per_second)
    yield from _late(totals, schedule)
    if is_open(schedule):
        yield from _rate(totals)
    yield from _in_flight(totals, service)
    yield from _growing(totals, schedule)
    yield from _without_connection(totals, schedule)


def _errors(totals: Totals, allowed: float) -> Iterator[Reason]:
    failed = totals.error_count
    if failed <= allowed * (totals.requests + failed):
        return
    share = failed / (totals.requests + failed)
    kinds = "; ".join(
        f"{kind}: {count}"
        + (f" (first: {one_line(totals.error_samples[kind])})" if kind in totals.error_samples else "")
        for kind, count in sorted(totals.errors.items())
    )
    yield Reason(
        ReasonKind.ERRORS,
        f"request errors: {failed} of {totals.requests + failed} ({format_fraction(share)}) failed,"
        f" {format_fraction(allowed)} may: {kinds}",
    )


def _unknown(totals: Totals, service: Durations) -> Iterator[Reason]:
    for name, durations in (("latency", totals.latency), ("service time", service)):
        if durations.total != totals.requests:
            yield Reason(
                ReasonKind.UNKNOWN,
                f"{name} not known: {durations.total} were taken of {totals.requests} requests that were answered",
            )
            return


def _saturated(totals: Totals, processes: int, ceiling: float | None) -> Iterator[Reason]:
    share = totals.cpu_seconds / (totals.seconds * processes)
    if share <= 0:
        yield Reason(ReasonKind.UNKNOWN, "CPU time of the client not known: it reports none")
    elif share > SATURATED_SHARE:
        reach = "" if ceiling is None else f" ({format_rate(ceiling)} is what it reaches on this host at all)"
        yield Reason(
            ReasonKind.SATURATED,
            f"client saturated: {_engines(processes)} used {format_fraction(share)} of a core, over"
            f" {format_fraction(SATURATED_SHARE)}, and so measured itself{reach}; share the load:"
            f" processes={processes + 1}, as far as there are cores",
        )


def _late(totals: Totals, schedule: Schedule) -> Iterator[Reason]:
    # What waited for max_in_flight need not have a lag.
    if is_open(schedule) and totals.lag.total < totals.sent - totals.held:
        yield Reason(
            ReasonKind.UNKNOWN,
            f"send lag not known: it was taken of {totals.lag.total} of {totals.sent} requests that were sent",
        )
    if totals.lag.total == 0:
        return
    (lag_name, lag), (latency_name, latency) = _worst_lag(totals.lag), _highest_known(totals.latency)
    limit = max(LAG_SECONDS, LAG_SHARE * latency)
    if lag > limit:
        shown = (
            f" and over {format_fraction(LAG_SHARE)} of the {latency_name} {format_seconds(latency)}" if latency else ""
        )
        yield Reason(
            ReasonKind.LATE,
            f"client late: requests were sent with a lag {lag_name} of {format_seconds(lag)},"
            f" over {format_seconds(LAG_SECONDS)}{shown}",
        )


def _worst_lag(lag: Durations) -> tuple[str, float]:
    """The p99 in seconds; of fewer than 100 what two reach at least, so that a single hiccup is none."""
    p99 = lag.quantile(0.99)
    if p99 is not None:
        return "p99", p99
    if lag.total == 1:
        return "maximum", lag.max_ns / 1e9
    return "second highest", lag.histogram.quantile((lag.total - 1) / lag.total)


def _highest_known(latency: Durations) -> tuple[str, float]:
    """The p99 in seconds or, of too few for it, the highest quantile that is known: the p99 is above that."""
    for name, q in (("p99", 0.99), ("p95", 0.95), ("p90", 0.90), ("p50", 0.50)):
        value = latency.quantile(q)
        if value is not None:
            return name, value
    return "p99", 0.0


def _rate(totals: Totals) -> Iterator[Reason]:
    missing = totals.due - totals.sent
    # One that is due with the last tick's end may be sent just after it.
    if missing <= max(1, (1 - ACHIEVED_SHARE) * totals.due):
        return
    cause = (
        f"; {totals.held} had to wait for max_in_flight, so the server is slower than the load: raise max_in_flight"
        " or lower the rate"
        if totals.held
        else "; the client did not keep up: more processes=..., or a lower rate"
    )
    yield Reason(
        ReasonKind.RATE,
        f"rate not reached: {totals.sent} of the {totals.due} requests that were due were sent"
        f" ({format_fraction(totals.sent / totals.due)}){cause}",
    )


def _in_flight(totals: Totals, service: Durations) -> Iterator[Reason]:
    """Little's law: the number under way is the rate times the time that each is.

    J. D. C. Little, "A proof for the queuing formula L = lambda W", Operations Research 9 (1961).
    """
    throughput, mean, in_flight = totals.throughput, service.mean, totals.in_flight
    if throughput is None or mean is None or in_flight is None:
        return
    # Failed requests were under way as well.
    expected = throughput * mean + totals.failed_ns / totals.nanoseconds
    if expected > 0 and abs(in_flight - expected) <= IN_FLIGHT_TOLERANCE * expected:
        return
    yield Reason(
        ReasonKind.IN_FLIGHT,
        f"in flight: {in_flight:.4g} requests were under way on average, while {format_rate(throughput)} of"
        f" {format_seconds(mean)} each make {expected:.4g}: requests are stuck (the oldest at the end had waited"
        f" {format_seconds(totals.oldest_ns / 1e9)}), or {format_seconds(totals.seconds)} are too short for such"
        f" latencies: measure {format_seconds(LATENCIES_LONG * mean)} at least",
    )


def _growing(totals: Totals, schedule: Schedule) -> Iterator[Reason]:
    """More and more requests under way: what is measured then is for how long."""
    course = totals.in_flight_course
    if not isinstance(schedule, (Constant, Poisson, Gamma)) or len(course) < LEAST_COURSE:
        return
    # Averages, because a queue has its moments: of the quarter in the middle and of the last one, 3/8 of the time on.
    eighth = len(course) // 8
    middle, end = fmean(course[3 * eighth : 5 * eighth]), fmean(course[-2 * eighth :])
    grown = end - middle
    # What chance does to a queue is about its square root.
    if grown > GROWTH_SHARE * totals.sent * 3 / 8 and grown > 3 * math.sqrt(middle + 1):
        yield Reason(
            ReasonKind.GROWING,
            f"overloaded: the requests under way grew from {middle:.4g} in the middle to {end:.4g} at the end, so the"
            " rate is over what the server can, and latencies only say for how long: lower the rate, or give"
            " max_in_flight",
        )


def _without_connection(totals: Totals, schedule: Schedule) -> Iterator[Reason]:
    """Users who wait for a connection have no request under way, and so no latency."""
    if isinstance(schedule, (Closed, Steps)) and totals.oldest_opening_ns > OPENING_SECONDS * 1e9:
        yield Reason(
            ReasonKind.IN_FLIGHT,
            f"in flight: at the end {totals.opening} of {totals.users} users waited for a connection, one for"
            f" {format_seconds(totals.oldest_opening_ns / 1e9)}: the server does not accept so many",
        )


def _engines(processes: int) -> str:
    return "the load engine" if processes == 1 else f"each of the {processes} load engines"


def one_line(text: str) -> str:
    """Make a line of a text that may hold what a server sent: no line breaks, no escape sequences of a terminal."""
    return "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in " ".join(text.split()))
