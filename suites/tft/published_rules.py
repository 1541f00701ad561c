"""The rules of the published runner, as far as loads follow them: points of a sweep, and stability.

Source: ``run_performance_on_triton.py`` of NVIDIA/DeepLearningExamples (PyTorch/Forecasting/TFT/triton), and for
stability "Measurement Modes" in the documentation of perf_analyzer, which it runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpuserve.measure.window import Window

MOST_CONCURRENCY: Final = 256

CONCURRENCY_STEPS: Final = 32

STABILITY: Final = 0.10
"""Largest deviation of each of the last windows from their mean: perf_analyzer's ``--stability-percentage``."""

STABLE_WINDOWS: Final = 3

OFFLINE_BATCHES: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


@dataclass(frozen=True)
class OnlinePlan:
    """The points of an online test.

    Args:
        batch: Examples of each request.
        concurrencies: Requests under way, one point each.
    """

    batch: int
    concurrencies: tuple[int, ...]


def online_plan(max_batch_size: int, *, instances: int = 1) -> OnlinePlan:
    """Compute the points of an online test, with at most twice as many examples in flight as all instances can hold.

    ``total = 2 x max_batch_size x instances`` examples; the concurrency rises by ``max(1, most // 32)`` to
    ``most = min(256, total)``, with ``max(1, total // 256)`` examples a request.
    """
    total = 2 * max_batch_size * instances
    most = min(MOST_CONCURRENCY, total)
    step = max(1, most // CONCURRENCY_STEPS)
    return OnlinePlan(max(1, total // MOST_CONCURRENCY), tuple(range(step, most + 1, step)))


def is_stable(windows: Sequence[tuple[float, float]], *, tolerance: float = STABILITY) -> bool:
    """Tell whether the last three windows agree: throughput and mean latency of each within 10 % of their mean.

    Args:
        windows: Throughput and mean latency of each window, in the order of time.
        tolerance: As a fraction.
    """
    last = windows[-STABLE_WINDOWS:]
    if len(last) < STABLE_WINDOWS:
        return False
    for values in zip(*last, strict=True):
        mean = sum(values) / len(values)
        if not all(abs(value - mean) <= tolerance * mean for value in values):
            return False
    return True


def until_stable(windows: Sequence[Window]) -> bool:
    """Function for `load(until=...)` that ends as perf_analyzer would; a window without answers is not stable."""
    means = [(window.throughput, window.latency.mean) for window in windows]
    known = [(throughput, mean) for throughput, mean in means if mean is not None]
    return len(known) == len(windows) and is_stable(known)
