"""What each of several servers that share a load did by itself, and how unevenly; nothing of it is a gate."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.measure.histogram import merge

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pytest_gpuserve.measure.counters import Counters
    from pytest_gpuserve.measure.histogram import Histogram
    from pytest_gpuserve.measure.window import Window

P99_REQUESTS: Final = 100
"""Of fewer requests a p99 by the nearest rank is their maximum, and says nothing of a replica."""

P50_REQUESTS: Final = 2

MUCH_SLOWER: Final = 2.0
"""A replica whose latency is so many times the median of the others' is named: load and noise alone do not do that."""


@dataclass(frozen=True, slots=True)
class ReplicaResult:
    """What one replica came to over all that was measured.

    Args:
        name: Its address, as ``host:port``.
        errors: Requests to it that failed, by kind.
        latency: Of the answered requests.
        counters: What it counted itself meanwhile; None where it does not count, or did nothing that it counts.
    """

    name: str
    requests: int
    errors: Mapping[str, int]
    seconds: float
    latency: Histogram
    counters: Counters | None = None

    @property
    def throughput(self) -> float | None:
        """Requests that it answered a second; None of no time."""
        return self.requests / self.seconds if self.seconds else None

    @property
    def failed(self) -> int:
        """Requests to it that failed."""
        return sum(self.errors.values())

    @property
    def p50(self) -> float | None:
        """Its median latency in seconds; None of fewer than two requests."""
        return self.latency.quantile(0.5) if self.latency.total >= P50_REQUESTS else None

    @property
    def p99(self) -> float | None:
        """The 99th percentile of its latency in seconds; None of fewer than a hundred requests."""
        return self.latency.quantile(0.99) if self.latency.total >= P99_REQUESTS else None

    @property
    def batching_ratio(self) -> float | None:
        """Items in an executed batch, on average; None where it is not counted."""
        counted = self.counters
        return counted.items / counted.batches if counted is not None and counted.batches else None


@dataclass(frozen=True, slots=True)
class Imbalance:
    """How unevenly several replicas did.

    Args:
        replicas: How many there are.
        busiest: By how much the most answered requests of one are over their mean, as a fraction; None where nothing
            was answered.
        fastest_p99: The lowest p99 of one, in seconds; None where none is known.
        slowest_p99: The highest.
        slowest: Whose that is; empty where none is known.
        much_slower: Whose p50 or p99 is so far over the others' that it is reported; see `MUCH_SLOWER`.
        failing: Whose requests failed, those with the most first.
    """

    replicas: int
    busiest: float | None
    fastest_p99: float | None
    slowest_p99: float | None
    slowest: str
    much_slower: tuple[str, ...]
    failing: tuple[str, ...]


def replicas_of(windows: Iterable[Window], counters: Counters | None = None) -> tuple[ReplicaResult, ...]:
    """Pool what each replica did, in the order of the first window; empty where one server had the load alone.

    Args:
        windows: What was measured. Of those that do not know their replicas, as a round of an earlier run, nothing is
            counted.
        counters: What the servers counted meanwhile, with each replica as a part.
    """
    known = list(windows)
    names = dict.fromkeys(replica.name for window in known for replica in window.replicas)
    parts = {} if counters is None else counters.parts
    found = []
    for name in names:
        of_it = [(window.seconds, each) for window in known for each in window.replicas if each.name == name]
        errors: dict[str, int] = {}
        for _, each in of_it:
            for kind, count in each.errors.items():
                errors[kind] = errors.get(kind, 0) + count
        found.append(
            ReplicaResult(
                name,
                requests=sum(each.requests for _, each in of_it),
                errors=errors,
                seconds=sum(seconds for seconds, _ in of_it),
                latency=merge(each.latency for _, each in of_it),
                counters=parts.get(name),
            )
        )
    return tuple(found)


def imbalance_of(replicas: Iterable[ReplicaResult]) -> Imbalance | None:
    """How unevenly replicas did; None where there are no two to be compared."""
    known = list(replicas)
    if len(known) < 2:
        return None
    mean = statistics.fmean(replica.requests for replica in known)
    p99s = sorted((replica.p99, replica.name) for replica in known if replica.p99 is not None)
    failing = sorted((replica for replica in known if replica.failed), key=lambda replica: -replica.failed)
    return Imbalance(
        replicas=len(known),
        busiest=max(replica.requests for replica in known) / mean - 1 if mean else None,
        fastest_p99=p99s[0][0] if p99s else None,
        slowest_p99=p99s[-1][0] if p99s else None,
        slowest=p99s[-1][1] if p99s else "",
        much_slower=tuple(replica.name for replica in known if _is_much_slower(replica, known)),
        failing=tuple(replica.name for replica in failing),
    )


def _is_much_slower(replica: ReplicaResult, known: list[ReplicaResult]) -> bool:
    others = [other for other in known if other is not replica]
    return _far_over(replica.p50, [other.p50 for other in others]) or _far_over(
        replica.p99, [other.p99 for other in others]
    )


def _far_over(latency: float | None, others: list[float | None]) -> bool:
    compared = [other for other in others if other is not None]
    return latency is not None and bool(compared) and latency > MUCH_SLOWER * statistics.median(compared)
