"""The lines for people on a terminal, and as JSON for programs."""

from __future__ import annotations

import math
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from pytest_gpuserve.history.change_points import FEWEST_POINTS
from pytest_gpuserve.report.names import printable
from pytest_gpuserve.units import format_change, format_value

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytest_gpuserve.history.change_points import Change
    from pytest_gpuserve.history.line import Line, Place

SCHEMA: Final = 1

BLOCKS: Final = "▁▂▃▄▅▆▇█"
PLAIN: Final = "_.-~=+*#"
"""What stands for the blocks where a terminal does not know them."""

INDENT: Final = "  "

NARROWEST: Final = 20
"""Columns below which a chart is not made narrower."""


def lines_text(
    lines: Sequence[Line], notes: Sequence[str], *, width: int, blocks: bool, shown: Callable[[str], str] = str
) -> str:
    """What is shown of lines.

    Args:
        lines: The lines.
        notes: What could not be read, and what is not known, a line each.
        width: Columns of the terminal.
        blocks: Whether it knows the block characters.
        shown: Makes each text in them fit to be shown.
    """
    parts = [_line(line, width=width, blocks=blocks) for line in lines]
    if notes:
        parts.append([f"note: {note}" for note in notes])
    return "\n\n".join("\n".join(printable(shown(each)) for each in part) for part in parts)


def lines_plain(lines: Sequence[Line], notes: Sequence[str]) -> dict[str, Any]:
    """Lines as plain values: latencies in seconds, changes as fractions, null for what is not known; schema 1."""
    return {"schema": SCHEMA, "lines": [_plain(line) for line in lines], "notes": list(notes)}


def chart(values: Sequence[float], *, narrowest: float, blocks: bool) -> str:
    """A column a value, as high as its log lies between the least and the greatest.

    Args:
        values: Positive, in order.
        narrowest: Range of the log values that is drawn at least, about their middle: noise must not look like change.
        blocks: Whether block characters are known.
    """
    signs = BLOCKS if blocks else PLAIN
    logs = [math.log(value) for value in values]
    low, high = min(logs), max(logs)
    if high - low < narrowest:
        middle = median(logs)
        low, high = min(low, middle - narrowest / 2), max(high, middle + narrowest / 2)
    step = (high - low) / len(signs)
    return "".join(signs[min(len(signs) - 1, int((y - low) / step))] for y in logs)


def _line(line: Line, *, width: int, blocks: bool) -> list[str]:
    told = [
        line.title,
        *([f"begins here: {line.because}"] if line.because else []),
        *(_drawn(line, width=width - len(INDENT), blocks=blocks) if len(line.places) > 1 else []),
        # Not "now": after a revert the checkout has an older one.
        "; last measured ".join(_place(line, place) for place in (*line.places[:1], *line.places[1:][-1:])),
        *(_change(line, change) for change in line.changes or ()),
        *([] if line.changes else [_unchanged(line)]),
        *(f"{place.observation.label}: {note}" for place in line.places for note in place.notes),
    ]
    return [f"{INDENT if number else ''}{each}" for number, each in enumerate(told)]


def _drawn(line: Line, *, width: int, blocks: bool) -> list[str]:
    shown = line.places[-max(NARROWEST, width) :]
    left_out = len(line.places) - len(shown)
    values = [place.known.value for place in shown]
    marks = {change.point - left_out for change in line.changes or ()}
    pointed = "".join("^" if number in marks else " " for number in range(len(shown))).rstrip()
    low, high = (format_value(value, line.metric.unit) for value in (min(values), max(values)))
    counted = f"{len(line.places)} points{f', the last {len(shown)} drawn' if left_out else ''}"
    return [
        chart(values, narrowest=2 * math.log1p(line.metric.growth(line.metric.default_tolerance)), blocks=blocks),
        *([pointed] if pointed else []),
        f"{counted}, {low} .. {high}",
    ]


def _place(line: Line, place: Place) -> str:
    unit = line.metric.unit
    spread = ""
    if place.known.low is not None and place.known.high is not None:
        spread = f" ({format_value(place.known.low, unit)} .. {format_value(place.known.high, unit)})"
    return f"{format_value(place.known.value, unit)}{spread} at {place.observation.label}"


def _change(line: Line, change: Change) -> str:
    unit = line.metric.unit
    word = "worse" if line.is_worse(change) else "better"
    return (
        f"{format_change(change.fraction)} ({word}) from {line.places[change.point].observation.label} on:"
        f" {format_value(change.before, unit)} before, {format_value(change.after, unit)} after"
    )


def _unchanged(line: Line) -> str:
    if line.changes is None:
        return "change points were not looked for"
    if len(line.places) < FEWEST_POINTS:
        return f"change points need {FEWEST_POINTS} points"
    return "no change of level was found"


def _plain(line: Line) -> dict[str, Any]:
    return {
        "device": line.key.device,
        "file": line.key.file,
        "test": line.key.name,
        "host": line.host,
        "metric": line.metric.name,
        "unit": line.metric.unit,
        "part": line.part,
        "parts": line.parts,
        "begins_because": line.because or None,
        "points": [
            {
                "label": place.observation.label,
                "commit": place.observation.commit or None,
                "at_seconds": place.observation.seconds,
                "value": place.known.value,
                "low": place.known.low,
                "high": place.known.high,
                "sessions": place.observation.sessions or None,
                "notes": list(place.notes),
            }
            for place in line.places
        ],
        # Not looked for, or too few points to look at: not the same as none.
        "changes": None
        if line.changes is None or len(line.places) < FEWEST_POINTS
        else [
            {"point": change.point, "before": change.before, "after": change.after, "change": change.fraction}
            for change in line.changes
        ],
    }
