"""The first look at a load, and what the courts of one test know of its loads."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuserve.errors import NotInRevision
from pytest_gpuserve.trial.confirming import Unconfirmed, beside_commit
from pytest_gpuserve.trial.docket import Docket
from tests.support.builders import COMMIT
from tests.trial.court_world import SHAPE, World, target

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """A machine with a baseline of the load."""
    made = World(tmp_path)
    made.stand_in(monkeypatch)
    made.recorded()
    return made


def test_a_retry_goes_on_with_the_sessions_that_it_has(world: World) -> None:
    """What an earlier try of the test has measured of the same load is not measured again."""
    first = world.judge()
    first.measure(target(), SHAPE, None)
    measured = world.sessions
    run = world.judge(earlier=first).measure(target(), SHAPE, None)
    assert world.sessions == measured
    assert run.sessions == first.measurements[0].run.sessions
    other = world.judge(earlier=first).measure(target("other"), SHAPE, None)
    assert world.sessions == measured + 1
    assert other.sessions != run.sessions


def test_what_will_not_be_recorded_is_not_measured_to_its_end(world: World) -> None:
    """A recording takes all its sessions, but one on a host that others use is over with the first of them."""
    world.next_run(record_all=True, record_sessions=3)
    assert len(world.judge().measure(target(), SHAPE, None).sessions) == 3
    world.foreign_cores = 2 * world.policy.foreign_cores
    assert len(world.judge().measure(target(), SHAPE, None).sessions) == 1


def test_only_a_baseline_that_can_be_compared_with_tells_of_the_spread(world: World) -> None:
    """One of another workload says nothing of how far this one's starts lie apart."""
    for name, is_comparable in (("fake", True), ("other", False)):
        judge = world.judge()
        judge.measure(target(name), SHAPE, None)
        (measurement,) = judge.measurements
        stored = judge._case.ledger.find(measurement.place)
        assert stored is not None
        contest = judge._stored.contest_of(measurement, stored)
        assert (contest.stored is not None) is is_comparable
        assert (contest.nodeid, contest.requests_wanted) == (judge.nodeid, judge._case.requests_wanted)


def test_the_budget_is_that_of_all_loads_of_a_test(world: World) -> None:
    """What one has taken the others do not have."""
    world.policy = replace(world.policy, budget_seconds=100.0)
    judge = world.judge()
    assert judge._case.left_seconds == 100.0
    judge.measure(target(), SHAPE, None)
    judge.measure(target(), SHAPE, "again")
    assert judge._case.left_seconds == 100.0 - 2 * world.session_seconds


@pytest.mark.parametrize(
    ("always_paired", "settles", "is_duel", "are_the_run"),
    [
        (False, None, False, False),
        (True, None, False, True),
        (False, "load", False, True),
        (False, None, True, True),
    ],
)
def test_rounds_are_the_run_where_it_was_measured_beside_another(
    *, always_paired: bool, settles: str | None, is_duel: bool, are_the_run: bool
) -> None:
    """Not where it was measured alone, and something beside its baseline's commit had to confirm what it says."""
    docket = Docket(always_paired=always_paired)
    run: Any = object()
    if is_duel:
        docket.duels.append(run)
    load: Any = SimpleNamespace(run=run, settles=settles, is_paired=False, paired=SimpleNamespace(rounds=["a round"]))
    assert bool(docket.rounds_of(load)) is are_the_run
    load.paired = None
    assert not docket.rounds_of(load)


@pytest.mark.parametrize("what", ["it", "the drift"])
def test_what_could_not_be_settled_is_named(what: str) -> None:
    """With the cause, and what helps."""

    def find(**_: object) -> None:
        raise NotInRevision("there is no app.py", remedies=["go back"])

    arena: Any = SimpleNamespace(opponents=SimpleNamespace(find=find))
    contest: Any = None
    with pytest.raises(Unconfirmed) as caught:
        beside_commit(arena, contest, COMMIT, called="the commit", what=what)
    assert caught.value.summary == f"{what} could not be settled side by side: there is no app.py"
    assert list(caught.value.remedies) == ["go back"]
