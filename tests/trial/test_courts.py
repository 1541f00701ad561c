"""A stored baseline that its commit has to confirm: which of the two decides, and what of it counts as a claim."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from pytest_gpuserve.gate.metric import METRICS
from pytest_gpuserve.gate.verdict import Verdict
from pytest_gpuserve.trial.claims import Claims
from pytest_gpuserve.trial.pairing import BaseFailed
from pytest_gpuserve.trial.provenance import Revision
from tests.fakes.scripted_pairing import Build
from tests.support.builders import COMMIT, here
from tests.trial.court_world import BETWEEN, SAME, SHAPE, THROUGHPUT, WORSE, World, ask, loaded, target, text_of

if TYPE_CHECKING:
    from pathlib import Path


P50 = METRICS["latency.p50"]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """A machine without baselines."""
    made = World(tmp_path)
    made.stand_in(monkeypatch)
    return made


# -- confirmation


def test_what_the_baseline_passes_needs_no_confirmation(world: World) -> None:
    """Nothing is measured side by side when the stored baseline can decide."""
    world.start_noise = 0.003
    world.recorded()
    assert loaded(world).verdict is Verdict.PASS
    assert world.pairings == []


def test_a_slow_hour_is_cleared_by_the_commit(world: World) -> None:
    """REGRESSED by the stored baseline, PASS beside its commit: it passes, and both verdicts are told."""
    world.recorded()
    world.alone = WORSE
    final = loaded(world)
    assert (final.verdict, final.reference_kind) == (Verdict.PASS, "against")
    assert "REGRESSED" in text_of(final)
    assert {(each.reference_kind, each.verdict) for each in world.told} == {
        ("baseline", Verdict.REGRESSED),
        ("against", Verdict.PASS),
    }


def test_a_regression_is_confirmed(world: World) -> None:
    """REGRESSED by both is REGRESSED, by the evidence side by side."""
    world.recorded()
    world.alone = world.paired = WORSE
    final = loaded(world)
    assert (final.verdict, final.reference_kind) == (Verdict.REGRESSED, "against")


def test_changed_packages_are_not_cleared_by_the_commit(world: World) -> None:
    """With another version than at the recording a PASS beside the commit says nothing about it: REGRESSED."""
    world.recorded(where={"software": {"python": "3.10.1"}})
    world.alone = WORSE
    final = loaded(world)
    assert (final.verdict, final.reference_kind) == (Verdict.REGRESSED, "baseline")
    assert "python 3.10.1 -> 3.11.9" in text_of(final)
    assert "--against-python" in text_of(final)


@pytest.mark.parametrize("kind", ["inconclusive", "invalid"])
def test_what_the_commit_cannot_settle_stays_regressed(world: World, kind: str) -> None:
    """Without a verdict side by side the stored one stays, with the reason why there is none."""
    world.recorded()
    world.alone, world.paired = WORSE, BETWEEN
    world.next_run(budget_seconds=25.0)
    if kind == "invalid":
        world.problems = {0: ("wrong answers",)}
    final = loaded(world)
    assert (final.verdict, final.reference_kind) == (Verdict.REGRESSED, "baseline")
    assert kind.upper() in text_of(final)
    assert ("wrong answers" if kind == "invalid" else "--gpuserve-budget") in text_of(final)


def test_a_foreign_baseline_is_decided_by_its_commit(world: World) -> None:
    """What another host recorded says nothing here, so the commit decides, both ways."""
    world.recorded(where={"device": here("host-b").device})
    assert loaded(world).verdict is Verdict.PASS
    world.paired = WORSE
    world.next_run()
    assert loaded(world).verdict is Verdict.REGRESSED


def test_without_confirmation_the_stored_verdict_is_final(world: World) -> None:
    """`--no-confirm`: REGRESSED stays REGRESSED, and nothing runs side by side."""
    world.recorded()
    world.alone = WORSE
    world.next_run(confirm=False)
    final = loaded(world)
    assert (final.verdict, final.reference_kind) == (Verdict.REGRESSED, "baseline")
    assert world.pairings == []


def test_without_confirmation_a_foreign_baseline_is_missing(world: World) -> None:
    """One other host says nothing about this one, and `--no-confirm` forbids to ask its commit."""
    world.recorded(where={"device": here("host-b").device})
    world.next_run(confirm=False)
    assert loaded(world).verdict is Verdict.MISSING
    assert world.pairings == []


UNSETTLED = {
    "no commit": {"revision": Revision(None, clean=False, code=None)},
    "dirty": {"revision": Revision(COMMIT, clean=False, code=COMMIT)},
}


@pytest.mark.parametrize("why", [*UNSETTLED, "no app", "no start"])
@pytest.mark.parametrize("alone", [WORSE, Build(0.025)], ids=["worse", "undecided"])
def test_what_cannot_be_confirmed_goes_on_alone(world: World, why: str, alone: Build) -> None:
    """The reason is told in words, the stored path takes its sessions, and nothing passes for the want of a base."""
    world.noise = 0.02
    world.recorded(where=UNSETTLED.get(why))
    world.alone = alone
    if why == "no start":
        world.failures = {0: BaseFailed("the base of the comparison could not be started: no such flag")}
    before = world.sessions
    final = loaded(world, is_in_base=why != "no app")
    assert final.reference_kind == "baseline"
    assert not final.verdict.passes
    assert world.looks == (why == "no start")
    words = {"no commit": "names no commit", "dirty": "uncommitted", "no app": "no app.py", "no start": "no such flag"}
    assert words[why] in text_of(final)
    assert (final.verdict is Verdict.REGRESSED) is (alone is WORSE)
    if alone is not WORSE:
        assert world.sessions - before == 6


def test_what_was_measured_alone_stays_the_run(world: World) -> None:
    """After a confirmation, or one that failed, the run has its own sessions, and the next metric is judged by them."""
    world.recorded()
    world.alone = WORSE
    world.next_run(metrics=frozenset({"throughput", "latency.p50"}))
    for world.failures in ({}, {0: BaseFailed("it did not start")}):
        judge = world.judge()
        run = judge.measure(target(), SHAPE, None)
        alone = list(run.sessions)
        ask(run, THROUGHPUT)
        assert run.sessions == alone
        assert len(run.sessions[0].starts) == 2
        second = ask(run, P50)
        assert run.sessions == alone
        assert "REGRESSED" in text_of(second.judgement) or second.judgement.verdict is Verdict.REGRESSED
        judge.close()
        world.next_run()


def test_a_base_that_cannot_start_is_tried_once_and_its_time_counts(world: World) -> None:
    """Further metrics do not wait for it again, and what it took is taken off the test's budget."""
    world.noise = 0.02
    world.recorded()
    world.alone = Build(0.025)
    world.failures = {0: BaseFailed("it did not start")}
    world.look_seconds = 500.0
    world.next_run(budget_seconds=515.0)
    before = world.sessions
    judge = world.judge()
    run = judge.measure(target(), SHAPE, None)
    first = ask(run, THROUGHPUT)
    ask(run, P50)
    judge.close()
    assert world.looks == 1
    assert world.sessions - before == 1
    assert "budget" in text_of(first.judgement)


