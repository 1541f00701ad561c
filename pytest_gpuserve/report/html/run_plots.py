"""The plots of a run over all its loads.

Throughput against latency, components of latency, use of cards and processors, and all judgements.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.measure.breakdown import Breakdown, breakdown_of
from pytest_gpuserve.measure.counters import added
from pytest_gpuserve.measure.points import NotMeasured
from pytest_gpuserve.measure.telemetry import CardTelemetry, Spread, Telemetry, merged
from pytest_gpuserve.measure.window import Client
from pytest_gpuserve.report.explain import headline
from pytest_gpuserve.report.html.figure import (
    PALETTE,
    QUIET,
    ROW_PX,
    VERDICT_COLOURS,
    Axis,
    Bar,
    Bars,
    Figure,
    Panel,
    Point,
    Series,
    colour,
    known,
    named_axis,
    shared_axis,
)
from pytest_gpuserve.report.html.measured import one_line, short
from pytest_gpuserve.report.names import short_name
from pytest_gpuserve.units import (
    GiB,
    format_bytes,
    format_change,
    format_fraction,
    format_rate,
    format_ratio,
    format_seconds,
    format_watts,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pytest_gpuserve.gate.verdict import Judgement
    from pytest_gpuserve.measure.summary import Summary
    from pytest_gpuserve.report.html.measured import MeasuredRun
    from pytest_gpuserve.report.ranking import Row


MOST_SERIES: Final = len(PALETTE)
"""Tests with a colour of their own; the loads of all further ones share a quiet one."""

_QUANTILE: Final = 0.99

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

BAR_WIDTH: Final = 0.7
"""Of a bar, where the next one is 1 away."""

_BrokenDown = tuple["MeasuredRun", "Summary", Breakdown]

_LEAST_REACH: Final = 0.05

_REACH: Final = 1.5
"""The axis ends at so many times the largest change or tolerance: a very wide interval is cut there."""


@dataclass(frozen=True)
class _Point:
    name: str
    label: str
    order: float
    throughput: float
    p99: float
    batch: float | None


def throughput(runs: Sequence[MeasuredRun]) -> Figure | None:
    """Draw every load, those of one test with other parameters as a line; None where nothing was answered.

    A point is labelled by the users where these differ along the line, else by the mean batch.
    """
    lines: dict[str, list[MeasuredRun]] = {}
    for run in runs:
        lines.setdefault(run.series, []).append(run)
    known = {series: points for series, alike in lines.items() if (points := _points(alike))}
    if not known:
        return None
    # Lines first: a colour of its own helps where there is something to follow.
    ordered = sorted(known.items(), key=lambda item: -len(item[1]))
    series = [
        _line_of_points(points, short(short_name(name)), colour(place), line="solid" if len(points) > 1 else "")
        for place, (name, points) in enumerate(ordered[:MOST_SERIES])
    ]
    rest = [point for _, points in ordered[MOST_SERIES:] for point in points]
    if rest:
        series.append(_line_of_points(rest, "further tests", QUIET, line=""))
    every = [point for points in known.values() for point in points]
    return Figure(
        "Throughput against p99",
        shared_axis("throughput", "1/s", (point.throughput for point in every)),
        (Panel(shared_axis("latency p99", "s", (point.p99 for point in every)), tuple(series), height=320),),
        notes=("Points are labelled by users (c) or by the mean batch (b). Further right and lower is better.",),
        is_wide=True,
    )


def _points(runs: Sequence[MeasuredRun]) -> list[_Point]:
    by_users = len({run.users for run in runs if run.users is not None}) > 1
    found = []
    for run in runs:
        if run.steps:
            found += [
                _Point(
                    run.name,
                    f"c={step.users}",
                    step.users,
                    step.throughput,
                    step.latency.quantile(_QUANTILE),
                    None,
                )
                for step in run.steps
                if step.latency.total
            ]
        elif run.summary is not None:
            label, order = _point_label(run, by_users=by_users)
            found.append(
                _Point(run.name, label, order, run.summary.throughput, run.summary.quantile(_QUANTILE), run.batch)
            )
    return sorted(found, key=lambda point: point.order)


def _point_label(run: MeasuredRun, *, by_users: bool) -> tuple[str, float]:
    """What a point is labelled by, and its place on the line."""
    if run.users is not None and (by_users or run.batch is None):
        return f"c={run.users}", run.users
    if run.batch is not None:
        return f"b={format_ratio(run.batch)}", run.batch
    return "", 0.0


def _line_of_points(points: Sequence[_Point], name: str, own: str, *, line: str) -> Series:
    return Series(
        name, own, tuple(Point(each.throughput, each.p99, _point_text(each), each.label) for each in points), line=line
    )


def _point_text(point: _Point) -> str:
    said = [
        point.label,
        format_rate(point.throughput),
        f"p99 {format_seconds(point.p99)}",
        "" if point.batch is None else f"mean batch {format_ratio(point.batch)}",
    ]
    return f"{point.name}: {', '.join(part for part in said if part)}"


def components(runs: Sequence[MeasuredRun]) -> list[Figure]:
    """Draw the loads whose latency can be broken down: a plot for each test with several numbers of users.

    What remains is drawn together, a bar a load. Nothing is drawn of a load of which the components are not known.
    """
    lines: dict[str, list[_BrokenDown]] = {}
    for run in runs:
        known = _broken_down(run)
        if known is not None:
            lines.setdefault(run.series, []).append(known)
    figures, single = [], []
    for series, alike in lines.items():
        if len({run.users for run, _, _ in alike}) == len(alike) > 1 and all(run.users for run, _, _ in alike):
            bars = sorted(alike, key=lambda known: known[0].users or 0)
            labels = [str(run.users) for run, _, _ in bars]
            figures.append(_stacks_figure(one_line(short_name(series)), "users", labels, bars))
        else:
            single += alike
    if single:
        labels = [run.name for run, _, _ in single]
        figures.append(_stacks_figure("", "", labels, single))
    return figures


def _broken_down(run: MeasuredRun) -> _BrokenDown | None:
    if run.summary is None:
        return None
    counters = added([start.counters for start in run.starts if start.counters is not None])
    client = Client.pooled(session.client for session in run.sessions)
    try:
        return run, run.summary, breakdown_of(run.summary, counters, client)
    except NotMeasured:
        return None


def _stacks_figure(what: str, title: str, labels: Sequence[str], stacks: Sequence[_BrokenDown]) -> Figure:
    # Numbers as places: loads of one name would else be one bar.
    along, notes = named_axis(title, labels)
    parts = tuple(
        Bars(NAMES[field.name], colour(place), tuple(_stacked(field.name, stacks)))
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


def _stacked(component: str, stacks: Sequence[_BrokenDown]) -> Iterator[Bar]:
    """A component's bar in each stack, on those before it; what is a little below 0 goes below it."""
    before = [field.name for field in fields(Breakdown)]
    before = before[: before.index(component)]
    for place, (run, _, breakdown) in enumerate(stacks):
        value = getattr(breakdown, component)
        alike = [below for name in before if ((below := getattr(breakdown, name)) < 0) == (value < 0)]
        ends = sum(alike), sum(alike) + value
        tooltip = f"{run.name}: {NAMES[component]} {format_seconds(value)}"
        yield Bar(place - BAR_WIDTH / 2, place + BAR_WIDTH / 2, min(ends), max(ends), tooltip)


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


