"""Windows and rounds of which every metric has a given log cost, but for a constant."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.measure.counters import Counters
from pytest_gpuserve.measure.histogram import Histogram, bucket_of
from pytest_gpuserve.measure.rounds import ARMS, Round
from pytest_gpuserve.measure.window import Start, Window

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytest_gpuserve.measure.rounds import Arm

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
        counters=Counters(BATCH * requests, round(requests * math.exp(cost if batch_cost is None else batch_cost))),
    )


def round_of(differences: Sequence[float], *, requests: int = 1000, one_at_a_time: bool = False) -> Round:
    """A round of blocks with these differences and no other noise."""
    costs = [cost for difference in differences for cost in (difference, difference)]
    base = tuple(window_at(0.0, requests=requests) for _ in costs)
    candidate = tuple(window_at(cost, requests=requests) for cost in costs)
    return round_with(base, candidate, one_at_a_time=one_at_a_time)


def round_with(base: Sequence[Window], candidate: Sequence[Window], *, one_at_a_time: bool = False) -> Round:
    """A round of these windows of each server."""
    starts: dict[Arm, tuple[Start, ...]] = {
        arm: tuple(Start((window,), 1.5) for window in windows) if one_at_a_time else (Start(tuple(windows), 1.5),)
        for arm, windows in zip(ARMS, (base, candidate), strict=True)
    }
    return Round(starts, AT, one_at_a_time=one_at_a_time)


def with_windows(measured: Round, change: Callable[[Arm, Window], Window]) -> Round:
    """The round with every window changed."""
    starts = {
        arm: tuple(replace(start, windows=tuple(change(arm, each) for each in start.windows)) for start in starts)
        for arm, starts in measured.starts.items()
    }
    return replace(measured, starts=starts)


def with_starts(measured: Round, base: Sequence[float | None], candidate: Sequence[float | None]) -> Round:
    """The round with servers that took so long to start, each as often; the first start has the windows."""

    def started(arm: Arm, seconds: Sequence[float | None]) -> tuple[Start, ...]:
        return tuple(Start(measured.windows(arm) if not number else (), each) for number, each in enumerate(seconds))

    return replace(measured, starts={"base": started("base", base), "candidate": started("candidate", candidate)})
