"""Efforts by themselves: every tolerance that a marker may set has another one that is possible."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuserve.gate.effort import Effort
from pytest_gpuserve.gate.metric import METRICS, Metric

THROUGHPUT, P99 = METRICS["throughput"], METRICS["latency.p99"]


@pytest.mark.parametrize(
    ("metric", "stated", "scaled"),
    [
        (THROUGHPUT, 0.05, (0.1, 0.05, 0.02)),
        (P99, 0.2, (0.4, 0.2, 0.08)),
        (P99, 1.0, (2.0, 1.0, 0.4)),
        (THROUGHPUT, 0.3, (0.6, 0.3, 0.12)),
        (THROUGHPUT, 0.6, (0.8, 0.6, 0.24)),
        (THROUGHPUT, 0.99, (0.995, 0.99, 0.396)),
    ],
)
def test_a_tolerance_is_twice_or_two_fifths_of_what_is_stated(
    metric: Metric, stated: float, scaled: tuple[float, ...]
) -> None:
    """Twelve digits; what may not fall to nothing keeps half of what the test leaves of it."""
    assert tuple(effort.tolerance(metric, stated) for effort in Effort) == scaled


@given(st.sampled_from(sorted(METRICS)), st.floats(1e-6, 0.999999), st.floats(1e-6, 0.999999))
def test_every_tolerance_stays_possible_and_in_order(name: str, one: float, other: float) -> None:
    """No verdict is impossible at it, push never asks for more than merge and nightly never for less."""
    metric = METRICS[name]
    for stated in (one, other):
        push, merge, nightly = (effort.tolerance(metric, stated) for effort in Effort)
        assert nightly <= merge <= push
        assert metric.growth(push) > 0
        assert metric.growth(nightly) > 0
    less, more = sorted((one, other))
    for effort in Effort:
        assert effort.tolerance(metric, less) <= effort.tolerance(metric, more)


def test_an_impossible_tolerance_is_refused() -> None:
    """It is not made possible by a smaller factor."""
    with pytest.raises(ValueError, match="must be below 1"):
        Effort.NIGHTLY.tolerance(THROUGHPUT, 1.5)
