"""What a plot shows, as values: `svg` draws it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.gate.verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

PALETTE: Final = ("#3a86c8", "#cc7a00", "#2e9d5c", "#a259c4", "#d9483b", "#00929c", "#9a7b4f", "#c4568f")
"""Colours of series: each has a contrast of about 3 or more with both a white and a near-black page."""

QUIET: Final = "#808a94"
"""What is there to be compared with."""

VERDICT_COLOURS: Final = {
    Verdict.PASS: "#2e9d5c",
    Verdict.IMPROVED: "#3a86c8",
    Verdict.REGRESSED: "#d9483b",
    Verdict.INCONCLUSIVE: "#cc7a00",
    Verdict.INVALID: "#a259c4",
    Verdict.MISSING: QUIET,
}

LOG_FROM: Final = 20.0
"""Values that lie further apart than this ratio are drawn on an axis of logarithms."""

LONGEST_TICK: Final = 8
"""Characters of a name below an axis: longer ones are numbered, and told in a note."""


@dataclass(frozen=True, slots=True)
class Axis:
    """What lies along one side of a plot.

    Args:
        title: What is on it.
        unit: As for ``units.format_value``; ``%`` for a share.
        names: Places with their names, where they are no numbers: tests, batch sizes, commits.
        bounds: First and last value; by default all that is drawn has room.
        from_zero: Whether 0 is on it.
        is_log: Whether it is of logarithms; every value is above 0.
    """

    title: str = ""
    unit: str = ""
    names: tuple[tuple[float, str], ...] = ()
    bounds: tuple[float, float] | None = None
    from_zero: bool = False
    is_log: bool = False


@dataclass(frozen=True, slots=True)
class Point:
    """A value in its place.

    Args:
        x: Along the plot.
        y: Upwards; None leaves a gap in a line. In a plot that lies on its side the row, from the top.
        told: What is said where it is pointed at.
        label: What stands beside it.
        interval: From where to where the value may lie: along y, or along x in a plot that lies on its side.
    """

    x: float
    y: float | None
    told: str = ""
    label: str = ""
    interval: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class Series:
    """Points that belong together.

    Args:
        name: In the legend; empty to be left out of it.
        colour: Of all of it.
        points: In their order.
        line: How they are connected: ``solid``, ``dash``, ``dot``; empty for not at all.
        mark: How each is drawn: ``dot``, ``ring``, an upright ``stroke``; empty for not at all.
    """

    name: str
    colour: str
    points: tuple[Point, ...]
    line: str = ""
    mark: str = "dot"


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar from one value to another.

    Args:
        left: Where it begins along the plot.
        right: Where it ends.
        bottom: Its lower value.
        top: Its upper value.
        told: What is said where it is pointed at.
    """

    left: float
    right: float
    bottom: float
    top: float
    told: str = ""


@dataclass(frozen=True, slots=True)
class Bars:
    """Bars that belong together.

    Args:
        name: In the legend.
        colour: Of all of them.
        bars: In their order.
    """

    name: str
    colour: str
    bars: tuple[Bar, ...]


@dataclass(frozen=True, slots=True)
class Panel:
    """What shares an axis of values.

    Args:
        axis: The values.
        series: Points and lines.
        bars: Bars.
        height: CSS pixels.
    """

    axis: Axis
    series: tuple[Series, ...] = ()
    bars: tuple[Bars, ...] = ()
    height: int = 220


@dataclass(frozen=True, slots=True)
class Figure:
    """A plot with what is said about it: one panel, or several below each other that share what is along them.

    Args:
        title: What it shows.
        along: The axis along it.
        panels: From the top.
        notes: What is to be said below it, a line each.
        rules: Where an upright line stands in all panels.
        shades: From where to where all panels are shaded.
        is_wide: Whether it needs the width of the page, where other plots stand side by side.
        is_sideways: Whether values lie along it, and y is a row with its label above: a forest plot.
    """

    title: str
    along: Axis
    panels: tuple[Panel, ...]
    notes: tuple[str, ...] = ()
    rules: tuple[float, ...] = ()
    shades: tuple[tuple[float, float], ...] = ()
    is_wide: bool = False
    is_sideways: bool = False


def known(value: float | None) -> float | None:
    """A value that can be drawn; None, which leaves a gap, where it is none."""
    return value if value is not None and math.isfinite(value) else None


def colour(place: int) -> str:
    """The colour of a series; after the last one the first comes again."""
    return PALETTE[place % len(PALETTE)]


def shared_axis(title: str, unit: str, values: Iterable[float]) -> Axis:
    """An axis from 0 on, or of logarithms where the values, all above 0, lie too far apart for it."""
    drawn = list(values)
    if drawn and min(drawn) > 0 and max(drawn) / min(drawn) > LOG_FROM:
        return Axis(title, unit, is_log=True)
    return Axis(title, unit, from_zero=True)


def named_axis(title: str, names: Sequence[str]) -> tuple[Axis, tuple[str, ...]]:
    """An axis of names at 0, 1, 2, ...

    Returns:
        The axis, and the note that tells its numbers where the names are too long to stand there.
    """
    notes: tuple[str, ...] = ()
    short = list(names)
    if any(len(name) > LONGEST_TICK for name in names):
        short = [str(place) for place in range(1, len(names) + 1)]
        notes = ("; ".join(f"{number}: {name}" for number, name in zip(short, names, strict=True)),)
    return Axis(title, names=tuple(enumerate(short)), bounds=(-0.5, len(names) - 0.5)), notes
