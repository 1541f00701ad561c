"""The plots: each draws what was measured, and nothing where nothing was."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pytest_gpuserve.gate.metric import METRICS
from pytest_gpuserve.gate.verdict import Judgement, Verdict
from pytest_gpuserve.measure.window import CardUse, Start
from pytest_gpuserve.report.html.batches import batches
from pytest_gpuserve.report.html.components import components
from pytest_gpuserve.report.html.distribution import STEPS, distribution, tail
from pytest_gpuserve.report.html.figure import QUIET, log_axis, number, numbers, shared_axis
from pytest_gpuserve.report.html.forest import forest
from pytest_gpuserve.report.html.history import history
from pytest_gpuserve.report.html.lines import LinePoint, MetricLine
from pytest_gpuserve.report.html.measured import MeasuredRun
from pytest_gpuserve.report.html.text import Texts
from pytest_gpuserve.report.html.throughput import throughput
from pytest_gpuserve.report.html.use import use
from pytest_gpuserve.report.html.windows import BETWEEN_SECONDS, windows
from pytest_gpuserve.report.ranking import Row, rows_of
from pytest_gpuserve.report.results import RunResult
from tests.report.html_results import UUID, Speeds
from tests.report.html_results import session as rich_session
from tests.support.builders import histogram, judgement, result_of, session, start, window

TEXTS = Texts(str)


def run_of(nodeid: str = "a.py::t", users: int | None = 8, **fields: Any) -> MeasuredRun:  # noqa: ANN401
    """A load of a closed loop of so many users."""
    known: dict[str, Any] = {
        "label": "",
        "sessions": (session(),),
        "judgements": (),
        "load": {} if users is None else {"load": "closed loop", "concurrency": str(users)},
        "server": {},
    }
    return MeasuredRun(nodeid, nodeid.partition("::")[2], RunResult(**{**known, **fields}))


def rows(*judgements: Judgement) -> list[tuple[str, Row]]:
    """The rows of a test with these judgements, in their order."""
    return [("t", row) for row in rows_of(result_of("a.py::t", *judgements))]


# -- numbers


def test_what_is_no_number_leaves_a_gap() -> None:
    """None, NaN and infinity are gaps, never 0; what is a number keeps five digits."""
    assert numbers([None, float("nan"), float("inf"), 0.0, 1.23456789]) == [None, None, None, 0.0, 1.2346]
    assert number(None) is None


@pytest.mark.parametrize(
    ("values", "kind"), [([1.0, 5.0], None), ([1.0, 50.0], "log"), ([0.0, 50.0], None), ([], None)]
)
def test_an_axis_is_of_logarithms_where_values_lie_far_apart(values: list[float], kind: str | None) -> None:
    """And never where one of them is 0, of which there is no logarithm."""
    assert shared_axis("t", "s", values).get("type") == kind


@pytest.mark.parametrize(
    ("values", "ticks"),
    [
        (
            [0.004, 0.03],
            ["1.00 ms", "2.00 ms", "5.00 ms", "10.0 ms", "20.0 ms", "50.0 ms", "100 ms", "200 ms", "500 ms"],
        ),
        ([0.01], ["10.0 ms", "20.0 ms", "50.0 ms"]),
        ([1e-5, 10.0], ["10.0 us", "100 us", "1.00 ms", "10.0 ms", "100 ms", "1.00 s", "10.0 s"]),
    ],
)
def test_an_axis_of_logarithms_has_ticks_with_units(values: list[float], ticks: list[str]) -> None:
    """Between powers of ten too, where there is room."""
    made = log_axis("t", "s", values)
    assert made["ticktext"] == ticks
    assert len(made["tickvals"]) == len(ticks)


# -- forest


@pytest.mark.parametrize(
    ("metric", "change", "worse", "tolerated"),
    [("throughput", -0.2, 0.2, 0.05), ("latency.p50", 0.2, 0.2, 0.05), ("throughput", 0.1, -0.1, 0.05)],
)
def test_worse_is_to_the_right(metric: str, change: float, worse: float, tolerated: float) -> None:
    """Whether more or less is better, a change for the worse is drawn right of 0, with its interval and tolerance."""
    made = Judgement(
        METRICS[metric],
        Verdict.REGRESSED,
        "baseline",
        value=1.0,
        reference=1.0,
        change=change,
        interval=(change - 0.01, change + 0.03),
        tolerance=0.05,
    )
    found = forest(rows(made))
    assert found is not None
    tolerance, estimate, label = found.traces
    assert estimate["x"] == [pytest.approx(worse)]
    low, high = (estimate["error_x"][name][0] for name in ("arrayminus", "array"))
    assert (low, high) == pytest.approx((0.03, 0.01) if metric == "throughput" else (0.01, 0.03))
    assert tolerance["x"] == [pytest.approx(tolerated)]
    assert metric in label["text"][0]
    reach = found.layout["xaxis"]["range"][1]
    assert reach > abs(worse)


def test_a_change_without_an_interval_has_no_error_bar() -> None:
    """A bar of no length would say that the change is known exactly."""
    made = replace(judgement(), interval=None)
    found = forest(rows(made))
    assert found is not None
    assert not any("error_x" in trace for trace in found.traces)
    assert any(trace.get("marker", {}).get("symbol") == "circle-open" for trace in found.traces)


def test_a_verdict_has_its_colour() -> None:
    """Each verdict is a trace of its own, named by it."""
    found = forest(rows(judgement(Verdict.REGRESSED), judgement(Verdict.PASS)))
    assert found is not None
    estimates = [trace for trace in found.traces if "error_x" in trace]
    assert [trace["name"] for trace in estimates] == ["REGRESSED", "PASS"]
    assert len({trace["marker"]["color"] for trace in estimates}) == 2


def test_what_was_settled_otherwise_is_not_drawn() -> None:
    """Of a stored verdict that was settled side by side only the last word stands in the plot."""
    settled = judgement(Verdict.PASS, kind="against", reasons=("settled",))
    found = forest(rows(judgement(), settled))
    assert found is not None
    assert [trace["name"] for trace in found.traces if "error_x" in trace] == ["PASS"]


def test_what_was_not_asserted_is_told_apart() -> None:
    """A metric that the test did not come to has no verdict's colour."""
    found = forest(rows(judgement(), judgement(metric="latency.p50").unasserted()))
    assert found is not None
    estimates = [trace for trace in found.traces if "error_x" in trace]
    assert [trace["name"] for trace in estimates] == ["REGRESSED", "not asserted"]
    assert estimates[1]["marker"]["color"] == QUIET


