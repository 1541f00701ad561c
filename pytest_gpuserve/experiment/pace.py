"""Length of the turns of two servers that are loaded alternately, from their warm-up."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.experiment.shape import TICK_SECONDS, TICKS_A_WINDOW, WINDOW_SECONDS
from pytest_gpuserve.load.tick import total
from pytest_gpuserve.measure.rounds import FEWEST_GROUPS
from pytest_gpuserve.verdict.sequential import BLOCKS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pytest_gpuserve.experiment.shape import LoadShape
    from pytest_gpuserve.load.tick import Tick

SETTLE_TICKS: Final = 1
"""Time at the begin of a turn that is thrown away, because the load has to build up again.

Its effect ends there: in 167 turns of mosec and LitServe servers the next tick had 0.998 (standard error 0.007) and
1.004 (0.012) of the throughput of later ticks.
"""

SETTLE_LATENCIES: Final = 2.0
"""Mean latencies until a load has built up: the first requests and their successors have been answered."""

LATENCIES_TIMES_TOLERANCE: Final = 1.0
LEAST_LATENCIES: Final = 8.0
"""Length of a window in mean latencies: the larger of the first number over the tolerance, and the second.

Users whose requests are batched together are answered together. So a window of n mean latencies counts n batches or one
more: 0.4 / n (sd) of its throughput. Over three blocks that is 1.2 % at a tolerance of 5 %, and at most 3 % at wide
tolerances.
"""

LEAST_TICKS: Final = 4
"""Fewest ticks of a window: those of the recorded rounds on which the rules were tried."""

WIDE_TOLERANCE: Final = 0.15
TICKS_WITHIN_WIDE: Final = 3
"""Ticks of a window if the throughput's tolerance is that wide: the spread by its shortness is small beside it."""

BLOCKS_FOR_REQUESTS: Final = (2, BLOCKS // FEWEST_GROUPS)
"""Blocks that together may hold the requests of a quantile, which are merged for it.

Pairs come first: three of them tell a p99 nearly as well as six blocks, for the spread between starts outweighs the
rest. A slow server gets along with two groups of three.
"""

MARGIN_OF_REQUESTS: Final = 1.1
"""The warm-up's rate is not exact, and one group of blocks without its requests would make all groups larger."""

MOST_TICKS_FOR_REQUESTS: Final = 4 * TICKS_A_WINDOW
"""Longest window for the sake of a quantile; a smaller number of requests is taken instead of a longer one."""

MOST_TICKS: Final = 20 * TICKS_A_WINDOW


@dataclass(frozen=True, slots=True)
class Pace:
    """Length of turns, in ticks.

    Args:
        settle: Ticks at the begin of a turn that are thrown away.
        window: Measured ticks.
    """

    settle: int
    window: int


def pace_of(warmup: Sequence[Tick], shape: LoadShape, tolerance: float) -> Pace:
    """Length of a server's turns, from its warm-up.

    Args:
        warmup: Ticks of the warm-up, whose later half counts.
        shape: The load. Each group of blocks should have the largest reachable number of its ``requests_wanted``.
        tolerance: The throughput's tolerance.
    """
    base = LEAST_TICKS if tolerance < WIDE_TOLERANCE else TICKS_WITHIN_WIDE
    if shape.seconds is not None:
        base *= max(1, round(shape.seconds / (8 * WINDOW_SECONDS)))
    later = later_half(warmup)
    if not later.requests or later.latency.mean is None:
        return Pace(SETTLE_TICKS, base)
    latency_ticks = later.latency.mean / TICK_SECONDS
    for_requests = _ticks_for(shape.requests_wanted, later.requests / later.seconds * TICK_SECONDS)
    for_latencies = math.ceil(max(LEAST_LATENCIES, LATENCIES_TIMES_TOLERANCE / tolerance) * latency_ticks)
    settle = max(SETTLE_TICKS, math.ceil(SETTLE_LATENCIES * latency_ticks))
    return Pace(min(settle, MOST_TICKS), max(base, for_requests, min(for_latencies, MOST_TICKS)))


def later_half(warmup: Sequence[Tick]) -> Tick:
    """Sum of the later half of a warm-up."""
    return total(warmup[len(warmup) // 2 :])


def _ticks_for(requests_wanted: Iterable[int], rate_per_tick: float) -> int:
    """Ticks of a window, so that a group of blocks has the largest of these numbers that it can have."""
    for wanted in sorted(requests_wanted, reverse=True):
        for blocks in BLOCKS_FOR_REQUESTS:
            ticks = math.ceil(wanted * MARGIN_OF_REQUESTS / (2 * blocks) / rate_per_tick)
            if ticks <= MOST_TICKS_FOR_REQUESTS:
                return ticks
    return 0
