"""Decides whether a measurement is valid: that it measured the server, not the client."""

from __future__ import annotations

import math
from statistics import fmean
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.load.schedule import NANOSECONDS, Closed, Constant, Gamma, Poisson, Steps, is_open
from pytest_gpuserve.load.wire import BEAT_NS
from pytest_gpuserve.units import format_fraction, format_rate, format_seconds
from pytest_gpuserve.verdict.reason import Reason, ReasonKind

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pytest_gpuserve.errors import LoadFailed
    from pytest_gpuserve.load.schedule import Schedule
    from pytest_gpuserve.measure.window import Window

SATURATED_SHARE: Final = 0.9
"""Share of a core for each process above which the client measures itself."""

LATE_SHARE: Final = 0.01
"""Share that the client may add to the time of users, or to the latencies of an open loop; see `late_share_within`."""

WINDOW_LATE_FACTOR: Final = 4.0
"""Factor of that share for a single window.

A start has eight or more windows, and may add half of the share or less on average. With the limit of the whole, a host
on which the client adds a steady half of it would lose too many windows by chance.
"""


def late_share_within(tolerance: float) -> float:
    """Share that the client may add if metrics have this tolerance: a tenth of it, and at least `LATE_SHARE`.

    It moves a throughput or a latency by at most that share.
    """
    return max(LATE_SHARE, tolerance / 10)


TIMER_SECONDS: Final = 0.25e-3
"""Part of the mean lag that comes from the timer, if sends are timed: 0.03 to 0.15 ms on idle and on busy hosts."""

TAIL_SECONDS: Final = 1e-3
"""Longest p99 of an open loop's lags; or else the client's share of the p99 of its latencies."""

ACHIEVED_SHARE: Final = 0.99
"""Smallest share of the due requests that must be sent."""

IN_FLIGHT_TOLERANCE: Final = 0.05
"""Largest deviation of the average requests in flight from the number that latencies imply. Edges of the stretch add to
it, because they cut requests, each by at most about one mean latency."""


LATENCIES_LONG: Final = 20
"""Shortest stretch in mean latencies; of a shorter one most may be edges."""

GROWTH_SHARE: Final = 0.05
LEAST_COURSE: Final = 20

OPENING_SECONDS: Final = 1.0


DISTURBANCES: Final = frozenset(
    {ReasonKind.CLIENT_SATURATED, ReasonKind.CLIENT_LATE, ReasonKind.CLIENT_HELD_UP},
)
"""Reasons that another measurement may be free of; the others are final."""


OF_A_WORKER: Final = DISTURBANCES | {ReasonKind.RATE_NOT_REACHED, ReasonKind.NOTHING_MEASURED}
"""Reasons that show in a worker's share; the others are checked on the whole load."""

_ANY: Final = 1 - 1e-9
"""Errors are judged on the whole load."""


def reasons(
    totals: Window,
    *,
    schedule: Schedule,
    processes: int,
    cores: int | None = None,
    allowed_errors: float = 0.0,
    late_share: float = LATE_SHARE,
    course: Sequence[int] = (),
    workers: Mapping[str, Window] | None = None,
) -> tuple[Reason, ...]:
    """Return reasons why a measurement proves nothing; empty if it is valid.

    Args:
        totals: Sum of the measurement.
        schedule: The load.
        processes: Engines that shared it.
        cores: Cores that they may use together; None for one each.
        allowed_errors: Share of the requests that may fail.
        late_share: Share that the client may add.
        course: Requests in flight at the end of each tick with due requests, oldest first.
        workers: Sum of each worker, by name.
    """
    at_once = processes if cores is None else min(processes, cores)
    failed = list(request_errors(totals, allowed_errors))
    if totals.requests == 0 or totals.nanoseconds <= 0:
        text = f"nothing measured: {totals.requests} requests were answered well in {format_seconds(totals.seconds)}"
        return (*failed, Reason(ReasonKind.NOTHING_MEASURED, text))
    late = list(_late(totals, schedule, processes, totals, late_share))
    found = [*failed, *_saturated(totals, at_once), *late]
    if is_open(schedule):
        found += [] if late else _late_tail(totals, late_share)
        found += [*_rate(totals), *_growing(totals, schedule, course)]
    found += [*_in_flight(totals, schedule), *_without_connection(totals, schedule)]
    return (*found, *_of_workers(workers or {}, schedule, cores, late_share))


def disturbances(
    totals: Window,
    *,
    schedule: Schedule,
    usual: Window,
    processes: int = 1,
    cores: int | None = None,
    late_share: float = LATE_SHARE,
) -> tuple[Reason, ...]:
    """Return reasons why a window of a load is to be measured again: the client used up its cores, or was late, in it.

    These depend on the client, not on the server's speed in this window. To drop windows for their speed would hide
    regressions.

    Args:
        totals: Sum of the window.
        schedule: The load.
        usual: Sum of the same load so far, which tells the usual length of a request.
        processes: Engines that shared it.
        cores: Cores that they may use together; None for one each.
        late_share: Share that the client may add to the whole load.
    """
    if totals.nanoseconds <= 0:
        return ()
    at_once = processes if cores is None else min(processes, cores)
    late = _late(totals, schedule, processes, usual, WINDOW_LATE_FACTOR * late_share)
    found = (*_saturated(totals, at_once), *late)
    return tuple(reason for reason in found if reason.kind in DISTURBANCES)


