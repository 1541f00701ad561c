"""The plots: each draws what was measured, and nothing where nothing was."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from itertools import pairwise
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from pytest_gpuserve.gate.verdict import Judgement, Verdict
from pytest_gpuserve.measure.window import CardUse, Start
from pytest_gpuserve.report.html.figure import QUIET, Axis, Figure, Panel, Point, Series, draw, named_axis, shared_axis
from pytest_gpuserve.report.html.load_plots import BETWEEN_SECONDS, STEPS, batches, distribution, tail, windows
from pytest_gpuserve.report.html.measured import MeasuredRun
from pytest_gpuserve.report.html.run_plots import components, forest, throughput, use
from pytest_gpuserve.report.ranking import Row, rows_of
from pytest_gpuserve.report.results import RunResult
from tests.report.html_results import UUID, Speeds
from tests.report.html_results import session as rich_session
from tests.support.builders import histogram, judgement, result_of, session, start, window


def run_of(nodeid: str = "a.py::t", users: int | None = 8, **fields: Any) -> MeasuredRun:  # noqa: ANN401
    """A load of a closed loop of so many users."""
    known: dict[str, Any] = {
        "label": "",
        "sessions": (session(),),
        "judgements": (),
        "load": {},
        "users": users,
        "server": {},
    }
    return MeasuredRun(nodeid, nodeid.partition("::")[2], RunResult(**{**known, **fields}))


def rows(*judgements: Judgement) -> list[tuple[str, Row]]:
    """The rows of a test with these judgements, in their order."""
    return [("t", row) for row in rows_of(result_of("a.py::t", *judgements))]


def found(figure: Figure | None) -> Figure:
    """A plot that is there."""
    assert figure is not None
    return figure


def named(figure: Figure | None, panel: int = 0) -> dict[str, Series]:
    """The series of a plot's panel, by their names."""
    return {series.name: series for series in found(figure).panels[panel].series}


def values(series: Series) -> list[float | None]:
    """What is drawn of a series, gaps included."""
    return [point.y for point in series.points]


def picture(panel: Panel, along: Axis | None = None, **more: Any) -> ET.Element:  # noqa: ANN401
    """A plot of one panel as it is drawn, read as XML."""
    return ET.fromstring(f"<div>{draw(Figure('t', along or Axis(), (panel,), **more))}</div>")


# -- how it is drawn


@pytest.mark.parametrize(
    ("axis", "drawn", "ticks"),
    [
        (Axis(unit="s"), [0.01, 0.03], ["10 ms", "15 ms", "20 ms", "25 ms", "30 ms"]),
        (Axis(unit="1/s", from_zero=True), [900.0], ["0/s", "200/s", "400/s", "600/s", "800/s"]),
        (Axis(unit="%", from_zero=True), [0.5], ["0 %", "20 %", "40 %"]),
        (Axis(unit="%", is_log=True), [1e-4, 1.0], ["0.01 %", "0.1 %", "1 %", "10 %", "100 %"]),
        (Axis(unit="s", is_log=True), [0.004, 0.03], ["5 ms", "10 ms", "20 ms"]),
        (Axis(unit="s", is_log=True), [1e-5, 10.0], ["10 us", "100 us", "1 ms", "10 ms", "100 ms", "1 s", "10 s"]),
        (Axis(unit="MHz"), [1410.0], ["1350 MHz", "1400 MHz", "1450 MHz"]),
        (Axis(unit="GiB", from_zero=True), [0.0], ["0 GiB", "0.2 GiB", "0.4 GiB", "0.6 GiB", "0.8 GiB", "1 GiB"]),
    ],
)
def test_ticks_are_round_and_have_units(axis: Axis, drawn: list[float], ticks: list[str]) -> None:
    """Linear or of logarithms, of one value or of many, also where all are 0."""
    points = tuple(Point(place, value) for place, value in enumerate(drawn))
    shown = picture(Panel(axis, (Series("", QUIET, points),)))
    texts = [text.text for group in shown.iter("g") if group.get("class") == "up" for text in group.iter("text")]
    assert texts == ticks


def test_marks_lie_where_their_values_are() -> None:
    """Along the plot in percent, upwards in pixels from the top; a gap is no mark, and a line ends there."""
    points = (Point(0, 0.0, "first"), Point(5, 50.0), Point(7, None), Point(10, 100.0, interval=(50.0, 100.0)))
    panel = Panel(Axis(bounds=(0, 100)), (Series("", QUIET, points, line="solid"),), height=200)
    shown = picture(panel, Axis(bounds=(0, 10)))
    assert [(dot.get("cx"), dot.get("cy")) for dot in shown.iter("circle")] == [
        ("0%", "200"),
        ("50%", "100"),
        ("100%", "0"),
    ]
    assert [line.get("points") for line in shown.iter("polyline")] == ["0,200 500,100", "1000,0"]
    assert [title.text for title in shown.iter("title")] == ["first"]
    assert ("100", "0") in [(line.get("y1"), line.get("y2")) for line in shown.iter("line")]


