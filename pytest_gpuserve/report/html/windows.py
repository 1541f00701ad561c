"""A load's windows over time: throughput, tail latency and clocks, and where windows were thrown away."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise, zip_longest
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.report.html.figure import QUIET, Axis, Figure, Panel, Point, Series, colour, known
from pytest_gpuserve.report.html.measured import starts_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytest_gpuserve.measure.window import Start, Window
    from pytest_gpuserve.report.html.measured import MeasuredRun
    from pytest_gpuserve.report.html.text import Texts

BETWEEN_SECONDS: Final = 1.0
"""On the axis, starts stand so far apart: how long a server took to start is not the matter here."""

_NS: Final = 1e-9


@dataclass(frozen=True)
class _Placed:
    """A start on the axis.

    Args:
        begins: Seconds of the begin of each window.
        times: Seconds of its middle.
        windows: The windows.
        ends: Seconds of the end of the last one.
        gaps: From where to where windows were thrown away.
    """

    begins: tuple[float, ...]
    times: tuple[float, ...]
    windows: tuple[Window, ...]
    ends: float
    gaps: tuple[tuple[float, float], ...]


def windows(run: MeasuredRun, texts: Texts) -> Figure | None:
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
    reasons = dict.fromkeys(texts.line(reason) for reason in rejected)
    discarded = sum(start.discarded for start in run.starts)
    return Figure(
        "Windows over time",
        Axis("measured time, start after start", "s", bounds=(0.0, _end(own, base))),
        tuple(
            Panel(
                axis,
                (
                    *([_series(base, value, "base", QUIET)] if base else []),
                    _series(own, value, "now", colour(0)),
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
    """Lay starts out one after the other, those that were measured side by side above each other.

    Returns:
        The starts of both, and where each pair begins.
    """
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


def _series(starts: Sequence[_Placed], value: Callable[[Window], float | None], name: str, own: str) -> Series:
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
