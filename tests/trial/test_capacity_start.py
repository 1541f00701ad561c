"""A start that is searched: that it is the server, with all its replicas, under its load alone."""

from __future__ import annotations

import resource
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from pytest_gpuserve.errors import LoadFailed
from pytest_gpuserve.load.schedule import Poisson
from pytest_gpuserve.load.source import LOCAL
from pytest_gpuserve.load.wire import Latencies, Tick
from pytest_gpuserve.measure.capacity import SAMPLES, Finding
from pytest_gpuserve.measure.histogram import bucket_of
from pytest_gpuserve.trial.capacity.planning import BELOW
from pytest_gpuserve.trial.capacity.shape import SearchShape, search_shape
from pytest_gpuserve.trial.capacity.start import _answered
from tests.fakes.simulated_deployment import Deployment, search_deployment
from tests.fakes.simulated_queue import Queue

if TYPE_CHECKING:
    from pytest_gpuserve.measure.capacity import Search
    from pytest_gpuserve.measure.window import Start

QUEUE = Queue(lambda random: random.expovariate(100.0), workers=2)
"""Of two workers who can do 100 a second each."""


NOT_SHOWN = "objective not shown to be met"


def shape(**arguments: Any) -> SearchShape:  # noqa: ANN401 -- whatever a search takes
    """A short search."""
    usual: dict[str, Any] = {
        "precision": 0.5,
        "arrivals": "poisson",
        "seconds": 2.4,
        "warmup_seconds": 0.5,
        "starts": 2,
        "timeout": None,
        "processes": 1,
        "seed": 0,
        "check": "some",
        "allowed_errors": 0.0,
        "source": LOCAL,
    }
    return search_shape({"p90": 0.1}, **{**usual, **arguments})


def search_of(start: Start) -> Search:
    """Its search."""
    assert start.search is not None
    return start.search


def test_a_sound_server_is_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Alone or as several replicas, counting or not, with nothing to be said against it."""
    for deployment in (Deployment((QUEUE,)), Deployment((QUEUE,) * 3), Deployment((QUEUE,) * 2, counts=True)):
        start, problems = search_deployment(deployment, shape(), monkeypatch)
        assert problems == []
        assert 100 < (search_of(start).value or 0) / len(deployment.queues) < 220


@pytest.mark.parametrize(
    ("deployment", "allowed", "told", "words"),
    [
        # 5 % of all requests fail, 6 % may, and the others meet p90; there is no capacity of 20.
        (Deployment((QUEUE,) * 20, dead=frozenset({7})), 0.06, ["replica host7", NOT_SHOWN], "it answered nothing"),
        # Among the requests of all its errors would be few enough.
        (Deployment((QUEUE,) * 10, failing={3: 0.4}), 0.08, ["replica host3"], "8 % may: status 503"),
        # Each rate is missed: the replica is told before the objective.
        (
            Deployment((QUEUE,) * 2, dead=frozenset({1})),
            0.0,
            ["replica host1", "objective missed"],
            "it answered nothing",
        ),
        # The server answered a third more than was sent to it.
        (Deployment((QUEUE,), counts=True, others=0.33), 0.0, ["another client"], ""),
        # The lowest rate that missed did so whenever it was tried, and each time models were compiled.
        (Deployment((QUEUE,), counts=True, compiles=0), 0.0, ["compiled under load"], ""),
        (Deployment((QUEUE,), counts=True, compiles=99), 0.0, [], ""),
    ],
    ids=["dead", "failing", "dead, where no error is allowed", "another client", "compiled", "compiled much later"],
)
def test_what_is_wrong_with_a_server_is_told(
    deployment: Deployment, allowed: float, told: list[str], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once and by its name; a server with a dead replica has no capacity, and problems are no beginning of the next."""
    asked = shape(allowed_errors=allowed)
    start, problems = search_deployment(deployment, asked, monkeypatch)
    assert [problem.split(":")[0] for problem in problems] == told
    assert words in "".join(problems)
    if deployment.dead:
        assert search_of(start).value is None
    if problems:
        assert asked.known.capacity is None


