"""The rules of the published runner, as far as they are computations: points of a sweep, warm-up, stability, retries.

Source: ``run_performance_on_triton.py`` of NVIDIA/DeepLearningExamples (PyTorch/Forecasting/TFT/triton), and for
stability "Measurement Modes" in the documentation of perf_analyzer, which it runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpuserve.measure.window import Window

MOST_CONCURRENCY: Final = 256

CONCURRENCY_STEPS: Final = 32

STABILITY: Final = 0.10
"""Largest deviation of each of the last windows from their mean: perf_analyzer's ``--stability-percentage``."""

STABLE_WINDOWS: Final = 3

RETRIES: Final = 10

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


def online_plan(
    max_batch_size: int, *, triton_instances: int = 1, model_instances: int = 1, steps: int = CONCURRENCY_STEPS
) -> OnlinePlan:
    """Compute the points of an online test, with at most twice as many examples in flight as all instances can hold.

    ``total = 2 x max_batch_size x triton_instances x model_instances`` examples; the concurrency rises by
    ``max(1, most // steps)`` to ``most = min(256, total)``, with ``max(1, total // 256)`` examples a request.

    Raises:
        ValueError: A number is below 1.
    """
    total = _total(max_batch_size, triton_instances, model_instances)
    if steps < 1:
        raise ValueError(f"a sweep has one step at least, not {steps}")
    most = min(MOST_CONCURRENCY, total)
    step = max(1, most // steps)
    return OnlinePlan(max(1, total // MOST_CONCURRENCY), tuple(range(step, most + 1, step)))


def online_warm_up(max_batch_size: int, *, triton_instances: int = 1, model_instances: int = 1) -> tuple[int, ...]:
    """Compute the concurrencies at which an online test warms up: half of the most, and the most.

    Raises:
        ValueError: A number is below 1.
    """
    most = min(MOST_CONCURRENCY, _total(max_batch_size, triton_instances, model_instances))
    step = max(1, most // 2)
    return tuple(range(step, most + 1, step))


def offline_warm_up(batches: Sequence[int]) -> tuple[int, ...]:
    """Compute the batch sizes at which an offline test warms up: 1, and the last.

    Raises:
        ValueError: The list is empty, or a size is below 1.
    """
    if not batches or min(batches) < 1:
        raise ValueError(f"batch sizes of 1 at least, not {list(batches)}")
    return tuple(sorted({1, batches[-1]}))


def warm_up_length(mode: Literal["count_windows", "time_windows"], length: int) -> int:
    """Compute the window of a warm-up, in requests or milliseconds: twice the measurement's.

    Raises:
        ValueError: The mode does not exist, or the length is below 1.
    """
    _more(mode, length)
    return 2 * length


def retry_lengths(mode: Literal["count_windows", "time_windows"], length: int) -> tuple[int, ...]:
    """Compute the windows of a measurement that does not get stable: the first try and ten retries.

    Each is longer than the one before by 50 requests (``count_windows``) or 2000 ms (``time_windows``).

    Raises:
        ValueError: The mode does not exist, or the length is below 1.
    """
    more = _more(mode, length)
    return tuple(length + retry * more for retry in range(RETRIES + 1))


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


def _total(max_batch_size: int, triton_instances: int, model_instances: int) -> int:
    if min(max_batch_size, triton_instances, model_instances) < 1:
        raise ValueError("batch size and instances are 1 at least")
    return 2 * max_batch_size * triton_instances * model_instances


def _more(mode: str, length: int) -> int:
    more = {"count_windows": 50, "time_windows": 2000}
    if mode not in more:
        raise ValueError(f"no measurement mode {mode!r}; known: {', '.join(more)}")
    if length < 1:
        raise ValueError(f"a window has a length of 1 at least, not {length}")
    return more[mode]