def request_errors(totals: Window, allowed: float) -> Iterator[Reason]:
    """Return a reason if more than this share of the requests failed, with the first failure of each kind."""
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
        ReasonKind.REQUEST_ERRORS,
        f"request errors: {failed} of {totals.requests + failed} ({format_fraction(share)}) failed,"
        f" {format_fraction(allowed)} allowed: {kinds}",
    )


def _saturated(totals: Window, processes: int) -> Iterator[Reason]:
    share = totals.cpu_seconds / (totals.seconds * processes)
    if share > SATURATED_SHARE:
        yield Reason(
            ReasonKind.CLIENT_SATURATED,
            f"client saturated: {_engines(processes)} used {format_fraction(share)} of a core, over"
            f" {format_fraction(SATURATED_SHARE)}, so it measured itself. Share the load if the machine has cores:"
            f" processes={processes + 1}",
        )


def _late(totals: Window, schedule: Schedule, processes: int, usual: Window, most: float) -> Iterator[Reason]:
    """Whether the client adds too much to the measurement: by late sends, or by pauses when answers come.

    Its beats come at regular times, so on average they see the same as answers at random times. The share of late beats
    is the share of the time when the engine was paused. Their average delay is an answer's average wait (R. W. Wolff,
    "Poisson arrivals see time averages", Operations Research 30, 1982).

    In a closed loop both are idle time of a user, between an answer and the next request. A user waits for one answer
    at a time, so a pause makes users idle for at most its own length. If only one beat saw a pause, its delay is all
    that is known of it. In an open loop both are part of the latency.
    """
    answered = usual.latency.mean
    if answered is None or usual.requests == 0:
        return
    lag, length_ns = totals.lag.mean or 0.0, processes * totals.nanoseconds
    wait = totals.late_beats_ns / NANOSECONDS * BEAT_NS / length_ns
    still = min(totals.late_beats * BEAT_NS, totals.late_beats_ns) / length_ns
    timed = is_open(schedule)
    whole, whose = answered, "latencies"
    first = None if usual.streams is None else usual.streams.ttft.mean
    if first is not None:
        # It is also part of a stream's first token, which takes less than the stream.
        whole, whose = first, "times to the first token"
    if isinstance(schedule, (Closed, Steps)):
        timed = schedule.think_seconds > 0
        # Users wait for more than latencies: connections are opened, and requests fail.
        whole, whose = usual.in_flight_ns / usual.requests / NANOSECONDS + schedule.think_seconds, "the time of users"
        wait = min(wait, still * whole)
    lag = max(0.0, lag - TIMER_SECONDS) if timed else lag
    share = (lag + wait) / whole if whole else 0.0
    if share <= most:
        return
    adds = f"adds {format_fraction(share)} to {whose}, over {format_fraction(most)}"
    if lag >= wait:
        text = f"client late: it sends requests {format_seconds(totals.lag.mean or 0.0)} late on average, and so {adds}"
        yield Reason(ReasonKind.CLIENT_LATE, text)
    else:
        text = (
            f"client held up: the load engine was paused for {format_fraction(still)} of the time when it had work,"
            f" and so {adds}"
        )
        yield Reason(ReasonKind.CLIENT_HELD_UP, text)


def _late_tail(totals: Window, late_share: float) -> Iterator[Reason]:
    """Whether the slowest hundredth of an open loop's latencies may be slow because of late sends.

    Fewer late sends than a hundredth cannot move the p99. Too few requests do not have a p99.
    """
    times = totals.latency if totals.streams is None else totals.streams.ttft
    lag, latency = totals.lag.known_quantile(0.99), times.known_quantile(0.99)
    if lag is None or latency is None or lag <= max(TAIL_SECONDS, late_share * latency):
        return
    yield Reason(
        ReasonKind.CLIENT_LATE,
        f"client late: requests were sent with a lag p99 of {format_seconds(lag)}, over {format_seconds(TAIL_SECONDS)}"
        f" and over {format_fraction(late_share)} of the p99 {format_seconds(latency)}",
    )


def _rate(totals: Window) -> Iterator[Reason]:
    missing = totals.due - totals.sent
    # A request that is due with the last tick's end may be sent just after it.
    if missing <= max(1, (1 - ACHIEVED_SHARE) * totals.due):
        return
    cause = (
        f"; {totals.held} had to wait for max_in_flight, so the server is slower than the load: raise max_in_flight"
        " or lower the rate"
        if totals.held
        else "; the client did not keep up: more processes=..., or a lower rate"
    )
    yield Reason(
        ReasonKind.RATE_NOT_REACHED,
        f"rate not reached: {totals.sent} of {totals.due} due requests were sent"
        f" ({format_fraction(totals.sent / totals.due)}){cause}",
    )


