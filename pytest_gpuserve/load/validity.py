"""Decides whether a measurement is valid: whether the server, and not the client, was measured.

What is not known is never taken for good: each check that lacks its numbers says so, as a reason of its own.
"""

from __future__ import annotations

import math
from statistics import fmean
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.load.schedule import NANOSECONDS, Closed, Constant, Gamma, Poisson, Steps, is_open
from pytest_gpuserve.load.wire import BEAT_NS
from pytest_gpuserve.units import format_fraction, format_rate, format_seconds
from pytest_gpuserve.verdict.reason import Reason, ReasonKind

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pytest_gpuserve.load.schedule import Schedule
    from pytest_gpuserve.load.tick import Tick
    from pytest_gpuserve.measure.histogram import Histogram

SATURATED_SHARE: Final = 0.9
"""Above this share of a core for each process the client measures itself."""

LATE_SHARE: Final = 0.01
"""What the client may add: of the time of users, or of the latencies of an open loop; see `late_share_within`."""

WINDOW_LATE_FACTOR: Final = 4.0
"""So many times as much it may add in one window: to all of the eight or more that make a start that adds half of that
or less. With the limit of the whole, a host on which the client adds a steady half of it would lose too many windows by
chance.
"""


def late_share_within(tolerance: float) -> float:
    """What the client may add where metrics may get worse by a tolerance: a tenth of it, and `LATE_SHARE` at least.

    A share that it adds moves a throughput or a latency by that share at most.
    """
    return max(LATE_SHARE, tolerance / 10)


TIMER_SECONDS: Final = 0.25e-3
"""Where a send is timed, so much of its mean lag is the timer's: 0.03 to 0.15 ms on idle and on busy hosts."""

TAIL_SECONDS: Final = 1e-3
"""The p99 of the lags of an open loop may be as long, or the share of the p99 of its latencies that the
client may add."""

ACHIEVED_SHARE: Final = 0.99
"""Of the requests that were due, so many at least are sent."""

IN_FLIGHT_TOLERANCE: Final = 0.05
"""How far the average number of requests under way may be from what the latencies say, beyond what the edges of the
stretch make: there requests are cut, of each no more than about one mean latency."""


LATENCIES_LONG: Final = 20
"""Of a stretch of fewer mean latencies most may be edges."""

GROWTH_SHARE: Final = 0.05
LEAST_COURSE: Final = 20

OPENING_SECONDS: Final = 1.0


DISTURBANCES: Final = frozenset(
    {ReasonKind.CLIENT_SATURATED, ReasonKind.CLIENT_LATE, ReasonKind.CLIENT_HELD_UP},
)
"""Reasons that may be gone when it is measured again; the others are final."""


OF_A_WORKER: Final = frozenset(
    {
        ReasonKind.CLIENT_SATURATED,
        ReasonKind.CLIENT_LATE,
        ReasonKind.CLIENT_HELD_UP,
        ReasonKind.RATE_NOT_REACHED,
        ReasonKind.NOTHING_MEASURED,
    }
)
"""What shows in a worker's share; the rest is asked of all of the load."""

_WORKER: Final = "/worker-"
"""Stands between a worker's node and its part; see ``load.ray``."""

_ANY: Final = 1 - 1e-9
"""Errors are judged of the whole load."""


def reasons(
    totals: Tick,
    *,
    schedule: Schedule,
    processes: int,
    cores: int | None = None,
    allowed_errors: float = 0.0,
    late_share: float = LATE_SHARE,
) -> tuple[Reason, ...]:
    """Return why nothing may be concluded from a measurement; empty if something may.

    Args:
        totals: What was measured.
        schedule: The load.
        processes: Engines that shared it.
        cores: That they may use together; None for one each.
        allowed_errors: Share of the requests that may fail.
        late_share: What the client may add.

    Raises:
        ValueError: An argument is out of range.
    """
    if processes < 1:
        raise ValueError(f"one engine at least makes a load, not {processes}")
    if not 0 <= allowed_errors < 1:
        raise ValueError(f"the allowed share of errors lies in [0, 1), not at {allowed_errors}")
    at_once = processes if cores is None else min(processes, cores)
    return tuple(_reasons(totals, schedule, processes, at_once=at_once, allowed=allowed_errors, late_share=late_share))


