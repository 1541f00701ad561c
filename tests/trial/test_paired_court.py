"""Loads side by side, against a revision and as a duel: what they come to, and what they may cost."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.gate.metric import METRICS
from pytest_gpuserve.gate.verdict import Verdict
from pytest_gpuserve.measure.points import NotMeasured
from pytest_gpuserve.measure.window import CardUse
from pytest_gpuserve.store.history import History
from pytest_gpuserve.trial.assertions import Baseline
from pytest_gpuserve.trial.claims import Claims
from pytest_gpuserve.trial.pairing import BaseFailed
from tests.fakes.scripted_pairing import Build
from tests.trial.court_world import BETWEEN, SAME, SHAPE, THROUGHPUT, WORSE, World, ask, loaded, target, text_of

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpuserve.trial.dueling import Duel
    from pytest_gpuserve.trial.judging import TestJudge
    from tests.fakes.scripted_pairing import ScriptedPairing


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """A machine without baselines."""
    made = World(tmp_path)
    made.stand_in(monkeypatch)
    return made


# -- budget


def test_the_first_look_is_always_taken_and_further_ones_within_the_budget(world: World) -> None:
    """However small the budget is there is one look; and as many more as it has room for, which is said."""
    world.paired = BETWEEN
    for budget, looks in ((1.0, 1), (35.0, 2), (45.0, 4)):
        world.next_run(world.against, budget_seconds=budget)
        final = loaded(world)
        assert (final.verdict, world.looks) == (Verdict.INCONCLUSIVE, looks)
        assert "--gpuserve-budget" in text_of(final)


def test_after_the_last_look_nothing_more_is_measured(world: World) -> None:
    """What eight rounds do not decide is INCONCLUSIVE, whatever the budget, and says that this was the last look."""
    world.paired = Build(0.06, start_sd=0.01)
    world.claims = Claims(10**40)
    world.next_run(world.against)
    final = loaded(world)
    assert (final.verdict, world.looks, final.rounds) == (Verdict.INCONCLUSIVE, 9, 8)
    assert "the last look" in text_of(final)


def test_both_kinds_of_measuring_share_the_budget(world: World) -> None:
    """Sessions that were measured alone leave less for looks side by side, but the first is taken even then."""
    world.recorded()
    world.alone, world.paired = WORSE, BETWEEN
    for session_seconds, looks in ((5.0, 4), (25.0, 2), (500.0, 1)):
        world.session_seconds = session_seconds
        world.next_run(budget_seconds=48.0)
        assert loaded(world).verdict is Verdict.REGRESSED
        assert world.looks == looks


def test_another_load_of_the_test_counts_too(world: World) -> None:
    """The budget is the test's: what its first load took is gone for the second."""
    world.paired = BETWEEN
    world.next_run(world.against, budget_seconds=45.0)
    judge = world.judge()
    runs = [judge.measure(target(), SHAPE, None) for _ in range(2)]
    for run in runs:
        ask(run, THROUGHPUT)
    judge.close()
    assert world.looks == 4


# -- against a revision


def test_against_a_revision_the_base_decides(world: World) -> None:
    """No baseline is asked, nothing is measured alone, and the servers are ended."""
    world.next_run(world.against)
    final = loaded(world)
    assert (final.verdict, final.reference_kind, world.sessions) == (Verdict.PASS, "against", 0)
    assert world.pairings[0].closed == 1
    world.paired = WORSE
    world.next_run(world.against)
    assert loaded(world).verdict is Verdict.REGRESSED


@pytest.mark.parametrize("why", ["no app", "no start"])
def test_what_the_revision_does_not_have_is_missing(world: World, why: str) -> None:
    """The load is measured alone, so that its values are known, and the reason is in the verdict."""
    if why == "no start":
        world.failures = {0: BaseFailed("no such flag")}
    world.next_run(world.against)
    final = loaded(world, is_in_base=why != "no app")
    assert (final.verdict, final.reference_kind) == (Verdict.MISSING, "against")
    assert final.value is not None
    assert ("no app.py" if why == "no app" else "no such flag") in text_of(final)


def test_trouble_side_by_side_fails_the_test(world: World) -> None:
    """A round with a problem is INVALID, whatever it measured, and is no pass."""
    world.problems = {0: ("wrong answers",)}
    world.next_run(world.against)
    assert loaded(world).verdict is Verdict.INVALID


@pytest.mark.parametrize("is_remembered", [True, False])
def test_a_retry_goes_on_with_the_rounds_of_the_first_try(world: World, tmp_path: Path, *, is_remembered: bool) -> None:
    """A test that is run again within a run of pytest is not given another chance, with a memory or without one."""
    world.history = History(tmp_path / "history") if is_remembered else None
    world.here = replace(world.here, revision=replace(world.here.revision, content="c" * 64 if is_remembered else None))
    world.paired = WORSE
    world.next_run(world.against)
    first = loaded(world)
    assert first.verdict is Verdict.REGRESSED
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
    assert learned.detectable is not None
    assert unlearned.detectable is not None
    assert learned.windows < unlearned.windows


# -- duel


def duel_of(judge: TestJudge) -> Duel:
    """Two servers in a test."""
    return judge.duel(target("one"), target("other"), SHAPE, None)


