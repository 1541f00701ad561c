"""From rounds of two servers to block differences: what they do not depend on, and what a quantile needs."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_gpuserve.measure.counters import Counters
from pytest_gpuserve.measure.histogram import BASE, Histogram
from pytest_gpuserve.measure.points import NotMeasured, TooFewRequests, pooled_value
from pytest_gpuserve.measure.rounds import ARMS, Round, round_point
from pytest_gpuserve.measure.window import GpuUse, Streams, Window
from pytest_gpuserve.verdict.metric import METRICS, Metric
from tests.support.builders import WINDOW_SECONDS, round_of, round_with, with_starts, with_windows

OF_BLOCKS = [metric for name, metric in METRICS.items() if name != "cold_start"]
ALL = pytest.mark.parametrize("metric", OF_BLOCKS, ids=lambda metric: metric.name)
FEW = settings(max_examples=30)

THROUGHPUT = METRICS["throughput"]
P99 = METRICS["latency.p99"]
ENERGY, MEMORY, COLD_START = METRICS["energy_per_inference"], METRICS["gpu_memory"], METRICS["cold_start"]


def a_window(buckets: Sequence[int], seconds: float, items: int, batches: int, gpus: GpuUse | None = None) -> Window:
    """A window with 500 latencies in each of these buckets."""
    counts: dict[int, int] = {}
    for bucket in buckets:
        counts[bucket] = counts.get(bucket, 0) + 500
    requests = 500 * len(buckets)
    end_ns, counted = round(seconds * 1e9), Counters(items, batches)
    made = Window(end_ns=end_ns, requests=requests, latency=Histogram(counts), counters=counted, gpus=gpus)
    return of_streams(made)


def of_streams(window: Window) -> Window:
    """The window with as many streams, all of whose times are its latencies; each has ten tokens and is good."""
    times, requests = window.latency, window.requests
    return msgspec.structs.replace(window, streams=Streams(times, times, times, 10 * requests, requests), good=requests)


GPUS = st.builds(GpuUse, st.floats(1, 1e4), st.floats(1e8, 1e12), st.floats(0.01, 1))
WINDOWS = st.builds(
    a_window,
    st.lists(st.integers(14_000, 17_000), min_size=2, max_size=4),
    st.floats(0.2, 2.0),
    st.integers(100, 5000),
    st.integers(10, 100),
    GPUS,
)
BLOCKS = st.tuples(WINDOWS, WINDOWS, WINDOWS, WINDOWS)


def a_round(*blocks: Sequence[Window]) -> Round:
    """A round of these blocks, as base, candidate, candidate, base; each server had the GPU to itself."""
    base = [window for block in blocks for window in (block[0], block[3])]
    candidate = [window for block in blocks for window in block[1:3]]
    return round_with(base, candidate, one_at_a_time=True)


def on_a_gpu(measured: Round) -> Round:
    """The round as servers that have a GPU to themselves give it: of that too, a window has the cost of its others."""

    def on_gpu(window: Window) -> Window:
        cost = window.seconds / WINDOW_SECONDS
        return msgspec.structs.replace(
            of_streams(window), gpus=GpuUse(40.0 * cost * window.requests, 1e9 * cost, 0.3 / cost)
        )

    starts = {
        arm: tuple(replace(start, windows=(window,)) for start in known for window in start.windows)
        for arm, known in changed(measured, on_gpu).starts.items()
    }
    return replace(measured, starts=starts, one_at_a_time=True)


def changed(measured: Round, change: Callable[[Window], Window]) -> Round:
    """The same round with every window of both servers changed alike."""
    return with_windows(measured, lambda _, window: change(window))


def differences(metric: Metric, measured: Round) -> tuple[float, ...]:
    """The block differences at the metric's own tolerance."""
    return round_point(metric, measured, metric.default_tolerance).differences


@FEW
@given(blocks=st.lists(BLOCKS, min_size=2, max_size=4))
def test_the_order_within_a_block_does_not_matter(blocks: list[tuple[Window, ...]]) -> None:
    """Turned round, a block says the same; with the servers swapped the opposite, by as much."""
    measured = a_round(*blocks)
    turned = a_round(*(block[::-1] for block in blocks))
    swapped = a_round(*((two, one, four, three) for one, two, three, four in blocks))
    for other, sign in ((turned, 1), (swapped, -1)):
        for metric in OF_BLOCKS:
            expected = [sign * each for each in differences(metric, measured)]
            assert differences(metric, other) == pytest.approx(expected, abs=1e-12), metric.name


