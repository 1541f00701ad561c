"""How large the batches were that the server executed."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.report.html.figure import LONGEST_TICK, QUIET, Axis, Bar, Bars, Figure, Panel, colour
from pytest_gpuserve.units import format_fraction

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_gpuserve.measure.window import Session
    from pytest_gpuserve.report.html.measured import MeasuredRun
    from pytest_gpuserve.report.html.text import Texts


WIDTH: Final = 0.8
"""Of the bars of a batch size together, where the next one is 1 away."""


def batches(run: MeasuredRun, texts: Texts) -> Figure | None:
    """Draw the batch sizes of a load, and of the one that it was measured beside; None where the server tells none."""
    sides = [("base", _sizes(run.run.base_sessions), QUIET), ("now", _sizes(run.sessions), colour(0))]
    known = [(name, sizes, own) for name, sizes, own in sides if sizes]
    if not known:
        return None
    edges = sorted({edge for _, sizes, _ in known for edge in sizes}, key=_order)
    names = tuple((place, texts.line(edge)[:LONGEST_TICK]) for place, edge in enumerate(edges))
    width = WIDTH / len(known)
    return Figure(
        "Batch sizes",
        Axis("batch size", names=names, bounds=(-0.5, len(edges) - 0.5)),
        (
            Panel(
                Axis("share of the batches", "%", from_zero=True),
                bars=tuple(
                    Bars(name, own, tuple(_bars(name, sizes, edges, place * width - WIDTH / 2, width)))
                    for place, (name, sizes, own) in enumerate(known)
                ),
            ),
        ),
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


def _bars(name: str, sizes: Counter[str], edges: Sequence[str], offset: float, width: float) -> Iterator[Bar]:
    total = sizes.total()
    for place, edge in enumerate(edges):
        if count := sizes[edge]:
            told = f"{name}: {count} batches, {format_fraction(count / total)}"
            yield Bar(place + offset, place + offset + width, 0.0, count / total, told)
