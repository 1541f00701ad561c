"""Components of a latency: by counters if they exist, else by the rest."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_gpuserve.measure import breakdown
from pytest_gpuserve.measure.breakdown import profile_of
from pytest_gpuserve.measure.counters import Counters, StageTime
from pytest_gpuserve.measure.window import COMPUTE, FORMATION, OTHER_COMPUTE, QUEUE, SERVER, Window
from tests.support.builders import histogram, streamed, window

LATENCY = 0.010
STAGES = {
    SERVER: StageTime(0.08, 10),
    COMPUTE: StageTime(0.008, 2),
    OTHER_COMPUTE + "Preprocess_1": StageTime(0.01, 10),
    FORMATION: StageTime(0.002, 2),
}


def timed(stages: dict[str, StageTime], items: int = 40, batches: int = 10) -> Window:
    """A window of ten requests of 10 ms each."""
    return replace(window(), counters=Counters(items, batches, stages=stages))


@pytest.mark.parametrize(
    ("stages", "expected"),
    [
        # Without a counter of the queue it is what computation leaves of the server's time; the rest is outside.
        pytest.param(
            STAGES, {breakdown.QUEUE_OF_SERVER: 0.003, breakdown.OUTSIDE: 0.002}, id="rest of the server's time"
        ),
        pytest.param(
            {QUEUE: StageTime(0.02, 10), COMPUTE: StageTime(0.05, 10), SERVER: StageTime(0.09, 10)},
            {breakdown.QUEUE_COUNTED: 0.002, breakdown.OUTSIDE: 0.001},
            id="counted, and the server's time",
        ),
        # It may be anything, the network too, and nothing is called outside.
        pytest.param({COMPUTE: StageTime(0.008, 2)}, {breakdown.QUEUE_OF_LATENCY: 0.006}, id="rest of the latency"),
        # Batches that straddle a window's edges do not make a queue of less than nothing.
        pytest.param(
            {SERVER: StageTime(0.2, 10), COMPUTE: StageTime(0.1, 2)},
            {breakdown.QUEUE_OF_SERVER: 0.0, breakdown.OUTSIDE: 0.0},
            id="straddle",
        ),
        # Where computation is not counted, nothing says what part of the time was a queue.
        pytest.param({}, {}, id="nothing"),
        pytest.param({SERVER: StageTime(0.08, 10)}, {breakdown.OUTSIDE: 0.002}, id="no computation"),
    ],
)
def test_the_queue_is_what_is_counted_or_left(stages: dict[str, StageTime], expected: dict[str, float]) -> None:
    """Ten requests of 10 ms each give the queue, by its origin."""
    seen = profile_of([timed(stages)])
    found = {
        name: seen[name]
        for name in (breakdown.QUEUE_COUNTED, breakdown.QUEUE_OF_SERVER, breakdown.QUEUE_OF_LATENCY, breakdown.OUTSIDE)
        if name in seen
    }
    assert found == pytest.approx(expected)
    if stages is STAGES:
        assert (
            seen[breakdown.COMPUTE_OF_BATCH],
            seen[f"{breakdown.COMPUTE_OF}Preprocess_1"],
            seen[breakdown.FILLING],
        ) == (0.004, 0.001, 0.001)


def test_windows_are_pooled_by_what_was_counted() -> None:
    """Means are of all requests and batches, and a window without counters adds to the latency alone."""
    slow = timed({COMPUTE: StageTime(0.030, 3)}, items=2, batches=1)
    quiet = window((0.040,) * 10, items=None, batches=None)
    seen = profile_of([timed({COMPUTE: StageTime(0.002, 1)}), slow, quiet])
    assert seen[breakdown.COMPUTE_OF_BATCH] == pytest.approx(0.008)
    assert seen[breakdown.FORMATION_ITEMS] == pytest.approx(42 / 11)
    assert seen[breakdown.MEAN] == pytest.approx((0.01 + 0.01 + 0.04) / 3)
    assert seen[breakdown.P99] == pytest.approx(0.040, rel=1e-3)


def test_the_client_is_part_of_the_profile() -> None:
    """The client's lag and its share of a core are shown if they are known."""
    late = replace(window(seconds=0.5), lag=histogram([1e-5] * 45 + [1e-3] * 5))
    seen = profile_of([late] * 2)
    assert seen[breakdown.CLIENT] == pytest.approx(1e-3, rel=1e-3)
    assert seen[breakdown.CLIENT_CORES] == pytest.approx(0.02)
    seen = profile_of([window(items=None, batches=None)])
    assert set(seen) == {breakdown.MEAN, breakdown.P99, breakdown.CLIENT_CORES}
    with pytest.raises(ValueError, match="without answered requests"):
        profile_of([window(())])


def test_a_stream_is_its_first_token_and_the_rest() -> None:
    """Windows without sums work too; without usage the number of later tokens is unknown."""
    streams = [streamed(window(), ttft=0.002), streamed(window(), ttft=0.004)]
    seen = profile_of(streams)
    assert seen[breakdown.TTFT] == pytest.approx(0.003, rel=1e-3)
    assert seen[breakdown.DECODE] == pytest.approx(0.007, rel=1e-3)
    assert seen[breakdown.TPOT] == pytest.approx(0.001, rel=1e-3)
    assert seen[breakdown.TOKENS] == 11
    seen = profile_of([*streams, streamed(window(), usage=False)])
    assert seen.keys().isdisjoint({breakdown.TPOT, breakdown.TOKENS})
    assert breakdown.DECODE not in profile_of([window()])