@ALL
def test_a_slowdown_is_the_difference_and_worse_is_positive(metric: Metric) -> None:
    """Every metric of a candidate that costs 10 % more moves by log(1.1) upwards."""
    measured = on_a_gpu(round_of([math.log(1.1)] * 6, requests=4000))
    # A bucket of latencies is 0.1 % wide, and whole batches are about as coarse.
    assert differences(metric, measured) == pytest.approx([math.log(1.1)] * 6, abs=0.0015)


CALM, SLOW = a_window([15_000] * 2, 0.5, 1, 1), a_window([15_000, 16_000], 0.5, 1, 1)
FULL, EMPTY = a_window([15_000] * 2, 0.5, 4000, 1000), a_window([15_000] * 2, 0.5, 1, 1)
QUICK, LATE = (a_window([15_000] * count, 0.5, 1, 1, GpuUse(joules=100.0)) for count in (4, 2))
DRIFTING = tuple(a_window([15_000] * 2, 0.5 * math.exp(0.1 * turn), 1, 1) for turn in range(4))


@pytest.mark.parametrize(
    ("metric", "windows", "difference"),
    [
        # Averaged window by window on the log scale, so that an even drift cancels exactly.
        pytest.param("throughput", DRIFTING, 0.0, id="a rate is the mean of its windows"),
        # No mean of two p99s: slow requests of one window are weighed by all requests of the block.
        pytest.param("latency.p50", (CALM, SLOW, CALM, CALM), 0.0, id="a median of both windows together"),
        pytest.param("latency.p99", (CALM, SLOW, CALM, CALM), 1000 * math.log(BASE), id="a p99 of both together"),
        # An almost empty window has almost no say in items a batch.
        pytest.param("batching_ratio", (FULL, FULL, EMPTY, FULL), math.log(4 / (4001 / 1001)), id="batches in total"),
        # Half as many requests with the same power take twice the energy for each.
        pytest.param("energy_per_inference", (QUICK, LATE, LATE, QUICK), math.log(2), id="energy by requests"),
    ],
)
def test_what_a_block_says(metric: str, windows: tuple[Window, ...], difference: float) -> None:
    """By hand."""
    found = round_point(METRICS[metric], a_round(*[windows] * 2), 0.5).differences
    assert found == pytest.approx([difference] * 2, abs=1e-9)


def test_no_more_blocks_are_put_together_than_it_takes() -> None:
    """Six blocks of 500 requests are three groups for a p99 within 20 %, which needs 1000; the seventh joins the last.

    Its slow requests are that group's p99.
    """
    assert len(round_point(P99, round_of([0.1] * 6, requests=250), 0.2).differences) == 3
    assert len(round_point(P99, round_of([0.1] * 6, requests=500), 0.2).differences) == 6
    found = round_point(P99, round_of([*[0.1] * 6, 0.5], requests=250), 0.2).differences
    assert found == pytest.approx([0.1, 0.1, 0.5], abs=0.002)


def test_too_few_requests_say_what_would_help() -> None:
    """Three blocks are not merged into one, which would have no spread; an alternating block of two windows is."""
    with pytest.raises(TooFewRequests) as caught:
        round_point(P99, round_of([0.1] * 6, requests=100), 0.2)
    text = str(caught.value)
    assert all(
        part in text for part in ("needs 1000 requests in each half of a round", "found: 600 requests", "gpuserve(p99")
    )
    # Twice as long, as pace_of makes them: at least 0.3 s for each 4 s.
    (seconds,) = re.findall(r"windows 2\.0 times as long: load\(\.\.\., seconds=(\d+)\)", text)
    assert 2 * WINDOW_SECONDS <= int(seconds) / 4 * 0.3 <= 2.3 * WINDOW_SECONDS + 0.3
    with pytest.raises(TooFewRequests):
        round_point(P99, round_of([0.1] * 3, requests=200), 0.2)
    # Either server has to have them.
    thin = (CALM, a_window([15_000], 0.5, 1, 1), a_window([], 0.5, 1, 1), CALM)
    with pytest.raises(TooFewRequests):
        round_point(P99, a_round(thin, thin), 0.2)
    one_at_a_time = round_point(P99, round_of([0.1], requests=500, one_at_a_time=True), 0.2)
    assert one_at_a_time.differences == pytest.approx([0.1], abs=0.002)
    assert one_at_a_time.dof == 0


