"""Where the time of an average request went, stacked, over the number of users."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.measure.breakdown import Breakdown, breakdown_of
from pytest_gpuserve.measure.counters import added
from pytest_gpuserve.measure.points import NotMeasured
from pytest_gpuserve.measure.window import Client
from pytest_gpuserve.report.html.figure import Figure, Trace, axis, colour, number
from pytest_gpuserve.report.html.text import as_label
from pytest_gpuserve.report.names import short_name
from pytest_gpuserve.units import format_rate, format_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

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
        labels = [as_label(run.name) for run, _, _ in single]
        figures.append(_figure("", "", labels, single))
    return figures


def _broken_down(run: MeasuredRun) -> _Known | None:
    if run.summary is None:
        return None
    counters = added([start.counters for start in run.starts if start.counters is not None])
    client = Client.pooled(session.client for session in run.run.sessions)
    try:
        return run, run.summary, breakdown_of(run.summary, counters, client)
    except NotMeasured:
        return None


def _figure(what: str, x_title: str, labels: Sequence[str], bars: Sequence[_Known]) -> Figure:
    # Numbers as places: loads of one name would else be one bar.
    places = list(range(len(bars)))
    traces: list[Trace] = [
        {
            "type": "bar",
            "name": NAMES[field.name],
            "x": places,
            "y": [number(getattr(parts, field.name)) for _, _, parts in bars],
            "marker": {"color": colour(place)},
            "customdata": [[as_label(run.name), format_seconds(getattr(parts, field.name))] for run, _, parts in bars],
            "hovertemplate": f"{NAMES[field.name]} %{{customdata[1]}}<br>%{{customdata[0]}}<extra></extra>",
        }
        for place, field in enumerate(fields(Breakdown))
    ]
    traces.append(
        {
            "type": "scatter",
            "mode": "lines+markers",
            "name": "throughput",
            "yaxis": "y2",
            "x": places,
            "y": [number(summary.throughput) for _, summary, _ in bars],
            "line": {"color": colour(len(traces)), "dash": "dot"},
            "customdata": [format_rate(summary.throughput) for _, summary, _ in bars],
            "hovertemplate": "throughput %{customdata}<extra></extra>",
        }
    )
    return Figure(
        f"Latency by component: {what}" if what else "Latency by component",
        tuple(traces),
        {
            # Stacked, and what is a little below 0 goes below it.
            "barmode": "relative",
            "hovermode": "closest",
            "xaxis": axis(x_title, tickvals=places, ticktext=list(labels)),
            "yaxis": axis("mean latency", "s"),
            "yaxis2": axis(
                "throughput",
                "1/s",
                overlaying="y",
                side="right",
                rangemode="tozero",
                showgrid=False,
                zeroline=False,
                tickmode="auto",
            ),
        },
        height=420,
        notes=("Components are means over all requests; together they are the mean latency.",),
    )