def _in_flight(totals: Window, schedule: Schedule) -> Iterator[Reason]:
    """Little's law: requests in flight are the rate times the mean time of each.

    J. D. C. Little, "A proof for the queuing formula L = lambda W", Operations Research 9 (1961).
    """
    service = totals.service if is_open(schedule) else totals.latency
    throughput, mean, in_flight = totals.throughput, service.mean, totals.in_flight
    if mean is None:
        return
    # Failed requests, and streams after their last token, were in flight too.
    expected = throughput * mean + totals.untimed_ns / totals.nanoseconds
    # Both edges cut requests. If the host pauses at one, all requests in flight may be as slow as the slowest answered
    # ones. A stuck request is older than any of these.
    edges = max(in_flight * mean, service.slowest_seconds(math.ceil(in_flight))) / totals.seconds
    if expected > 0 and abs(in_flight - expected) <= IN_FLIGHT_TOLERANCE * expected + edges:
        return
    longer = LATENCIES_LONG * mean
    too_short = (
        f", or {format_seconds(totals.seconds)} are too short for such latencies: measure at least"
        f" {format_seconds(longer)}"
        if totals.seconds < longer
        else ""
    )
    yield Reason(
        ReasonKind.STUCK_REQUESTS,
        f"in flight: {in_flight:.4g} requests were in flight on average, but {format_rate(throughput)} times"
        f" {format_seconds(mean)} is {expected:.4g}. Requests are stuck (the oldest at the end had waited"
        f" {format_seconds(totals.oldest_ns / 1e9)}){too_short}",
    )


def _growing(totals: Window, schedule: Schedule, course: Sequence[int]) -> Iterator[Reason]:
    """Ever more requests in flight: such a measurement depends on its duration."""
    if not isinstance(schedule, (Constant, Poisson, Gamma)) or len(course) < LEAST_COURSE:
        return
    # Averages, because a queue fluctuates: of the middle quarter and of the last one, 3/8 of the time later.
    eighth = len(course) // 8
    middle, end = fmean(course[3 * eighth : 5 * eighth]), fmean(course[-2 * eighth :])
    grown = end - middle
    # Random fluctuations of a queue are about its square root.
    if grown > GROWTH_SHARE * totals.sent * 3 / 8 and grown > 3 * math.sqrt(middle + 1):
        yield Reason(
            ReasonKind.OVERLOADED,
            f"overloaded: requests in flight grew from {middle:.4g} in the middle to {end:.4g} at the end. The rate is"
            " too high for the server, and latencies depend on the duration: lower the rate, or set max_in_flight",
        )


def _without_connection(totals: Window, schedule: Schedule) -> Iterator[Reason]:
    """Users who wait for a connection have no request in flight, and so no latency."""
    if isinstance(schedule, (Closed, Steps)) and totals.oldest_opening_ns > OPENING_SECONDS * 1e9:
        yield Reason(
            ReasonKind.STUCK_REQUESTS,
            f"in flight: at the end {totals.opening} users waited for a connection, one for"
            f" {format_seconds(totals.oldest_opening_ns / 1e9)}: the server does not accept so many",
        )


def _engines(processes: int) -> str:
    return "the load engine" if processes == 1 else f"each of the {processes} load engines"


def _of_workers(
    workers: Mapping[str, Window], schedule: Schedule, cores: int | None, late_share: float
) -> Iterator[Reason]:
    """Reasons of single workers, which the whole may hide: saturated, late, behind, or never answered.

    Ray places only as many workers on a node as it has logical CPUs. If a node was started with more of them than
    cores, workers that wait for a core look idle here.
    """
    # If workers outnumber the cores that they share, none of them can show a saturated core by itself.
    shares_cores = cores is not None and cores < len(workers)
    kinds = OF_A_WORKER - ({ReasonKind.CLIENT_SATURATED} if shares_cores else set())
    for name, totals in workers.items():
        # With a few requests over many workers some get none.
        if totals.sent or totals.due or totals.error_count or totals.opening:
            found = reasons(totals, schedule=schedule, processes=1, allowed_errors=_ANY, late_share=late_share)
            yield from (reason.of(name) for reason in found if reason.kind in kinds)


def lost_in_mid_load(problem: LoadFailed) -> Reason:
    """Reason why a load was lost, in one line: the last line of a process's log has the cause."""
    said = [line for line in problem.log_tail.splitlines() if line.strip()]
    why = one_line(said[-1] if said else problem.found)
    return Reason(ReasonKind.LOAD_LOST, f"lost in mid-load: {problem.summary}" + (f": {why}" if why else ""))


def one_line(text: str) -> str:
    """Make a line of a text that may hold a server's bytes: without line breaks and terminal escape sequences."""
    return "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in " ".join(text.split()))
