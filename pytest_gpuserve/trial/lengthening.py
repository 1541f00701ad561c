"""How many windows a start should have, once some of them are known."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pytest_gpuserve.load.validity import LATENCIES_LONG
from pytest_gpuserve.measure.steady import truncate
from pytest_gpuserve.trial.shape import WINDOW_SECONDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpuserve.measure.window import Window
    from pytest_gpuserve.trial.shape import LoadShape


def windows_wanted(windows: Sequence[Window], shape: LoadShape) -> int:
    """Return how many windows this start should come to: those that it has, where these will do.

    It is lengthened until its throughput is steady, until what is left of it holds the requests that its quantiles
    need, and until that is long enough for Little's law. Where that leads nowhere ``shape.most_windows`` ends it, which
    is for the caller to see.

    Args:
        windows: Measured so far, two at least.
        shape: How it is loaded.
    """
    cut = truncate([window.throughput for window in windows])
    wanted = len(windows)
    if not cut.steady:
        doubled = 2 * shape.windows
        wanted = doubled if wanted < doubled else shape.most_windows
    kept = windows[cut.discard :]
    requests = sum(window.requests for window in kept)
    if 0 < requests < shape.requests_wanted:
        missing = (shape.requests_wanted - requests) / (requests / len(kept))
        wanted = max(wanted, len(windows) + math.ceil(missing))
    if requests:
        mean_seconds = sum(window.latency_sum_seconds for window in kept) / requests
        # On top of what was cut off: the law is asked of the rest.
        wanted = max(wanted, cut.discard + math.ceil(LATENCIES_LONG * mean_seconds / WINDOW_SECONDS))
    return wanted
