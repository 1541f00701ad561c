"""What a test may ask of a load, and what warms it up, ends it and stands for it in a baseline."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.experiment.shape import LoadShape, schedule_of
from pytest_gpuserve.load.schedule import Burst, Closed, Constant, Gamma, Poisson, Schedule, Steps, Trace

STEPS = Steps(((3, 1.0), (5, 2.0)))
TRACE = Trace(((0.0, 0), (1.0, 2)))


def test_different_loads_are_different_workloads() -> None:
    """Whatever changes what the server sees; how long one looks does not.

    Baselines that were recorded with ``concurrency=`` alone, before there were schedules, are of the same workload.
    """
    assert LoadShape(schedule_of(50, None)).workload() == {"load": "closed loop", "concurrency": "50", "starts": "2"}
    other = Trace(((0.0, 0), (1.0, 1)))
    schedules: list[Schedule] = [Constant(5), Poisson(5), Poisson(5, 9), Gamma(5, 2), STEPS, TRACE, other, Burst(5)]
    shapes = [
        *map(LoadShape, schedules),
        LoadShape(Closed(5)),
        LoadShape(Closed(5, 0.1)),
        LoadShape(Poisson(5), seed=1),
        LoadShape(Poisson(5, 9), processes=2),
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
    LoadShape(TRACE).check_payloads(3)
    with pytest.raises(UsageProblem, match="names request 2") as caught:
        LoadShape(TRACE).check_payloads(2)
    assert "server.rotate" in str(caught.value)
    LoadShape(Burst(9)).check_payloads(1)


@pytest.mark.parametrize("end", [{"requests": 5}, {"until": len}, {"seconds": 5.0}])
@pytest.mark.parametrize("schedule", [STEPS, TRACE, Burst(9)])
def test_what_ends_by_itself_takes_no_other_end(schedule: Schedule, end: dict[str, Any]) -> None:
    """It would have no say, and whoever gave it would think that it had."""
    with pytest.raises(UsageProblem, match=f"{next(iter(end))}=.*has no say: a {type(schedule).__name__}"):
        LoadShape(schedule, **end)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"starts": 1}, "two fresh starts at least"),
        ({"starts": 2.0}, "starts=...) is a whole number"),
        ({"processes": 0}, "one engine at least"),
        ({"seed": "x"}, "seed=...) is a whole number"),
        ({"check": "most"}, "'all' or 'some'"),
        ({"seconds": 0}, "seconds=...) is a number"),
        ({"warmup_seconds": float("nan")}, "warmup_seconds=...) is a number"),
        ({"timeout_seconds": -1}, "timeout=...) is a number"),
        ({"allowed_errors": 1.0}, "allowed_errors=...) is a share"),
        ({"requests": 0}, "requests=...) is a whole number"),
        ({"until": 5}, "until=...) is a function"),
        ({"requests": 5, "until": len}, "one of them"),
        ({"schedule": Closed(10**7)}, "ulimit"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, Any], words: str) -> None:
    """Before anything is started, in words that name the argument."""
    with pytest.raises(UsageProblem) as caught:
        LoadShape(**{"schedule": Closed(5), **arguments})
    assert words in str(caught.value)


def test_windows_and_their_bounds() -> None:
    """Half a second each: 4 s by default, four windows at least, three times as many at most, or fifteen."""
    assert [LoadShape(Closed(1)).windows, LoadShape(Closed(1), seconds=0.1).windows] == [8, 4]
    assert LoadShape(Closed(1)).most_windows == 24
    assert LoadShape(Closed(1), requests=5).most_windows == 120
