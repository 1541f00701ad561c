"""Reports of workers that are not there, through the code that reads and merges those of real ones.

Latencies are drawn, and counted, framed, read and merged by the engine's, the coordinator's and the session's own code,
so sizes, CPU time and errors are those of real reports with such latencies. What Ray takes to carry them is not in it.
"""

from __future__ import annotations

import tracemalloc
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

from pytest_gpuserve.load.engine.tick_counters import TickCounters
from pytest_gpuserve.load.ray.clock import Exchange, Track
from pytest_gpuserve.load.ray.coordinator import TickGatherer
from pytest_gpuserve.load.ray.worker import WorkerReport
from pytest_gpuserve.load.totals import RunningTotals, packed, shares, total
from pytest_gpuserve.load.wire import LENGTH, Tick, frame
from tests.benchmarks.merged_p99 import Q, nearest_rank
from tests.benchmarks.nothing_served import TICK_NS
from tests.benchmarks.scale_costs import cpu_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

TICKS_A_SECOND: Final = 10**9 // TICK_NS

MEDIAN_NS: Final = 20e6
LAG_NS: Final = 30e3
SLOW_EVERY: Final = 8
SLOWER: Final = 2.0
"""Of so many workers the last one has a replica that takes so many times as long."""


@dataclass(frozen=True)
class RayWorker:
    """What a worker reports of some ticks.

    Args:
        name: Its name.
        ticks: Of numbers from 0 on.
        latencies_ns: All of them, as they were before they were counted.
    """

    name: str
    ticks: list[Tick]
    latencies_ns: list[int]


def worker(
    name: str, *, per_tick: int, ticks: int, sigma: float, median_ns: float = MEDIAN_NS, seed: int = 0
) -> RayWorker:
    """Draw an open loop's latencies, log-normal about a median, each with a small lag in it, and count them.

    Args:
        name: What it is called.
        per_tick: Requests in a tick.
        ticks: How many.
        sigma: Of the logarithm of a latency.
        median_ns: Of the latencies.
        seed: Of the draw.
    """
    random = np.random.default_rng(seed)
    counters = TickCounters()
    counters.begin(0, 0)
    found: list[Tick] = []
    raw: list[int] = []
    for number in range(ticks):
        lags = random.exponential(LAG_NS, per_tick).astype(np.int64)
        services = np.round(median_ns * np.exp(sigma * random.standard_normal(per_tick))).astype(np.int64)
        for lag_ns, service_ns in zip(lags.tolist(), services.tolist(), strict=True):
            counters.lag.note(lag_ns)
            counters.service.note(service_ns)
            counters.latency.note(lag_ns + service_ns)
        raw += (lags + services).tolist()
        counters.requests = counters.due = per_tick
        found.append(counters.close((number + 1) * TICK_NS, (number + 1) * TICK_NS // 2, open_loop=True))
    return RayWorker(name, found, raw)


def pool(workers: int, *, per_tick: int, ticks: int, sigma: float) -> list[RayWorker]:
    """Draw what so many workers report; every eighth has a slower replica."""
    return [
        worker(
            f"worker {number}",
            per_tick=per_tick,
            ticks=ticks,
            sigma=sigma,
            median_ns=MEDIAN_NS * (SLOWER if number % SLOW_EVERY == SLOW_EVERY - 1 else 1.0),
            seed=number,
        )
        for number in range(workers)
    ]


@dataclass(frozen=True)
class Gathered:
    """What it takes to make one of what several workers report of one tick; sizes in bytes, CPU time in seconds.

    Args:
        worker_bytes: Size of a worker's report.
        coordinator_seconds: To read the workers' reports, move them to one clock, merge them, and write what is passed
            on.
        session_seconds: To read that and to add it up as a session does: what was seen so far, the window, and in the
            end all of the measurement and each worker's share.
        kept_bytes: Memory of what the session keeps of it until the measurement ends.
        merged_error: By which fraction the p99 of all is off.
    """

    worker_bytes: float
    coordinator_seconds: float
    session_seconds: float
    kept_bytes: float
    merged_error: float


def gather(workers: Sequence[RayWorker]) -> Gathered:
    """Take reports to where they are judged.

    Args:
        workers: One at least, all with as many ticks, and 100 requests at least in all.
    """
    names = [each.name for each in workers]
    rows = list(zip(*(each.ticks for each in workers), strict=True))
    news = [[msgspec.msgpack.encode(WorkerReport(0, 0, [tick])) for tick in row] for row in rows]
    passed = _coordinate(names, news)
    count = len(rows)

    tracemalloc.start()
    kept = [packed(_read(data)) for data in passed]
    kept_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    raw = [latency_ns for each in workers for latency_ns in each.latencies_ns]
    whole = nearest_rank(raw, Q)
    merged = total(kept).latency.quantile(Q)
    assert merged is not None, "fewer than 100 latencies have no p99"
    return Gathered(
        worker_bytes=median(len(frame(tick)) for row in rows for tick in row),
        coordinator_seconds=cpu_seconds(lambda: _coordinate(names, news)) / count,
        session_seconds=cpu_seconds(lambda: _take(passed)) / count,
        kept_bytes=kept_bytes / count,
        merged_error=merged * 1e9 / whole - 1,
    )


def _coordinate(names: Sequence[str], news: Sequence[Sequence[bytes]]) -> list[bytes]:
    gatherer, clock = TickGatherer(names), Track()
    clock.hear(Exchange(0, 1, 1, 0))
    passed = []
    for reports in news:
        for part, data in enumerate(reports):
            for tick in msgspec.msgpack.decode(data, type=WorkerReport).ticks:
                gatherer.add(part, clock.in_our_time(tick))
        passed += [frame(tick) for tick in gatherer.take()]
    return passed


def _take(passed: Sequence[bytes]) -> None:
    so_far = RunningTotals()
    kept = []
    for data in passed:
        tick = _read(data)
        so_far.add(tick)
        kept.append(packed(tick))
    # Each tick is part of a window, and of the whole measurement in the end.
    total(kept)
    total(kept)
    shares(kept)


def _read(framed: bytes) -> Tick:
    return msgspec.msgpack.decode(framed[LENGTH.size :], type=Tick)
