"""A search for a capacity: what a test may ask of it, and that its starts are the server under its load alone."""

from __future__ import annotations

import re
import resource
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec
import pytest

from pytest_gpuserve.comparison.assertions import CapacityRun
from pytest_gpuserve.errors import LoadFailed, UsageProblem
from pytest_gpuserve.experiment.capacity.planning import BELOW
from pytest_gpuserve.experiment.capacity.shape import (
    LONGEST_OBJECTIVE,
    SearchShape,
    check_searchable,
    search_shape,
)
from pytest_gpuserve.experiment.capacity.start import _answered
from pytest_gpuserve.experiment.handle import ServerHandle, Target
from pytest_gpuserve.gate.reason import Reason, ReasonKind
from pytest_gpuserve.load.driver import check_users, most_under_way
from pytest_gpuserve.load.durations import Durations
from pytest_gpuserve.load.engine.loop import OWN_FILES
from pytest_gpuserve.load.progress import ANY_WIDTH, ProgressContext, progress_line
from pytest_gpuserve.load.schedule import Closed, Constant, Poisson
from pytest_gpuserve.load.source import LOCAL
from pytest_gpuserve.load.totals import Totals
from pytest_gpuserve.load.wire import Tick
from pytest_gpuserve.measure.capacity import SAMPLES, Objective, ProbeOutcome
from pytest_gpuserve.measure.histogram import bucket_of
from pytest_gpuserve.measure.objectives import Objectives
from pytest_gpuserve.measure.points import NotMeasured
from pytest_gpuserve.servers.command import CommandServer
from tests.comparison.vocabulary import a_run, cases
from tests.fakes.simulated_deployment import Deployment, search_deployment
from tests.fakes.simulated_queue import Queue, streams
from tests.support.reasons import said

if TYPE_CHECKING:
    from pytest_gpuserve.measure.capacity import Search
    from pytest_gpuserve.measure.window import Start

QUEUE = Queue(lambda random: random.expovariate(100.0), workers=2)
"""Of two workers who can do 100 a second each."""

COMPILED = ReasonKind.COMPILED_UNDER_LOAD, ""
NOT_SHOWN, MISSED = (ReasonKind.OBJECTIVE_NOT_SHOWN, ""), (ReasonKind.OBJECTIVE_MISSED, "")


def replica(name: str) -> tuple[ReasonKind, str]:
    """What is wrong is one of several."""
    return ReasonKind.REPLICA, f"{name}:8000"


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


def short(**arguments: Any) -> SearchShape:  # noqa: ANN401 -- whatever a search takes
    """A short search."""
    return shape(**{"p90": 0.1, "precision": 0.5, "seconds": 2.4, "warmup_seconds": 0.5, **arguments})


def search_of(start: Start) -> Search:
    """Its search."""
    assert start.search is not None
    return start.search


# -- what a test may ask


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({}, "takes one objective of p50, p90, p95, p99"),
        ({"p99": 0.05, "p50": 0.01}, "takes one objective"),
        *(({"p99": wrong}, r"p99=...\) is a latency") for wrong in (0, -1.0, "50 ms", True, float("nan"))),
        ({"p99": 10.1}, r"p99=...\) is a latency of 0.00001 to 10 seconds, or Objectives of such times, not 10.1"),
        ({"p99": Objectives(ttft=11)}, r"p99=...\) is a latency of 0.00001 to 10 seconds"),
        ({"p99": Objectives(ttft=0.1), "p90": 1.0}, "takes one objective"),
        ({"p99": Objectives(ttft=0.1, tpot=0.2), "timeout": 0.15}, "more time than the objective"),
        *(({"p99": 0.05, "precision": wrong}, r"precision=...\) is a fraction") for wrong in (0, None)),
        ({"p99": 0.05, "arrivals": "bursty"}, "is 'poisson' or 'constant'"),
        *(({"p99": 0.05, "seconds": wrong}, "is a number of seconds for each rate") for wrong in (0.5, float("inf"))),
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
    several = shape(p99=Objectives(ttft=0.2, tpot=0.03))
    assert several.workload() == {**words, "objective": "99 % with ttft <= 0.2 s, tpot <= 0.03 s"}


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
    assert shape(p99=Objectives(tpot=0.01)).timeout_seconds == 4 * LONGEST_OBJECTIVE
    assert shape(p99=0.05, timeout=1).timeout_seconds == 1


def test_a_search_is_asked_for_nothing_else() -> None:
    """What it does not measure is refused by name; a typing mistake lists what there is; and it is no truth itself.

    Of starts that were not searched, or found nothing, there is no interval.
    """
    run = CapacityRun(a_run())
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
    """How many requests are under way is not known beforehand, and each takes a slot."""
    handle = ServerHandle(CommandServer(("x", "{port}"), Path(), "x", "python"), cast("Any", None))
    target = handle.post("/", body=b"x")
    check_searchable(target)
    shared = Target(handle, target.requests, sharing=cast("Any", object()))
    with pytest.raises(UsageProblem, match="shared memory"):
        check_searchable(shared)


