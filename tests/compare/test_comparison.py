"""The comparisons of a test: by stored numbers, beside a base commit or another revision, and as a duel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pytest_gpuserve.builds.base import HistoryCut, NotCommitted, NotInGit
from pytest_gpuserve.builds.checkout import NoCheckout, Revision
from pytest_gpuserve.builds.worktree import RevisionUnknown
from pytest_gpuserve.compare.assertions import Baseline, Duel
from pytest_gpuserve.compare.comparison import TestComparison
from pytest_gpuserve.compare.measurement import not_side_by_side
from pytest_gpuserve.compare.stored import changes_since
from pytest_gpuserve.errors import GpuserveError, NotInRevision, ServerFailed, UsageProblem
from pytest_gpuserve.experiment.pairing import BaseFailed
from pytest_gpuserve.store.baseline import Stored, write
from pytest_gpuserve.store.kept import KeptFolder
from pytest_gpuserve.verdict.metric import METRICS
from pytest_gpuserve.verdict.reason import ReasonKind
from pytest_gpuserve.verdict.verdict import Verdict
from tests.compare import conftest as world_module
from tests.compare.conftest import BETWEEN, SAME, SHAPE, THROUGHPUT, WORSE, World, ask, loaded, target, text_of
from tests.fakes.scripted_pairing import Build
from tests.support.builders import COMMIT, cases, entry, here, on_gpu, said, streamed, window_at

P50 = METRICS["latency.p50"]

GPU = on_gpu(here()).device.gpu
assert GPU is not None


# -- sessions


def test_a_retry_goes_on_with_the_sessions_that_it_has(world: World) -> None:
    """Sessions of an earlier try of the test under the same load are not measured again."""
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


@pytest.mark.parametrize(
    ("named", "share"), [({"latency.p99"}, 0.02), ({"latency.p99", "throughput"}, 0.01), (set(), 0.01)]
)
def test_the_client_may_add_a_tenth_of_the_narrowest_tolerance(world: World, named: set[str], share: float) -> None:
    """The marker's tolerances count: a load that is compared at 20 % is not INVALID for 1 % of it."""
    world.next_run(tolerances={name: METRICS[name].default_tolerance for name in named})
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
    """Such answers get no verdict on their speed, and no more measurements; so do answers of unknown length."""
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
    """Slower windows are measured again, but not in a recording, and not on a GPU of another kind."""
    world.clock_mhz = 1200.0
    world.recorded(where=None if is_comparable else {"device": replace(world.here.device, name="H100")})
    assert set(world.clocks_wanted) == {None}
    loaded(world)
    assert world.clocks_wanted[-1] == (pytest.approx(1200.0) if is_comparable else None)


# -- the screen, and what decides everything else


OTHER_DRIVER = {"device": replace(on_gpu(here()).device, gpu=replace(GPU, driver="550.9"))}


@cases(
    "now, where, base, expected, words",
    {
        "within the tolerance": (SAME, {}, WORSE, (Verdict.PASS, "baseline"), ""),
        "worse": (WORSE, {}, WORSE, (Verdict.REGRESSED, "against"), "decided side by side"),
        "worse by the hour alone": (WORSE, {}, SAME, (Verdict.PASS, "against"), "decided side by side"),
        "better": (Build(-0.3), {}, SAME, (Verdict.PASS, "against"), "decided side by side"),
        "of another host": (SAME, {"device": on_gpu(here("host-b")).device}, SAME, (Verdict.PASS, "against"), ""),
        "of another driver": (SAME, OTHER_DRIVER, WORSE, (Verdict.REGRESSED, "against"), "only the code was compared"),
    },
)
def test_stored_numbers_end_a_test_with_pass_alone(  # noqa: PLR0917 -- columns of a table
    world: World, now: Build, where: dict[str, Any], base: Build, expected: tuple[Verdict, str], words: str
) -> None:
    """On a GPU whose facts are those of the recording; everything else goes to rounds at once, and they decide it."""
    world.start_noise = 0.003
    world.recorded(where=where)
    world.alone, world.paired = now, base
    before = world.sessions
    final = loaded(world)
    assert (final.verdict, final.reference_kind) == expected
    assert words in text_of(final)
    # Where no stored number counts here, nothing is measured alone.
    assert world.sessions - before == (not where)
    assert len(world.pairings) == (final.reference_kind == "against")


