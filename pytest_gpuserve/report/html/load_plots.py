"""The plots of a single load: its windows over time, its latencies, and the batches that the server executed."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise, zip_longest
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.measure.histogram import seconds_of
from pytest_gpuserve.report.html.figure import (
    LONGEST_TICK,
    QUIET,
    Axis,
    Bar,
    Bars,
    Figure,
    Panel,
    Point,
    Series,
    colour,
    known,
)
from pytest_gpuserve.report.html.measured import one_line, short, starts_of
from pytest_gpuserve.units import format_fraction, format_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pytest_gpuserve.measure.histogram import Histogram
    from pytest_gpuserve.measure.window import Session, Start, Window
    from pytest_gpuserve.report.html.measured import MeasuredRun


BETWEEN_SECONDS: Final = 1.0
"""On the axis, starts stand so far apart: how long a server took to start is not the matter here."""

_NS: Final = 1e-9

STEPS: Final = 100
"""Points of a curve along each of its axes at most: more are not seen."""

_QUANTILES: Final = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}

BARS_WIDTH: Final = 0.8
"""Of the bars of a batch size together, where the next one is 1 away."""


@dataclass(frozen=True)
class _Placed:
    """A start on the axis."""

    begins: tuple[float, ...]
    times: tuple[float, ...]
    windows: tuple[Window, ...]
    ends: float
    gaps: tuple[tuple[float, float], ...]


def windows(run: MeasuredRun) -> Figure | None:
    """Draw the windows of a load, and of the one that it was measured beside; None where there is none."""
    own, base, begins = _placed(run.starts, starts_of(run.run.base_sessions))
    if not any(start.windows for start in own):
        return None
    panels: list[tuple[Axis, Callable[[Window], float | None]]] = [
        (Axis("throughput", "1/s"), lambda window: window.throughput),
        (Axis("p99", "s"), _p99),
    ]
    if any(_clock(window) is not None for start in own for window in start.windows):
        panels.append((Axis("SM clock", "MHz"), _clock))
    rejected = [reason for start in run.starts for reason in start.rejected]
    reasons = dict.fromkeys(one_line(reason) for reason in rejected)
    discarded = sum(start.discarded for start in run.starts)
    return Figure(
        "Windows over time",
        Axis("measured time, start after start", "s", bounds=(0.0, _end(own, base))),
        tuple(
            Panel(
                axis,
                (
                    *([_over_time(base, value, "base", QUIET)] if base else []),
                    _over_time(own, value, "now", colour(0)),
                ),
                height=110,
            )
            for axis, value in panels
        ),
        notes=(
            *([f"{discarded} windows were cut off the front: not steady yet"] if discarded else []),
            *([f"{len(rejected)} windows were thrown away and measured again:"] if rejected else []),
            *reasons,
        ),
        rules=tuple(seconds - BETWEEN_SECONDS / 2 for seconds in begins[1:]),
        shades=tuple(gap for start in own for gap in start.gaps),
        is_wide=True,
    )


def _end(*sides: Sequence[_Placed]) -> float:
    return max(start.ends for side in sides for start in side)


def _placed(own: Sequence[Start], base: Sequence[Start]) -> tuple[list[_Placed], list[_Placed], list[float]]:
    """Lay starts out one after the other, those that were measured side by side above each other."""
    placed: tuple[list[_Placed], list[_Placed]] = ([], [])
    begins = []
    offset = 0.0
    for pair in zip_longest(own, base):
        begins.append(offset)
        known = [start for start in pair if start is not None]
        # A clock that is not known begins at 0.
        clocked = all(window.end_ns for start in known for window in start.windows)
        origin_ns = (
            min((window.begin_ns for start in known for window in start.windows), default=0) if clocked else None
        )
        ends = [offset]
        for found, start in zip(placed, pair, strict=True):
            if start is not None:
                laid, end = _laid_out(start, offset, origin_ns)
                found.append(laid)
                ends.append(end)
        offset = max(ends) + BETWEEN_SECONDS
    return placed[0], placed[1], begins


def _laid_out(start: Start, offset: float, origin_ns: int | None) -> tuple[_Placed, float]:
    spans = []
    end = offset
    for window in start.windows:
        begin = end if origin_ns is None else offset + (window.begin_ns - origin_ns) * _NS
        end = begin + window.seconds
        spans.append((begin, end))
    gaps: tuple[tuple[float, float], ...] = ()
    if start.rejected and origin_ns is not None:
        gaps = tuple(
            (earlier, later)
            for ((_, earlier), (later, _)), window in zip(pairwise(spans), start.windows, strict=False)
            if later - earlier > window.seconds / 2
        )
    times = tuple((begin + end) / 2 for begin, end in spans)
    return _Placed(tuple(begin for begin, _ in spans), times, start.windows, end, gaps), end


def _over_time(starts: Sequence[_Placed], value: Callable[[Window], float | None], name: str, own: str) -> Series:
    points: list[Point] = []
    for start in starts:
        gaps = {end for _, end in start.gaps}
        for begin, time, window in zip(start.begins, start.times, start.windows, strict=True):
            # No line goes over what was thrown away.
            points += [Point(time, None)] if begin in gaps else []
            points.append(Point(time, known(value(window))))
        points.append(Point(start.ends, None))
    return Series(name, own, tuple(points), line="solid")


def _p99(window: Window) -> float | None:
    return window.latency.quantile(0.99) if window.latency.total else None


def _clock(window: Window) -> float | None:
    """The cards' clock in MHz."""
    return None if window.cards is None else window.cards.sm_clock_mhz


