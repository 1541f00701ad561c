"""How far the p99 of several workers is off: merged from their histograms, or made of their p99s.

    python -m tests.benchmarks.merged_p99 --loads 200

Every worker has a replica of its own behind it, as balancers and shards have. That percentiles cannot be averaged is
well known and done all the same (G. Tene, "You can't average percentiles. Period.", 2014; Prometheus, "Histograms and
summaries", of quantiles over instances). Here is by how much.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Final, TypeVar

import numpy as np

from pytest_gpuserve.load.engine.tick_counters import TickCounters
from pytest_gpuserve.load.totals import merge_ticks, total
from pytest_gpuserve.units import format_change, format_fraction
from tests.benchmarks.rows import parser_of, rich_table, show

if TYPE_CHECKING:
    from collections.abc import Sequence

_Number = TypeVar("_Number", int, float)

Q: Final = 0.99
REQUESTS: Final = 10_000
"""Of a load."""

SIGMA: Final = 0.3
"""Of the logarithm of a latency: a p99 of twice the median."""


@dataclass(frozen=True)
class Replicas:
    """What the workers of a load have behind them.

    Args:
        name: In a few words.
        medians_ms: Latency of each replica.
        weights: Which part of the requests each gets; their sum is of no account.
    """

    name: str
    medians_ms: tuple[float, ...]
    weights: tuple[float, ...]

    @property
    def alike(self) -> bool:
        """Whether none differs from another."""
        return len(set(self.medians_ms)) == len(set(self.weights)) == 1


REPLICAS: Final = (
    Replicas("8 alike", 8 * (10.0,), 8 * (1.0,)),
    Replicas("half of 8 take twice as long", (*4 * (10.0,), *4 * (20.0,)), 8 * (1.0,)),
    Replicas("one of 8 takes three times as long", (*7 * (10.0,), 30.0), 8 * (1.0,)),
    Replicas("one of 32 takes ten times as long", (*31 * (10.0,), 100.0), 32 * (1.0,)),
    Replicas("one of 8 takes five times as long and gets 2 %", (*7 * (10.0,), 50.0), (*7 * (14.0,), 2.0)),
    Replicas("one of 8 takes five times as long and gets 0.5 %", (*7 * (10.0,), 50.0), (*7 * (28.43,), 1.0)),
)


@dataclass(frozen=True)
class Errors:
    """By which fraction a p99 is off from that of all requests in one list.

    Args:
        merged: From the workers' histograms, merged.
        averaged: The mean of the workers' p99s.
        weighted: The same with each weighted by its requests.
        largest: The largest of the workers' p99s.
    """

    merged: float
    averaged: float
    weighted: float
    largest: float


def error_of_a_load(replicas: Replicas, seed: int, *, requests: int) -> Errors:
    """Draw a load's latencies, and sum them up in each way."""
    random = np.random.default_rng(seed)
    weights = np.array(replicas.weights)
    workers = random.choice(len(weights), size=requests, p=weights / weights.sum())
    medians_ns = 1e6 * np.array(replicas.medians_ms)
    latencies_ns = np.round(medians_ns[workers] * np.exp(SIGMA * random.standard_normal(requests))).astype(np.int64)
    hands: list[list[int]] = [latencies_ns[workers == worker].tolist() for worker in range(len(weights))]
    busy = [hand for hand in hands if hand]
    whole = nearest_rank(latencies_ns.tolist(), Q)
    own = [nearest_rank(hand, Q) for hand in busy]
    return Errors(
        merged=merged_p99_ns(busy) / whole - 1,
        averaged=sum(own) / len(own) / whole - 1,
        weighted=sum(p99 * len(hand) for p99, hand in zip(own, busy, strict=True)) / requests / whole - 1,
        largest=max(own) / whole - 1,
    )


def merged_p99_ns(hands: Sequence[Sequence[int]]) -> float:
    """The p99 in nanoseconds that a load of several workers reports.

    Args:
        hands: Each worker's latencies in nanoseconds, 100 at least in all.
    """
    ticks = []
    for hand in hands:
        counters = TickCounters()
        for latency_ns in hand:
            counters.latency.note(latency_ns)
        ticks.append(counters.close(1, 0))
    p99 = total([merge_ticks(ticks)]).latency.quantile(Q)
    assert p99 is not None, "fewer than 100 latencies have no p99"
    return p99 * 1e9


def nearest_rank(values: Sequence[_Number], q: float) -> _Number:
    """The smallest of the values that has the share ``q`` of them, given to four decimals, at or below it."""
    rank = -(-round(q * 10_000) * len(values) // 10_000)
    return sorted(values)[rank - 1]


def main() -> None:
    """Print the table."""
    parser = parser_of(__doc__)
    parser.add_argument("--loads", type=int, default=200, help="of each set of replicas (default 200)")
    arguments = parser.parse_args()
    ways = ("merged", "mean of p99s", "mean weighted by requests", "largest p99")
    rows = []
    for replicas in REPLICAS:
        loads = [error_of_a_load(replicas, seed, requests=REQUESTS) for seed in range(arguments.loads)]
        rows.append(
            (
                replicas.name,
                # Half a bucket's width, of which a sign says nothing.
                f"at most {100 * max(abs(load.merged) for load in loads):.3f} %",
                format_change(median(load.averaged for load in loads)),
                format_change(median(load.weighted for load in loads)),
                format_change(median(load.largest for load in loads)),
                f"{format_fraction(sum(abs(load.averaged) > 0.1 for load in loads) / len(loads))} of {len(loads)}",
            )
        )
    header = ("replicas", *(f"{way}, off by" for way in ways), "means off by over 10 %")
    show(rich_table(header, rows, words=["replicas"]))


if __name__ == "__main__":
    main()
