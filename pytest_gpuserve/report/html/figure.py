"""What a plot shows, as values, and how it is drawn: SVG that needs no script.

A plot fits every width and takes its colours from the page's theme. What lies along it is placed in percent of its
width, so that letters keep their size on a phone; heights are CSS pixels. Lines are drawn in a picture of their own
that is stretched (``preserveAspectRatio="none"``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape
from itertools import groupby
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.gate.verdict import Verdict
from pytest_gpuserve.units import format_value

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


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
"""Characters of a name below an axis: longer ones are numbered, and explained in a note."""

CHARACTER_PX: Final = 6.6
"""Width of a letter of an axis, on average."""

NARROWEST_PX: Final = 280
"""Of a plot: what stands along it has room on a phone."""

ROW_PX: Final = 40
"""Of a plot that lies on its side: a line of text, and the interval below it."""

ROOM: Final = 0.06
"""Share of an axis beside the outermost values."""

_ABOVE, _BELOW, _BETWEEN = 24, 40, 12

_TICKS: Final = 5

_MOST_DECADES: Final = 4

_DASHES: Final = {"solid": "", "dash": ' stroke-dasharray="6 4"', "dot": ' stroke-dasharray="2 4"'}


@dataclass(frozen=True, slots=True)
class Axis:
    """What lies along one side of a plot.

    Args:
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
        y: Upwards; None leaves a gap in a line. In a plot that lies on its side the row, from the top.
        interval: From where to where the value may lie: along y, or along x in a plot that lies on its side.
    """

    x: float
    y: float | None
    tooltip: str = ""
    label: str = ""
    interval: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class Series:
    """Points that belong together.

    Args:
        name: In the legend; empty to be left out of it.
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
    """A bar from one value to another."""

    left: float
    right: float
    bottom: float
    top: float
    tooltip: str = ""


@dataclass(frozen=True, slots=True)
class Bars:
    """Bars that belong together."""

    name: str
    colour: str
    bars: tuple[Bar, ...]


