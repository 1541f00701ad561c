"""Where the time of an average request went, stacked, over the number of users."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.measure.breakdown import Breakdown, breakdown_of
from pytest_gpuserve.measure.counters import added
from pytest_gpuserve.measure.points import NotMeasured
from pytest_gpuserve.measure.window import Client
from pytest_gpuserve.report.html.figure import QUIET, Axis, Bar, Bars, Figure, Panel, Point, Series, colour, named_axis
from pytest_gpuserve.report.names import short_name
from pytest_gpuserve.units import format_rate, format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_gpuserve.measure.summary import Summary
    from pytest_gpuserve.report.html.measured import MeasuredRun
    from pytest_gpuserve.report.html.text import Texts

NAMES: Final = {
    "client_send": "client send",
    "network": "network",
    "queue": "queue",
    "compute_input": "compute input",
    "compute_infer": "compute infer",
    "compute_output": "compute output",
    "client_receive": "client receive",
}
"""The components, from the bottom of a bar upwards, as perf_analyzer's tables have them."""

WIDTH: Final = 0.7
"""Of a bar, where the next one is 1 away."""

_Known = tuple["MeasuredRun", "Summary", Breakdown]


def components(runs: Sequence[MeasuredRun], texts: Texts) -> list[Figure]:
    """Draw the loads whose latency can be broken down: a plot for each test with several numbers of users.

    What remains is drawn together, a bar a load. Nothing is drawn of a load of which the components are not known.
    """
    lines: dict[str, list[_Known]] = {}
    for run in runs:
        known = _broken_down(run)
        if known is not None:
            lines.setdefault(run.series, []).append(known)
    figures, single = [], []
    for series, alike in lines.items():
        if len({run.users for run, _, _ in alike}) == len(alike) > 1 and all(run.users for run, _, _ in alike):
            bars = sorted(alike, key=lambda known: known[0].users or 0)
            labels = [str(run.users) for run, _, _ in bars]
            figures.append(_figure(texts.line(short_name(series)), "users", labels, bars))
        else:
            single += alike
    if single:
        labels = [run.name for run, _, _ in single]
        figures.append(_figure("", "", labels, single))
    return figures


def _broken_down(run: MeasuredRun) -> _Known | None:
    if run.summary is None:
        return None
    counters = added([start.counters for start in run.starts if start.counters is not None])
    client = Client.pooled(session.client for session in run.sessions)
    try:
        return run, run.summary, breakdown_of(run.summary, counters, client)
    except NotMeasured:
        return None


def _figure(what: str, title: str, labels: Sequence[str], stacks: Sequence[_Known]) -> Figure:
    # Numbers as places: loads of one name would else be one bar.
    along, notes = named_axis(title, labels)
    parts = tuple(
        Bars(NAMES[field.name], colour(place), tuple(_bars(field.name, stacks)))
        for place, field in enumerate(fields(Breakdown))
    )
    throughput = tuple(
        Point(place, summary.throughput, f"{run.name}: {format_rate(summary.throughput)}")
        for place, (run, summary, _) in enumerate(stacks)
    )
    return Figure(
        f"Latency by component: {what}" if what else "Latency by component",
        along,
        (
            Panel(Axis("mean latency", "s", from_zero=True), bars=parts, height=280),
            Panel(Axis("throughput", "1/s", from_zero=True), (Series("", QUIET, throughput, line="dot"),), height=110),
        ),
        notes=("Components are means over all requests; together they are the mean latency.", *notes),
    )


def _bars(component: str, stacks: Sequence[_Known]) -> Iterator[Bar]:
    """A component's bar in each stack, on those before it; what is a little below 0 goes below it."""
    before = [field.name for field in fields(Breakdown)]
    before = before[: before.index(component)]
    for place, (run, _, breakdown) in enumerate(stacks):
        value = getattr(breakdown, component)
        alike = [below for name in before if ((below := getattr(breakdown, name)) < 0) == (value < 0)]
        ends = sum(alike), sum(alike) + value
        told = f"{run.name}: {NAMES[component]} {format_seconds(value)}"
        yield Bar(place - WIDTH / 2, place + WIDTH / 2, min(ends), max(ends), told)
