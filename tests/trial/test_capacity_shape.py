"""What a test may ask of a search, and what it holds of one."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any, cast

import pytest

from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.load.driver import check_users, most_under_way
from pytest_gpuserve.load.engine.loop import OWN_FILES
from pytest_gpuserve.load.progress import ANY_WIDTH, Standing, progress_line
from pytest_gpuserve.load.schedule import Closed, Constant, Poisson
from pytest_gpuserve.load.source import LOCAL
from pytest_gpuserve.load.totals import Totals
from pytest_gpuserve.load.wire import Tick
from pytest_gpuserve.measure.points import NotMeasured
from pytest_gpuserve.servers.command import CommandServer
from pytest_gpuserve.trial.assertions import Judge, Run
from pytest_gpuserve.trial.capacity.run import CapacityRun
from pytest_gpuserve.trial.capacity.shape import SearchShape, check_searchable, search_shape
from pytest_gpuserve.trial.handle import ServerHandle, Target
from tests.support.builders import session


def shape(**arguments: Any) -> SearchShape:  # noqa: ANN401 -- wrong types too
    """The shape of a call of ``load.capacity`` with these arguments."""
    usual: dict[str, Any] = {
        "precision": 0.05,
        "arrivals": "poisson",
        "seconds": None,
        "warmup_seconds": 1.0,
        "starts": 2,
        "timeout": None,
        "processes": 1,
        "seed": 0,
        "check": "some",
        "allowed_errors": 0.0,
        "source": LOCAL,
    }
    objectives = {name: arguments.pop(name, None) for name in ("p50", "p90", "p95", "p99")}
    return search_shape(objectives, **{**usual, **arguments})


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({}, "takes one latency objective of p50, p90, p95, p99"),
        ({"p99": 0.05, "p50": 0.01}, "takes one latency objective"),
        *(({"p99": wrong}, r"p99=...\) is a latency") for wrong in (0, -1.0, "50 ms", True, float("nan"))),
        ({"p99": 3.1}, r"p99=...\) is a latency of 0.00001 to 3 seconds, not 3.1"),
        ({"p99": 0.05, "precision": 0}, r"precision=...\) is a fraction"),
        ({"p99": 0.05, "precision": None}, r"precision=...\) is a fraction"),
        ({"p99": 0.05, "arrivals": "bursty"}, "is 'poisson' or 'constant'"),
        ({"p99": 0.05, "seconds": 0.5}, "is a number of seconds for each rate"),
        ({"p99": 0.05, "seconds": float("inf")}, "is a number of seconds for each rate"),
        ({"p99": 0.05, "starts": 1}, "two fresh starts at least"),
        ({"p99": 0.05, "timeout": 0.01}, "more time than the objective"),
        ({"p99": 0.05, "allowed_errors": 1}, "is a share of the requests"),
        ({"p99": 0.05, "processes": "2"}, "is a whole number"),
        ({"p99": 0.05, "processes": 0}, "one engine at least"),
        ({"p99": 0.05, "warmup_seconds": 0}, "is a number of seconds above 0"),
    ],
)
def test_a_wrong_argument_is_told(arguments: dict[str, Any], told: str) -> None:
    """Each mistake is named by its argument, before a server is started."""
    with pytest.raises(UsageProblem, match=told):
        shape(**arguments)


def test_the_objective_is_a_part_of_the_workload() -> None:
    """Objective, arrivals, starts and allowed errors are; how closely and how long it is searched is not."""
    words = shape(p99=0.05).workload()
    assert words == {"load": "capacity, poisson arrivals", "objective": "p99 <= 0.05 s", "starts": "2"}
    assert shape(p99=0.05, precision=0.02, seconds=60, processes=2, warmup_seconds=3.0).workload() == words
    for other in ({"p99": 0.04}, {"p95": 0.05}, {"p99": 0.05, "arrivals": "constant"}, {"p99": 0.05, "starts": 3}):
        assert shape(**other).workload() != words
    assert shape(p99=0.05, allowed_errors=0.01).workload() == {**words, "allowed_errors": "0.01"}


def test_each_rate_is_an_open_loop_with_a_bound() -> None:
    """So many may be under way that the bound is beyond all that meets the objective."""
    assert shape(p99=0.05).at(1000.0) == Poisson(1000.0, max_in_flight=400)
    assert shape(p99=0.05).at(10.0) == Poisson(10.0, max_in_flight=256)
    assert shape(p99=0.05, arrivals="constant").at(10.0) == Constant(10.0, max_in_flight=256)
    assert shape(p99=0.05, processes=32).schedule == Closed(32)


def test_the_bound_is_not_beyond_the_limit_on_open_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which would end the search after minutes; each process has files of its own."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 1024))
    for processes in (1, 2):
        asked = shape(p99=1.0, processes=processes)
        found = asked.at(10_000.0)
        check_users(found, processes)
        assert most_under_way(found) == processes * (1024 - OWN_FILES)
        assert asked.in_flight_at(10_000.0) == 80_000
    assert shape(p99=0.05).at(10.0) == Poisson(10.0, max_in_flight=256)


def test_a_search_has_users_and_time_enough() -> None:
    """A user for each replica, and 16 at least; ten seconds for a request, or four times as long as the objective."""
    assert [shape(p99=0.05).for_users(users).schedule for users in (20, 3)] == [Closed(20), Closed(16)]
    assert [shape(p99=0.05).timeout_seconds, shape(p99=3).timeout_seconds] == [10.0, 12.0]
    assert shape(p99=0.05, timeout=1).timeout_seconds == 1


def test_a_search_is_asked_for_nothing_else() -> None:
    """What it does not measure is refused by name; a typing mistake lists what there is; and it is no truth itself.

    Of starts that were not searched, or found nothing, there is no interval.
    """
    run = CapacityRun(Run("", cast("Judge", None), [session()]))
    for name in (
        "throughput",
        "latency",
        "batching_ratio",
        "gpu_memory",
        "energy_per_inference",
        "replicas",
        "summary",
    ):
        with pytest.raises(UsageProblem, match=rf"load\.capacity\(\.\.\.\) has no {name}"):
            getattr(run, name)
    with pytest.raises(UsageProblem, match="neither true nor false"):
        bool(run)
    with pytest.raises(AttributeError, match="it has capacity, cold_start, interval and searches"):
        run.capasity  # noqa: B018 -- to ask is the test
    with pytest.raises(NotMeasured, match="capacity is not known of every start"):
        run.interval  # noqa: B018 -- to ask is the test


def test_shared_memory_is_refused() -> None:
    """How many requests are under way is not known beforehand, and each takes a lane."""
    handle = ServerHandle(CommandServer(("x", "{port}"), Path(), "x", "python"), cast("Any", None))
    target = handle.post("/", body=b"x")
    check_searchable(target)
    shared = Target(handle, target.requests, sharing=cast("Any", object()))
    with pytest.raises(UsageProblem, match="shared memory"):
        check_searchable(shared)


def test_the_progress_line_says_what_is_tried() -> None:
    """The rate and the interval so far stand in it, whole or not at all."""
    tick = Tick(0, 0, 100_000_000, requests=80)
    standing = Standing(test="test_a", probe="trying 812/s of 750/s .. 900/s")
    assert "trying 812/s of 750/s .. 900/s  800/s" in progress_line(Totals(), tick, 3.0, ANY_WIDTH, standing)
    assert progress_line(Totals(), tick, 3.0, 20, standing) == "800/s"
