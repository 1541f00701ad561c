"""Summaries, components and steps of a load, against numbers that are counted by hand."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.experiment.observed import Observed, steps_of
from pytest_gpuserve.load.schedule import Closed, Steps
from pytest_gpuserve.measure.breakdown import breakdown_of
from pytest_gpuserve.measure.counters import Counters, StageTime
from pytest_gpuserve.measure.points import NotMeasured, total_of
from pytest_gpuserve.measure.window import COMPUTE, FORMATION, OTHER_COMPUTE, QUEUE, SERVER, Session, Start, Window
from pytest_gpuserve.report import attribution
from pytest_gpuserve.report.attribution import profile_of
from tests.support.builders import histogram, session, start, streamed, window


def test_a_summary_pools_windows() -> None:
    """Counts add up, throughput and requests in flight are over the whole time; of no answers it is an error."""
    found = total_of([window((0.010, 0.030), in_flight_ns=40_000_000), window((0.020,), errors={"timeout": 3})])
    assert (found.requests, found.errors, found.error_count, found.seconds) == (3, {"timeout": 3}, 3, 1.0)
    assert (found.throughput, found.max) == (3.0, 0.030)
    assert found.mean == pytest.approx(0.020)
    assert found.quantile(0.5) == pytest.approx(0.020, rel=1e-3)
    assert found.in_flight == 0.04
    for nothing in ([window(())], []):
        with pytest.raises(NotMeasured):
            total_of(nothing)


def counters(parts: dict[str, Counters] | None = None, **stages: float) -> Counters:
    """Counts of a server with 10 requests; seconds of all of them by stage."""
    names = {"queue": QUEUE, "server": SERVER, "compute": COMPUTE}
    times = {names.get(name, f"request.{name}"): StageTime(seconds, 10) for name, seconds in stages.items()}
    return Counters(items=10, batches=5, stages=times, requests=10, parts=parts or {})


def timed(counted: Counters | None, **fields: Any) -> Window:  # noqa: ANN401 -- of the window
    """A window of ten requests of 50 ms, with these counts of server and client."""
    times = {"sending_ns": 10_000_000, "receiving_ns": 20_000_000}
    return window((0.050,) * 10, counters=counted, **{**times, **fields})


def test_components_add_up_to_the_mean_latency() -> None:
    """Time that neither server nor client counts is the network's, so the seven components are the mean latency."""
    found = breakdown_of(timed(counters(queue=0.1, input=0.02, infer=0.2, output=0.03, server=0.36)))
    assert found.total == pytest.approx(0.050)
    assert (found.client_send, found.client_receive) == pytest.approx((0.001, 0.002))
    assert (found.queue, found.compute_input, found.compute_infer) == pytest.approx((0.010, 0.002, 0.020))
    assert found.network == pytest.approx(0.050 - 0.001 - 0.002 - 0.010 - 0.002 - 0.020 - 0.003)


FULL = counters(queue=0.1, input=0.02, infer=0.2, output=0.03, server=0.36)
OPEN_LOOP = timed(FULL, service=histogram((0.010,)))


@pytest.mark.parametrize(
    ("measured", "told"),
    [
        (timed(None), "does not count"),
        # Not by request.
        (timed(counters(queue=0.1, server=0.2)), "does not count"),
        # Over a protocol whose sends are not timed; of several windows one is enough.
        (Window.pooled([timed(FULL), timed(FULL, sending_ns=None, receiving_ns=None)]), "does not time"),
        # Its latency holds what requests waited in the client, which is none of the network's.
        (OPEN_LOOP, "open loop"),
        # Where the server counts more time than its requests took, it has counted others.
        (
            timed(counters(queue=0.4, input=0.02, infer=0.2, output=0.03, server=0.66)),
            "did not count the same requests",
        ),
    ],
)
def test_what_is_not_counted_is_no_component(measured: Window, told: str) -> None:
    """Rather than some that are zero."""
    with pytest.raises(NotMeasured, match=told):
        breakdown_of(measured)
    assert Window.pooled([timed(FULL), timed(FULL)]).sending_ns == 20_000_000


