"""Quantiles of many workers are those of all requests in one list, however the requests were dealt out."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_gpuserve.load.engine.tally import Tally
from pytest_gpuserve.load.merging import together
from pytest_gpuserve.load.shares import shares
from pytest_gpuserve.load.totals import total
from pytest_gpuserve.load.wire import Tick
from tests.benchmarks.merged_p99 import REPLICAS, error_of_a_load, nearest_rank

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpuserve.load.totals import Durations
    from tests.benchmarks.merged_p99 import Replicas

UNHURRIED = settings(deadline=None, max_examples=30)  # a busy machine may stall any example

MOST_WORKERS = 32
BUCKET = 5e-4
"""A bucket's middle is off by no more."""

QUANTILES = (0.5, 0.9, 0.95, 0.99)


def tick_of(latencies_ns: Sequence[int], number: int = 0) -> Tick:
    """What an engine reports of these latencies, as it arrives at the other end of its pipe."""
    tally = Tally()
    for latency_ns in latencies_ns:
        tally.latency.note(latency_ns)
    tally.requests = len(latencies_ns)
    tick = msgspec.structs.replace(tally.close((number + 1) * 10**8, 0), number=number, begin_ns=number * 10**8)
    return msgspec.msgpack.decode(msgspec.msgpack.encode(tick), type=Tick)


def check(found: Durations, latencies_ns: Sequence[int]) -> None:
    """Hold quantiles, mean and maximum against the raw latencies."""
    assert found.total == len(latencies_ns)
    assert found.sum_ns == sum(latencies_ns)
    assert found.max_ns == max(latencies_ns)
    for q in QUANTILES:
        value = found.quantile(q)
        assert value is not None
        assert value * 1e9 == pytest.approx(nearest_rank(latencies_ns, q), rel=BUCKET)


@UNHURRIED
@given(
    seed=st.integers(0, 2**32),
    workers=st.integers(1, MOST_WORKERS),
    requests=st.integers(100, 3000),
    sigma=st.floats(0, 3),
    skew=st.floats(1, 100),
    ticks=st.integers(1, 4),
)
def test_skewed_replicas_and_several_ticks_merge_exactly(
    *, seed: int, workers: int, requests: int, sigma: float, skew: float, ticks: int
) -> None:
    """Each worker's replica is slower than the one before, up to a hundredfold, and takes another share of the load."""
    draw = random.Random(seed)
    weights = [draw.random() + 1e-3 for _ in range(workers)]
    raw: dict[tuple[int, int], list[int]] = {(number, who): [] for number in range(ticks) for who in range(workers)}
    for who in draw.choices(range(workers), weights, k=requests):
        raw[draw.randrange(ticks), who].append(1 + int(1e7 * skew ** (who / workers) * draw.lognormvariate(0, sigma)))
    merged = [
        together({f"worker {who}": tick_of(raw[number, who], number) for who in range(workers)})
        for number in range(ticks)
    ]
    check(total(merged).latency, [latency_ns for hand in raw.values() for latency_ns in hand])
    of_each = [sum(len(raw[number, who]) for number in range(ticks)) for who in range(workers)]
    assert [totals.requests for totals in shares(merged).values()] == of_each


@pytest.mark.parametrize("replicas", REPLICAS, ids=lambda replicas: replicas.name)
def test_the_merged_p99_is_right_where_an_average_of_p99s_is_not(replicas: Replicas) -> None:
    """Of forty loads over each set of replicas, the merged p99 of none is off by more than half a bucket."""
    errors = [error_of_a_load(replicas, seed, requests=4000) for seed in range(40)]
    assert max(abs(error.merged) for error in errors) <= BUCKET
    # Each worker has its 99 % at or below the largest of their p99s, and so have all together.
    assert min(error.largest for error in errors) >= 0
    wrong = sum(abs(error.averaged) > 0.1 for error in errors)
    assert wrong == (0 if replicas.alike else len(errors))