def disturbances(
    totals: Tick,
    *,
    schedule: Schedule,
    usual: Tick,
    processes: int = 1,
    cores: int | None = None,
    late_share: float = LATE_SHARE,
) -> tuple[Reason, ...]:
    """Return why a window of a load is to be measured again: the client used up its cores, or was late, in it.

    Whether it was depends on what the client did, and not on how fast the server was in this window: to drop windows
    for that would hide what is looked for.

    Args:
        totals: Of the window.
        schedule: The load.
        usual: What the same load came to until now, which tells how long a request usually takes.
        processes: Engines that shared it.
        cores: That they may use together; None for one each.
        late_share: What the client may add to the whole load.
    """
    if totals.nanoseconds <= 0:
        return ()
    at_once = processes if cores is None else min(processes, cores)
    late = _late(totals, schedule, processes, usual, WINDOW_LATE_FACTOR * late_share)
    found = (*_saturated(totals, at_once), *late)
    return tuple(reason for reason in found if reason.kind in DISTURBANCES)


def _reasons(
    totals: Tick,
    schedule: Schedule,
    processes: int,
    *,
    at_once: int,
    allowed: float,
    late_share: float,
) -> Iterator[Reason]:
    yield from _errors(totals, allowed)
    if totals.requests == 0 or totals.nanoseconds <= 0:
        yield Reason(
            ReasonKind.NOTHING_MEASURED,
            f"nothing measured: {totals.requests} requests were answered well in {format_seconds(totals.seconds)}",
        )
        return
    service = totals.service if is_open(schedule) else totals.latency
    yield from _unknown(totals, service)
    yield from _saturated(totals, at_once)
    late = list(_late(totals, schedule, processes, totals, late_share))
    yield from late
    if is_open(schedule):
        yield from _lag_unknown(totals)
        yield from () if late else _late_tail(totals, late_share)
        yield from _rate(totals)
    yield from _in_flight(totals, service)
    yield from _growing(totals, schedule)
    yield from _without_connection(totals, schedule)


def _errors(totals: Tick, allowed: float) -> Iterator[Reason]:
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
        f" {format_fraction(allowed)} may: {kinds}",
    )


def _unknown(totals: Tick, service: Histogram) -> Iterator[Reason]:
    for name, durations in (("latency", totals.latency), ("service time", service)):
        if durations.total != totals.requests:
            yield Reason(
                ReasonKind.NOT_COUNTED,
                f"{name} unknown: {durations.total} values of {totals.requests} answered requests",
            )
            return


def _saturated(totals: Tick, processes: int) -> Iterator[Reason]:
    share = totals.cpu_seconds / (totals.seconds * processes)
    if share <= 0:
        yield Reason(ReasonKind.NOT_COUNTED, "the client's CPU time is unknown: it reports none")
    elif share > SATURATED_SHARE:
        yield Reason(
            ReasonKind.CLIENT_SATURATED,
            f"client saturated: {_engines(processes)} used {format_fraction(share)} of a core, over"
            f" {format_fraction(SATURATED_SHARE)}, so it measured itself; share the load:"
            f" processes={processes + 1}, if there are cores",
        )