def test_a_disturbed_sample_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The capacity is made of samples: one in which a model was compiled is not the server's."""
    start, _ = search_deployment(Deployment((QUEUE,), counts=True), shape(), monkeypatch)
    late = Deployment((QUEUE,), counts=True, compiles=len(search_of(start).probes) - 2)
    _, problems = search_deployment(late, shape(), monkeypatch)
    assert [problem.split(":")[0] for problem in problems] == ["compiled under load"]


def test_a_later_start_is_searched_around_what_an_earlier_one_was_found_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """All copies of a shape know it; and the arrivals of a sample are those of the same one of the other start."""
    seeds: list[int] = []
    made = Deployment.ticks

    def told(self: Deployment, schedule: object, seed: int) -> Any:  # noqa: ANN401 -- ticks
        seeds.append(seed)
        return made(self, schedule, seed)

    monkeypatch.setattr(Deployment, "ticks", told)
    asked = shape()
    first, _ = search_deployment(Deployment((QUEUE,)), asked, monkeypatch)
    value = search_of(first).value
    assert value is not None
    assert asked.known.capacity == value
    of_first, seeds[:] = seeds[-SAMPLES:], []
    second, problems = search_deployment(Deployment((QUEUE,)), asked, monkeypatch)
    assert problems == []
    assert search_of(second).probes[0].rate == pytest.approx(value / BELOW)
    assert seeds[-SAMPLES:] == of_first
    assert len(set(seeds)) == len(seeds)
    assert shape().known.capacity is None


@pytest.mark.parametrize("lost_at", [1, 4])
def test_a_search_that_is_lost_is_a_problem_once_it_has_begun(lost_at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that fails after something was measured makes it INVALID; before, it is an error of the test."""
    made = Deployment.ticks

    def failing(self: Deployment, schedule: object, seed: int) -> Any:  # noqa: ANN401 -- ticks
        if self.loads + 1 == lost_at:
            raise LoadFailed("a load engine ended", found="killed by a test")
        yield from made(self, schedule, seed)

    monkeypatch.setattr(Deployment, "ticks", failing)
    if lost_at == 1:
        with pytest.raises(LoadFailed):
            search_deployment(Deployment((QUEUE,)), shape(), monkeypatch)
        return
    _, problems = search_deployment(Deployment((QUEUE,)), shape(), monkeypatch)
    assert problems == ["lost in mid-load: a load engine ended: killed by a test"]


def test_replicas_of_which_nothing_is_known_are_no_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where ticks do not tell whose requests they count."""
    deployment = Deployment((QUEUE,) * 2)
    monkeypatch.setattr("tests.fakes.simulated_deployment.together", lambda seen: next(iter(seen.values())))
    _, problems = search_deployment(deployment, shape(), monkeypatch)
    assert any(problem.startswith("replicas: what each of the 2 did is not known") for problem in problems)


def test_the_limit_on_open_files_is_the_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests that wait because of it do not make a rate the server's capacity."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (60, 60))
    made = Deployment.ticks

    def held(self: Deployment, schedule: object, seed: int) -> Any:  # noqa: ANN401 -- ticks
        many = isinstance(schedule, Poisson) and schedule.rate > 100
        for tick in made(self, schedule, seed):
            yield msgspec.structs.replace(tick, due=2 * tick.sent, held=tick.sent) if many else tick

    monkeypatch.setattr(Deployment, "ticks", held)
    start, problems = search_deployment(Deployment((QUEUE,)), shape(), monkeypatch)
    assert any("28 requests under way at most" in probe.client for probe in search_of(start).probes)
    (problem,) = problems
    assert "hard limit on open files" in problem
    assert any(probe.finding is Finding.MISSED for probe in search_of(start).probes)


def test_the_first_guess_waits_for_answers() -> None:
    """For a few, and a second; not where requests fail."""
    nothing = [Tick(number, number * 10**8, (number + 1) * 10**8) for number in range(30)]
    assert not any(_answered(nothing[:count]) for count in range(1, 31))
    answers = Latencies({bucket_of(10**9): 4}, 4 * 10**9, 10**9)
    answered = Tick(30, 30 * 10**8, 31 * 10**8, requests=4, latency=answers)
    assert _answered([*nothing, answered])
    assert not _answered([*nothing[:8], Tick(8, 8 * 10**8, 9 * 10**8, requests=4, latency=answers)])
    assert _answered([*nothing, Tick(30, 30 * 10**8, 31 * 10**8, errors={"refused": 1})])
