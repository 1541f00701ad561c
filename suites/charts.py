"""Charts of a suite's tables, each drawn into one SVG; the same numbers give the same file, byte for byte.

Latencies are given in seconds and drawn in milliseconds. matplotlib is imported when a chart is drawn, and its state,
including pyplot's, does not change.
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS: Final = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442")
"""Colours of Okabe and Ito, which colour-blind people can distinguish (https://jfly.uni-koeln.de/color/); black is for
lines."""

MARKERS: Final = ("o", "s", "^", "D", "v", "P", "X")
"""Styles of lines, so that series do not differ only in colour."""

LINE_COLOUR: Final = "#000000"

MOST_TICK_LABELS: Final = 16
"""Most labels of an axis; with more, only every second, third, ... is shown."""

STYLE: Final = {
    "svg.hashsalt": "pytest-gpuserve",
    # Text stays text, so that a chart can be searched and read aloud.
    "svg.fonttype": "none",
    "axes.spines.top": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": "#DDDDDD",
    "legend.frameon": False,
    "font.size": 9,
}


def latency_and_throughput(
    path: Path,
    labels: Sequence[str],
    quantiles: Mapping[str, Sequence[float]],
    throughput: Sequence[float],
    *,
    throughput_label: str = "Throughput (requests/s)",
) -> None:
    """Draw a group of latency bars for each label, and the throughput as a line on an axis of its own.

    Args:
        path: The SVG to write; its folder is made.
        labels: Measured points, such as ``batch 8``.
        quantiles: Latencies in seconds by the quantile's name, one for each label.
        throughput: A value for each label.
        throughput_label: Text of its axis, with the unit.
    """
    width = 0.8 / len(quantiles)
    with _drawn(path, width=_width(len(labels) * len(quantiles))) as figure:
        axes = figure.subplots()
        for place, (name, seconds) in enumerate(quantiles.items()):
            offset = (place - (len(quantiles) - 1) / 2) * width
            places = [number + offset for number in range(len(labels))]
            axes.bar(places, _milliseconds(seconds), width, label=name, color=_of(COLOURS, place))
        _throughput_line(axes, throughput, throughput_label)
        axes.set_ylabel("Latency (ms)")
        _name_places(axes, labels)
        _legend(figure)


def stacked(
    path: Path,
    x: Sequence[float | str],
    components: Mapping[str, Sequence[float]],
    line: Sequence[float],
    x_label: str,
    *,
    line_label: str = "Throughput (requests/s)",
) -> None:
    """Draw the components of latencies as stacked bars, and the throughput as a line on an axis of its own.

    Args:
        path: The SVG to write; its folder is made.
        x: Positions of the bars, such as a concurrency; at equal distances.
        components: Seconds by name, one for each bar, stacked in this order from the bottom.
        line: The throughput, one for each bar.
        x_label: Text of the axis below.
        line_label: Text of the throughput's axis, with the unit.
    """
    with _drawn(path, width=_width(len(x))) as figure:
        axes = figure.subplots()
        bottom = [0.0] * len(x)
        for place, (name, seconds) in enumerate(components.items()):
            heights = _milliseconds(seconds)
            axes.bar(range(len(x)), heights, 0.8, bottom=bottom, label=name, color=_of(COLOURS, place))
            bottom = [below + height for below, height in zip(bottom, heights, strict=True)]
        _throughput_line(axes, line, line_label)
        axes.set_ylabel("Mean latency (ms)")
        axes.set_xlabel(x_label)
        _name_places(axes, [_text(value) for value in x])
        _legend(figure)


def panels(
    path: Path,
    x: Sequence[float],
    x_label: str,
    panels: Mapping[str, Mapping[str, Sequence[float | None]]],
    *,
    log_x: bool = False,
) -> None:
    """Draw panels side by side over the same x; a series has the same colour in each.

    Args:
        path: The SVG to write; its folder is made.
        x: Numbers, such as batch sizes; their order is kept.
        x_label: Text of the axis below, with the unit.
        panels: Series by name for each panel, by its title, which has the unit; values are not converted. None is a
            gap; a panel of gaps says that it was not measured.
        log_x: Whether x has a scale of powers of two.
    """
    names = list(dict.fromkeys(name for series in panels.values() for name in series))
    with _drawn(path, width=3.4 * len(panels)) as figure:
        for place, (title, series) in enumerate(panels.items()):
            axes = figure.add_subplot(1, len(panels), place + 1)
            for name, values in series.items():
                number = names.index(name)
                gapped = [math.nan if value is None else value for value in values]
                axes.plot(x, gapped, label=name, color=_of(COLOURS, number), marker=_of(MARKERS, number))
            if all(value is None for values in series.values() for value in values):
                axes.text(0.5, 0.5, "not measured", transform=axes.transAxes, ha="center", va="center")
            if log_x:
                axes.set_xscale("log", base=2)
            shown = list(dict.fromkeys(x))[:: _stride(len(set(x)))]
            axes.set_xticks(shown, [_text(value) for value in shown])
            axes.set_title(title)
            axes.set_xlabel(x_label)
            axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
            axes.spines["right"].set_visible(False)
        _legend(figure)


def tradeoff(
    path: Path,
    series: Mapping[str, Sequence[tuple[float, float, str]]],
    *,
    throughput_label: str = "Throughput (requests/s)",
) -> None:
    """Draw p99 against throughput, a line for each series in the order of its points.

    Args:
        path: The SVG to write; its folder is made.
        series: Points of each series by name: throughput, p99 in seconds, and a label, which may be empty.
        throughput_label: Text of the axis below, with the unit.
    """
    with _drawn(path, width=6.4) as figure:
        axes = figure.subplots()
        for place, (name, points) in enumerate(series.items()):
            across, up = [point[0] for point in points], _milliseconds([point[1] for point in points])
            axes.plot(across, up, label=name, color=_of(COLOURS, place), marker=_of(MARKERS, place))
            for x, y, (_, _, label) in zip(across, up, points, strict=True):
                axes.annotate(label, (x, y), xytext=(4, 4), textcoords="offset points", fontsize="small")
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        axes.spines["right"].set_visible(False)
        axes.set_xlabel(throughput_label)
        axes.set_ylabel("p99 latency (ms)")
        _legend(figure)


@contextmanager
def _drawn(path: Path, *, width: float) -> Iterator[Figure]:
    """A figure, written when it is complete."""
    from matplotlib import style  # noqa: PLC0415 -- see the module's docstring
    from matplotlib.figure import Figure  # noqa: PLC0415 -- as above

    # "default" first, because the caller may have settings of its own.
    with style.context(["default", STYLE]):
        figure = Figure(figsize=(width, 3.6), layout="constrained")
        yield figure
        path.parent.mkdir(parents=True, exist_ok=True)
        # Without a date and matplotlib's version, equal charts are equal files.
        figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})


def _throughput_line(axes: Axes, throughput: Sequence[float], label: str) -> None:
    right = axes.twinx()
    right.plot(range(len(throughput)), throughput, label=label, color=LINE_COLOUR, marker="o", linestyle="--")
    right.set_ylabel(label)
    right.set_ylim(bottom=0)
    right.grid(visible=False)


def _name_places(axes: Axes, labels: Sequence[str]) -> None:
    stride = _stride(len(labels))
    axes.set_xticks(range(0, len(labels), stride), labels[::stride])


def _legend(figure: Figure) -> None:
    """A common legend above all axes, each name once."""
    named: dict[str, Artist] = {}
    for axes in figure.axes:
        handles, labels = axes.get_legend_handles_labels()
        for handle, label in zip(handles, labels, strict=True):
            named.setdefault(label, handle)
    figure.legend(list(named.values()), list(named), loc="outside upper center", ncols=min(4, len(named)))


def _milliseconds(seconds: Sequence[float]) -> list[float]:
    return [1e3 * value for value in seconds]


def _of(choices: Sequence[str], number: int) -> str:
    return choices[number % len(choices)]


def _text(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:g}"


def _width(bars: int) -> float:
    """Width in inches for this number of bars."""
    return min(16.0, max(6.4, 0.35 * bars))


def _stride(labels: int) -> int:
    return max(1, math.ceil(labels / MOST_TICK_LABELS))