def _late(totals: Tick, schedule: Schedule, processes: int, usual: Tick, most: float) -> Iterator[Reason]:
    """Whether the client adds too much to what is measured: by sending late, or by not running when answers come.

    Its beats come at regular times, so that on average they see what answers see that come at any time: as large a
    share of the time as beats are late the engine did not run, and an answer waits for it as long as they are late on
    average (R. W. Wolff, "Poisson arrivals see time averages", Operations Research 30, 1982).

    In a closed loop both are time in which a user is idle for the client, between an answer and the next request. A
    user waits for one answer at a time, so that no standstill makes users idle for longer than it lasts; of one that
    only one beat saw no more is known than by how much that was late. In an open loop both are part of the latency.
    """
    answered = usual.latency.mean
    if answered is None or usual.requests == 0:
        return
    lag, length_ns = totals.lag.mean or 0.0, processes * totals.nanoseconds
    wait = totals.late_beats_ns / NANOSECONDS * BEAT_NS / length_ns
    still = min(totals.late_beats * BEAT_NS, totals.late_beats_ns) / length_ns
    timed = is_open(schedule)
    whole, whose = answered, "latencies"
    if usual.ttft.mean is not None:
        # It is part of a stream's first token as well, which takes less than the stream.
        whole, whose = usual.ttft.mean, "times to the first token"
    if isinstance(schedule, (Closed, Steps)):
        timed = schedule.think_seconds > 0
        # Latencies are not what users wait for alone: connections are opened, and requests fail.
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
            f"client held up: the load engine did not run for {format_fraction(still)} of the time though it had to,"
            f" and so {adds}"
        )
        yield Reason(ReasonKind.CLIENT_HELD_UP, text)


def _lag_unknown(totals: Tick) -> Iterator[Reason]:
    # What waited for max_in_flight need not have a lag.
    if totals.lag.total < totals.sent - totals.held:
        yield Reason(
            ReasonKind.NOT_COUNTED,
            f"send lag unknown: it was measured for {totals.lag.total} of {totals.sent} sent requests",
        )


def _late_tail(totals: Tick, late_share: float) -> Iterator[Reason]:
    """Whether the slowest hundredth of an open loop's latencies may be so slow for being sent late.

    It can be only where a hundredth of them was. Of too few requests for a p99 there is none to move.
    """
    lag, latency = (
        totals.lag.known_quantile(0.99),
        (totals.ttft if totals.ttft.total else totals.latency).known_quantile(0.99),
    )
    if lag is None or latency is None or lag <= max(TAIL_SECONDS, late_share * latency):
        return
    yield Reason(
        ReasonKind.CLIENT_LATE,
        f"client late: requests were sent with a lag p99 of {format_seconds(lag)}, over {format_seconds(TAIL_SECONDS)}"
        f" and over {format_fraction(late_share)} of the p99 {format_seconds(latency)}",
    )


def _rate(totals: Tick) -> Iterator[Reason]:
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
        ReasonKind.RATE_NOT_REACHED,
        f"rate not reached: {totals.sent} of {totals.due} due requests were sent"
        f" ({format_fraction(totals.sent / totals.due)}){cause}",
    )


def _in_flight(totals: Tick, service: Histogram) -> Iterator[Reason]:
    """Little's law: the number under way is the rate times the time that each is.

    J. D. C. Little, "A proof for the queuing formula L = lambda W", Operations Research 9 (1961).
    """
    throughput, mean, in_flight = totals.throughput, service.mean, totals.in_flight
    if throughput is None or mean is None or in_flight is None:
        return
    # So were failed requests, and streams after their last token.
    expected = throughput * mean + totals.untimed_ns / totals.nanoseconds
    # Both edges cut requests. If the host stands still at one, all under way may be as slow as the slowest that
    # were answered; a request that is stuck is older than any of these.
    edges = max(in_flight * mean, service.slowest_seconds(math.ceil(in_flight))) / totals.seconds
    if expected > 0 and abs(in_flight - expected) <= IN_FLIGHT_TOLERANCE * expected + edges:
        return
    longer = LATENCIES_LONG * mean
    too_short = (
        f", or {format_seconds(totals.seconds)} are too short for such latencies: measure {format_seconds(longer)} at"
        " least"
        if totals.seconds < longer
        else ""
    )
    yield Reason(
        ReasonKind.STUCK_REQUESTS,
        f"in flight: {in_flight:.4g} requests were under way on average, but {format_rate(throughput)} times"
        f" {format_seconds(mean)} is {expected:.4g}: requests are stuck (the oldest at the end had waited"
        f" {format_seconds(totals.oldest_ns / 1e9)}){too_short}",
    )


