"""What all plots share: their form, their colours, and how numbers are put into them."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pytest_gpuserve.gate.verdict import Verdict
from pytest_gpuserve.units import format_value

if TYPE_CHECKING:
    from collections.abc import Iterable

Trace = dict[str, Any]
"""A trace as Plotly's JSON has it (plotly.js, "Full Reference")."""

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

HEIGHT: Final = 320
"""CSS pixels of a plot, where it asks for nothing else."""

LOG_FROM: Final = 20.0
"""Values that lie further apart than this ratio are drawn on an axis of logarithms."""

MOST_DECADES: Final = 4
"""Powers of ten on an axis between which there is room for further ticks."""

_DIGITS: Final = 5


@dataclass(frozen=True, slots=True)
class Figure:
    """A plot with what is said about it.

    Args:
        title: What it shows.
        traces: What is drawn.
        layout: Where, but for colours and fonts, which the page gives it by its theme.
        height: CSS pixels.
        notes: What is to be said below it, a line each.
        is_wide: Whether it needs the width of the page, where other plots stand side by side.
    """

    title: str
    traces: tuple[Trace, ...]
    layout: dict[str, Any]
    height: int = HEIGHT
    notes: tuple[str, ...] = ()
    is_wide: bool = False

    def to_json(self) -> str:
        """Write what is drawn as JSON of ASCII alone.

        Raises:
            ValueError: A number is NaN or infinite.
        """
        return json.dumps({"data": self.traces, "layout": self.layout}, separators=(",", ":"), allow_nan=False)


def number(value: float | None) -> float | None:
    """Round a value to what can be seen of it; None, which leaves a gap, where there is none."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.{_DIGITS}g}")


def numbers(values: Iterable[float | None]) -> list[float | None]:
    """Round values."""
    return [number(value) for value in values]


def colour(place: int) -> str:
    """The colour of a series; after the last one the first comes again."""
    return PALETTE[place % len(PALETTE)]


def axis(title: str, unit: str = "", **more: object) -> dict[str, Any]:
    """An axis of values in a unit of ``units.format_value``, or of a share (``%``); prefixes are Plotly's."""
    forms: dict[str, dict[str, Any]] = {
        "s": {"tickformat": "~s", "ticksuffix": "s", "hoverformat": ".3~s"},
        "1/s": {
            "ticksuffix": "/s",
            "exponentformat": "none",
            "separatethousands": True,
            "hoverformat": ",.5~r",
        },
        "J": {"tickformat": "~s", "ticksuffix": "J", "hoverformat": ".3~s"},
        "W": {"tickformat": "~s", "ticksuffix": "W", "hoverformat": ".3~s"},
        "B": {"tickformat": "~s", "ticksuffix": "B", "hoverformat": ".4~s"},
        "MHz": {"ticksuffix": " MHz", "hoverformat": ".0f"},
        "GiB": {"ticksuffix": " GiB", "hoverformat": ".3~f"},
        "%": {"tickformat": "~%", "hoverformat": ".1~%"},
    }
    return {"title": {"text": title}, **forms.get(unit, {}), **more}


def spread_widely(values: Iterable[float]) -> bool:
    """Whether values, all above 0, lie so far apart that only their logarithms can be drawn together."""
    known = list(values)
    return bool(known) and min(known) > 0 and max(known) / min(known) > LOG_FROM


def log_axis(title: str, unit: str, values: Iterable[float]) -> dict[str, Any]:
    """An axis of logarithms with ticks of our own: Plotly leaves out units between powers of ten.

    Args:
        title: What is on it.
        unit: As for ``units.format_value``.
        values: What is drawn, one at least, all above 0.
    """
    known = list(values)
    first, last = math.floor(math.log10(min(known))), math.ceil(math.log10(max(known)))
    steps = (1, 2, 5) if last - first <= MOST_DECADES else (1,)
    ticks = [step * 10.0**power for power in range(first, last + 1) for step in steps]
    return axis(title, unit, type="log", tickvals=ticks, ticktext=[format_value(tick, unit) for tick in ticks])


def shared_axis(title: str, unit: str, values: Iterable[float]) -> dict[str, Any]:
    """An axis from 0 on, or of logarithms where the values need one."""
    known = list(values)
    if spread_widely(known):
        return log_axis(title, unit, known)
    return axis(title, unit, rangemode="tozero")