def test_limits_and_unknown_changes_are_left_to_the_table() -> None:
    """They are counted in a note, and drawn nowhere."""
    found = forest(rows(judgement(), judgement(Verdict.MISSING), judgement(Verdict.PASS, kind="limit")))
    assert found is not None
    assert len(found.traces[-1]["y"]) == 1
    assert found.notes[-1].startswith("2 without a known change")
    assert forest(rows(judgement(Verdict.MISSING))) is None


# -- throughput against p99


def test_points_of_a_test_are_labelled_by_users() -> None:
    """Parameters of one test make a line, in the order of its users."""
    found = throughput([run_of("a.py::t[16]", 16), run_of("a.py::t[8]", 8)], TEXTS)
    assert found is not None
    (trace,) = found.traces
    assert trace["text"] == ["c=8", "c=16"]
    assert "lines" in trace["mode"]
    assert trace["y"] == [pytest.approx(0.010, rel=1e-3)] * 2


def test_points_are_labelled_by_batch_where_users_do_not_differ() -> None:
    """As of a sweep over batch sizes at one user."""
    small, large = (session(start(window(items=size * 10, batches=10))) for size in (1, 4))
    found = throughput([run_of("a.py::t[1]", 1, sessions=(small,)), run_of("a.py::t[4]", 1, sessions=(large,))], TEXTS)
    assert found is not None
    assert found.traces[0]["text"] == ["b=1.00", "b=4.00"]


def test_a_stepped_load_is_a_line_of_its_steps() -> None:
    """Each step of users is a point."""
    stepped = session(Start((window(), window((0.02,) * 5)), None))
    run = run_of(users=None, sessions=(stepped,), load={"load": "stepped users", "steps": "1 for 0.5 s, 20 for 0.5 s"})
    found = throughput([run], TEXTS)
    assert found is not None
    assert found.traces[0]["text"] == ["c=1", "c=20"]
    assert found.traces[0]["x"] == [20.0, 10.0]


@pytest.mark.parametrize("steps", ["", "many", "1 for x s", "1 for 0.1 s, 2 for 0.1 s", "1 for 1.1.1 s", "1 for 0 s"])
def test_steps_that_cannot_be_divided_are_one_load(steps: str) -> None:
    """A text of another form, or windows that are too long, make the load a single point."""
    found = throughput([run_of(users=None, load={"steps": steps})], TEXTS)
    assert found is not None
    assert len(found.traces[0]["x"]) == 1


@pytest.mark.parametrize("text", ["", "x", "-1", "1e3", "٣", "9" * 5000])
def test_a_number_of_users_that_is_none_is_not_known(text: str) -> None:
    """What a load says of itself is text."""
    assert run_of(load={"concurrency": text}).users is None


