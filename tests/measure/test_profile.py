"""Components of a latency: by counters if they exist, else by the rest."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_gpuserve.measure.breakdown import Profile, QueueFrom, profile_of
from pytest_gpuserve.measure.counters import StageTime
from pytest_gpuserve.measure.window import COMPUTE, FORMATION, OTHER_COMPUTE, QUEUE, SERVER, Client, Window
from tests.support.builders import histogram, streamed, window

LATENCY = 0.010
STAGES = {
    SERVER: StageTime(0.08, 10),
    COMPUTE: StageTime(0.008, 2),
    OTHER_COMPUTE + "Preprocess_1": StageTime(0.01, 10),
    FORMATION: StageTime(0.002, 2),
}


def timed(stages: dict[str, StageTime]) -> Window:
    """A window of ten requests of 10 ms each."""
    return replace(window(), stages=stages)


def profile(stages: dict[str, StageTime]) -> Profile:
    """Profile of the windows."""
    return profile_of([timed(stages)], Client())


@pytest.mark.parametrize(
    ("stages", "queue", "queue_from", "outside"),
    [
        # Without a counter of the queue it is what computation leaves of the server's time; the rest is outside.
        pytest.param(STAGES, 0.003, QueueFrom.SERVER, 0.002, id="rest of the server's time"),
        pytest.param(
            {QUEUE: StageTime(0.02, 10), COMPUTE: StageTime(0.05, 10), SERVER: StageTime(0.09, 10)},
            0.002,
            QueueFrom.COUNTER,
            0.001,
            id="counted, and the server's time",
        ),
        # It may be anything, the network too, and nothing is called outside.
        pytest.param({COMPUTE: StageTime(0.008, 2)}, 0.006, QueueFrom.LATENCY, None, id="rest of the latency"),
        # Batches that straddle a window's edges do not make a queue of less than nothing.
        pytest.param(
            {SERVER: StageTime(0.2, 10), COMPUTE: StageTime(0.1, 2)}, 0.0, QueueFrom.SERVER, 0.0, id="straddle"
        ),
        # Where computation is not counted, nothing says what part of the time was a queue.
        pytest.param({}, None, None, None, id="nothing"),
        pytest.param({SERVER: StageTime(0.08, 10)}, None, None, 0.002, id="no computation"),
    ],
)
def test_the_queue_is_what_is_counted_or_left(
    stages: dict[str, StageTime], queue: float | None, queue_from: QueueFrom | None, outside: float | None
) -> None:
    """Ten requests of 10 ms each give the queue, with its origin."""
    seen = profile(stages)
    assert (seen.queue_seconds, seen.queue_from) == (None if queue is None else pytest.approx(queue), queue_from)
    assert seen.outside_seconds == (None if outside is None else pytest.approx(outside))
    if stages is STAGES:
        assert (seen.compute_seconds, seen.other_compute, seen.formation_seconds) == (
            0.004,
            {"Preprocess_1": 0.001},
            0.001,
        )


def test_windows_are_pooled_by_what_was_counted() -> None:
    """Means are of all requests and batches, and a window without counters adds to the latency alone."""
    slow = replace(timed({COMPUTE: StageTime(0.030, 3)}), items=2, batches=1)
    quiet = window((0.040,) * 10, items=None, batches=None)
    seen = profile_of([timed({COMPUTE: StageTime(0.002, 1)}), slow, quiet], Client())
    assert seen.compute_seconds == pytest.approx(0.008)
    assert seen.items_per_batch == pytest.approx(42 / 11)
    assert seen.mean_seconds == pytest.approx((0.01 + 0.01 + 0.04) / 3)
    assert seen.p99_seconds == pytest.approx(0.040, rel=1e-3)


def test_the_client_is_part_of_the_profile() -> None:
    """The client's lag and its share of a core are shown if they are known."""
    seen = profile_of([window(seconds=0.5)] * 2, Client(lag=histogram([1e-5] * 90 + [1e-3] * 10)))
    assert seen.client_lag_seconds == pytest.approx(1e-3, rel=1e-3)
    assert seen.client_cores == pytest.approx(0.02)
    seen = profile_of([window(items=None, batches=None)], Client())
    assert (seen.items_per_batch, seen.formation_seconds, seen.outside_seconds) == (None,) * 3
    assert seen.client_lag_seconds is None
    with pytest.raises(ValueError, match="without answered requests"):
        profile_of([window(())], Client())


def test_a_stream_is_its_first_token_and_the_rest() -> None:
    """Windows without sums work too; without usage the number of later tokens is unknown."""
    streams = [streamed(window(), ttft=0.002), streamed(window(), ttft=0.004)]
    seen = profile_of(streams, Client())
    assert seen.ttft_seconds == pytest.approx(0.003, rel=1e-3)
    assert seen.decode_seconds == pytest.approx(0.007, rel=1e-3)
    assert seen.tpot_seconds == pytest.approx(0.001, rel=1e-3)
    assert seen.tokens == 11
    seen = profile_of([*streams, streamed(window(), usage=False)], Client())
    assert (seen.tpot_seconds, seen.tokens) == (None, None)
    assert profile_of([window()], Client()).decode_seconds is None