@dataclass(frozen=True, slots=True)
class Panel:
    """What shares an axis of values.

    Args:
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


class Scale:
    """An axis with its ends and its ticks."""

    def __init__(self, axis: Axis, values: Iterable[float]) -> None:
        self._is_log = axis.is_log
        drawn = [value for value in values if math.isfinite(value)] or [0.0, 1.0]
        self.low, self.high = axis.bounds or _ends(drawn, from_zero=axis.from_zero, is_log=axis.is_log)
        if axis.names:
            self.ticks = axis.names
        elif axis.is_log:
            self.ticks = tuple((tick, _text(tick, axis.unit)) for tick in _log_ticks(self.low, self.high))
        else:
            self.ticks = tuple((tick, _text(tick, axis.unit)) for tick in _round_ticks(self.low, self.high))

    def share(self, value: float) -> float:
        """Where a value is, from 0 at the low end to 1 at the high one; what is outside is drawn at the end."""
        low, high = self.low, self.high
        if self._is_log:
            low, high, value = math.log(low), math.log(high), math.log(max(value, 1e-300))
        return min(1.0, max(0.0, (value - low) / (high - low)))


def draw(figure: Figure) -> str:
    """Write a plot as HTML: its legend, and an SVG picture for each panel.

    Every text of the plot is escaped here.
    """
    along = Scale(figure.along, _along(figure))
    sideways = figure.is_sideways
    scales = [None if sideways else Scale(panel.axis, _upwards(panel)) for panel in figure.panels]
    widest = max((len(text) for scale in scales if scale for _, text in scale.ticks), default=0)
    left = 8 if sideways else round(widest * CHARACTER_PX) + 12
    pictures = [
        _picture(figure, panel, scale, along, left, is_last=panel is figure.panels[-1])
        for panel, scale in zip(figure.panels, scales, strict=True)
    ]
    return _legend(figure) + "".join(pictures)


def _picture(figure: Figure, panel: Panel, scale: Scale | None, along: Scale, left: int, *, is_last: bool) -> str:
    height = panel.height

    def up(value: float) -> float:
        # In a plot on its side a row has its label above its interval.
        return (value + 0.7) * ROW_PX if scale is None else height * (1 - scale.share(value))

    bottom = _BELOW + (14 if figure.along.title else 0) if is_last else _BETWEEN
    style = f"margin:{_ABOVE}px 14px {bottom}px {left}px;width:calc(100% - {left + 14}px)"
    said = f"{figure.title}: {panel.axis.title}" if panel.axis.title else figure.title
    parts = [f'<svg class="panel" role="img" aria-label="{escape(said)}" height="{height}" style="{style}">']
    for begin, end in figure.shades:
        parts.append(f'<rect class="shade" {_between(along, begin, end)} height="{height}"/>')
    parts += _grid(figure, panel, scale, along, up, is_last=is_last)
    parts += [f'<line class="rule" x1="{x}" x2="{x}" y2="{height}"/>' for x in map(_percent(along), figure.rules)]
    for bars in panel.bars:
        parts += _bars(bars, along, up)
    lines = "".join(_line(each, along, up) for each in panel.series if each.line)
    if lines:
        parts.append(
            f'<svg class="lines" viewBox="0 0 1000 {height}" preserveAspectRatio="none" width="100%" height="{height}">'
            f"{lines}</svg>"
        )
    for each in panel.series:
        parts += _marks(each, along, up, sideways=figure.is_sideways)
    return "".join([*parts, "</svg>"])


def _grid(figure: Figure, panel: Panel, scale: Scale | None, along: Scale, up: _Up, *, is_last: bool) -> Iterator[str]:
    height = panel.height
    percent = _percent(along)
    upright = [percent(value) for value, _ in _fitting(along.ticks)] if not figure.along.names else []
    level = [] if scale is None else [_px(up(value)) for value, _ in scale.ticks]
    lines = [f'<line x2="100%" y1="{y}" y2="{y}"/>' for y in level]
    lines += [f'<line x1="{x}" x2="{x}" y2="{height}"/>' for x in upright]
    yield f'<g class="grid">{"".join(lines)}</g>'
    if figure.is_sideways and along.low < 0 < along.high:
        yield f'<line class="zero" x1="{percent(0)}" x2="{percent(0)}" y2="{height}"/>'
    if scale is not None:
        beside = (f'<text x="-6" y="{_px(up(value))}">{escape(text)}</text>' for value, text in scale.ticks)
        yield f'<g class="up">{"".join(beside)}</g>'
    if panel.axis.title:
        yield f'<text class="title" y="-9">{escape(panel.axis.title)}</text>'
    if not is_last:
        return
    below = "".join(
        f'<text x="{percent(value)}" y="{height + 16}">{escape(text)}</text>' for value, text in _fitting(along.ticks)
    )
    yield f'<g class="along">{below}</g>'
    if figure.along.title:
        yield f'<text class="title" x="50%" y="{height + 34}" text-anchor="middle">{escape(figure.along.title)}</text>'


def _marks(series: Series, along: Scale, up: _Up, *, sideways: bool) -> Iterator[str]:
    if series.line and not _has_tooltips(series):
        return
    percent = _percent(along)
    yield f'<g class="{series.mark}" fill="{series.colour}" stroke="{series.colour}">'
    for point in series.points:
        if point.y is None:
            continue
        x, y = percent(point.x), _px(up(point.y))
        tooltip = f"<title>{escape(point.tooltip)}</title>" if point.tooltip else ""
        interval = _interval(point.interval, x, y, percent, up, sideways=sideways) if point.interval else ""
        if series.mark == "stroke":
            middle = up(point.y)
            mark = f'<line x1="{x}" x2="{x}" y1="{_px(middle - 8)}" y2="{_px(middle + 8)}"/>'
        else:
            mark = f'<circle cx="{x}" cy="{y}" r="{3 if series.line else 5}"/>' if series.mark else ""
        yield f"<g>{tooltip}{interval}{mark}</g>" if tooltip else interval + mark
    yield "</g>"
    for point in series.points:
        if point.label and point.y is not None:
            yield _label(point, along, _px(up(point.y)), sideways=sideways)


def _has_tooltips(series: Series) -> bool:
    """Whether a point says something where it is pointed at: else dots are a path, which is much shorter."""
    return any(point.tooltip or point.interval for point in series.points)


def _interval(interval: tuple[float, float], x: str, y: str, percent: _Place, up: _Up, *, sideways: bool) -> str:
    low, high = interval
    if sideways:
        return f'<line x1="{percent(low)}" x2="{percent(high)}" y1="{y}" y2="{y}"/>'
    return f'<line x1="{x}" x2="{x}" y1="{_px(up(low))}" y2="{_px(up(high))}"/>'


def _label(point: Point, along: Scale, y: str, *, sideways: bool) -> str:
    if sideways:
        metric, _, rest = point.label.partition(" ")
        return f'<text y="{y}" dy="-1em"><tspan class="name">{escape(metric)}</tspan> {escape(rest)}</text>'
    share = along.share(point.x)
    anchor = "start" if share < 0.1 else "end" if share > 0.9 else "middle"
    return (
        f'<text x="{_percent(along)(point.x)}" y="{y}" dy="-.7em" text-anchor="{anchor}">{escape(point.label)}</text>'
    )


def _line(series: Series, along: Scale, up: _Up) -> str:
    paths = []
    tooltip = _has_tooltips(series)
    for is_drawn, stretch in groupby(series.points, lambda point: point.y is not None):
        if is_drawn:
            places = " ".join(f"{1000 * along.share(point.x):.0f},{_px(up(point.y or 0.0))}" for point in stretch)
            paths.append(f'<polyline points="{places}" stroke="{series.colour}"{_DASHES[series.line]}/>')
            if series.mark and not tooltip:
                dots = "".join(f"M{place}h0" for place in places.split())
                paths.append(f'<path d="{dots}" stroke="{series.colour}"/>')
    return "".join(paths)


def _bars(bars: Bars, along: Scale, up: _Up) -> Iterator[str]:
    for bar in bars.bars:
        top, bottom = up(bar.top), up(bar.bottom)
        yield (
            f'<rect fill="{bars.colour}" {_between(along, bar.left, bar.right)} y="{_px(top)}"'
            f' height="{_px(bottom - top)}"><title>{escape(bar.tooltip)}</title></rect>'
        )


def _between(along: Scale, left: float, right: float) -> str:
    begin, end = along.share(left), along.share(right)
    return f'x="{_share(begin)}" width="{_share(end - begin)}"'


def _legend(figure: Figure) -> str:
    named = {each.name: each.colour for panel in figure.panels for each in panel.bars}
    named |= {each.name: each.colour for panel in figure.panels for each in panel.series if each.name}
    if len(named) < 2:
        return ""
    entries = "".join(
        f'<span><b style="color:{colour}">&#9632;</b> {escape(name)}</span>' for name, colour in named.items()
    )
    return f'<p class="legend">{entries}</p>'


def _along(figure: Figure) -> Iterator[float]:
    for panel in figure.panels:
        for series in panel.series:
            for point in series.points:
                yield point.x
                if figure.is_sideways and point.interval is not None:
                    yield from point.interval
        for bars in panel.bars:
            for bar in bars.bars:
                yield from (bar.left, bar.right)


def _upwards(panel: Panel) -> Iterator[float]:
    for series in panel.series:
        for point in series.points:
            if point.y is not None:
                yield from (point.y, *(point.interval or ()))
    for bars in panel.bars:
        for bar in bars.bars:
            yield from (bar.bottom, bar.top)


def _ends(values: Sequence[float], *, from_zero: bool, is_log: bool) -> tuple[float, float]:
    low, high = min(values), max(values)
    if is_log:
        room = max(1.1, (high / low) ** ROOM)
        return low / room, high * room
    if from_zero:
        low, high = min(0.0, low), max(0.0, high)
    room = ROOM * (high - low) or abs(high) * ROOM or 1.0
    return (low if from_zero and low == 0 else low - room), high + room


def _round_ticks(low: float, high: float) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten, about `_TICKS` of them."""
    raw = (high - low) / _TICKS
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * times for times in (1, 2, 5, 10) if power * times >= raw * 0.99)
    return [place * step for place in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    steps = (1, 2, 5) if last - first <= _MOST_DECADES else (1,)
    return [tick for power in range(first, last + 1) for step in steps if low <= (tick := step * 10.0**power) <= high]


def _fitting(ticks: Sequence[tuple[float, str]]) -> Sequence[tuple[float, str]]:
    """So many of them that a phone has room for their texts."""
    wanted = sum(len(text) * CHARACTER_PX + 8 for _, text in ticks)
    return ticks[:: max(1, math.ceil(wanted / NARROWEST_PX))]


def _text(value: float, unit: str) -> str:
    if unit == "%":
        # A share of one in ten thousand is not 0.0 %.
        return f"{100 * value:.4g} %"
    if unit in ("", "MHz", "GiB"):
        return f"{value:.4g} {unit}".rstrip()
    number, _, rest = format_value(value, unit).partition(" ")
    number, slash, per = number.partition("/")
    # A tick is a round number: its zeros after the point say nothing.
    number = number.rstrip("0").rstrip(".") if "." in number else number
    return f"{number}{slash}{per} {rest}".rstrip()


def _percent(along: Scale) -> _Place:
    return lambda value: _share(along.share(value))


def _share(share: float) -> str:
    return f"{_px(100 * share)}%"


def _px(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


if TYPE_CHECKING:
    from collections.abc import Callable

    _Up = Callable[[float], float]
    _Place = Callable[[float], str]
