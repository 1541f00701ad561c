"""Windows and rounds of which every metric has a given log cost, but for a constant."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.measure.histogram import Histogram, bucket_of
from pytest_gpuserve.measure.rounds import ABBA, ARMS, ArmResult, Block, Round
from pytest_gpuserve.measure.window import Window

if TYPE_CHECKING:
    from collections.abc import Sequence

AT: Final = "2025-01-02T03:04:05+00:00"
WINDOW_SECONDS: Final = 0.5
LATENCY_SECONDS: Final = 0.010
BATCH: Final = 4


def window_at(cost: float, *, requests: int = 1000, batch_cost: float | None = None) -> Window:
    """A window of which every metric has this log cost; batches may have their own."""
    latency = LATENCY_SECONDS * math.exp(cost)
    return Window(
        seconds=WINDOW_SECONDS * math.exp(cost),
        requests=requests,
        errors={},
        latency=Histogram(
            {bucket_of(round(latency * 1e9)): requests} if requests else {},
            round(latency * 1e9) * requests,
            round(latency * 1e9),
        ),
        items=BATCH * requests,
        batches=round(requests * math.exp(cost if batch_cost is None else batch_cost)),
    )


def round_of(differences: Sequence[float], *, requests: int = 1000, one_at_a_time: bool = False) -> Round:
    """A round of blocks with these differences and no other noise."""
    blocks = [
        Block(ABBA, tuple(window_at(cost, requests=requests) for cost in (0.0, difference, difference, 0.0)))
        for difference in differences
    ]
    return Round(tuple(blocks), "base", dict.fromkeys(ARMS, ArmResult((1.5,))), AT, one_at_a_time=one_at_a_time)
