"""From windows to points: by numbers that a reader can recompute, and refused where too little was measured."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_gpuserve.measure.counters import Counters
from pytest_gpuserve.measure.histogram import Histogram, bucket_of
from pytest_gpuserve.measure.points import (
    NotMeasured,
    TooFewRequests,
    demand_requests,
    point,
    pooled_value,
    value_of,
)
from pytest_gpuserve.measure.window import GpuUse, Session, Streams, Window
from pytest_gpuserve.verdict.metric import METRICS, Metric
from tests.support.builders import session, start, streamed, window

FEW = settings(max_examples=50)

THROUGHPUT = METRICS["throughput"]
BATCHING = METRICS["batching_ratio"]
P50, P99 = METRICS["latency.p50"], METRICS["latency.p99"]
ENERGY, MEMORY = METRICS["energy_per_inference"], METRICS["gpu_memory"]
UTILISATION, COLD_START = METRICS["gpu_utilisation"], METRICS["cold_start"]
OF_GPUS = pytest.mark.parametrize("metric", [ENERGY, MEMORY, UTILISATION], ids=lambda metric: metric.name)
ALL = pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS)
OF_REQUESTS = [metric for metric in METRICS.values() if metric.is_of_requests and metric.counted == "requests"]

FAST = (0.010,) * 30
SLOW = (0.020,) * 20


MIXED = session(start(window(FAST[:5] + SLOW)), start(window(FAST[5:], seconds=0.3)))
BATCHES = session(start(window(items=40, batches=10)), start(window(items=60, batches=30)))


@pytest.mark.parametrize(
    ("metric", "sessions", "value"),
    [
        pytest.param(THROUGHPUT, [MIXED], 50 / 0.8, id="requests by measured time, no mean of rates"),
        pytest.param(THROUGHPUT, [MIXED, session(start(window(SLOW)))], 70 / 1.3, id="several sessions pooled"),
        pytest.param(BATCHING, [BATCHES], 2.5, id="items by batches, no mean of ratios"),
        pytest.param(P50, [MIXED], 0.010, id="median of all latencies, whichever the window"),
        pytest.param(P99, [MIXED], 0.020, id="p99 of all latencies"),
        pytest.param(COLD_START, [session(start(cold_start_seconds=10.0), start(cold_start_seconds=40.0))], 25.0),
    ],
)
def test_a_pooled_value_is_that_of_all_that_was_measured(metric: Metric, sessions: list[Session], value: float) -> None:
    """By hand; a plain limit is compared with it."""
    assert pooled_value(metric, sessions) == pytest.approx(value, rel=0.0006)


def test_a_point_is_the_mean_log_cost_of_its_starts() -> None:
    """Starts of 100/s and 400/s make 200/s, and cold starts of 10 and 40 s 20 s."""
    slow, fast = start(*[window((0.01,) * 50)] * 4), start(*[window((0.01,) * 200)] * 4)
    assert THROUGHPUT.value_at(point(THROUGHPUT, session(slow, fast), 0.05)) == pytest.approx(200)
    found = point(COLD_START, session(start(cold_start_seconds=10.0), start(cold_start_seconds=40.0)), 0.2)
    assert COLD_START.value_at(found) == pytest.approx(20.0)


def test_the_point_of_a_batching_ratio_is_that_of_its_totals() -> None:
    """Starts with many and with few batches weigh by their batches; a quiet window does not unmake a start."""
    many = start(window(FAST * 2, items=400, batches=100))
    few = start(window(FAST * 2, items=10, batches=10))
    assert BATCHING.value_at(point(BATCHING, session(many, few), 0.05)) == pytest.approx(410 / 110)
    # A window without any answer has no latency; a start without any is refused.
    quiet = start(window(FAST * 3), window(()), window(FAST * 3))
    assert P50.value_at(point(P50, session(quiet, quiet), 0.05)) == pytest.approx(0.010, rel=0.0006)
    with pytest.raises(NotMeasured, match="found: 0 requests"):
        point(THROUGHPUT, session(start(window(())), start(window(FAST))), 0.05)


@pytest.mark.parametrize("metric", OF_REQUESTS, ids=lambda metric: metric.name)
def test_too_few_requests_are_refused_with_what_helps(metric: Metric) -> None:
    """The refusal names needed and found numbers, and a time that is enough for the slowest start."""
    tolerance = 0.05
    quick = start(streamed(window((0.01,) * 30, seconds=0.2)))
    slow = start(streamed(window((0.01,) * 20, seconds=0.9)))
    with pytest.raises(TooFewRequests) as caught:
        point(metric, session(quick, slow), tolerance)
    text = str(caught.value)
    needed = int(re.search(r"needs (\d+) requests", text)[1])  # type: ignore[index]
    factor = float(re.search(r"measure (\d+\.\d) times as long: load\(\.\.\., seconds=", text)[1])  # type: ignore[index]
    assert f"{metric.name} at a tolerance of 5 %" in text
    assert "found: 20 requests in 900 ms" in text
    assert f"gpuserve({metric.option}=...)" in text
    assert needed <= factor * 20 <= 1.5 * needed


@ALL
def test_nothing_measured_has_no_value(metric: Metric) -> None:
    """No session, windows without answers, and a session that ended before its first start, are never 0."""
    with pytest.raises(NotMeasured, match="no server start"):
        point(metric, Session((), "2025-01-02T03:04:05+00:00"), 0.05)
    idle = session(*[start(window((), items=0, batches=0))] * 2)
    for sessions in ([], [idle]) if metric is not COLD_START else ():
        with pytest.raises(NotMeasured, match="is not known"):
            pooled_value(metric, sessions)


@pytest.mark.parametrize(
    ("items", "batches", "told"),
    [
        # One unread counter makes the ratio unknown, not that of the other windows.
        *[(*counted, "this server's batches are not counted") for counted in ((None, 3), (3, None))],
        *[(*counted, "stage=") for counted in ((0, 3), (3, 0))],
    ],
)
def test_a_start_without_batches_has_no_batching_ratio(items: int | None, batches: int | None, told: str) -> None:
    """Every start has to have batched, and counted that; the error says how a stage is named."""
    uncounted = window(FAST * 2, items=items, batches=batches)
    starts = [start(uncounted)] if items == 0 or batches == 0 else [start(window(FAST * 2), uncounted)]
    with pytest.raises(NotMeasured, match=told):
        point(BATCHING, session(*starts, start(window(FAST * 2))), 0.05)


# -- what the GPUs did


def used(
    joules: float | None = 5.0,
    memory: float | None = 1e9,
    utilisation: float | None = 0.5,
    *,
    seconds: float = 0.5,
    requests: int = 50,
    clock: float | None = None,
) -> Window:
    """A window with this use of the GPUs."""
    gpus = GpuUse(joules, memory, utilisation, clock)
    return window((0.01,) * requests, seconds=seconds, gpus=gpus)


@pytest.mark.parametrize(
    ("metric", "windows", "value"),
    [
        pytest.param(ENERGY, [used(30.0, requests=100), used(20.0, requests=400)], 0.1, id="joules by requests"),
        # A request of eight items is one inference, as it is one request of the throughput.
        pytest.param(
            ENERGY,
            [msgspec.structs.replace(used(5.0, requests=50), counters=Counters(400, 10))],
            0.1,
            id="items do not divide energy",
        ),
        # What a GPU takes up while the server answers nothing is paid by the answers of the other windows.
        pytest.param(ENERGY, [used(5.0), used(5.0, requests=0)], 0.2, id="a window without answers counts"),
        # A short peak is what decides whether it fits.
        pytest.param(MEMORY, [used(memory=1e9), used(memory=3e9), used(memory=2e9)], 3e9, id="the most memory"),
        pytest.param(UTILISATION, [used(utilisation=0.9), used(utilisation=0.3, seconds=1.5)], 0.45, id="by time"),
        pytest.param(UTILISATION, [used(utilisation=0.9), used(utilisation=0.0)], 0.45, id="0 is read like any other"),
    ],
)
def test_what_gpus_did_is_of_all_windows(metric: Metric, windows: list[Window], value: float) -> None:
    """By hand; in one start or in several."""
    assert value_of(metric, windows) == pytest.approx(value)
    assert pooled_value(metric, [session(*map(start, windows))]) == pytest.approx(value)


@OF_GPUS
@FEW
@given(known=st.integers(0, 3), after=st.integers(0, 3), is_watched=st.booleans())
def test_one_unknown_window_makes_a_start_unknown(metric: Metric, known: int, after: int, is_watched: bool) -> None:  # noqa: FBT001 -- drawn
    """No value is made of the windows that are known, wherever the other stands."""
    unknown = msgspec.structs.replace(used(), gpus=GpuUse() if is_watched else None)
    windows = (*[used()] * known, unknown, *[used()] * after)
    with pytest.raises(NotMeasured, match=f"{metric.name} is not known"):
        value_of(metric, windows)
    with pytest.raises(NotMeasured, match=f"{metric.name} is not known"):
        point(metric, session(start(used()), start(*windows)), 0.05)


@OF_GPUS
def test_what_is_missing_is_told_with_what_helps(metric: Metric) -> None:
    """Without a GPU, ``--gpu=NAME``; of one that does not count, what an instance has not; never a perfect 0."""
    what = {"energy_per_inference": "energy", "gpu_memory": "memory", "gpu_utilisation": "utilisation"}[metric.name]
    for unseen in (window(), window(gpus=GpuUse())):
        with pytest.raises(NotMeasured, match=rf"(?s)the GPU's {what} was not read in every.*--gpu=NAME") as found:
            value_of(metric, [used(), unseen])
        # Of a MIG instance energy and utilisation are the whole GPU's.
        assert ("MIG instance" in str(found.value)) is (metric.name != "gpu_memory")
    with pytest.raises(NotMeasured, match="reads 0 under this load"):
        value_of(metric, [used(0.0, 0.0, 0.0)])
    with pytest.raises(NotMeasured, match="reads nan"):
        value_of(metric, [used(math.nan, math.nan, math.nan)])
    if metric is ENERGY:
        with pytest.raises(NotMeasured, match="no request was answered"):
            value_of(ENERGY, [used(5.0, requests=0)])


def test_the_mean_clock_is_weighed_by_time_over_the_windows_that_know_it() -> None:
    """1000 MHz for 0.5 s and 1400 MHz for 1.5 s are 1300 MHz; if no window knows the clock, it is None, not 0."""
    found = GpuUse.pooled([used(clock=1000.0), used(clock=1400.0, seconds=1.5), used(memory=1.0), window()])
    assert found is not None
    assert found.sm_clock_mhz == pytest.approx(1300)
    assert replace(found, sm_clock_mhz=None) == GpuUse()
    assert GpuUse.pooled([used(), window()]) is GpuUse.pooled([]) is None


# -- cold starts


def test_a_server_that_we_did_not_start_has_no_cold_start() -> None:
    """One unknown start makes a mean unknown, and windows alone have no cold start."""
    remote = replace(start(), cold_start_seconds=None)
    for measured in (session(remote, remote), session(start(), remote)):
        with pytest.raises(NotMeasured, match=r"(?s)not started by this run.*a remote server has no cold start"):
            pooled_value(COLD_START, [measured])
        with pytest.raises(NotMeasured, match="not started by this run"):
            point(COLD_START, measured, 0.2)
    with pytest.raises(NotMeasured, match="no server start was measured"):
        pooled_value(COLD_START, [])
    with pytest.raises(NotMeasured, match="cold_start is a number of a whole start"):
        value_of(COLD_START, [window()])


def test_every_part_needs_the_requests_of_a_quantile() -> None:
    """The smallest part is named; without any request the remedy has no number."""
    windows = session().windows
    demand_requests(P50, [windows], 0.05, "the whole run")
    demand_requests(P50, [windows * 2, windows * 2], 0.04, "each half")
    with pytest.raises(TooFewRequests, match=r"(?s)needs 100 requests in each half.*found: 80.*measure 1\.5 times"):
        demand_requests(P50, [windows * 2, windows], 0.04, "each half")
    with pytest.raises(TooFewRequests, match=r"(?s)found: 0 requests.*measure longer"):
        demand_requests(P50, [()], 0.05, "the whole run")


# -- of streams


TOLD = streamed(window((0.02,) * 40), good=30)
"""40 requests in half a second, of 11 tokens each, one a millisecond after the first at 4 ms."""


def values(*windows: Window) -> dict[str, float | str]:
    """Each metric of streams, or the reason why it is unknown."""
    found: dict[str, float | str] = {}
    for name in ("ttft.p50", "itl.p99", "tpot.p90", "output_tokens_per_second", "goodput"):
        try:
            found[name] = value_of(METRICS[name], windows)
        except NotMeasured as problem:
            found[name] = str(problem)
    return found


def test_metrics_of_streams_by_hand() -> None:
    """Times pooled over windows, rates by measured time; chunks may arrive where no request ends."""
    expected = {
        "ttft.p50": 0.004,
        "itl.p99": 0.001,
        "tpot.p90": 0.001,
        "output_tokens_per_second": 880,
        "goodput": 60,
    }
    assert values(TOLD) == pytest.approx(expected, rel=6e-4)
    open_ended = window((), good=0, streams=Streams(tokens=40))
    rates = {"output_tokens_per_second": 480, "goodput": 30}
    assert values(TOLD, open_ended) == pytest.approx({**expected, **rates}, rel=6e-4)


@pytest.mark.parametrize(
    ("windows", "unknown", "why"),
    [
        ([window()], ["ttft.p50", "itl.p99", "tpot.p90", "output_tokens_per_second"], "stream=True"),
        ([TOLD, window()], ["goodput"], "Objectives"),
        ([TOLD, streamed(window(), usage=False)], ["tpot.p90", "output_tokens_per_second"], "include_usage"),
        ([TOLD, msgspec.structs.replace(TOLD, unjudged=1)], ["goodput"], "include_usage"),
        ([msgspec.structs.replace(TOLD, good=0)], ["goodput"], "none of 40 answers met all objectives"),
        ([streamed(window(), tokens=1)], ["itl.p99"], "no gaps between chunks"),
    ],
    ids=["no stream", "no objectives", "one answer without usage", "unjudged", "none good", "one chunk each"],
)
def test_what_is_not_known_of_streams_is_never_a_number(windows: list[Window], unknown: list[str], why: str) -> None:
    """One answer without a token count makes token metrics unknown; the error has a remedy."""
    found = values(*windows)
    for name in unknown:
        assert isinstance(found[name], str)
        assert why in str(found[name])


@pytest.mark.parametrize(("within", "known"), [(0, [50, 90, 99]), (20, [50, 90]), (100, [50]), (101, [])])
@pytest.mark.parametrize("times", ["itl", "tpot"])
def test_times_within_one_read_blur_quantiles(times: str, within: int, known: list[int]) -> None:
    """A quantile is known while such times are at most a fifth of those beyond it; the refusal names their share."""
    gaps = Histogram({bucket_of(10**6): 1000 - within, **({0: within} if within else {})})
    assert TOLD.streams is not None
    blurred = msgspec.structs.replace(TOLD, streams=replace(TOLD.streams, itl=gaps, tpot=gaps))
    for percent in (50, 90, 99):
        metric = METRICS[f"{times}.p{percent}"]
        if percent in known:
            assert value_of(metric, [blurred]) == pytest.approx(1e-3, rel=6e-4)
        else:
            with pytest.raises(NotMeasured, match=f"p{percent} is not known: for {within / 10:g} % of its times"):
                value_of(metric, [blurred])


@pytest.mark.parametrize(
    ("metric", "counted"),
    [("itl.p50", "400 gaps between chunks"), ("goodput", "40 requests"), ("tpot.p50", "40 requests of two tokens")],
)
def test_a_metric_needs_enough_of_what_it_is_made_of(metric: str, counted: str) -> None:
    """The sample size may be gaps or judged answers; a longer load does not help a metric that is entirely unknown."""
    few = session(start(TOLD), start(TOLD))
    with pytest.raises(TooFewRequests, match=f"found: {counted}"):
        point(METRICS[metric], few, 0.004)
    plain = session(start(window()), start(window()))
    with pytest.raises(NotMeasured) as caught:
        point(METRICS[metric], plain, 0.004)
    assert not isinstance(caught.value, TooFewRequests)
