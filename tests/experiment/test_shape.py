"""Options of a load, with its warm-up, its end, and its identity in a baseline."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.experiment.shape import WINDOW_SECONDS, LoadShape, schedule_of, windows_wanted
from pytest_gpuserve.load.schedule import Burst, Closed, Constant, Gamma, Objectives, Poisson, Schedule, Steps, Trace
from pytest_gpuserve.load.validity import LATENCIES_LONG
from pytest_gpuserve.measure.steady import truncate
from tests.support.builders import window

STEPS = Steps(((3, 1.0), (5, 2.0)))
TRACE = Trace(((0.0, 0), (1.0, 2)))


def test_different_loads_are_different_workloads() -> None:
    """A workload differs if the server sees a difference; the measured time does not count."""
    assert LoadShape(schedule_of(50, None)).workload() == {"load": "closed loop", "concurrency": "50", "starts": "2"}
    kinds: list[Schedule] = [Constant(5), Poisson(5), Poisson(5, max_in_flight=9), Gamma(5, 2), STEPS, TRACE, Burst(5)]
    shapes = [
        *map(LoadShape, kinds),
        LoadShape(Trace(((0.0, 0), (1.0, 1)))),
        LoadShape(Closed(5)),
        LoadShape(Closed(5, think_seconds=0.1)),
        LoadShape(Poisson(5), seed=1),
        LoadShape(Poisson(5, max_in_flight=9), processes=2),
        LoadShape(Closed(5), allowed_errors=0.01),
        LoadShape(Closed(5), starts=3),
    ]
    assert len({tuple(sorted(shape.workload().items())) for shape in shapes}) == len(shapes)
    assert LoadShape(Closed(5), seconds=9, warmup_seconds=9).workload() == LoadShape(Closed(5)).workload()


@pytest.mark.parametrize(
    ("schedule", "warmup"),
    [(Closed(5), Closed(5)), (Poisson(5), Poisson(5)), (STEPS, Closed(3)), (TRACE, Closed(1)), (Burst(9), Closed(1))],
)
def test_what_is_measured_as_a_whole_is_warmed_up_by_users_before_it(schedule: Schedule, warmup: Schedule) -> None:
    """Anything else is its own warm-up."""
    assert LoadShape(schedule).warmup == warmup


def test_a_trace_may_only_name_requests_that_there_are() -> None:
    """The error says how several are given."""
    LoadShape(TRACE).check_target(3, is_stream=False)
    with pytest.raises(UsageProblem, match="names request 2") as caught:
        LoadShape(TRACE).check_target(2, is_stream=False)
    assert "server.rotate" in str(caught.value)
    LoadShape(Burst(9)).check_target(1, is_stream=False)


def test_only_users_converse() -> None:
    """Requests with turns are refused if the load does not wait for answers."""
    for shape in (LoadShape(Poisson(5)), LoadShape(Trace(((0.0, 0),))), LoadShape(Burst(9))):
        with pytest.raises(UsageProblem, match=r"of requests with turns[\s\S]*concurrency=16"):
            shape.check_target(3, is_stream=True, has_turns=True)
    for users in (Closed(5), STEPS):
        LoadShape(users).check_target(3, is_stream=True, has_turns=True)


@pytest.mark.parametrize("end", [{"requests": 5}, {"until": len}, {"seconds": 5.0}])
@pytest.mark.parametrize("schedule", [STEPS, TRACE, Burst(9)])
def test_what_ends_by_itself_takes_no_other_end(schedule: Schedule, end: dict[str, Any]) -> None:
    """Another end would have no effect, so it is refused."""
    with pytest.raises(UsageProblem, match=f"{next(iter(end))}=.*has no effect: a {type(schedule).__name__}"):
        LoadShape(schedule, **end)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"starts": 1}, "starts=...) must be a whole number of at least 2"),
        ({"starts": 2.0}, "starts=...) must be a whole number"),
        ({"processes": 0}, "processes=...) must be a whole number of at least 1"),
        ({"seed": "x"}, "seed=...) must be a whole number"),
        ({"check": "most"}, "'all' or 'some'"),
        ({"seconds": 0}, "seconds=...) must be a number"),
        ({"warmup_seconds": float("nan")}, "warmup_seconds=...) must be a number"),
        ({"timeout_seconds": -1}, "timeout=...) must be a number"),
        ({"allowed_errors": 1.0}, "allowed_errors=...) must be a share"),
        ({"requests": 0}, "requests=...) must be a whole number"),
        ({"until": 5}, "until=...) must be a function"),
        ({"requests": 5, "until": len}, "one of them"),
        ({"goodput": 0.2}, "goodput=...) must be Objectives(ttft=200 * ms)"),
        ({"schedule": Closed(10**7)}, "ulimit"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, Any], words: str) -> None:
    """Before anything is started, in words that name the argument."""
    with pytest.raises(UsageProblem) as caught:
        LoadShape(**{"schedule": Closed(5), **arguments})
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("concurrency", "schedule", "words"),
    [
        (None, None, "takes either concurrency=... or schedule=..."),
        (4, Poisson(9), "takes either concurrency=... or schedule=..."),
        (0, None, "whole number of users, not 0"),
        (None, "poisson", "must be a schedule of pytest_gpuserve.load, not 'poisson'"),
    ],
)
def test_a_load_has_one_schedule(concurrency: int | None, schedule: Any, words: str) -> None:  # noqa: ANN401 -- also wrong ones
    """Both, none, and what is not a schedule are refused in words."""
    with pytest.raises(UsageProblem) as caught:
        schedule_of(concurrency, schedule)
    assert words in str(caught.value)


def test_objectives_are_of_the_workload_and_those_of_streams_need_some() -> None:
    """To the last digit; a load without any has the workload that it always had."""
    one, other = (LoadShape(Closed(1), goodput=Objectives(ttft=ttft)) for ttft in (0.2, 0.2001))
    assert one.workload()["goodput"] == "ttft <= 0.2 s"
    assert one.workload() != other.workload()
    assert "goodput" not in LoadShape(Closed(1)).workload()
    one.check_target(1, is_stream=True)
    LoadShape(Closed(1), goodput=Objectives(latency=1)).check_target(1, is_stream=False)
    with pytest.raises(UsageProblem, match=r"stream=True"):
        one.check_target(1, is_stream=False)


@pytest.mark.parametrize("wrong", [{}, {"ttft": 0}, {"tpot": "1"}, {"latency": float("nan")}, {"ttft": -1.0}])
def test_objectives_are_numbers_above_0_and_one_at_least(wrong: dict[str, Any]) -> None:
    """The error names the argument."""
    with pytest.raises(UsageProblem, match=rf"Objectives\({next(iter(wrong), '')}"):
        Objectives(**wrong)


# -- how long a start is measured

SHORT = LoadShape(Closed(8), seconds=4.0)


def test_littles_law_is_asked_of_what_is_left() -> None:
    """If windows were cut off, the rest has to be long enough for the latencies, not the whole."""
    windows = [window((0.16,) * requests) for requests in (10, 40, *[100] * 6)]
    discard = truncate([each.throughput for each in windows]).discard
    assert discard == 2
    kept_seconds = (windows_wanted(windows, SHORT) - discard) * WINDOW_SECONDS
    assert kept_seconds == pytest.approx(LATENCIES_LONG * 0.16, abs=WINDOW_SECONDS)
    assert kept_seconds >= LATENCIES_LONG * 0.16


def test_an_unsteady_start_is_doubled_and_then_goes_on_to_its_end() -> None:
    """A start that still changes gets twice its time, and then all that it may have; a steady one is long enough."""
    rising = [window((0.01,) * (100 + 20 * place)) for place in range(2 * SHORT.windows)]
    assert windows_wanted(rising[: SHORT.windows], SHORT) == 2 * SHORT.windows
    assert windows_wanted(rising, SHORT) == SHORT.most_windows > 2 * SHORT.windows
    assert windows_wanted([window((0.01,) * 100)] * SHORT.windows, SHORT) == SHORT.windows == 8


def test_a_quantile_gets_its_requests() -> None:
    """The start gets windows for the missing requests at this rate; a number out of reach is ignored."""
    shape = LoadShape(Closed(8), seconds=4.0, requests_wanted=(105, 10_000))
    assert windows_wanted([window((0.01,) * 10)] * 8, shape) == 11
