"""Loads side by side, against a revision and as a duel: what they come to, and what they may cost."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pytest_gpuserve.compare.assertions import Baseline, Duel
from pytest_gpuserve.compare.comparison import TestComparison
from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.experiment.pairing import BaseFailed
from pytest_gpuserve.store.kept import KeptFolder
from pytest_gpuserve.verdict.verdict import Verdict
from tests.compare.conftest import BETWEEN, SAME, SHAPE, THROUGHPUT, WORSE, World, ask, loaded, target, text_of
from tests.fakes.scripted_pairing import Build
from tests.support.reasons import said

# -- budget


def test_the_first_look_is_always_taken_and_further_ones_within_the_budget(world: World) -> None:
    """One look is always taken, and more within the budget, which the loads of a test share."""
    world.paired = BETWEEN
    for budget, looks in ((1.0, 1), (35.0, 2), (45.0, 4)):
        world.next_run(world.against, budget_seconds=budget)
        final = loaded(world)
        assert (final.verdict, world.looks) == (Verdict.INCONCLUSIVE, looks)
        assert "--gpuserve-budget" in text_of(final)
    world.next_run(world.against)
    judge = world.judge()
    for run in [judge.measure(target(), SHAPE, None) for _ in range(2)]:
        ask(run, THROUGHPUT)
    judge.close()
    assert world.looks == 4


# -- against a revision


def test_against_a_revision_the_base_decides(world: World) -> None:
    """No baseline is read, no load is measured alone, and the servers are ended; a problem is not a pass."""
    for build, problems, verdict in (
        (SAME, (), Verdict.PASS),
        (WORSE, (), Verdict.REGRESSED),
        (SAME, ("wrong answers",), Verdict.INVALID),
    ):
        world.paired, world.problems = build, {0: problems}
        world.next_run(world.against)
        final = loaded(world)
        assert (final.verdict, final.reference_kind, world.sessions) == (verdict, "against", 0)
        assert world.pairings[0].closed == 1


@pytest.mark.parametrize("why", ["no app.py", "no such flag"])
def test_what_the_revision_does_not_have_is_missing(world: World, why: str) -> None:
    """The load is measured alone, so that its values are known, and the reason is in the verdict."""
    if why == "no such flag":
        world.failures = {0: BaseFailed(why)}
    world.next_run(world.against)
    final = loaded(world, is_in_base=why != "no app.py")
    assert (final.verdict, final.reference_kind) == (Verdict.MISSING, "against")
    assert final.value is not None
    assert why in text_of(final)


@pytest.mark.parametrize("is_remembered", [True, False])
def test_a_retry_goes_on_with_the_rounds_of_the_first_try(world: World, tmp_path: Path, *, is_remembered: bool) -> None:
    """A test that is run again within a run of pytest is not given another chance, with a memory or without one."""
    world.history = KeptFolder(tmp_path / "kept", pytest.fail) if is_remembered else None
    world.here = replace(world.here, revision=replace(world.here.revision, content="c" * 64 if is_remembered else None))
    world.paired = WORSE
    world.next_run(world.against)
    assert loaded(world).verdict is Verdict.REGRESSED
    world.paired, looks = SAME, world.looks
    again = loaded(world)
    assert (again.verdict, world.looks) == (Verdict.REGRESSED, looks)
    assert "kept" in text_of(again)


def test_a_prior_is_learned_from_the_baselines_starts(world: World) -> None:
    """Starts of this host that were recorded close together let it decide sooner than the default prior does."""
    world.paired = Build(0.0, start_sd=0.001, window_sd=0.001)
    world.next_run(world.against)
    unlearned = loaded(world)
    world.start_noise = 0.001
    world.recorded()
    world.next_run(world.against)
    learned = loaded(world)
    assert (unlearned.verdict, learned.verdict) == (Verdict.PASS, Verdict.PASS)
    assert learned.windows < unlearned.windows


# -- duel


def duel_of(judge: TestComparison, name: str | None = None) -> Duel:
    """Two servers in a test."""
    return judge.duel(target("one"), target("other"), SHAPE, name)


@pytest.mark.parametrize("skips", [False, True])
def test_an_undecided_duel_is_no_pass(world: World, *, skips: bool) -> None:
    """An undecided duel fails, or skips on request; no load is measured alone, and no baseline is read."""
    world.paired = BETWEEN
    world.next_run(budget_seconds=25.0, skip_inconclusive=skips)
    judge = world.judge()
    comparison = duel_of(judge).throughput >= 0.97
    judge.close()
    judgement = comparison.judgement
    assert (judgement.verdict, judgement.reference_kind, judgement.reference) == (Verdict.INCONCLUSIVE, "duel", 0.97)
    assert (world.sessions, world.pairings[0].closed) == (0, 1)
    assert comparison.holds is bool(judge.skip_reason()) is skips
    assert len(judge.unheld) == (not skips)


def test_what_a_duel_may_not_be_is_refused(world: World) -> None:
    """Held against a baseline, which would be another load's, or called as another is, whose memory it would share."""
    judge = world.judge()
    duel = duel_of(judge, "peak")
    with pytest.raises(UsageProblem, match="a duel has no baseline"):
        _ = duel.run.throughput >= Baseline().throughput
    assert duel.run.throughput >= 1.0
    with pytest.raises(UsageProblem, match="called 'peak'"):
        duel_of(judge, "peak")
    judge.close()


def test_the_servers_of_one_load_make_room_for_the_next(world: World) -> None:
    """Before a load is measured the servers of the test's other loads end, or they would disturb it."""
    world.paired = BETWEEN
    world.next_run(world.against, budget_seconds=35.0)
    judge = world.judge()
    first = judge.measure(target(), SHAPE, None)
    assert world.pairings[0].closed == 0
    judge.measure(target(), SHAPE, None)
    assert world.pairings[0].closed == 1
    ask(first, THROUGHPUT)
    assert world.pairings[1].closed == 1
    judge.close()
    assert all(pairing.closed for pairing in world.pairings)


# -- trouble that shows late

LATE = "memory not given back"


@pytest.mark.parametrize("kind", ["duel", "against", "confirmation"])
def test_trouble_at_the_servers_end_is_a_problem_of_a_test_that_passed(world: World, kind: str) -> None:
    """A PASS at the first look does not hide what shows after it; a run that was measured alone stays what it was."""
    if kind == "confirmation":
        world.recorded()
        world.alone = WORSE
    world.paired, world.leak = Build(-0.3), LATE
    world.next_run(world.against if kind == "against" else None)
    judge = world.judge()
    if kind == "duel":
        run = (duel := duel_of(judge)).run
        assert duel.throughput >= 1.05
    else:
        run = judge.measure(target(), SHAPE, None)
        assert ask(run, THROUGHPUT)
    before = list(run.sessions)
    assert world.pairings[0].blocks_of_open_round == 3
    assert judge.unjudged_problems() == []
    judge.close()
    assert judge.unjudged_problems() == [LATE]
    if kind == "confirmation":
        assert run.sessions == before
    else:
        assert [said(session.problems) for session in judge.measurements[0].result().sessions] == [(LATE,)]
