"""A stored baseline that its commit has to confirm: which of the two decides, and what of it counts as a claim."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from pytest_gpuserve.comparison.holm import HolmCorrection
from pytest_gpuserve.experiment.environment import Revision
from pytest_gpuserve.experiment.pairing import BaseFailed
from pytest_gpuserve.gate.metric import METRICS
from pytest_gpuserve.gate.verdict import Verdict
from tests.comparison.world import BETWEEN, SAME, SHAPE, THROUGHPUT, WORSE, World, ask, loaded, target, text_of
from tests.fakes.scripted_pairing import Build
from tests.support.builders import COMMIT, here

if TYPE_CHECKING:
    from pathlib import Path

P50 = METRICS["latency.p50"]

ELSEWHERE = {"device": here("host-b").device}


# -- sessions


def test_a_retry_goes_on_with_the_sessions_that_it_has(world: World) -> None:
    """What an earlier try of the test has measured of the same load is not measured again."""
    world.recorded()
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


@pytest.mark.parametrize("is_comparable", [True, False])
def test_the_baselines_clock_is_told_to_who_measures(world: World, *, is_comparable: bool) -> None:
    """So that slower windows are measured again; not while it is recorded, nor of a card of another kind."""
    world.clock_mhz = 1200.0
    world.recorded(where=None if is_comparable else {"device": replace(world.here.device, name="H100")})
    assert set(world.clocks_wanted) == {None}
    loaded(world)
    assert world.clocks_wanted[-1] == (pytest.approx(1200.0) if is_comparable else None)


# -- confirmation


def test_what_the_baseline_passes_needs_no_confirmation(world: World) -> None:
    """Nothing is measured side by side when the stored baseline can decide."""
    world.start_noise = 0.003
    world.recorded()
    assert loaded(world).verdict is Verdict.PASS
    assert world.pairings == []


@pytest.mark.parametrize(("paired", "verdict"), [(SAME, Verdict.PASS), (WORSE, Verdict.REGRESSED)])
def test_a_regression_is_confirmed_or_cleared_by_the_commit(world: World, paired: Build, verdict: Verdict) -> None:
    """REGRESSED by the stored baseline, PASS beside its commit: it was a slow hour, and both verdicts are told."""
    world.recorded()
    world.alone, world.paired = WORSE, paired
    final = loaded(world)
    assert (final.verdict, final.reference_kind) == (verdict, "against")
    assert "REGRESSED" in text_of(final)
    told = {(each.reference_kind, each.verdict) for each in world.told}
    assert told == {("baseline", Verdict.REGRESSED), ("against", verdict)}


def test_a_foreign_baseline_is_decided_by_its_commit(world: World) -> None:
    """What another host recorded says nothing here, so the commit decides, both ways."""
    world.recorded(where=ELSEWHERE)
    assert loaded(world).verdict is Verdict.PASS
    world.paired = WORSE
    world.next_run()
    assert loaded(world).verdict is Verdict.REGRESSED


@pytest.mark.parametrize(("where", "verdict"), [(None, Verdict.REGRESSED), (ELSEWHERE, Verdict.MISSING)])
def test_without_confirmation_the_stored_verdict_is_final(
    world: World, where: dict[str, object] | None, verdict: Verdict
) -> None:
    """`--no-confirm`: REGRESSED stays REGRESSED, a foreign baseline says nothing, and no commit is asked."""
    world.recorded(where=where)
    world.alone = WORSE
    world.next_run(confirm=False)
    final = loaded(world)
    assert (final.verdict, final.reference_kind) == (verdict, "baseline")
    assert world.pairings == []


@pytest.mark.parametrize(
    ("words", "where"),
    [
        ("uncommitted", {"revision": Revision(COMMIT, clean=False, code=COMMIT)}),
        ("no app.py", None),
        ("no such flag", None),
    ],
)
@pytest.mark.parametrize("alone", [WORSE, Build(0.025)], ids=["worse", "undecided"])
def test_what_cannot_be_confirmed_goes_on_alone(
    world: World, words: str, where: dict[str, object] | None, alone: Build
) -> None:
    """The reason is told in words, the stored path takes its sessions, and nothing passes for the want of a base."""
    world.noise = 0.02
    world.recorded(where=where)
    world.alone = alone
    if words == "no such flag":
        world.failures = {0: BaseFailed("the base of the comparison could not be started: no such flag")}
    before = world.sessions
    final = loaded(world, is_in_base=words != "no app.py")
    assert final.reference_kind == "baseline"
    assert not final.verdict.passes
    assert world.looks == (words == "no such flag")
    assert words in text_of(final)
    assert (final.verdict is Verdict.REGRESSED) is (alone is WORSE)
    assert alone is WORSE or world.sessions - before == 6


def test_what_was_measured_alone_stays_the_run(world: World) -> None:
    """After a confirmation, or one that failed, the run has its own sessions, and the next metric is judged by them."""
    world.recorded()
    world.alone = WORSE
    for world.failures in ({}, {0: BaseFailed("it did not start")}):
        world.next_run(metrics=frozenset({"throughput", "latency.p50"}))
        judge = world.judge()
        run = judge.measure(target(), SHAPE, None)
        alone = list(run.sessions)
        assert len(alone[0].starts) == 2
        for metric in (THROUGHPUT, P50):
            judgement = ask(run, metric).judgement
            assert run.sessions == alone
        assert "REGRESSED" in text_of(judgement) or judgement.verdict is Verdict.REGRESSED
        judge.close()


def test_a_base_that_cannot_start_is_tried_once_and_its_time_counts(world: World) -> None:
    """Further metrics do not wait for it again, and what it took is taken off the test's budget."""
    world.noise, world.look_seconds = 0.02, 500.0
    world.recorded()
    world.alone, world.failures = Build(0.025), {0: BaseFailed("it did not start")}
    world.next_run(budget_seconds=515.0)
    before = world.sessions
    judge = world.judge()
    run = judge.measure(target(), SHAPE, None)
    first = ask(run, THROUGHPUT)
    ask(run, P50)
    judge.close()
    assert (world.looks, world.sessions - before) == (1, 1)
    assert "budget" in text_of(first.judgement)


def test_a_shared_host_is_no_regression(world: World) -> None:
    """Where others used the host and the commit settled nothing, the stored claim is INVALID and not REGRESSED."""
    world.recorded()
    world.alone, world.paired, world.foreign_cores = WORSE, BETWEEN, 1.5
    world.next_run(budget_seconds=25.0)
    final = loaded(world)
    assert final.verdict is Verdict.INVALID
    assert "shared" in text_of(final)
    world.paired = SAME
    world.next_run(budget_seconds=1000.0)
    assert loaded(world).verdict is Verdict.PASS


# -- claims


def test_a_claim_that_its_commit_refutes_makes_no_other_easier(world: World) -> None:
    """A slow hour makes every stored baseline say REGRESSED; what is cleared must not use up the correction."""
    names = [f"test_x.py::test_{number}" for number in range(4)]
    for name in names:
        world.recorded(name)
    world.alone, world.claims = WORSE, HolmCorrection(4)
    world.next_run()
    for name in names:
        judge = world.judge(name)
        assert ask(judge.measure(target(), SHAPE, None), THROUGHPUT)
        judge.close()
    # As before any claim: a fourth of the level.
    assert not world.claims.uphold(("another", "throughput"), 0.05 / 4)
    assert world.claims.planned == 5