def test_many_tests_share_a_quiet_colour() -> None:
    """The legend stays short; every load is drawn."""
    found = throughput([run_of(f"a.py::t{place}") for place in range(20)], TEXTS)
    assert found is not None
    assert found.traces[-1]["name"] == "further tests"
    assert sum(len(trace["x"]) for trace in found.traces) == 20


def test_no_answer_is_no_point() -> None:
    """A load that answered nothing has no throughput of 0."""
    assert throughput([run_of(sessions=(session(start(window(()))),))], TEXTS) is None


# -- components


def test_components_are_stacked_over_users() -> None:
    """Seven parts a bar, together the mean latency, and the throughput beside them."""
    runs = [run_of(f"a.py::t[{users}]", users, sessions=(rich_session(Speeds(), users),)) for users in (16, 8)]
    (found,) = components(runs, TEXTS)
    assert found.title == "Latency by component: t"
    *bars, line = found.traces
    assert len(bars) == 7
    assert found.layout["xaxis"]["ticktext"] == ["8", "16"]
    summary = runs[1].summary
    assert summary is not None
    assert sum(bar["y"][0] for bar in bars) == pytest.approx(summary.mean, rel=1e-3)
    assert line["y"] == [pytest.approx(summary.throughput, rel=1e-3)] * 2
    assert found.layout["barmode"] == "relative"


def test_a_load_whose_parts_are_not_known_has_no_bar() -> None:
    """A server that does not count by request: nothing is drawn, rather than a bar of 0."""
    assert components([run_of()], TEXTS) == []


def test_single_loads_share_a_plot() -> None:
    """Tests of one number of users are bars beside each other, also where they have one name."""
    runs = [run_of(name, 8, sessions=(rich_session(Speeds(), 8),)) for name in ("a.py::t", "b.py::t")]
    (found,) = components(runs, TEXTS)
    assert found.title == "Latency by component"
    assert found.traces[0]["x"] == [0, 1]


# -- use


def test_cards_and_processors_have_panels() -> None:
    """What is known of a card is drawn with its spread, and the card has no name that tells which one it is."""
    panels = {panel.title: panel for panel in use([run_of(sessions=(rich_session(Speeds(), 8),))])}
    (trace,) = panels["GPU utilisation: mean, least and most"].traces
    assert trace["name"] == "card 1"
    assert trace["y"] == [0.28]
    assert trace["error_y"]["array"] == [pytest.approx(0.05)]
    cores = {trace["name"]: trace["y"] for trace in panels["CPU cores in use"].traces}
    assert cores == {"server": [2.5], "load engine": [0.1], "others, at most": [0.2]}
    assert UUID not in "".join(panel.to_json() for panel in panels.values())


def test_what_nobody_looked_at_has_no_panel() -> None:
    """Without telemetry there is no panel of cards, and no server's cores of 0."""
    (panel,) = use([run_of()])
    assert panel.title == "CPU cores in use"
    assert [trace["name"] for trace in panel.traces] == ["load engine", "others, at most"]
    assert use([]) == []


# -- distribution


def test_a_tail_ends_at_the_slowest() -> None:
    """It begins with all requests, falls all the way, and its last share is above 0."""
    points = tail(histogram([0.001 * place for place in range(1, 2001)]))
    seconds, shares = zip(*points, strict=True)
    assert seconds[0] == pytest.approx(0.001, rel=1e-3)
    assert seconds[-1] == pytest.approx(2.0, rel=1e-3)
    assert shares[0] == 1
    assert shares[-1] == pytest.approx(1 / 2000)
    assert list(shares) == sorted(shares, reverse=True)
    assert len(points) <= 2 * STEPS + 2


@pytest.mark.parametrize("latencies", [[0.01], [0.01] * 5, [0.01, 0.02]])
def test_a_tail_of_few_requests(latencies: list[float]) -> None:
    """One latency is one point."""
    assert len(tail(histogram(latencies))) == len(set(latencies))
    assert tail(histogram([])) == []


def test_base_and_candidate_are_drawn_together() -> None:
    """The base is there to be compared with; alone, a load is drawn alone."""
    beside = distribution(run_of(base="HEAD~1", base_sessions=(session(),)), TEXTS)
    alone = distribution(run_of(), TEXTS)
    assert beside is not None
    assert alone is not None
    assert [trace["name"] for trace in beside.traces] == ["base: HEAD~1", "base: HEAD~1", "now", "now"]
    assert [trace["name"] for trace in alone.traces] == ["now", "now"]
    quantiles = alone.traces[1]
    assert quantiles["y"] == [0.5, 0.1, 0.05, 0.01]


# -- windows