def distribution(run: MeasuredRun) -> Figure | None:
    """Draw the latencies of a load, and of the one that it was measured beside; None where nothing was answered."""
    curves: list[Series] = []
    if run.base is not None:
        curves += _curve(run.base.latency, f"base: {short(run.run.base or '')}", QUIET, line="dash")
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


def batches(run: MeasuredRun) -> Figure | None:
    """Draw the batch sizes of a load, and of the one that it was measured beside; None where the server tells none."""
    sides = [("base", _sizes(run.run.base_sessions), QUIET), ("now", _sizes(run.sessions), colour(0))]
    known = [(name, sizes, own) for name, sizes, own in sides if sizes]
    if not known:
        return None
    edges = sorted({edge for _, sizes, _ in known for edge in sizes}, key=_order)
    names = tuple((place, one_line(edge)[:LONGEST_TICK]) for place, edge in enumerate(edges))
    width = BARS_WIDTH / len(known)
    return Figure(
        "Batch sizes",
        Axis("batch size", names=names, bounds=(-0.5, len(edges) - 0.5)),
        (
            Panel(
                Axis("share of the batches", "%", from_zero=True),
                bars=tuple(
                    Bars(name, own, tuple(_bars(name, sizes, edges, place * width - BARS_WIDTH / 2, width)))
                    for place, (name, sizes, own) in enumerate(known)
                ),
            ),
        ),
        notes=("A server that counts by ranges of sizes is shown by the upper end of each.",),
    )


def _sizes(sessions: Sequence[Session]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for session in sessions:
        counts.update(session.batch_sizes)
    return +counts


def _order(edge: str) -> tuple[float, str]:
    try:
        value = float(edge)
    except ValueError:
        return math.inf, edge
    return (math.inf if math.isnan(value) else value), edge


def _bars(name: str, sizes: Counter[str], edges: Sequence[str], offset: float, width: float) -> Iterator[Bar]:
    total = sizes.total()
    for place, edge in enumerate(edges):
        if count := sizes[edge]:
            tooltip = f"{name}: {count} batches, {format_fraction(count / total)}"
            yield Bar(place + offset, place + offset + width, 0.0, count / total, tooltip)
