"""Plots of a load as SVG by matplotlib: its rounds and its latencies, with those of its base."""

from __future__ import annotations

import io
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.measure.histogram import merge, seconds_of
from pytest_gpuserve.measure.points import NotMeasured, value_of_starts
from pytest_gpuserve.verdict.metric import METRICS, Metric

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

    from pytest_gpuserve.measure.window import Session
    from pytest_gpuserve.report.results import RunResult

EXTRA: Final = "pip install 'pytest-gpuserve[report]'"

NOW, BASE = "now", "base"
_COLOURS: Final = {NOW: "#c0392c", BASE: "#2a6fae"}
_INK: Final = "#75808c"
"""Colour of axes and texts, readable on a light page and on a dark one."""

_STYLE: Final[dict[Any, Any]] = {
    "axes.edgecolor": _INK,
    "axes.labelcolor": _INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9,
    "legend.frameon": False,
    "svg.fonttype": "none",
    # Makes the page reproducible.
    "svg.hashsalt": "gpuserve",
    "text.color": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
}

_INCHES: Final = (8.4, 2.5)
_EDGES: Final = {"left": 0.09, "right": 0.99, "bottom": 0.18, "top": 0.97, "wspace": 0.25}
_SCALES: Final = {"s": (1e3, "ms"), "B": (2.0**-30, "GiB")}
"""Factor and unit of drawn values."""

MOST_POINTS: Final = 150
"""Largest number of points of a curve."""

_SHARES: Final = (100, 10, 1, 0.1, 0.01)
"""Smallest share of requests on a curve, in per cent."""


def plots_of(run: RunResult) -> str:
    """Draw a load as one SVG of two panels, without scripts and links; empty without an answer.

    Raises:
        UsageProblem: matplotlib is not installed.
    """
    sides = {BASE: run.base_sessions, NOW: run.candidate_sessions or run.sessions}
    if not any(window.latency.total for session in sides[NOW] for window in session.windows):
        return ""
    try:
        import matplotlib  # noqa: ICN001, PLC0415 -- only who asks for the page pays for it
        from matplotlib.figure import Figure  # noqa: PLC0415 -- as above
    except ImportError:
        raise UsageProblem(
            "the plots of an HTML report are drawn by matplotlib, which is not installed",
            looked=["the packages of this interpreter"],
            remedies=[EXTRA],
        ) from None
    metric = next((each.metric for each in run.judgements if not each.verdict.passes), METRICS["throughput"])
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=_INCHES)
        rounds, latencies = figure.subplots(1, 2, gridspec_kw=_EDGES)
        _draw_rounds(rounds, metric, sides, _reference(run, metric))
        _draw_latencies(latencies, sides)
        text = io.StringIO()
        figure.savefig(
            text, format="svg", transparent=True, metadata=dict.fromkeys(("Creator", "Date", "Format", "Type"))
        )
    return _small(text.getvalue())


def _reference(run: RunResult, metric: Metric) -> float | None:
    """Reference line of a stored baseline or a limit; a base that was measured has its rounds instead."""
    found = (each.reference for each in run.judgements if each.metric == metric)
    return None if run.base_sessions else next((value for value in found if value is not None), None)


def _draw_rounds(axes: Axes, metric: Metric, sides: dict[str, tuple[Session, ...]], reference: float | None) -> None:
    """Draw a point for each start of a server; those of one round have the same position."""
    scale, unit = _SCALES.get(metric.unit, (1.0, metric.unit))
    for name, sessions in sides.items():
        places, values = [], []
        for place, start in enumerate((start for session in sessions for start in session.starts), 1):
            with suppress(NotMeasured):
                values.append(scale * value_of_starts(metric, [start]))
                places.append(place)
        if values:
            axes.plot(places, values, "o-", label=name, color=_COLOURS[name], linewidth=0.8, markersize=4)
    if reference is not None:
        axes.axhline(scale * reference, label="reference", color=_INK, linestyle="--", linewidth=0.8)
    axes.locator_params(axis="x", integer=True, min_n_ticks=1)
    axes.set_xlabel("start of the server")
    axes.set_ylabel(f"{metric.name}{f' ({unit})' if unit else ''}")
    if axes.has_data():
        axes.legend()


def _draw_latencies(axes: Axes, sides: dict[str, tuple[Session, ...]]) -> None:
    """Draw the share of requests that took longer, over the time: p99 is the time at 1 %."""
    for name, sessions in sides.items():
        latency = merge(window.latency for session in sessions for window in session.windows)
        slower, curve = latency.total, []
        for bucket, count in sorted(latency.counts.items()):
            slower -= count
            curve.append((1e3 * seconds_of(bucket), max(100 * slower / latency.total, _SHARES[-1])))
        kept = _thinned(curve)
        if kept:
            axes.plot(*zip(*kept, strict=True), label=name, color=_COLOURS[name], linewidth=1.2)
    axes.set_yscale("log")
    axes.set_yticks(_SHARES, [f"{share:g} %" for share in _SHARES])
    axes.minorticks_off()
    axes.set_xlabel("latency (ms)")
    axes.set_ylabel("requests that took longer")
    axes.legend()


def _thinned(curve: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    step = -(-len(curve) // MOST_POINTS) or 1
    return [*curve[:-1:step], *curve[-1:]]


def _small(svg: str) -> str:
    """The drawing as an element of a page: without a prologue, page-wide styles, and names of groups."""
    parts = (r"<\?xml.*?\?>", "<!DOCTYPE.*?>", "<!--.*?-->", "<metadata>.*?</metadata>", "<style.*?</style>")
    svg = re.sub("|".join(parts), "", svg, flags=re.DOTALL)
    svg = re.sub(r'(?<=<g) id="[^"]*"| transform="rotate\(-0 [^"]*"', "", svg)
    # Only coordinates are cut short: a label such as 0.01 is a text between tags.
    return " ".join(re.sub("<[^>]*>", lambda tag: re.sub(r"(\.\d)\d+", r"\1", tag[0]), svg).split())
