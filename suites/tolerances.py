"""What the suites tolerate on a CPU that they share with whatever else its host does."""

from __future__ import annotations

import pytest

CPU_TOLERANCES = pytest.mark.gpuserve(
    gpu="cpu", throughput=0.3, p50=0.3, p90=0.5, p95=0.5, p99=1.0, batching_ratio=0.3, cold_start=0.6
)
"""Two cores of a shared host give one build half of its throughput from hour to hour and 15 % less from start to start,
so that what a card tolerates could not be decided there within a test's budget. Batches follow the speed: one build put
38 requests together in one hour and 30 in another.
"""
