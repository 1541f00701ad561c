"""The latencies of a load: which share of the requests took longer, down to the slowest."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.measure.histogram import seconds_of
from pytest_gpuserve.report.html.figure import QUIET, Figure, Trace, axis, colour, log_axis, number, numbers
from pytest_gpuserve.units import format_fraction, format_seconds

if TYPE_CHECKING:
    from pytest_gpuserve.measure.histogram import Histogram
    from pytest_gpuserve.report.html.measured import MeasuredRun
    from pytest_gpuserve.report.html.text import Texts

STEPS: Final = 100
"""Points of a curve along each of its axes at most: more are not seen."""

_QUANTILES: Final = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}


def distribution(run: MeasuredRun, texts: Texts) -> Figure | None:
    """Draw the latencies of a load, and of the one that it was measured beside; None where nothing was answered."""
    traces: list[Trace] = []
    if run.base is not None:
        name = texts.label(run.run.base or "")
        traces += _curve(run.base.latency, f"base: {name}", QUIET, dash="dash")
    if run.summary is not None:
        traces += _curve(run.summary.latency, "now", colour(0), dash="solid")
    if not traces:
        return None
    return Figure(
        "Latency distribution",
        tuple(traces),
        {
            "hovermode": "closest",
            "xaxis": log_axis("latency", "s", [seconds for trace in traces for seconds in trace["x"]]),
            "yaxis": axis("share that took as long or longer", "%", type="log"),
        },
    )


def tail(latency: Histogram) -> list[tuple[float, float]]:
    """Latencies with the share of all that took as long or longer, from the shortest on, thinned to what is seen.

    Returns:
        Seconds and share. The last one is the longest, whose share is not 0, so that a logarithm may be drawn of it.
    """
    buckets = sorted(latency.counts)
    if not buckets:
        return []
    total = latency.total
    first, last = seconds_of(buckets[0]), seconds_of(buckets[-1])
    wide = math.log(last / first) / STEPS
    high = math.log(total / latency.counts[buckets[-1]]) / STEPS
    found = []
    before = 0
    last_place, last_share = -math.inf, math.inf
    for bucket in buckets:
        share = (total - before) / total
        before += latency.counts[bucket]
        place = math.log(seconds_of(bucket))
        if place - last_place >= wide or math.log(last_share / share) >= high or bucket == buckets[-1]:
            found.append((seconds_of(bucket), share))
            last_place, last_share = place, share
    return found


def _curve(latency: Histogram, name: str, own: str, *, dash: str) -> list[Trace]:
    points = tail(latency)
    quantiles = {label: latency.quantile(q) for label, q in _QUANTILES.items()}
    return [
        {
            "type": "scatter",
            "mode": "lines",
            "name": name,
            "legendgroup": name,
            "x": numbers(seconds for seconds, _ in points),
            "y": numbers(share for _, share in points),
            "line": {"color": own, "dash": dash, "width": 2},
            "hovertemplate": "%{y} took %{x} or longer<extra></extra>",
        },
        {
            "type": "scatter",
            "mode": "markers",
            "name": name,
            "legendgroup": name,
            "showlegend": False,
            "x": [number(seconds) for seconds in quantiles.values()],
            "y": [number(1 - q) for q in _QUANTILES.values()],
            "marker": {"color": own, "size": 7},
            "customdata": [
                f"{label} {format_seconds(seconds)}: {format_fraction(1 - _QUANTILES[label])} took longer"
                for label, seconds in quantiles.items()
            ],
            "hovertemplate": f"{name}<br>%{{customdata}}<extra></extra>",
        },
    ]
