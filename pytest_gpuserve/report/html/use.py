"""What cards and processors did under each load: a panel for each kind of use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.measure.telemetry import CardTelemetry, Spread, Telemetry, merged
from pytest_gpuserve.report.html.figure import Axis, Figure, Panel, Point, Series, colour, known, named_axis
from pytest_gpuserve.units import GiB, format_bytes, format_fraction, format_ratio, format_watts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytest_gpuserve.report.html.measured import MeasuredRun


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


def use(runs: Sequence[MeasuredRun]) -> Figure | None:
    """Draw a panel for each kind of use that is known of any load; a load of which it is not known has a gap."""
    measured = [run for run in runs if run.windows]
    seen = [merged(start.telemetry for start in run.starts if start.telemetry is not None) for run in measured]
    uuids = list(dict.fromkeys(uuid for each in seen if each is not None for uuid in each.cards))
    panels = [_of_cards(kind, measured, seen, uuids) for kind in _OF_CARDS]
    panels.append(_cores(measured, seen, len(uuids)))
    drawn = tuple(panel for panel in panels if panel is not None)
    if not drawn:
        return None
    if len({run.series for run in measured}) == 1 and None not in {run.users for run in measured}:
        along, notes = named_axis("users", [str(run.users) for run in measured])
    else:
        along, notes = named_axis("", [run.name for run in measured])
    return Figure("Mean use during each load, with the least and the most", along, drawn, notes=notes, is_wide=True)


def _of_cards(
    kind: _OfCard, runs: Sequence[MeasuredRun], seen: Sequence[Telemetry | None], uuids: Sequence[str]
) -> Panel | None:
    series = []
    # A uuid names one card of the world: it is not for everybody to read.
    for place, uuid in enumerate(uuids):
        cards = [None if each is None else each.cards.get(uuid) for each in seen]
        spreads = [None if card is None else kind.spread(card) for card in cards]
        if any(spread is not None for spread in spreads):
            series.append(_spreads(kind, runs, spreads, f"card {place + 1}", colour(place)))
    return _panel(kind.title, kind.unit, series) if series else None


def _spreads(
    kind: _OfCard, runs: Sequence[MeasuredRun], spreads: Sequence[Spread | None], name: str, own: str
) -> Series:
    points = tuple(
        Point(
            place,
            known(spread.mean * kind.scale),
            f"{runs[place].name}: {name} {kind.text(spread.mean)}"
            f" ({kind.text(spread.lowest)} to {kind.text(spread.peak)})",
            interval=(spread.lowest * kind.scale, spread.peak * kind.scale),
        )
        for place, spread in enumerate(spreads)
        if spread is not None
    )
    return Series(name, own, points)


def _cores(runs: Sequence[MeasuredRun], seen: Sequence[Telemetry | None], cards: int) -> Panel | None:
    """Processor time by whom it was used; the client's is that of the load engine."""
    server = [
        None
        if each is None or each.server_cpu_seconds is None or each.seconds <= 0
        else each.server_cpu_seconds / each.seconds
        for each in seen
    ]
    client = [_client_cores(run) for run in runs]
    others = [max((start.foreign_cores for start in run.starts), default=None) for run in runs]
    series = [
        Series(
            name,
            colour(cards + number),
            tuple(
                Point(place, known(cores), f"{runs[place].name}: {name} {format_ratio(cores)} cores")
                for place, cores in enumerate(values)
                if cores is not None
            ),
        )
        for number, (name, values) in enumerate(
            (("server", server), ("load engine", client), ("others, at most", others))
        )
        if any(cores is not None for cores in values)
    ]
    return _panel("CPU cores in use", "", series) if series else None


def _client_cores(run: MeasuredRun) -> float | None:
    seconds = sum(window.seconds for window in run.windows)
    return sum(window.client_cpu_seconds for window in run.windows) / seconds if seconds > 0 else None


def _panel(title: str, unit: str, series: Sequence[Series]) -> Panel:
    return Panel(Axis(title, unit, from_zero=True), tuple(series), height=110)