@cases(
    "reading, is_screened", {"4 % slower": (-3.46, True), "6 % faster": (-3.56, False), "not measured": (None, False)}
)
def test_a_host_of_another_speed_is_not_screened(world: World, reading: float | None, *, is_screened: bool) -> None:
    """The screen is skipped, and if no other comparison is possible, that is the reason."""
    world.start_noise = 0.003
    world.recorded()
    world.reading = reading
    assert (loaded(world).reference_kind == "baseline") is is_screened
    world.next_run(stored_only=True)
    final = loaded(world)
    assert (final.verdict is Verdict.PASS) is is_screened
    assert is_screened or final.verdict is Verdict.INCONCLUSIVE
    assert is_screened or "this host" in text_of(final)


def test_one_recorded_session_does_not_show_how_much_answers_vary(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two recorded starts of streams are not screened, because they are too few to compare lengths of answers."""
    monkeypatch.setattr(world_module, "window_at", lambda cost: streamed(window_at(cost)))
    policy = world.policy
    assert world.record(record_sessions=1)
    world.policy = policy
    world.next_run(stored_only=True)
    assert "too few recorded starts (2) to compare the lengths of answers" in text_of(loaded(world))


@cases(
    "now, metric, verdict",
    {
        "as fast": (SAME, "throughput", Verdict.PASS),
        "slower": (WORSE, "throughput", Verdict.INVALID),
        "with larger batches": (SAME, "batching_ratio", Verdict.INVALID),
    },
)
def test_on_a_shared_host_stored_numbers_claim_nothing(world: World, now: Build, metric: str, verdict: Verdict) -> None:
    """Beside other work only a PASS of throughput stands: that work slows a build, but can enlarge its batches."""
    world.start_noise = 0.003
    world.recorded()
    world.alone, world.foreign_cores = now, 1.5
    world.next_run(stored_only=True)
    judge = world.judge()
    final = ask(judge.measure(target(), SHAPE, None), METRICS[metric]).judgement
    judge.close()
    assert final.verdict is verdict
    assert final.has(ReasonKind.HOST_SHARED) is (verdict is Verdict.INVALID)


def test_memory_is_measured_with_one_server_on_the_gpu(world: World) -> None:
    """After a comparison both servers end and one is measured alone, unless they have alternated anyway."""
    world.clock_mhz = 1200.0
    world.recorded(where={"device": on_gpu(here("host-b")).device})
    for alternate in (False, True):
        world.next_run(one_at_a_time=alternate)
        judge = world.judge()
        run, before = judge.measure(target(), SHAPE, None), world.sessions
        value = ask(run, METRICS["gpu_memory"]).judgement.value
        assert (world.sessions - before, value) == ((0, None) if alternate else (1, 1e9))
        assert (world.pairings[0].one_at_a_time, world.pairings[0].closed) == (alternate, int(not alternate))
        judge.close()


def test_stored_numbers_pass_nothing_that_rounds_have_called_regressed(world: World, tmp_path: Path) -> None:
    """A re-run of two builds whose rounds are kept is not screened again, however well it does alone."""
    world.history = KeptFolder(tmp_path / "kept", pytest.fail)
    world.here = replace(world.here, revision=replace(world.here.revision, content="c" * 64))
    world.start_noise = 0.003
    world.next_run()
    world.recorded()
    world.alone, world.paired = WORSE, WORSE
    assert loaded(world).verdict is Verdict.REGRESSED
    world.alone = SAME
    world.next_run()
    again = loaded(world)
    assert (again.verdict, again.reference_kind, world.looks) == (Verdict.REGRESSED, "against", 0)
    # Nor is it by the numbers of a limit, or of a load whose end the test decides.
    for shape in (SHAPE, replace(SHAPE, requests=100)):
        world.next_run()
        judge = world.judge()
        run = judge.measure(target(), shape, None)
        run.judge(THROUGHPUT, "limit", 1.0)
        again = ask(run, THROUGHPUT).judgement
        judge.close()
        assert (again.verdict, again.reference_kind) == (Verdict.REGRESSED, "against")


def test_on_cpu_stored_numbers_decide_nothing(world: World) -> None:
    """Rounds beside the base commit decide everything, without a measurement alone before them."""
    world.here = replace(here(), revision=world.here.revision)
    world.next_run()
    world.recorded()
    before = world.sessions
    for world.paired, verdict in ((SAME, Verdict.PASS), (WORSE, Verdict.REGRESSED)):
        world.next_run()
        assert (loaded(world).verdict, loaded(world).reference_kind) == (verdict, "against")
    assert world.sessions == before
    world.next_run(stored_only=True)
    alone = loaded(world)
    assert (alone.verdict, alone.change) == (Verdict.INCONCLUSIVE, None)
    assert "on cpu stored numbers decide nothing" in text_of(alone)
    assert "--stored-only" in text_of(alone)


@pytest.mark.parametrize(
    ("problem", "kind"),
    [
        (NotCommitted, ReasonKind.NOT_COMMITTED),
        (HistoryCut, ReasonKind.COMMIT_UNKNOWN),
        (RevisionUnknown, ReasonKind.COMMIT_UNKNOWN),
        (NotInRevision, ReasonKind.NOT_SIDE_BY_SIDE),
        (NoCheckout, ReasonKind.NOT_SIDE_BY_SIDE),
    ],
)
def test_a_base_commit_that_cannot_be_compared_with_is_a_reason(problem: type[GpuserveError], kind: ReasonKind) -> None:
    """The reason has the remedy, unless a warning before the first measurement had it."""
    reason = not_side_by_side(problem("it is not there", remedies=["put it there"]))
    assert reason.kind is kind
    assert reason.text.startswith("the base could not be measured side by side: it is not there")
    assert ("put it there" in reason.text) is (problem is not NoCheckout)


@pytest.mark.parametrize(
    ("software", "expected"),
    [
        ({"python": "3.11.9"}, ()),
        ({"python": "3.11.8"}, ("python 3.11.8 -> 3.11.9",)),
        ({"python": "3.11.9", "torch": "2.8"}, ("torch 2.8 -> absent",)),
        ({}, ("python absent -> 3.11.9",)),
    ],
)
def test_changed_packages_are_named(software: Mapping[str, str], expected: tuple[str, ...]) -> None:
    """A package that is another, gone or new since the recording is a change."""
    recorded = Stored(msgspec.structs.replace(entry(), software=software), ())
    assert changes_since(recorded, here()) == expected


@pytest.mark.parametrize(
    ("words", "where", "changes"),
    [
        ("uncommitted", {"revision": Revision(COMMIT, clean=False)}, {}),
        ("no app.py", None, {}),
        ("no such flag", None, {}),
        ("--stored-only", None, {"stored_only": True}),
    ],
)
@pytest.mark.parametrize(
    ("alone", "verdict"),
    [(WORSE, Verdict.REGRESSED), (Build(-0.5), Verdict.IMPROVED), (Build(0.03), Verdict.INCONCLUSIVE)],
)
def test_where_rounds_are_impossible_stored_numbers_decide(  # noqa: PLR0917 -- columns of a table
    world: World, words: str, where: dict[str, Any] | None, changes: dict[str, Any], alone: Build, verdict: Verdict
) -> None:
    """On a GPU all three outcomes, which say so and why."""
    world.recorded(where=where)
    world.next_run(**changes)
    world.alone = alone
    if words == "no such flag":
        world.failures = {0: BaseFailed("the base of the comparison could not be started: no such flag")}
    final = loaded(world, is_in_base=words != "no app.py")
    assert final.reference_kind == "baseline"
    assert final.verdict is verdict
    assert words in text_of(final)
    assert "by stored numbers alone, not side by side" in text_of(final)


@pytest.mark.parametrize("alone", [WORSE, Build(-0.5), Build(0.03)])
def test_stored_numbers_say_nothing_of_a_build_beside_itself(world: World, alone: Build) -> None:
    """A claim about the base commit's own build is INVALID, unless its packages changed or it was not started here."""
    world.recorded()
    world.here = replace(world.here, revision=replace(world.here.revision, content=COMMIT[:1] * 64))
    world.alone = alone
    world.next_run(stored_only=True)
    final = loaded(world)
    if alone.change == 0.03:
        assert final.verdict is Verdict.INCONCLUSIVE
        return
    assert (final.verdict, final.reference_kind) == (Verdict.INVALID, "baseline")
    assert "something outside git differs" in text_of(final)
    assert loaded(world, python="").verdict.is_claim
    world.here = replace(world.here, software={"python": "3.12.1"})
    world.next_run()
    assert loaded(world).verdict.is_claim


def test_a_server_of_somebody_elses_is_judged_by_stored_numbers(world: World) -> None:
    """Its host is unknown, and no other build of it can be started."""
    world.recorded()
    world.alone, world.reading = WORSE, 5.0
    judge = world.judge()
    final = ask(judge.measure(target(python=""), SHAPE, None), THROUGHPUT).judgement
    assert (final.verdict, final.reference_kind) == (Verdict.REGRESSED, "baseline")
    assert "this server runs already" in text_of(final)


def test_a_reason_that_was_accepted_is_shown_by_every_run(world: World) -> None:
    """Every kind of decision shows it."""
    world.record(reason="a larger model")
    world.next_run(record_all=False, reason=None)
    for world.alone in (SAME, WORSE):
        assert "recorded with the reason: a larger model" in text_of(loaded(world))


def test_a_recording_that_is_worse_needs_a_reason(world: World) -> None:
    """The numbers are compared directly, on any machine; within the tolerance no reason is needed."""
    world.record()
    world.next_run(record_all=True, record_sessions=2)
    for change, reason, holds in ((0.03, None, True), (0.3, None, False), (0.3, "a larger model", True)):
        world.alone = Build(change)
        world.next_run(reason=reason)
        comparison = ask(world.judge().measure(target(), SHAPE, None), THROUGHPUT)
        assert comparison.holds is holds
        assert ("give the reason: --reason=" in text_of(comparison.judgement)) is not holds


def test_what_was_measured_alone_stays_the_run(world: World) -> None:
    """A run keeps its own sessions after a confirmation, also a failed one, and for the next metric."""
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
        assert judgement.reference_kind == ("baseline" if world.failures else "against")
        judge.close()


def test_an_entry_outside_of_git_without_a_commit_has_no_base(world: World) -> None:
    """Nothing is compared with: a build without a revision would be this checkout, and pass beside itself."""
    judge = world.judge()
    key = world.bench.baselines.key_of(judge.nodeid, "")
    write(key.path, {key.entry: entry(commit=None)})
    judge.measure(target(), SHAPE, None)
    with pytest.raises(NotInGit, match="recorded outside git or with uncommitted changes"):
        judge.measurements[0].base_build()


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


@pytest.mark.parametrize("number", [0, 1])
def test_a_candidate_that_does_not_start_is_an_error(world: World, number: int) -> None:
    """At the first look or a later one: it is not MISSING, which ``--on-missing=skip`` lets skip the test."""
    world.paired, world.failures = BETWEEN, {number: ServerFailed("no weights here")}
    world.next_run(world.against, budget_seconds=1000.0)
    with pytest.raises(ServerFailed, match="no weights here"):
        loaded(world)


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
    assert "earlier try" in text_of(again)


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
