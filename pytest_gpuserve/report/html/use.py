"""What cards and processors did under each load: panels of one kind of use each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pytest_gpuserve.measure.telemetry import CardTelemetry, Spread, Telemetry, merged
from pytest_gpuserve.report.html.figure import Figure, Trace, axis, colour, number, numbers
from pytest_gpuserve.report.html.text import as_label
from pytest_gpuserve.units import GiB, format_bytes, format_fraction, format_ratio, format_watts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytest_gpuserve.report.html.measured import MeasuredRun

MOST_NAMED: Final = 8
"""More loads are numbered on the axis, and named where they are pointed at."""


@dataclass(frozen=True)
class _OfCard:
    title: str
    unit: str
    spread: Callable[[CardTelemetry], Spread | None]
    text: Callable[[float], str]
    scale: float = 1.0


_OF_CARDS: Final = (
    _OfCard("GPU utilisation", "%", lambda card: card.gpu_utilisation, format_fraction),
    _OfCard("GPU memory", "GiB", lambda card: card.memory_used_bytes, format_bytes, 1 / GiB),
    _OfCard("GPU power", "W", lambda card: card.power_watts, format_watts),
    _OfCard("GPU memory traffic", "%", lambda card: card.memory_utilisation, format_fraction),
)


@dataclass(frozen=True)
class _Loads:
    """The loads of a panel, and how they stand on its axis."""

    runs: Sequence[MeasuredRun]
    seen: Sequence[Telemetry | None]
    names: Sequence[str]
    axis: dict[str, Any]


def use(runs: Sequence[MeasuredRun]) -> list[Figure]:
    """Draw a panel for each kind of use that is known of any load; a load of which it is not known has a gap."""
    measured = [run for run in runs if run.windows]
    if not measured:
        return []
    seen = [merged(start.telemetry for start in run.starts if start.telemetry is not None) for run in measured]
    names = [as_label(run.name) for run in measured]
    loads = _Loads(measured, seen, names, _axis_of(measured, names))
    panels = [_of_cards(kind, loads) for kind in _OF_CARDS]
    return [panel for panel in (*panels, _cores(loads)) if panel is not None]


def _axis_of(runs: Sequence[MeasuredRun], names: Sequence[str]) -> dict[str, Any]:
    places = list(range(len(runs)))
    users = [run.users for run in runs]
    if len({run.series for run in runs}) == 1 and None not in users:
        return axis("users", tickvals=places, ticktext=[str(each) for each in users])
    if len(runs) <= MOST_NAMED:
        return axis("", tickvals=places, ticktext=list(names))
    return axis("loads, in the order in which they ran", showticklabels=False)


def _of_cards(kind: _OfCard, loads: _Loads) -> Figure | None:
    uuids = dict.fromkeys(uuid for seen in loads.seen if seen is not None for uuid in seen.cards)
    traces = []
    # A uuid names one card of the world: it is not for everybody to read.
    for place, uuid in enumerate(uuids):
        cards = [None if seen is None else seen.cards.get(uuid) for seen in loads.seen]
        spreads = [None if card is None else kind.spread(card) for card in cards]
        if any(spread is not None for spread in spreads):
            traces.append(_spreads(kind, loads, spreads, f"card {place + 1}", colour(place)))
    if not traces:
        return None
    return _panel(f"{kind.title}: mean, least and most", traces, loads, axis("", kind.unit, rangemode="tozero"))


def _spreads(kind: _OfCard, loads: _Loads, spreads: Sequence[Spread | None], name: str, own: str) -> Trace:
    known = [(place, spread) for place, spread in enumerate(spreads) if spread is not None]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "x": [place for place, _ in known],
        "y": numbers(spread.mean * kind.scale for _, spread in known),
        "error_y": {
            "type": "data",
            "symmetric": False,
            "array": numbers((spread.peak - spread.mean) * kind.scale for _, spread in known),
            "arrayminus": numbers((spread.mean - spread.lowest) * kind.scale for _, spread in known),
            "thickness": 1.5,
        },
        "marker": {"size": 9, "color": own},
        "customdata": [
            [
                loads.names[place],
                f"{kind.text(spread.mean)} ({kind.text(spread.lowest)} to {kind.text(spread.peak)})",
            ]
            for place, spread in known
        ],
        "hovertemplate": f"%{{customdata[0]}}<br>{name} %{{customdata[1]}}<extra></extra>",
    }


def _cores(loads: _Loads) -> Figure | None:
    """Processor time by whom it was used; the client's is that of the load engine."""
    server = [
        None
        if seen is None or seen.server_cpu_seconds is None or seen.seconds <= 0
        else seen.server_cpu_seconds / seen.seconds
        for seen in loads.seen
    ]
    client = [_client_cores(run) for run in loads.runs]
    others = [max((start.foreign_cores for start in run.starts), default=None) for run in loads.runs]
    traces = [
        {
            "type": "scatter",
            "mode": "markers",
            "name": name,
            "x": [place for place, cores in enumerate(values) if cores is not None],
            "y": [number(cores) for cores in values if cores is not None],
            "marker": {"size": 9, "color": colour(number_of)},
            "customdata": [
                [loads.names[place], format_ratio(cores)] for place, cores in enumerate(values) if cores is not None
            ],
            "hovertemplate": f"%{{customdata[0]}}<br>{name} %{{customdata[1]}} cores<extra></extra>",
        }
        for number_of, (name, values) in enumerate(
            (("server", server), ("load engine", client), ("others, at most", others))
        )
        if any(cores is not None for cores in values)
    ]
    return _panel("CPU cores in use", traces, loads, axis("cores", rangemode="tozero")) if traces else None


def _client_cores(run: MeasuredRun) -> float | None:
    seconds = sum(window.seconds for window in run.windows)
    return sum(window.client_cpu_seconds for window in run.windows) / seconds if seconds > 0 else None


def _panel(title: str, traces: Sequence[Trace], loads: _Loads, y_axis: dict[str, Any]) -> Figure:
    layout = {
        "hovermode": "closest",
        "showlegend": len(traces) > 1,
        "xaxis": {**loads.axis, "range": [-0.5, len(loads.runs) - 0.5]},
        "yaxis": y_axis,
    }
    return Figure(title, tuple(traces), layout, height=280)
