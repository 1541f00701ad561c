"""A metric's history as a plot: its values with their bounds, and where its level changed."""

from __future__ import annotations

from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from pytest_gpuserve.report.html.figure import QUIET, Figure, Trace, axis, colour, numbers
from pytest_gpuserve.report.html.text import as_label
from pytest_gpuserve.units import format_value

if TYPE_CHECKING:
    from pytest_gpuserve.report.html.lines import LinePoint, MetricLine
    from pytest_gpuserve.report.html.text import Texts

MOST_LABELS: Final = 10
"""Labels on the axis at most; all points tell theirs where they are pointed at."""

FEW_LABELS: Final = 3
"""So many stand side by side."""

_LEVEL: Final = "#cc7a00"


def history(line: MetricLine, texts: Texts) -> Figure:
    """Draw a metric's history."""
    traces = [_values(line, texts)]
    if any(_bounds_of(point) is not None for point in line.points):
        traces.insert(0, _bounds(line))
    if line.changes:
        traces.append(_levels(line))
    stride = max(1, -(-len(line.points) // MOST_LABELS))
    named = range(0, len(line.points), stride)
    layout: dict[str, Any] = {
        "hovermode": "closest",
        "showlegend": False,
        "xaxis": axis(
            "",
            tickvals=list(named),
            ticktext=[texts.label(line.points[place].label) for place in named],
            range=[-0.5, len(line.points) - 0.5],
            # Where there are many they end at their ticks, else the last ones would have no room.
            tickangle=-35 if len(named) > FEW_LABELS else "auto",
        ),
        "yaxis": axis("", line.unit),
        "shapes": [_change(place) for place in line.changes],
    }
    changes = ", ".join(texts.short(line.points[place].label) for place in line.changes)
    return Figure(
        texts.line(line.title),
        tuple(traces),
        layout,
        notes=(f"a new level begins with: {changes}",) if changes else (),
    )


def _values(line: MetricLine, texts: Texts) -> Trace:
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "x": list(range(len(line.points))),
        "y": numbers(point.value for point in line.points),
        "line": {"color": colour(0), "width": 1.5},
        "marker": {"size": 7},
        "customdata": [_told(point, line.unit, texts) for point in line.points],
        "hovertemplate": "%{customdata[0]}<br>%{customdata[1]}<br>%{customdata[2]}<extra></extra>",
    }


def _told(point: LinePoint, unit: str, texts: Texts) -> list[str]:
    value = format_value(point.value, unit)
    bounds = _bounds_of(point)
    if bounds is not None:
        value += f" ({format_value(bounds[0], unit)} to {format_value(bounds[1], unit)})"
    return [texts.label(point.label), as_label(value), texts.label(point.note)]


def _bounds_of(point: LinePoint) -> tuple[float, float] | None:
    return None if point.low is None or point.high is None else (point.low, point.high)


def _bounds(line: MetricLine) -> Trace:
    known = [
        (place, point.value, *bounds)
        for place, point in enumerate(line.points)
        if (bounds := _bounds_of(point)) is not None
    ]
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [place for place, _, _, _ in known],
        "y": numbers(value for _, value, _, _ in known),
        "hoverinfo": "skip",
        "marker": {"size": 1, "color": QUIET},
        "error_y": {
            "type": "data",
            "symmetric": False,
            "array": numbers(max(0.0, high - value) for _, value, _, high in known),
            "arrayminus": numbers(max(0.0, value - low) for _, value, low, _ in known),
            "color": QUIET,
            "thickness": 1.5,
        },
    }


def _levels(line: MetricLine) -> Trace:
    """The median of each stretch between change points, as a line."""
    x: list[float | None] = []
    y: list[float | None] = []
    for begin, end in pairwise((0, *(place for place in line.changes if place), len(line.points))):
        level = median(point.value for point in line.points[begin:end])
        x += [begin, end - 1, None]
        y += [level, level, None]
    return {
        "type": "scatter",
        "mode": "lines",
        "x": x,
        "y": numbers(y),
        "hoverinfo": "skip",
        "line": {"color": _LEVEL, "width": 2, "dash": "dash"},
    }


def _change(place: int) -> dict[str, Any]:
    """A line before the first value of a new level."""
    return {
        "type": "line",
        "x0": place - 0.5,
        "x1": place - 0.5,
        "yref": "paper",
        "y0": 0,
        "y1": 1,
        "line": {"color": _LEVEL, "width": 1},
    }