@pytest.mark.parametrize("interval", [(-math.inf, 1.0), (1.0, math.inf)])
def test_an_interval_without_an_end_stops_at_the_edge(interval: tuple[float, float]) -> None:
    """What is known on one side only is drawn to the end of the plot, and spoils no axis."""
    points = (Point(0, 1.0, interval=interval), Point(1, 2.0))
    shown = ET.tostring(picture(Panel(Axis(), (Series("", QUIET, points),))), encoding="unicode")
    assert not re.search(r"\b(nan|inf)\b", shown)


def test_every_text_of_a_plot_is_escaped() -> None:
    """Titles, names, ticks, labels and what points tell may hold the signs of HTML."""
    text = "<script>&\"'"
    points = (Point(0, 1.0, text, text), Point(1, 1.0, text, text))
    panel = Panel(Axis(text), (Series(text, QUIET, points), Series(f"{text} 2", QUIET, points)))
    axis = Axis(text, names=((0, text), (1, text)))
    for sideways in (False, True):
        shown = picture(panel, axis, is_sideways=sideways)
        assert not list(shown.iter("script"))
        assert "".join(shown.itertext()).count("<script>") >= 10


def test_long_names_are_numbered() -> None:
    """Below an axis there is no room for the names of tests: a note tells whose numbers these are."""
    assert named_axis("users", ["8", "16"]) == (Axis("users", names=((0, "8"), (1, "16")), bounds=(-0.5, 1.5)), ())
    axis, notes = named_axis("", ["test_long_name", "test_other"])
    assert axis.names == ((0, "1"), (1, "2"))
    assert notes == ("1: test_long_name; 2: test_other",)


def test_an_axis_is_of_logarithms_where_values_lie_far_apart() -> None:
    """And never where one of them is 0, of which there is no logarithm."""
    drawn: tuple[list[float], ...] = ([1.0, 5.0], [1.0, 50.0], [0.0, 50.0], [])
    assert [shared_axis("t", "s", each).is_log for each in drawn] == [False, True, False, False]


# -- forest


@pytest.mark.parametrize(
    ("metric", "change", "worse", "interval"),
    [
        ("throughput", -0.2, 0.2, (0.17, 0.21)),
        ("latency.p50", 0.2, 0.2, (0.19, 0.23)),
        ("throughput", 0.1, -0.1, (-0.13, -0.09)),
    ],
)
def test_worse_is_to_the_right(metric: str, change: float, worse: float, interval: tuple[float, float]) -> None:
    """Whether more or less is better, a change for the worse is drawn right of 0, with its interval and tolerance."""
    made = replace(judgement(metric=metric), change=change, interval=(change - 0.01, change + 0.03), tolerance=0.05)
    figure = found(forest(rows(made)))
    tolerance, estimate = figure.panels[0].series
    (point,) = estimate.points
    assert point.x == pytest.approx(worse)
    assert point.interval == pytest.approx(interval)
    assert point.label == f"{metric} t"
    assert [mark.x for mark in tolerance.points] == [0.05]
    assert figure.along.bounds is not None
    assert figure.along.bounds[1] > abs(worse)


def test_verdicts_are_told_apart() -> None:
    """By name and colour; without an interval it is a ring."""
    drawn = named(
        forest(
            rows(
                judgement(Verdict.REGRESSED),
                judgement(Verdict.PASS),
                replace(judgement(), interval=None),
            )
        )
    )
    assert list(drawn) == ["tolerance", "REGRESSED", "REGRESSED, no interval known", "PASS"]
    assert drawn["REGRESSED"].colour != drawn["PASS"].colour
    assert drawn["REGRESSED, no interval known"].mark == "ring"


def test_what_cannot_be_drawn_or_was_settled_is_left_to_the_table() -> None:
    """Limits and unknown changes, and a stored verdict that was settled side by side, are counted in a note."""
    figure = found(forest(rows(judgement(), judgement(Verdict.MISSING), judgement(Verdict.PASS, kind="limit"))))
    assert [len(series.points) for series in figure.panels[0].series] == [1, 1]
    assert figure.notes[-1].startswith("2 without a known change")
    assert forest(rows(judgement(Verdict.MISSING))) is None
    settled = judgement(Verdict.PASS, kind="against", reasons=("settled",))
    assert list(named(forest(rows(judgement().overrule(), settled)))) == ["tolerance", "PASS"]


# -- throughput against p99


