"""A stored baseline that its commit has to confirm: which of the two decides, and what of it counts as a claim."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from pytest_gpuserve.builds.checkout import Revision
from pytest_gpuserve.experiment.pairing import BaseFailed
from pytest_gpuserve.gate.metric import METRICS
from pytest_gpuserve.gate.reason import ReasonKind
from pytest_gpuserve.gate.verdict import Verdict
from tests.comparison import world as world_module
from tests.comparison.vocabulary import cases
from tests.comparison.world import BETWEEN, SAME, SHAPE, THROUGHPUT, WORSE, ask, loaded, target, text_of
from tests.fakes.scripted_pairing import Build, window_at
from tests.support.builders import COMMIT, here, streamed

if TYPE_CHECKING:
    from tests.comparison.world import World

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


@pytest.mark.parametrize(
    ("named", "share"), [({"latency.p99"}, 0.02), ({"latency.p99", "throughput"}, 0.01), (set(), 0.01)]
)
def test_the_client_may_add_a_tenth_of_the_narrowest_tolerance(world: World, named: set[str], share: float) -> None:
    """Of those that a marker names: a load that is compared at 20 % is not INVALID for 1 % of it."""
    world.next_run(named=frozenset(named))
    judge = world.judge()
    judge.measure(target(), SHAPE, None)
    assert judge.measurements[0].shape.late_share == pytest.approx(share)


@pytest.mark.parametrize(
    ("tokens", "usage", "verdict", "kinds"),
    [
        (11, True, Verdict.PASS, []),
        (11, False, Verdict.INVALID, [ReasonKind.WORK_UNKNOWN]),
        (12, True, Verdict.INVALID, [ReasonKind.UNLIKE_WORK]),
    ],
)
def test_answers_that_are_longer_than_recorded_are_another_work(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    tokens: int,
    verdict: Verdict,
    kinds: list[ReasonKind],
    *,
    usage: bool,
) -> None:
    """There is no verdict on how fast they are, and nothing more is measured; the same where one side hides it."""
    world.start_noise = 0.003
    with monkeypatch.context() as recording:
        recording.setattr(world_module, "window_at", lambda cost: streamed(window_at(cost), tokens=11))
        world.recorded()
    monkeypatch.setattr(world_module, "window_at", lambda cost: streamed(window_at(cost), tokens=tokens, usage=usage))
    judgement = loaded(world)
    assert (judgement.verdict, [reason.kind for reason in judgement.reasons]) == (verdict, kinds)
    if verdict is Verdict.INVALID:
        assert world.looks == 0


@pytest.mark.parametrize("is_comparable", [True, False])
def test_the_baselines_clock_is_told_to_who_measures(world: World, *, is_comparable: bool) -> None:
    """So that slower windows are measured again; not while it is recorded, nor of a card of another kind."""
    world.clock_mhz = 1200.0
    world.recorded(where=None if is_comparable else {"device": replace(world.here.device, name="H100")})
    assert set(world.clocks_wanted) == {None}
    loaded(world)
    assert world.clocks_wanted[-1] == (pytest.approx(1200.0) if is_comparable else None)


# -- confirmation


@cases(
    "given, paired, expected",
    {
        "a pass needs no confirmation": ((SAME, None, True), WORSE, (Verdict.PASS, "baseline")),
        "confirmed": ((WORSE, None, True), WORSE, (Verdict.REGRESSED, "against")),
        "cleared, it was a slow hour": ((WORSE, None, True), SAME, (Verdict.PASS, "against")),
        # What another host recorded says nothing here, so the commit decides, both ways.
        "of another host": ((SAME, ELSEWHERE, True), SAME, (Verdict.PASS, "against")),
        "worse than on another host": ((SAME, ELSEWHERE, True), WORSE, (Verdict.REGRESSED, "against")),
        "--no-confirm": ((WORSE, None, False), SAME, (Verdict.REGRESSED, "baseline")),
        "--no-confirm, of another host": ((WORSE, ELSEWHERE, False), SAME, (Verdict.MISSING, "baseline")),
    },
)
def test_the_commit_confirms_or_clears_what_the_baseline_does_not_pass(
    world: World, given: tuple[Build, dict[str, object] | None, bool], paired: Build, expected: tuple[Verdict, str]
) -> None:
    """Nothing is measured side by side where the stored baseline can decide, or nobody may; else both are told."""
    alone, where, confirm = given
    world.start_noise = 0.003
    world.recorded(where=where)
    world.alone, world.paired = alone, paired
    world.next_run(confirm=confirm)
    final = loaded(world)
    assert (final.verdict, final.reference_kind) == expected
    assert len(world.pairings) == (final.reference_kind == "against")
    if alone is WORSE and world.pairings:
        assert "REGRESSED" in text_of(final)
        told = {(each.reference_kind, each.verdict) for each in world.told}
        assert told == {("baseline", Verdict.REGRESSED), ("against", final.verdict)}


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
        world.next_run()
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


def test_no_other_server_runs_while_a_session_is_measured(world: World) -> None:
    """A decided comparison side by side leaves its servers running; they end before another load is measured alone.

    The second load is not settled side by side, for packages have changed.
    """
    for nodeid in ("test_x.py::test_a", "test_x.py::test_a second"):
        world.recorded(nodeid, where={"software": {"python": "3.10.0"}})
    gate = world.judge()
    world.alone = world.paired = WORSE
    first = gate.measure(target(), SHAPE, None)
    world.alone = BETWEEN
    second = gate.measure(target(), SHAPE, "second")
    assert ask(first, THROUGHPUT).judgement.verdict is Verdict.REGRESSED
    (pairing,) = world.pairings
    assert pairing.blocks_of_open_round > 0
    measured = world.sessions
    ask(second, THROUGHPUT)
    assert world.sessions > measured
    assert pairing.blocks_of_open_round == 0


@pytest.mark.parametrize(
    ("named", "requests"),
    [((), (40, 80, 200, 400, 1000)), (("itl.p99", "goodput", "gpu_memory"), (1, 40, 80, 200, 400, 1000))],
)
def test_a_load_is_as_long_as_what_it_may_be_compared_by_needs_requests(
    world: World, named: tuple[str, ...], requests: tuple[int, ...]
) -> None:
    """By the usual metrics and what a marker names; a request has many gaps, and how many nobody knows before."""
    world.next_run(named=frozenset(named))
    world.judge().measure(target(), SHAPE, None)
    assert world.requests_wanted == [requests]