def test_windows_lie_where_they_were_measured() -> None:
    """Each at its time, start after start, and where windows were thrown away there is a shade."""
    run = run_of(sessions=(rich_session(Speeds(), 8, starts=2, windows=6),))
    found = windows(run, TEXTS)
    assert found is not None
    rate = found.traces[0]
    # A second without a window, after the third: no line goes over it.
    assert [place for place, time in enumerate(rate["x"][:8]) if time is None] == [3, 7]
    first = [time for time in rate["x"][:7] if time is not None]
    assert first == sorted(first)
    assert first[3] - first[2] == pytest.approx(1.5, rel=0.05)
    shades = [shape for shape in found.layout["shapes"] if shape["type"] == "rect"]
    assert len(shades) == 2
    assert shades[0]["x1"] - shades[0]["x0"] == pytest.approx(1.0)
    assert "4 windows were thrown away and measured again:" in found.notes
    assert "2 windows were cut off the front: not steady yet" in found.notes


def test_windows_without_a_clock_follow_each_other() -> None:
    """Those that were remembered have lost their time: they stand in their order, and nothing is shaded."""
    found = windows(run_of(sessions=(session(start(window(), window())),)), TEXTS)
    assert found is not None
    assert found.traces[0]["x"] == [0.25, 0.75, None]
    assert found.layout["shapes"] == []


def test_starts_side_by_side_stand_above_each_other() -> None:
    """The base's first start begins where the candidate's does, and the second pair behind both."""
    pair = (session(start(window()), start(window())),)
    found = windows(run_of(sessions=pair, base="HEAD~1", base_sessions=pair), TEXTS)
    assert found is not None
    base, now = found.traces[:2]
    assert base["x"] == now["x"] == [0.25, None, 0.75 + BETWEEN_SECONDS, None]


def test_clocks_are_drawn_where_they_are_known() -> None:
    """A window without a clock is a gap in its line."""
    clocked = replace(window(), cards=CardUse(sm_clock_mhz=1410.0))
    found = windows(run_of(sessions=(session(start(clocked, window())),)), TEXTS)
    assert found is not None
    assert found.traces[2]["y"] == [1410.0, None, None]
    bare = windows(run_of(), TEXTS)
    assert bare is not None
    assert len(bare.traces) == 2
    assert windows(run_of(sessions=()), TEXTS) is None


def test_a_window_without_an_answer_has_no_p99() -> None:
    """Its throughput is 0, for it was measured, and its latency is a gap."""
    found = windows(run_of(sessions=(session(start(window(()), window())),)), TEXTS)
    assert found is not None
    rate, p99 = found.traces
    assert rate["y"][0] == 0
    assert p99["y"][0] is None


# -- batches


def test_batch_sizes_are_in_their_order() -> None:
    """By number, not by letter, and what has no upper end comes last."""
    sized = replace(session(), batch_sizes={"16": 1, "2": 3, "inf": 1, "x": 1, "nan": 2})
    found = batches(run_of(sessions=(sized,)), TEXTS)
    assert found is not None
    assert found.layout["xaxis"]["ticktext"] == ["2", "16", "inf", "nan", "x"]
    assert found.traces[0]["y"] == [0.375, 0.125, 0.125, 0.25, 0.125]
    assert batches(run_of(sessions=(replace(session(), batch_sizes={}),)), TEXTS) is None


# -- history


def test_levels_end_at_change_points() -> None:
    """Each stretch has its median, and a line stands before the first value of the next."""
    points = tuple(LinePoint(f"c{place}", value, note="n") for place, value in enumerate((1.0, 1.2, 5.0, 5.2, 5.4)))
    found = history(MetricLine("m", "1/s", points, (2,)), TEXTS)
    values, levels = found.traces
    assert values["y"] == [1.0, 1.2, 5.0, 5.2, 5.4]
    assert levels["x"] == [0, 1, None, 2, 4, None]
    assert levels["y"] == [1.1, 1.1, None, 5.2, 5.2, None]
    assert [shape["x0"] for shape in found.layout["shapes"]] == [1.5]
    assert found.notes == ("a new level begins with: c2",)


def test_bounds_are_drawn_where_both_are_known() -> None:
    """A value of which they are not known has no bar, also beside one that has; a bound of 0 is one."""
    points = (LinePoint("a", 1.0, 0.0, 1.5), LinePoint("b", 2.0, None, 3.0), LinePoint("c", 2.0))
    bounds = history(MetricLine("m", "", points), TEXTS).traces[0]
    assert bounds["x"] == [0]
    assert (bounds["error_y"]["arrayminus"], bounds["error_y"]["array"]) == ([1.0], [0.5])
    assert len(history(MetricLine("m", "", points[1:]), TEXTS).traces) == 1
