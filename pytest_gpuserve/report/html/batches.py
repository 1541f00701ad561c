"""How large the batches were that the server executed."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

from pytest_gpuserve.report.html.figure import QUIET, Figure, Trace, axis, colour, number
from pytest_gpuserve.units import format_fraction

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpuserve.measure.window import Session
    from pytest_gpuserve.report.html.measured import MeasuredRun
    from pytest_gpuserve.report.html.text import Texts


def batches(run: MeasuredRun, texts: Texts) -> Figure | None:
    """Draw the batch sizes of a load, and of the one that it was measured beside; None where the server tells none."""
    sides = [("base", _sizes(run.run.base_sessions), QUIET), ("now", _sizes(run.run.sessions), colour(0))]
    known = [(name, sizes, own) for name, sizes, own in sides if sizes]
    if not known:
        return None
    edges = sorted({edge for _, sizes, _ in known for edge in sizes}, key=_order)
    return Figure(
        "Batch sizes",
        tuple(_bars(name, sizes, edges, own) for name, sizes, own in known),
        {
            "barmode": "group",
            "hovermode": "closest",
            "showlegend": len(known) > 1,
            "xaxis": axis(
                "batch size", tickvals=list(range(len(edges))), ticktext=[texts.label(edge) for edge in edges]
            ),
            "yaxis": axis("share of the batches", "%", rangemode="tozero"),
        },
        notes=("A server that counts by ranges of sizes is shown by the upper end of each.",),
    )


def _sizes(sessions: Sequence[Session]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for session in sessions:
        counts.update(session.batch_sizes)
    return +counts


def _order(edge: str) -> tuple[float, str]:
    try:
        value = float(edge)
    except ValueError:
        return math.inf, edge
    return (math.inf if math.isnan(value) else value), edge


def _bars(name: str, sizes: Counter[str], edges: Sequence[str], own: str) -> Trace:
    total = sizes.total()
    known = [(place, sizes[edge]) for place, edge in enumerate(edges) if sizes[edge]]
    return {
        "type": "bar",
        "name": name,
        "x": [place for place, _ in known],
        "y": [number(count / total) for _, count in known],
        "marker": {"color": own},
        "customdata": [f"{count} batches, {format_fraction(count / total)}" for _, count in known],
        "hovertemplate": f"{name} %{{customdata}}<extra></extra>",
    }