def test_the_progress_line_says_what_is_tried() -> None:
    """The rate and the interval so far stand in it, whole or not at all."""
    tick = Tick(0, 0, 100_000_000, requests=80)
    standing = ProgressContext(test="test_a", probe="trying 812/s of 750/s .. 900/s")
    assert "trying 812/s of 750/s .. 900/s  800/s" in progress_line(Totals(), tick, 3.0, ANY_WIDTH, standing)
    assert progress_line(Totals(), tick, 3.0, 20, standing) == "800/s"


# -- starts that are searched


def test_a_sound_server_is_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Alone or as several replicas, counting or not, with nothing to be said against it."""
    for deployment in (Deployment((QUEUE,)), Deployment((QUEUE,) * 3), Deployment((QUEUE,) * 2, counts=True)):
        start, problems = search_deployment(deployment, short(), monkeypatch)
        assert problems == []
        assert 100 < (search_of(start).value or 0) / len(deployment.queues) < 220


@cases(
    "queues, state, asked, told, words",
    {
        # A fifth of all requests fail, and the others meet p50; there is no capacity of 5.
        "dead, of 5": (
            5,
            {"dead": frozenset({2})},
            (0.25, "p50"),
            [replica("host2"), NOT_SHOWN],
            "it answered nothing",
        ),
        # Among the requests of all its errors would be few enough.
        "failing": (5, {"failing": {3: 0.2}}, (0.08, "p90"), [replica("host3")], "8 % may: status 503"),
        # Each rate is missed: the replica is told before the objective.
        "dead, of 2": (
            2,
            {"dead": frozenset({1})},
            (0.0, "p90"),
            [replica("host1"), MISSED],
            "it answered nothing",
        ),
        "a third more answers than requests": (
            1,
            {"counts": True, "others": 0.33},
            (0.0, "p90"),
            [(ReasonKind.ANOTHER_CLIENT, "")],
            "",
        ),
        # The lowest rate that missed did so whenever it was tried, and each time models were compiled.
        "compiled": (1, {"counts": True, "compiles": 0}, (0.0, "p90"), [COMPILED], ""),
        "compiled much later": (1, {"counts": True, "compiles": 99}, (0.0, "p90"), [], ""),
    },
)
def test_what_is_wrong_with_a_server_is_told(  # noqa: PLR0917 -- columns of a table
    queues: int,
    state: dict[str, Any],
    asked: tuple[float, str],
    told: list[tuple[ReasonKind, str]],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Once and by its name; a server with a dead replica has no capacity, and problems are no beginning of the next."""
    allowed, objective = asked
    wanted = short(allowed_errors=allowed, **{"p90": None, objective: 0.1})
    start, problems = search_deployment(Deployment((QUEUE,) * queues, **state), wanted, monkeypatch)
    assert [(problem.kind, problem.about) for problem in problems] == told
    assert words in "".join(said(problems))
    if "dead" in state:
        assert search_of(start).value is None
    if problems:
        assert wanted.known.capacity is None


def test_how_long_an_answer_takes_is_what_its_objectives_allow_or_else_what_it_took() -> None:
    """By that a rate is looked at: of answers of 21 tokens that take 50 ms to the first and 300 ms in all."""
    seen = Totals(
        ttft=Durations({bucket_of(50_000_000): 4}, 200_000_000, 50_000_000),
        latency=Durations({bucket_of(300_000_000): 4}, 1_200_000_000, 300_000_000),
        with_usage=4,
        usage_tokens=84,
    )
    for asked, seconds in (
        (Objectives(ttft=0.2, tpot=0.03), 0.2 + 20 * 0.03),
        (Objectives(ttft=0.2), 0.2 + 0.25),
        (Objectives(tpot=0.03), 0.05 + 20 * 0.03),
        (Objectives(tpot=0.03, latency=0.5), 0.5),
    ):
        assert shape(p99=asked).for_answers(seen).objective.seconds == pytest.approx(seconds)
    assert shape(p99=0.05).for_answers(seen).objective == Objective(0.99, 0.05)


STREAMS = streams(100.0, tpot_seconds=0.010)