def test_what_was_not_measured_is_no_number() -> None:
    """No block, no answered request, or a server that does not count: each is an error, never a zero."""
    with pytest.raises(NotMeasured, match="no block"):
        round_point(THROUGHPUT, a_round(), 0.05)
    silent = (CALM, *[a_window([], 0.5, 1, 1)] * 2, CALM)
    with pytest.raises(NotMeasured):
        round_point(THROUGHPUT, a_round(silent, silent), 0.05)
    uncounted = changed(round_of([0.1] * 2), lambda window: msgspec.structs.replace(window, counters=None))
    with pytest.raises(NotMeasured, match="request streams"):
        round_point(METRICS["itl.p99"], round_of([0.1] * 2), 0.2)
    with pytest.raises(NotMeasured, match="this server's batches are not counted"):
        round_point(METRICS["batching_ratio"], uncounted, 0.05)


# -- what GPUs and starts tell


def test_memory_of_a_shared_gpu_is_no_servers() -> None:
    """The memory of two servers that shared the GPU is unknown, with a remedy; energy and utilisation are known."""
    alone = on_a_gpu(round_of([0.1] * 2))
    together = replace(alone, one_at_a_time=False)
    unknown = r"(?s)memory was not read.*gpuserve\(one_at_a_time=True\)"
    with pytest.raises(NotMeasured, match=unknown):
        differences(MEMORY, together)
    with pytest.raises(NotMeasured, match=unknown):
        pooled_value(MEMORY, [alone.session("base"), together.session("base")])
    assert differences(ENERGY, together) == pytest.approx([0.1] * 2)
    assert differences(METRICS["gpu_utilisation"], together) == pytest.approx([0.1] * 2)


def cold_starts(base: tuple[float | None, ...], candidate: tuple[float | None, ...]) -> Round:
    """A round of servers that took so long to start."""
    return with_starts(round_of([0.0] * 6), base, candidate)


def test_a_round_has_one_cold_start_of_each_server() -> None:
    """Several starts of a server are averaged; the difference has no blocks, and no spread of its own."""
    point = round_point(COLD_START, cold_starts((10.0,), (15.0,)), 0.2)
    assert point.differences == pytest.approx([math.log(1.5)])
    assert (point.u, point.dof) == (0.0, 0)
    shorter = with_starts(round_of([0.3]), (10.0,), (15.0,))
    assert round_point(COLD_START, shorter, 0.2) == point
    assert differences(COLD_START, cold_starts((15.0,), (10.0,))) == pytest.approx([-math.log(1.5)])
    one_at_a_time = cold_starts((10.0, 20.0), (20.0, 40.0))
    assert differences(COLD_START, one_at_a_time) == pytest.approx([math.log(2)])
    rounds = [one_at_a_time, cold_starts((30.0,), (60.0,))]
    sessions = [[measured.session(arm) for measured in rounds] for arm in ARMS]
    assert [pooled_value(COLD_START, each) for each in sessions] == pytest.approx([20.0, 40.0])


@pytest.mark.parametrize("one_at_a_time", [False, True])
def test_the_memory_of_a_shared_gpu_is_in_neither_session(*, one_at_a_time: bool) -> None:
    """Shared memory is unknown for both; a server's own windows, energy, and alternating memory are known."""
    made = round_of([math.log(2)], one_at_a_time=one_at_a_time)
    used = GpuUse(joules=50.0, memory_bytes=12e9, utilisation=0.5, sm_clock_mhz=1500.0)
    measured = changed(made, lambda window: msgspec.structs.replace(window, gpus=used))
    expected = used if one_at_a_time else replace(used, memory_bytes=None)
    for arm in ARMS:
        assert [window.gpus for window in measured.session(arm).windows] == [expected] * 2
        assert [window.gpus for window in made.session(arm).windows] == [None] * 2
    base, candidate = (made.session(arm).windows[0].throughput for arm in ARMS)
    assert candidate == pytest.approx(base / 2)