def by_batch(size: int) -> MeasuredRun:
    """A load of one user whose requests are answered in batches of a size."""
    return run_of(f"a.py::t[{size}]", 1, sessions=(session(start(window(items=size * 10, batches=10))),))


STEPPED = session(Start((window(), window((0.02,) * 5)), None))
LINES = {
    "parameters of a test, in the order of its users": (
        [run_of("a.py::t[16]", 16), run_of("a.py::t[8]", 8)],
        [("c=8", 20.0, 0.010), ("c=16", 20.0, 0.010)],
    ),
    "batch sizes, where users do not differ": (
        [by_batch(1), by_batch(4)],
        [("b=1.00", 20.0, 0.010), ("b=4.00", 20.0, 0.010)],
    ),
    "steps of users": (
        [run_of(users=None, sessions=(STEPPED,), steps=((1, 0.5), (20, 0.5)))],
        [("c=1", 20.0, 0.010), ("c=20", 10.0, 0.020)],
    ),
}


@pytest.mark.parametrize(("runs", "points"), LINES.values(), ids=LINES)
def test_loads_that_differ_in_a_number_are_a_line(
    runs: list[MeasuredRun], points: list[tuple[str, float, float]]
) -> None:
    """Each is a point, with that number beside it."""
    (series,) = found(throughput(runs)).panels[0].series
    assert series.line
    labels, rates, latencies = zip(*points, strict=True)
    assert tuple(point.label for point in series.points) == labels
    assert tuple(point.x for point in series.points) == pytest.approx(rates)
    assert tuple(values(series)) == pytest.approx(latencies, rel=1e-3)


def test_steps_shorter_than_windows_are_one_point() -> None:
    """What belongs to which of them is not known."""
    run = run_of(users=None, steps=((1, 0.1), (2, 0.1)))
    (series,) = found(throughput([run])).panels[0].series
    assert len(series.points) == 1


def test_many_tests_share_a_quiet_colour() -> None:
    """The legend stays short; every load is drawn, but one that answered nothing: it has no throughput of 0."""
    series = found(throughput([run_of(f"a.py::t{place}") for place in range(20)])).panels[0].series
    assert series[-1].name == "further tests"
    assert sum(len(each.points) for each in series) == 20
    assert throughput([run_of(sessions=(session(start(window(()))),))]) is None


# -- components


def test_components_are_stacked_over_users() -> None:
    """Seven parts a bar, each on those before it, together the mean latency, and the throughput below them."""
    runs = [run_of(f"a.py::t[{users}]", users, sessions=(rich_session(Speeds(), users),)) for users in (16, 8)]
    (figure,) = components(runs)
    assert figure.title == "Latency by component: t"
    assert [name for _, name in figure.along.names] == ["8", "16"]
    stack = [bars.bars[0] for bars in figure.panels[0].bars]
    summary = runs[1].summary
    assert summary is not None
    assert len(stack) == 7
    assert stack[-1].top == pytest.approx(summary.mean, rel=1e-3)
    assert all(upper.bottom == pytest.approx(lower.top) for lower, upper in pairwise(stack))
    assert values(figure.panels[1].series[0]) == [pytest.approx(summary.throughput, rel=1e-3)] * 2


def test_single_loads_share_a_plot() -> None:
    """Tests of one number of users are bars beside each other, also of one name; unknown parts are no bar of 0."""
    runs = [run_of(name, 8, sessions=(rich_session(Speeds(), 8),)) for name in ("a.py::t", "b.py::t")]
    (figure,) = components(runs)
    assert figure.title == "Latency by component"
    assert len(figure.panels[0].bars[0].bars) == 2
    assert components([run_of()]) == []


# -- use


def test_cards_and_processors_have_panels() -> None:
    """What is known of a card is drawn with its spread, and the card has no name that tells which one it is."""
    figure = found(use([run_of(sessions=(rich_session(Speeds(), 8),))]))
    panels = {panel.axis.title: panel for panel in figure.panels}
    (card,) = panels["GPU utilisation"].series
    (point,) = card.points
    assert card.name == "card 1"
    assert point.y == pytest.approx(0.28)
    assert point.interval == pytest.approx((0.18, 0.33))
    cores = {series.name: values(series) for series in panels["CPU cores in use"].series}
    assert cores == {"server": [2.5], "load engine": [pytest.approx(0.1)], "others, at most": [0.2]}
    assert UUID not in draw(figure)


def test_what_nobody_looked_at_has_no_panel() -> None:
    """Without telemetry there is no panel of cards, and no server's cores of 0."""
    (panel,) = found(use([run_of()])).panels
    assert panel.axis.title == "CPU cores in use"
    assert [series.name for series in panel.series] == ["load engine", "others, at most"]
    assert use([]) is None


# -- distribution


