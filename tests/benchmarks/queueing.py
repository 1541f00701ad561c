"""What theory says of a queue with one server, and what a given schedule must find there."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def mean_wait_md1(load: float, service_seconds: float) -> float:
    """Mean wait of Poisson arrivals for a server of constant service time, in seconds.

    Pollaczek's and Khinchine's formula with no variance of the service: ``load * service / (2 * (1 - load))``.

    Args:
        load: Share of the time that the server is busy, below 1.
        service_seconds: The service time.
    """
    return load * service_seconds / (2 * (1 - load))


def mean_wait(arrivals_seconds: Iterable[float], service_seconds: float) -> float:
    """Mean wait that these very arrivals find at a server of constant service time, in seconds.

    Lindley's recursion: a service begins at the arrival, or when the one before it ends.
    """
    free_seconds = total_seconds = 0.0
    count = 0
    for at_seconds in arrivals_seconds:
        begin_seconds = max(at_seconds, free_seconds)
        total_seconds += begin_seconds - at_seconds
        free_seconds = begin_seconds + service_seconds
        count += 1
    return total_seconds / count
