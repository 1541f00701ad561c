"""A metric's history as a plot: its values with their bounds, and where its level changed."""

from __future__ import annotations

from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.report.html.figure import Axis, Figure, Panel, Point, Series, colour
from pytest_gpuserve.units import format_value

if TYPE_CHECKING:
    from pytest_gpuserve.report.html.lines import LinePoint, MetricLine
    from pytest_gpuserve.report.html.text import Texts

LABEL_CHARACTERS: Final = 12
"""Of a label on the axis at most; every point tells the whole of it."""

_LEVEL: Final = "#cc7a00"


def history(line: MetricLine, texts: Texts) -> Figure:
    """Draw a metric's history."""
    changes = ", ".join(texts.short(line.points[place].label) for place in line.changes)
    values = tuple(
        Point(place, point.value, _told(point, line.unit, texts), interval=_bounds_of(point))
        for place, point in enumerate(line.points)
    )
    return Figure(
        texts.line(line.title),
        Axis(
            names=tuple((place, texts.line(point.label)[:LABEL_CHARACTERS]) for place, point in enumerate(line.points)),
            bounds=(-0.5, len(line.points) - 0.5),
        ),
        (Panel(Axis("", line.unit), (Series("", colour(0), values, line="solid"), _levels(line))),),
        notes=(f"a new level begins with: {changes}",) if changes else (),
        rules=tuple(place - 0.5 for place in line.changes),
    )


def _told(point: LinePoint, unit: str, texts: Texts) -> str:
    value = format_value(point.value, unit)
    if bounds := _bounds_of(point):
        value += f" ({format_value(bounds[0], unit)} to {format_value(bounds[1], unit)})"
    return "; ".join(part for part in (texts.line(point.label), value, texts.line(point.note)) if part)


def _bounds_of(point: LinePoint) -> tuple[float, float] | None:
    return None if point.low is None or point.high is None else (point.low, point.high)


def _levels(line: MetricLine) -> Series:
    """The median of each stretch between change points, as a line."""
    points: list[Point] = []
    for begin, end in pairwise((0, *(place for place in line.changes if place), len(line.points))):
        level = median(point.value for point in line.points[begin:end])
        points += [Point(begin, level), Point(end - 1, level), Point(end - 1, None)]
    return Series("", _LEVEL, tuple(points) if line.changes else (), line="dash", mark="")