def test_a_shared_host_is_no_regression(world: World) -> None:
    """Where others used the host and the commit settled nothing, the stored claim is INVALID and not REGRESSED."""
    world.recorded()
    world.alone, world.paired = WORSE, BETWEEN
    world.foreign_cores = 1.5
    world.next_run(budget_seconds=25.0)
    final = loaded(world)
    assert final.verdict is Verdict.INVALID
    assert "shared" in text_of(final)
    world.paired = SAME
    world.next_run(budget_seconds=1000.0)
    assert loaded(world).verdict is Verdict.PASS


# -- claims


def test_a_stored_claim_has_to_be_upheld(world: World) -> None:
    """A stored REGRESSED too is INCONCLUSIVE where so many are compared that chance makes such claims."""
    world.recorded()
    world.alone = WORSE
    world.claims = Claims(10**40)
    world.next_run(confirm=False)
    final = loaded(world)
    assert final.verdict is Verdict.INCONCLUSIVE
    assert "by itself" in text_of(final)
    world.claims = Claims(1)
    world.next_run()
    assert loaded(world).verdict is Verdict.REGRESSED


def test_a_claim_that_its_commit_refutes_makes_no_other_easier(world: World) -> None:
    """A slow hour makes every stored baseline say REGRESSED; what is cleared must not use up the correction."""
    for number in range(4):
        world.recorded(f"test_x.py::test_{number}")
    world.alone = WORSE
    world.claims = Claims(4)
    world.next_run()
    for number in range(4):
        judge = world.judge(f"test_x.py::test_{number}")
        assert ask(judge.measure(target(), SHAPE, None), THROUGHPUT)
        judge.close()
    # As before any claim: a fourth of the level.
    assert not world.claims.uphold(("another", "throughput"), 0.05 / 4)
    assert world.claims.planned == 5


def test_the_baselines_clock_is_told_to_who_measures(world: World) -> None:
    """So that windows with a slower clock are measured again; not while a baseline is recorded anew."""
    world.clock_mhz = 1200.0
    world.recorded()
    assert set(world.clocks_wanted) == {None}
    loaded(world)
    assert world.clocks_wanted[-1] == pytest.approx(1200.0)


def test_a_baseline_that_cannot_be_compared_sets_no_clock(world: World) -> None:
    """That of a card of another kind says nothing of this one's clocks."""
    world.clock_mhz = 1200.0
    world.recorded(where={"device": replace(world.here.device, name="H100")})
    loaded(world)
    assert world.clocks_wanted[-1] is None