def test_a_tail_ends_at_the_slowest() -> None:
    """It begins with all requests, falls all the way, and its last share is above 0."""
    points = tail(histogram([0.001 * place for place in range(1, 2001)]))
    seconds, shares = zip(*points, strict=True)
    assert (seconds[0], seconds[-1]) == pytest.approx((0.001, 2.0), rel=1e-3)
    assert (shares[0], shares[-1]) == (1, pytest.approx(1 / 2000))
    assert list(shares) == sorted(shares, reverse=True)
    assert len(points) <= 2 * STEPS + 2


def test_a_tail_of_few_requests() -> None:
    """One latency is one point, however many have it."""
    for latencies in ([], [0.01], [0.01] * 5, [0.01, 0.02]):
        assert len(tail(histogram(latencies))) == len(set(latencies))


def test_base_and_candidate_are_drawn_together() -> None:
    """The base is there to be compared with; alone, a load is drawn alone."""
    beside = distribution(run_of(base="HEAD~1", base_sessions=(session(),)))
    assert [name for name in named(beside) if name] == ["base: HEAD~1", "now"]
    curve, quantiles = found(distribution(run_of())).panels[0].series
    assert curve.name == "now"
    assert values(quantiles) == pytest.approx([0.5, 0.1, 0.05, 0.01])


# -- windows


def test_windows_lie_where_they_were_measured() -> None:
    """Each at its time, start after start, and where windows were thrown away there is a shade."""
    figure = found(windows(run_of(sessions=(rich_session(Speeds(), 8, starts=2, windows=6),))))
    points = figure.panels[0].series[0].points[:8]
    # A second without a window, after the third: no line goes over it.
    assert [place for place, point in enumerate(points) if point.y is None] == [3, 7]
    first = [point.x for point in points[:7] if point.y is not None]
    assert first == sorted(first)
    assert first[3] - first[2] == pytest.approx(1.5, rel=0.05)
    assert [end - begin for begin, end in figure.shades] == [pytest.approx(1.0)] * 2
    assert "4 windows were thrown away and measured again:" in figure.notes
    assert "2 windows were cut off the front: not steady yet" in figure.notes


def test_windows_without_a_clock_follow_each_other() -> None:
    """Those that were remembered have lost their time: they stand in their order, and nothing is shaded."""
    figure = found(windows(run_of(sessions=(session(start(window(), window())),))))
    drawn = [(point.x, point.y is None) for point in figure.panels[0].series[0].points]
    assert drawn == [(0.25, False), (0.75, False), (1.0, True)]
    assert figure.shades == ()


def test_starts_side_by_side_stand_above_each_other() -> None:
    """The base's first start begins where the candidate's does, and the second pair behind both."""
    pair = (session(start(window()), start(window())),)
    figure = found(windows(run_of(sessions=pair, base="HEAD~1", base_sessions=pair)))
    base, now = ([point.x for point in series.points if point.y is not None] for series in figure.panels[0].series)
    assert base == now == [0.25, 0.75 + BETWEEN_SECONDS]
    assert len(figure.rules) == 1


def test_clocks_are_drawn_where_they_are_known() -> None:
    """A window without a clock, or without an answer, is a gap in that line, and never a 0."""
    clocked = replace(window(), cards=CardUse(sm_clock_mhz=1410.0))
    figure = found(windows(run_of(sessions=(session(start(clocked, window(()))),))))
    rate, p99, clock = (values(panel.series[0])[:2] for panel in figure.panels)
    assert rate[1] == 0
    assert p99[1] is None
    assert clock == [1410.0, None]
    assert len(found(windows(run_of())).panels) == 2
    assert windows(run_of(sessions=())) is None


# -- batches


def test_batch_sizes_are_in_their_order() -> None:
    """By number, not by letter, and what has no upper end comes last."""
    sized = replace(session(), batch_sizes={"16": 1, "2": 3, "inf": 1, "x": 1, "nan": 2})
    figure = found(batches(run_of(sessions=(sized,))))
    assert [name for _, name in figure.along.names] == ["2", "16", "inf", "nan", "x"]
    assert [bar.top for bar in figure.panels[0].bars[0].bars] == [0.375, 0.125, 0.125, 0.25, 0.125]
    assert batches(run_of(sessions=(replace(session(), batch_sizes={}),))) is None


def test_what_was_settled_side_by_side_shows_the_rounds_that_decided() -> None:
    """Both builds of these rounds are drawn, not the few windows that were measured alone before."""
    alone, beside = session(start(window())), session(start(window((0.02,) * 5)))
    run = run_of(sessions=(alone,), base="888888", base_sessions=(beside,), candidate_sessions=(beside,))
    base, now = found(windows(run)).panels[0].series
    assert values(base) == values(now)
    assert run.summary is not None
    assert run.summary.throughput == 10.0