def _growing(totals: Tick, schedule: Schedule) -> Iterator[Reason]:
    """More and more requests under way: what is measured then is for how long."""
    course = totals.course
    if not isinstance(schedule, (Constant, Poisson, Gamma)) or len(course) < LEAST_COURSE:
        return
    # Averages, because a queue has its moments: of the quarter in the middle and of the last one, 3/8 of the time on.
    eighth = len(course) // 8
    middle, end = fmean(course[3 * eighth : 5 * eighth]), fmean(course[-2 * eighth :])
    grown = end - middle
    # What chance does to a queue is about its square root.
    if grown > GROWTH_SHARE * totals.sent * 3 / 8 and grown > 3 * math.sqrt(middle + 1):
        yield Reason(
            ReasonKind.OVERLOADED,
            f"overloaded: requests under way grew from {middle:.4g} in the middle to {end:.4g} at the end, so the"
            " rate is too high for the server, and latencies depend on the duration: lower the rate, or set"
            " max_in_flight",
        )


def _without_connection(totals: Tick, schedule: Schedule) -> Iterator[Reason]:
    """Users who wait for a connection have no request under way, and so no latency."""
    if isinstance(schedule, (Closed, Steps)) and totals.oldest_opening_ns > OPENING_SECONDS * 1e9:
        yield Reason(
            ReasonKind.STUCK_REQUESTS,
            f"in flight: at the end {totals.opening} of {totals.users} users waited for a connection, one for"
            f" {format_seconds(totals.oldest_opening_ns / 1e9)}: the server does not accept so many",
        )


def _engines(processes: int) -> str:
    return "the load engine" if processes == 1 else f"each of the {processes} load engines"


def share_reasons(
    found: Mapping[str, Tick], schedule: Schedule, *, among: int | None = None, late_share: float = LATE_SHARE
) -> tuple[Reason, ...]:
    """Return why nothing may be concluded from a load, of workers by name: saturated, late, behind, or never answered.

    Of workers named ``NODE/worker-P`` also whether those of one node, of which each may have used little, together used
    up its cores.

    Args:
        found: What each did.
        schedule: The load that they shared.
        among: Cores that they share; None for one each. Workers that share fewer cores than they are cannot use one
            each, so that none of them shows by itself that they are saturated; that shows in the whole.
        late_share: What each may add.
    """
    found_reasons: list[Reason] = []
    for name, totals in found.items():
        if not (totals.sent or totals.due or totals.error_count or totals.opening):
            # Of a few requests over many workers some get none.
            continue
        kinds = OF_A_WORKER - ({ReasonKind.CLIENT_SATURATED} if among is not None and among < len(found) else set())
        found_reasons += [
            reason.of(name)
            for reason in reasons(totals, schedule=schedule, processes=1, allowed_errors=_ANY, late_share=late_share)
            if reason.kind in kinds
        ]
    return (*found_reasons, *_saturated_nodes(found, among))


def _saturated_nodes(found: Mapping[str, Tick], among: int | None) -> Iterator[Reason]:
    nodes: dict[str, list[Tick]] = {}
    for name, totals in found.items():
        node, of_a_node, _ = name.rpartition(_WORKER)
        if of_a_node:
            nodes.setdefault(node, []).append(totals)
    for node, workers in nodes.items():
        cores = max(totals.host_cores for totals in workers)
        # Workers with a core for each show it by themselves, and those that share all of this host in the whole.
        if len(workers) <= max(1, cores) or (among is not None and among <= cores):
            continue
        if not cores:
            yield Reason(ReasonKind.NOT_COUNTED, f"cores of {node} unknown: its {len(workers)} workers report none")
            continue
        used = sum(totals.cpu_seconds for totals in workers)
        offered = cores * max(totals.seconds for totals in workers)
        if used > SATURATED_SHARE * offered > 0:
            plural = "" if cores == 1 else "s"
            yield Reason(
                ReasonKind.CLIENT_SATURATED,
                f"{node}: client saturated: its {len(workers)} workers together used {format_fraction(used / offered)}"
                f" of their {cores} core{plural}, over {format_fraction(SATURATED_SHARE)}, so they measured"
                " themselves; spread the load over more nodes",
            )


def one_line(text: str) -> str:
    """Make a line of a text that may hold what a server sent: no line breaks, no escape sequences of a terminal."""
    return "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in " ".join(text.split()))
