"""What several replicas came to, and how unevenly."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from pytest_gpuserve.measure.replicas import P99_REQUESTS, ReplicaResult, imbalance_of, replicas_of
from pytest_gpuserve.measure.window import ReplicaWindow
from tests.support.builders import histogram, window

if TYPE_CHECKING:
    from pytest_gpuserve.measure.window import Window


def shared(*replicas: ReplicaWindow, seconds: float = 0.5) -> Window:
    """A window in which replicas did this."""
    return replace(window(seconds=seconds), replicas=replicas)


def of(name: str, requests: int = 200, latency_seconds: float = 0.01, **errors: int) -> ReplicaWindow:
    """What a replica did in a window."""
    return ReplicaWindow(name, requests, errors, histogram([latency_seconds] * requests))


def result(name: str, requests: int = 200, latency_seconds: float = 0.01, **errors: int) -> ReplicaResult:
    """What a replica came to in a second."""
    return ReplicaResult(name, requests, errors, 1.0, histogram([latency_seconds] * requests))


def test_windows_are_pooled_by_replica() -> None:
    """Counts are added, latencies merged, and the time is that of the windows."""
    first, second = replicas_of(
        [
            shared(of("a", 100, 0.010), of("b", 50, 0.020, timeout=1)),
            shared(of("a", 100, 0.030), of("b", 50, 0.020, timeout=2, reset=1), seconds=1.5),
        ]
    )
    assert (first.name, first.requests, first.failed, first.seconds, first.throughput) == ("a", 200, 0, 2.0, 100.0)
    assert (second.requests, dict(second.errors), second.failed) == (100, {"timeout": 3, "reset": 1}, 4)
    assert first.p50 == pytest.approx(0.010, rel=1e-3)
    assert first.p99 == pytest.approx(0.030, rel=1e-3)
    assert first.counters is None
    assert first.batching_ratio is None


def test_one_server_has_no_replicas() -> None:
    """Nothing is said of it, nor of windows of an earlier run that did not know them."""
    assert replicas_of([window(), window()]) == ()
    known = replicas_of([window(), shared(of("a"), of("b"))])
    assert [(each.name, each.seconds) for each in known] == [("a", 0.5), ("b", 0.5)]
    assert imbalance_of(()) is None
    assert imbalance_of([result("a")]) is None
    # Of no time there is no throughput, and no zero.
    assert replace(result("a"), seconds=0.0).throughput is None


@pytest.mark.parametrize(
    ("requests", "p50_known", "p99_known"),
    [(0, False, False), (1, False, False), (2, True, False), (99, True, False), (P99_REQUESTS, True, True)],
)
def test_a_quantile_of_too_few_requests_is_not_known(requests: int, *, p50_known: bool, p99_known: bool) -> None:
    """It would be the maximum under another name."""
    found = result("a", requests)
    assert (found.p50 is not None, found.p99 is not None) == (p50_known, p99_known)


def test_the_busiest_and_the_slowest_are_found() -> None:
    """By how much the busiest is over the mean, and from which p99 to which they range."""
    found = imbalance_of([result("a", 110, 0.012), result("b", 90, 0.031), result("c", 100, 0.015)])
    assert found is not None
    assert found.replicas == 3
    assert found.busiest == pytest.approx(0.1)
    # The one with fewer than a hundred requests has no p99.
    assert (found.slowest, found.much_slower) == ("c", ("b",))
    assert found.fastest_p99 == pytest.approx(0.012, rel=1e-3)
    assert found.slowest_p99 == pytest.approx(0.015, rel=1e-3)


@pytest.mark.parametrize(
    ("latencies", "named"),
    [
        ((0.010, 0.019), ()),
        ((0.010, 0.021), ("r1",)),
        ((0.010, 0.010, 0.025), ("r2",)),
        ((0.010, 0.025, 0.025), ()),
        ((0.010, 0.010, 0.010, 0.030, 0.030), ("r3", "r4")),
    ],
)
def test_a_replica_that_is_much_slower_than_the_others_is_named(
    latencies: tuple[float, ...], named: tuple[str, ...]
) -> None:
    """Its p99 is over twice the median of the others'; its own median may be as theirs."""
    tails = [histogram([0.01] * 190 + [latency] * 10) for latency in latencies]
    found = imbalance_of([ReplicaResult(f"r{place}", 200, {}, 1.0, tail) for place, tail in enumerate(tails)])
    assert found is not None
    assert found.much_slower == named


def test_those_that_fail_are_named_the_worst_first() -> None:
    """Where nothing was answered nothing is known, not even which is the busiest."""
    found = imbalance_of([result("a", timeout=1), result("b"), result("c", timeout=1, reset=4)])
    assert found is not None
    assert found.failing == ("c", "a")
    found = imbalance_of([result("a", 0), result("b", 0, timeout=3)])
    assert found is not None
    assert (found.busiest, found.fastest_p99, found.slowest_p99, found.slowest) == (None, None, None, "")
    assert (found.much_slower, found.failing) == ((), ("b",))