def test_windows_belong_to_the_step_of_their_middle() -> None:
    """Counts of all steps add up to those of the load, also where windows straddle the steps' ends."""
    windows = [window((0.010,) * n, seconds=0.5) for n in (1, 2, 30, 40, 40, 40, 40, 40)]
    found = steps_of(((1, 0.7), (20, 3.2)), [start(*windows), start(*windows)])
    assert [(step.users, step.total.requests) for step in found] == [(1, 2), (20, 464)]
    assert found[0].total.seconds == 1.0
    assert found[1].total.throughput == pytest.approx(232 / 3.5)
    assert found[1].last_window_throughput == 80.0
    assert found[1].steady_throughput == 80.0
    assert found[1].total.latency.total == 464


def test_an_empty_step_has_no_mean() -> None:
    """Its throughput is zero; of a load without steps, or side by side, where it is one window, it is an error."""
    (step,) = steps_of(((5, 1.0),), [start(window(()), window(()))])
    assert (step.total.throughput, step.total.latency.mean, step.total.latency.total) == (0.0, None, 0)
    with pytest.raises(UsageProblem, match="steps"):
        _ = Observed(lambda: [session()], Closed(4)).steps
    assert [step.users for step in Observed(lambda: [session()], Steps(((3, 2.0),))).steps] == [3]
    with pytest.raises(NotMeasured, match="side by side the whole load is one window"):
        steps_of(((1, 1.0), (20, 1.0)), [start(window((0.010,) * 100, seconds=2.1))])


def test_what_nobody_looked_at_is_not_measured() -> None:
    """Counters and busy cores of starts that have none are errors, not zero; so is a sum of only some starts."""
    uncounted = start(window(items=None, batches=None))
    unseen = Observed(lambda: [session(uncounted)])
    with pytest.raises(NotMeasured, match="counters are unknown"):
        _ = unseen.counters
    with pytest.raises(NotMeasured, match="busy cores"):
        _ = unseen.cpu_share
    known = start(timed(counters(queue=0.1)))
    assert Observed(lambda: [session(known, known)]).counters.items == 20
    with pytest.raises(NotMeasured, match="not report them in every window"):
        _ = Observed(lambda: [session(known, uncounted)]).counters


def test_what_is_answered_after_the_end_is_no_current_rate() -> None:
    """The last window, with answers to requests in flight, counts for the step, but not as its current rate."""
    whole = [window((0.010,) * 40, seconds=0.5)] * 4
    (step,) = steps_of(((20, 2.0),), [start(*whole, window((0.010,) * 20, seconds=0.01))])
    assert step.total.requests == 180
    assert step.last_window_throughput == 80.0
    assert step.steady_throughput == 80.0


SECOND = 10**9


@pytest.mark.parametrize(
    ("begins_ns", "loads"),
    [
        ([], 0),
        ([0, SECOND, 2 * SECOND], 1),
        # A tick's end is told to the nanosecond, that of several engines as their mean.
        ([0, SECOND + 1, 2 * SECOND - 1], 1),
        # The next turn of a load by turns, at once and after the other one's.
        ([0, SECOND + 10**7, 2 * SECOND + 10**7], 2),
        ([0, 3 * SECOND, 6 * SECOND], 3),
        # The engine that took longest ends a window in the time of the next one.
        ([0, SECOND - 10**7], 1),
    ],
)
def test_a_load_is_counted_each_time_that_it_is_begun(begins_ns: list[int], loads: int) -> None:
    """A start without a gap counts once, else once for each stretch; summed over all starts."""
    windows = [window(begin_ns=begin, end_ns=begin + SECOND) for begin in begins_ns]
    start = Start(tuple(windows), None)
    assert Observed(lambda: [Session((start,), ""), Session((start, start), "")]).loads == 3 * loads


OUTSIDE = "network and client"
STAGES = {
    SERVER: StageTime(0.08, 10),
    COMPUTE: StageTime(0.008, 2),
    OTHER_COMPUTE + "Preprocess_1": StageTime(0.01, 10),
    FORMATION: StageTime(0.002, 2),
}


def staged(stages: dict[str, StageTime], items: int = 40, batches: int = 10) -> Window:
    """A window of ten requests of 10 ms each."""
    return window(counters=Counters(items, batches, stages=stages))