@pytest.mark.parametrize(
    ("build", "limit", "holds"), [(Build(-0.3), 1.05, True), (SAME, 1.3, False), (WORSE, 0.9, False), (SAME, 0.9, True)]
)
def test_a_duel_is_judged_side_by_side(world: World, build: Build, limit: float, *, holds: bool) -> None:
    """Its limit holds if the rounds show it; nothing is measured alone, and no baseline is looked for."""
    world.paired = build
    judge = world.judge()
    duel = duel_of(judge)
    comparison = duel.throughput >= limit
    judge.close()
    assert comparison.holds is holds
    assert (comparison.judgement.reference_kind, comparison.judgement.reference) == ("duel", limit)
    assert world.sessions == 0
    assert world.pairings[0].closed == 1
    assert [each.verdict for each in judge.unheld()] == ([] if holds else [Verdict.REGRESSED])


def test_a_duel_without_a_decision_fails_or_skips_as_asked(world: World) -> None:
    """INCONCLUSIVE is no pass; where the user lets it skip, the rest of the test is still run."""
    world.paired = BETWEEN
    for skips in (False, True):
        world.next_run(budget_seconds=25.0, skip_inconclusive=skips)
        judge = world.judge()
        comparison = duel_of(judge).throughput >= 0.97
        judge.close()
        assert comparison.judgement.verdict is Verdict.INCONCLUSIVE
        assert comparison.holds is skips
        assert bool(judge.skip_reason()) is skips


def test_a_duel_has_no_baseline(world: World) -> None:
    """Its first server's run may be held against numbers, but not against a baseline, which would be another load's."""
    judge = world.judge()
    duel = duel_of(judge)
    with pytest.raises(UsageProblem, match="a duel has no baseline"):
        _ = duel.run.throughput >= Baseline().throughput
    assert duel.run.throughput >= 1.0
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


def test_two_loads_of_one_name_are_refused(world: World) -> None:
    """They would share what is remembered of them."""
    judge = world.judge()
    judge.duel(target(), target(), SHAPE, "peak")
    with pytest.raises(UsageProblem, match="called 'peak'"):
        judge.duel(target(), target(), SHAPE, "peak")
    judge.close()


# -- trouble that shows late

LATE = "memory not given back"


def leak(monkeypatch: pytest.MonkeyPatch, pairing: ScriptedPairing) -> None:
    """Let it show at the end of the servers that their round proves nothing."""
    close = pairing.close

    def leaking() -> None:
        close()
        pairing.rounds[-1] = replace(pairing.rounds[-1], problems=(LATE,))

    monkeypatch.setattr(pairing, "close", leaking)


@pytest.mark.parametrize("kind", ["duel", "against"])
def test_trouble_at_the_servers_end_is_a_problem_of_a_test_that_passed(
    world: World, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """A PASS at the first look does not hide what shows after it: the test must not pass, and the run tells it too."""
    world.paired = Build(-0.3)
    world.next_run(None if kind == "duel" else world.against)
    judge = world.judge()
    if kind == "duel":
        duel = duel_of(judge)
        leak(monkeypatch, world.pairings[0])
        assert duel.throughput >= 1.05
    else:
        run = judge.measure(target(), SHAPE, None)
        leak(monkeypatch, world.pairings[0])
        assert ask(run, THROUGHPUT)
    assert world.pairings[0].blocks_of_open_round == 3
    assert judge.unjudged_problems() == []
    judge.close()
    assert judge.unjudged_problems() == [LATE]
    assert [session.problems for session in judge.measurements[0].result().sessions] == [(LATE,)]


def test_trouble_at_the_end_of_what_confirmed_a_baseline_is_a_problem(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cleared by its commit whose servers left memory behind is not cleared; the run stays what was measured alone."""
    world.recorded()
    world.alone, world.paired = WORSE, Build(-0.3)
    judge = world.judge()
    run = judge.measure(target(), SHAPE, None)
    assert ask(run, THROUGHPUT)
    alone = list(run.sessions)
    leak(monkeypatch, world.pairings[0])
    judge.close()
    assert judge.unjudged_problems() == [LATE]
    assert run.sessions == alone


# -- memory


@pytest.mark.parametrize("by_turns", [False, True])
def test_a_limit_on_memory_side_by_side_is_invalid_unless_by_turns(world: World, *, by_turns: bool) -> None:
    """What is read off the card is that of both servers; the verdict names the marker that helps."""
    world.next_run(world.against, one_at_a_time=by_turns)
    judge = world.judge()
    run = judge.measure(target(), SHAPE, None)
    used = CardUse(memory_bytes=12e9)
    pairing = world.pairings[0]
    pairing.rounds[:] = [
        replace(
            measured,
            blocks=tuple(
                replace(block, windows=tuple(replace(window, cards=used) for window in block.windows))
                for block in measured.blocks
            ),
        )
        for measured in pairing.rounds
    ]
    judge.measurements[0].show()
    comparison = judge.against_limit(run, METRICS["gpu_memory"], 16e9)
    judge.close()
    if by_turns:
        assert (comparison.judgement.verdict, comparison.judgement.value) == (Verdict.PASS, 12e9)
    else:
        assert comparison.judgement.verdict is Verdict.INVALID
        assert "gpuserve(one_at_a_time=True)" in text_of(comparison.judgement)
        with pytest.raises(NotMeasured):
            _ = run.gpu_memory.value
