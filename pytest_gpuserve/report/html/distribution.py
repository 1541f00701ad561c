"""The latencies of a load: which share of the requests took longer, down to the slowest."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.measure.histogram import seconds_of
from pytest_gpuserve.report.html.figure import QUIET, Axis, Figure, Panel, Point, Series, colour
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
    curves: list[Series] = []
    if run.base is not None:
        curves += _curve(run.base.latency, f"base: {texts.short(run.run.base or '')}", QUIET, line="dash")
    if run.summary is not None:
        curves += _curve(run.summary.latency, "now", colour(0), line="solid")
    if not curves:
        return None
    return Figure(
        "Latency distribution",
        Axis("latency", "s", is_log=True),
        (Panel(Axis("share that took as long or longer", "%", is_log=True), tuple(curves)),),
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


def _curve(latency: Histogram, name: str, own: str, *, line: str) -> list[Series]:
    quantiles = tuple(
        Point(
            seconds := latency.quantile(q),
            1 - q,
            f"{name}: {label} {format_seconds(seconds)}: {format_fraction(1 - q)} took longer",
            label=label if line == "solid" else "",
        )
        for label, q in _QUANTILES.items()
    )
    curve = tuple(Point(seconds, share) for seconds, share in tail(latency))
    return [Series(name, own, curve, line=line, mark=""), Series("", own, quantiles)]