@pytest.mark.parametrize(
    ("stages", "expected"),
    [
        # Without a counter of the queue it is what computation leaves of the server's time; the rest is outside.
        pytest.param(STAGES, {attribution.QUEUE_OF_SERVER: 0.003, OUTSIDE: 0.002}, id="rest of the server's time"),
        pytest.param(
            {QUEUE: StageTime(0.02, 10), COMPUTE: StageTime(0.05, 10), SERVER: StageTime(0.09, 10)},
            {QUEUE: 0.002, OUTSIDE: 0.001},
            id="counted, and the server's time",
        ),
        # It may be anything, the network too, and nothing is called outside.
        pytest.param({COMPUTE: StageTime(0.008, 2)}, {attribution.QUEUE_OF_LATENCY: 0.006}, id="rest of the latency"),
        # Batches that straddle a window's edges do not make a queue of less than nothing.
        pytest.param(
            {SERVER: StageTime(0.2, 10), COMPUTE: StageTime(0.1, 2)},
            {attribution.QUEUE_OF_SERVER: 0.0, OUTSIDE: 0.0},
            id="straddle",
        ),
        # Where computation is not counted, nothing says what part of the time was a queue.
        pytest.param({}, {}, id="nothing"),
        pytest.param({SERVER: StageTime(0.08, 10)}, {OUTSIDE: 0.002}, id="no computation"),
    ],
)
def test_the_queue_is_what_is_counted_or_left(stages: dict[str, StageTime], expected: dict[str, float]) -> None:
    """Ten requests of 10 ms each give the queue, by its origin."""
    seen = profile_of([staged(stages)])
    found = {
        name: seen[name]
        for name in (QUEUE, attribution.QUEUE_OF_SERVER, attribution.QUEUE_OF_LATENCY, OUTSIDE)
        if name in seen
    }
    assert found == pytest.approx(expected)
    if stages is STAGES:
        names = (attribution.COMPUTE_OF_BATCH, f"{attribution.STAGE}Preprocess_1", "time to fill a batch")
        assert [seen[name] for name in names] == [0.004, 0.001, 0.001]


def test_windows_are_pooled_by_what_was_counted() -> None:
    """Means are of all requests and batches; a window without counters leaves only what the client knows."""
    slow, quick = staged({COMPUTE: StageTime(0.030, 3)}, items=2, batches=1), staged({COMPUTE: StageTime(0.002, 1)})
    seen = profile_of([quick, slow])
    assert seen[attribution.COMPUTE_OF_BATCH] == pytest.approx(0.008)
    assert seen[attribution.ITEMS] == pytest.approx(42 / 11)
    seen = profile_of([quick, slow, window((0.040,) * 10, items=None, batches=None)])
    assert seen[attribution.MEAN] == pytest.approx((0.01 + 0.01 + 0.04) / 3)
    assert seen[attribution.P99] == pytest.approx(0.040, rel=1e-3)
    assert attribution.COMPUTE_OF_BATCH not in seen


def test_the_client_is_part_of_the_profile() -> None:
    """The client's lag and its share of a core are shown if they are known."""
    late = window(seconds=0.5, lag=histogram([1e-5] * 45 + [1e-3] * 5))
    seen = profile_of([late] * 2)
    assert seen[attribution.CLIENT] == pytest.approx(1e-3, rel=1e-3)
    assert seen["client"] == pytest.approx(0.02)
    seen = profile_of([window(items=None, batches=None)])
    assert set(seen) == {attribution.MEAN, attribution.P99, "client"}
    with pytest.raises(ValueError, match="without answered requests"):
        profile_of([window(())])


def test_a_stream_is_its_first_token_and_the_rest() -> None:
    """Without usage the number of later tokens is unknown; every name has a kind."""
    streams = [streamed(window(), ttft=0.002), streamed(window(), ttft=0.004)]
    seen = profile_of(streams)
    assert seen["queue and prefill (TTFT)"] == pytest.approx(0.003)
    assert seen["decode"] == pytest.approx(0.007)
    assert seen["decode a token (TPOT)"] == pytest.approx(0.001)
    assert seen["tokens an answer"] == 11
    assert seen.keys() <= {attribution.MEAN, attribution.P99, *attribution.PARTS}
    seen = profile_of([*streams, streamed(window(), usage=False)])
    assert seen.keys().isdisjoint({"decode a token (TPOT)", "tokens an answer"})
    assert "decode" not in profile_of([window()])