@cases(
    "asked, tokens, told",
    {
        "sound": (Objectives(ttft=0.1, tpot=0.05), 21, ""),
        "one of 2": (
            Objectives(ttft=0.1, tpot=0.05),
            None,
            "capacity is not known: .* do not say how many tokens they",
        ),
        "not asked": (Objectives(ttft=0.1), None, ""),
        "too long": (
            Objectives(ttft=0.1, tpot=0.05),
            1001,
            r"takes 50.1 s, and 10.0 s is the most",
        ),
    },
)
def test_streams_are_searched_by_what_they_say_of_themselves(
    asked: Objectives, tokens: int | None, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The capacity is that of answers that meet all; where their tokens are needed and not told, there is none."""

    def saying(_: int, __: object, tick: Tick) -> Tick:
        known = tick.requests if tokens else tick.requests // 2
        return msgspec.structs.replace(tick, with_usage=known, usage_tokens=known * (tokens or 1))

    start, problems = search_deployment(Deployment((STREAMS,), changed=saying), short(p90=asked), monkeypatch)
    if told:
        (problem,) = problems
        assert problem.kind is ReasonKind.NOT_MEASURED
        assert re.search(told, problem.text)
        return
    assert problems == []
    assert 50 < (search_of(start).value or 0) < 90


def test_a_disturbed_sample_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The capacity is made of samples: one in which a model was compiled is not the server's."""
    start, _ = search_deployment(Deployment((QUEUE,), counts=True), short(), monkeypatch)
    late = Deployment((QUEUE,), counts=True, compiles=len(search_of(start).probes) - 2)
    _, problems = search_deployment(late, short(), monkeypatch)
    assert [(problem.kind, problem.about) for problem in problems] == [COMPILED]


def test_a_later_start_is_searched_around_what_an_earlier_one_was_found_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """All copies of a shape know it; and the arrivals of a sample are those of the same one of the other start."""
    asked, earlier, later = short(), Deployment((QUEUE,)), Deployment((QUEUE,))
    first, _ = search_deployment(earlier, asked, monkeypatch)
    value = search_of(first).value
    assert value is not None
    assert asked.known.capacity == value
    second, problems = search_deployment(later, asked, monkeypatch)
    assert problems == []
    assert search_of(second).probes[0].rate == pytest.approx(value / BELOW)
    assert later.seeds[-SAMPLES:] == earlier.seeds[-SAMPLES:]
    assert len(set(later.seeds)) == len(later.seeds)
    assert short().known.capacity is None


def test_a_search_that_is_lost_is_a_problem_once_it_has_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that fails after something was measured makes it INVALID; before, it is an error of the test."""

    def searched(lost_at: int) -> list[Reason]:
        def lost(load: int, _: object, tick: Tick) -> Tick:
            if load == lost_at:
                raise LoadFailed("a load engine ended", found="killed by a test")
            return tick

        return search_deployment(Deployment((QUEUE,), changed=lost), short(), monkeypatch)[1]

    with pytest.raises(LoadFailed):
        searched(lost_at=1)
    text = "lost in mid-load: a load engine ended: killed by a test"
    assert searched(lost_at=4) == [Reason(ReasonKind.LOAD_LOST, text)]


def test_replicas_of_which_nothing_is_known_are_no_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where ticks do not tell whose requests they count."""
    deployment = Deployment((QUEUE,) * 2, changed=lambda _, __, tick: msgspec.structs.replace(tick, workers={}))
    _, problems = search_deployment(deployment, short(), monkeypatch)
    assert any(text.startswith("replicas: what each of the 2 did is not known") for text in said(problems))


def test_the_limit_on_open_files_is_the_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests that wait because of it do not make a rate the server's capacity."""

    def held(_: int, schedule: object, tick: Tick) -> Tick:
        many = isinstance(schedule, Poisson) and schedule.rate > 100
        return msgspec.structs.replace(tick, due=2 * tick.sent, held=tick.sent) if many else tick

    monkeypatch.setattr(resource, "getrlimit", lambda _: (60, 60))
    start, problems = search_deployment(Deployment((QUEUE,), changed=held), short(), monkeypatch)
    assert any("28 requests under way at most" in probe.client for probe in search_of(start).probes)
    (problem,) = problems
    assert problem.kind is ReasonKind.CAPACITY_OF_CLIENT
    assert "hard limit on open files" in problem.text
    assert any(probe.finding is ProbeOutcome.MISSED for probe in search_of(start).probes)


def test_the_first_guess_waits_for_answers() -> None:
    """For a few, and a second; not where requests fail."""
    nothing = [Tick(number, number * 10**8, (number + 1) * 10**8) for number in range(30)]
    assert not any(_answered(nothing[:count]) for count in range(1, 31))
    answers = Durations({bucket_of(10**9): 4}, 4 * 10**9, 10**9)
    answered = Tick(30, 30 * 10**8, 31 * 10**8, requests=4, latency=answers)
    assert _answered([*nothing, answered])
    assert not _answered([*nothing[:8], Tick(8, 8 * 10**8, 9 * 10**8, requests=4, latency=answers)])
    assert _answered([*nothing, Tick(30, 30 * 10**8, 31 * 10**8, errors={"refused": 1})])
