"""A metric over time, as a history page draws it: its values with their bounds, and where its level changed."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Final

from pytest_gpuserve.report.html.figure import Axis, Figure, Panel, Point, Series, colour
from pytest_gpuserve.report.html.measured import one_line, short
from pytest_gpuserve.units import format_value

LABEL_CHARACTERS: Final = 12
"""Of a label on the axis at most; every point tells the whole of it."""

_LEVEL: Final = "#cc7a00"


@dataclass(frozen=True, slots=True)
class LinePoint:
    """A value of a metric at one place of its history.

    Args:
        label: Where that is, for people: a commit, a date.
        low: Lower bound of the value; None where it is not known.
    """

    label: str
    value: float
    low: float | None = None
    high: float | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class MetricLine:
    """A metric's history, oldest first.

    Args:
        title: What it is of, for people: the test and the metric.
        unit: Unit of the values, as ``units.format_value`` knows it.
        changes: Positions in ``points`` of those with which a new level begins, rising.

    Raises:
        ValueError: A change point lies outside the points, or they do not rise.
    """

    title: str
    unit: str
    points: tuple[LinePoint, ...]
    changes: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if list(self.changes) != sorted({*self.changes}) or not {*self.changes} <= {*range(len(self.points))}:
            raise ValueError(f"change points must rise within 0..{len(self.points) - 1}, not {self.changes}")


def history(line: MetricLine) -> Figure:
    """Draw a metric's history."""
    changes = ", ".join(short(line.points[place].label) for place in line.changes)
    values = tuple(
        Point(place, point.value, _told(point, line.unit), interval=_bounds_of(point))
        for place, point in enumerate(line.points)
    )
    return Figure(
        one_line(line.title),
        Axis(
            names=tuple((place, one_line(point.label)[:LABEL_CHARACTERS]) for place, point in enumerate(line.points)),
            bounds=(-0.5, len(line.points) - 0.5),
        ),
        (Panel(Axis("", line.unit), (Series("", colour(0), values, line="solid"), _levels(line))),),
        notes=(f"a new level begins with: {changes}",) if changes else (),
        rules=tuple(place - 0.5 for place in line.changes),
    )


def _told(point: LinePoint, unit: str) -> str:
    value = format_value(point.value, unit)
    if bounds := _bounds_of(point):
        value += f" ({format_value(bounds[0], unit)} to {format_value(bounds[1], unit)})"
    return "; ".join(part for part in (one_line(point.label), value, one_line(point.note)) if part)


def _bounds_of(point: LinePoint) -> tuple[float, float] | None:
    return None if point.low is None or point.high is None else (point.low, point.high)


def _levels(line: MetricLine) -> Series:
    """The median of each stretch between change points, as a line."""
    points: list[Point] = []
    for begin, end in pairwise((0, *(place for place in line.changes if place), len(line.points))):
        level = median(point.value for point in line.points[begin:end])
        points += [Point(begin, level), Point(end - 1, level), Point(end - 1, None)]
    return Series("", _LEVEL, tuple(points) if line.changes else (), line="dash", mark="")
