"""What an open loop says of a queue, against what mathematics says."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

import pytest

from pytest_gpuserve.load.schedule import NANOSECONDS, Poisson
from tests.benchmarks import ours
from tests.benchmarks.pairs import ratio
from tests.benchmarks.servers import Timed, timed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tests.benchmarks.rows import Table

pytestmark = [pytest.mark.slow, pytest.mark.alone]

SERVICE_SECONDS = 0.004
SECONDS = 8
"""Of a load. Waits of neighbours depend on each other, so the mean wait of so short a load scatters widely about
theory's (`test_schedule` tells by how much). But which waits this very schedule must find is known, so the chance in it
can be taken off exactly; what is left is the engine's own error, for which a short load is long enough."""

SEEDS = range(5)
LOADS = (0.5, 0.7, 0.85)


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


@pytest.fixture(scope="module")
def queue(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Timed]:
    """A server that serves one request after the other."""
    with timed(tmp_path_factory.mktemp("queue"), "queue", SERVICE_SECONDS) as server:
        yield server


def mean_latency(queue: Timed, **load: object) -> float:
    """Return the mean latency of a load, in seconds, less what the server's answers were late by its own account."""
    queue.told()
    report = ours.load(ours.command(queue.url, **load))
    assert report.valid, report.reasons
    told = queue.told()
    assert report.requests == told["answered"]
    return report.latency["mean"] - told["mean_late_seconds"]


@pytest.fixture(scope="module")
def unqueued_seconds(queue: Timed) -> float:
    """Mean latency of requests at gaps of two services, which never wait: the service and the way there and back."""
    return mean_latency(queue, rate=0.5 / SERVICE_SECONDS, arrivals="constant", duration=SECONDS)


def due_seconds(load: float, requests: int, seed: int) -> Iterator[float]:
    """When the requests of a load are due, by the schedule alone."""
    arrivals = Poisson(load / SERVICE_SECONDS).arrivals(seed)
    return (arrival.at_ns / NANOSECONDS for arrival in islice(arrivals, requests))


@pytest.mark.parametrize("load", LOADS)
def test_mean_wait(queue: Timed, unqueued_seconds: float, table: Table, load: float) -> None:
    """The mean wait of Poisson arrivals is theory's within 5 %, the chance in the schedule taken off."""
    theory = mean_wait_md1(load, SERVICE_SECONDS)
    requests = round(SECONDS * load / SERVICE_SECONDS)
    plain, corrected = [], []
    for seed in SEEDS:
        mean = mean_latency(queue, rate=load / SERVICE_SECONDS, arrivals="poisson", seed=seed, requests=requests)
        waited = mean - unqueued_seconds
        plain.append((waited, theory))
        corrected.append((waited - mean_wait(due_seconds(load, requests, seed), SERVICE_SECONDS) + theory, theory))
    table.compare_seconds(f"mean wait, {load:.0%} load, as measured", "M/D/1", ratio(plain))
    found = ratio(corrected)
    assert table.compare_seconds(
        f"mean wait, {load:.0%} load, the schedule's chance taken off", "M/D/1", found, least=0.95, most=1.05
    ), found
