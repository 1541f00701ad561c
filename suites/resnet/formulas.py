"""Arithmetic over latencies and repetitions: what the published benchmark printed, and what it should have."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


def samples_per_second(requests_per_second: float, batch: int) -> float:
    """Images classified a second: what the benchmark calls throughput."""
    return requests_per_second * batch


def published_throughput(mean_seconds: float, batch: int) -> float:
    """Samples a second as the benchmark's first version printed them: ``N * batch / sum(latencies)``.

    That is the batch divided by the mean latency, and no rate: where several requests are under way, the time in which
    one waits for another counts for both. By Little's law it is `samples_per_second` divided by the requests under way,
    half of it for a queue of two. (pytorch's pull request #116188 replaced it by the time from the first send to the
    last answer.)

    Args:
        mean_seconds: Mean latency.
        batch: Images in a request.

    Raises:
        ValueError: The latency is no finite number above 0.
    """
    if not 0 < mean_seconds < math.inf:
        raise ValueError(f"a mean latency is a finite number above 0, not {mean_seconds!r}")
    return batch / mean_seconds


def weighted_sd(counts: Mapping[float, int]) -> float | None:
    """Sample standard deviation of values by how often each was seen; None of a single one."""
    total = sum(counts.values())
    if total < 2:
        return None
    mean = math.fsum(value * count for value, count in counts.items()) / total
    return math.sqrt(math.fsum(count * (value - mean) ** 2 for value, count in counts.items()) / (total - 1))