@dataclass(frozen=True)
class _Drawn:
    """A judgement in its place."""

    place: int
    name: str
    judgement: Judgement

    @property
    def worse(self) -> float:
        """Its change."""
        return _towards_worse(self.judgement, self.judgement.change or 0.0)

    @property
    def word(self) -> str:
        """What it is in the legend."""
        return str(self.judgement.verdict)

    @property
    def colour(self) -> str:
        return VERDICT_COLOURS[self.judgement.verdict]

    @property
    def tolerated(self) -> float | None:
        """The largest change towards worse that is accepted."""
        return self.judgement.tolerance


def _towards_worse(judgement: Judgement, change: float) -> float:
    """A change of the value as one in which worse is larger, whether more or less of the metric is better."""
    # Adding zero turns the -0.0 of no change into 0.0.
    return (-change if judgement.metric.higher_is_better else change) + 0.0


def forest(named: Iterable[tuple[str, Row]]) -> Figure | None:
    """Draw every judgement whose change is known; None where none is.

    A change is drawn towards worse, so that a lower throughput and a higher latency lie on one side. A plain limit has
    neither tolerance nor interval: how far away it is would only make the axis long. What was settled otherwise is no
    last word.

    Args:
        named: The judgements from the top, each with the name of its load, which is fit to be shown.
    """
    every = list(named)
    known = [(name, row.judgement) for name, row in every if _is_drawn(row)]
    drawn = [_Drawn(place, name, judgement) for place, (name, judgement) in enumerate(known)]
    if not drawn:
        return None
    series = [_tolerances(drawn)]
    for word in dict.fromkeys(each.word for each in drawn):
        alike = [each for each in drawn if each.word == word]
        sure = [each for each in alike if each.judgement.interval is not None]
        # An interval of no length would claim that the change is known exactly.
        bare = [each for each in alike if each.judgement.interval is None]
        series += [_estimates(word, sure, "dot")] if sure else []
        series += [_estimates(f"{word}, no interval known", bare, "ring")] if bare else []
    left_out = len(every) - len(drawn)
    return Figure(
        "Changes and how surely they are known",
        _along(drawn),
        (Panel(Axis(), tuple(series), height=ROW_PX * len(drawn)),),
        notes=(
            "Right of 0 it got worse, whatever the metric. A small upright stroke is the tolerance.",
            *(
                [f"{left_out} without a known change, against a plain limit or settled otherwise: see the table."]
                if left_out
                else []
            ),
        ),
        is_wide=True,
        is_sideways=True,
    )


def _is_drawn(row: Row) -> bool:
    judgement = row.judgement
    return judgement.change is not None and judgement.reference_kind != "limit" and not row.judgement.overruled


def _estimates(word: str, drawn: Sequence[_Drawn], mark: str) -> Series:
    points = tuple(
        Point(
            each.worse, each.place, _judgement_text(each), f"{each.judgement.metric.name} {each.name}", _interval(each)
        )
        for each in drawn
    )
    return Series(word, drawn[0].colour, points, mark=mark)


def _interval(each: _Drawn) -> tuple[float, float] | None:
    if each.judgement.interval is None:
        return None
    low, high = sorted(_towards_worse(each.judgement, bound) for bound in each.judgement.interval)
    return min(low, each.worse), max(high, each.worse)


def _judgement_text(each: _Drawn) -> str:
    interval = "no interval known"
    if each.judgement.interval is not None:
        low, high = each.judgement.interval
        interval = f"interval {format_change(low)} to {format_change(high)}"
    return f"{each.name}: {headline(each.judgement)}; {interval}"


def _tolerances(drawn: Sequence[_Drawn]) -> Series:
    points = tuple(Point(each.tolerated, each.place) for each in drawn if each.tolerated is not None)
    return Series("tolerance", QUIET, points, mark="stroke")


def _along(drawn: Sequence[_Drawn]) -> Axis:
    sizes = [abs(each.worse) for each in drawn] + [each.tolerated or 0.0 for each in drawn]
    reach = _REACH * max(_LEAST_REACH, *sizes)
    return Axis("change towards worse", "%", bounds=(-reach, reach))
