"""A test that ended early: what it did not come to is told by the data that are there, and nothing else comes of it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from pytest_gpuserve.builds.checkout import Revision
from pytest_gpuserve.comparison.holm import HolmCorrection
from pytest_gpuserve.comparison.stored import UNSETTLED
from pytest_gpuserve.comparison.unasserted import UNASKED
from pytest_gpuserve.gate.metric import METRICS
from pytest_gpuserve.gate.reason import ReasonKind
from pytest_gpuserve.gate.sequential import ALPHA
from pytest_gpuserve.gate.verdict import NOT_ASSERTED, Verdict
from tests.comparison.world import SAME, SHAPE, THROUGHPUT, WORSE, World, ask, target, text_of
from tests.fakes.scripted_pairing import Build, KeptInMemory
from tests.support.builders import COMMIT
from tests.support.reasons import because, said

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpuserve.comparison.judging import TestGate
    from pytest_gpuserve.gate.metric import Metric
    from pytest_gpuserve.gate.verdict import Judgement

P50, P99 = METRICS["latency.p50"], METRICS["latency.p99"]
BOTH = frozenset({"throughput", "latency.p50"})


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """A machine with a baseline, on which only the first of two metrics is asserted."""
    made = World(tmp_path, start_noise=0.003).standing_in(monkeypatch)
    made.recorded()
    made.next_run(metrics=BOTH)
    return made


@pytest.fixture
def slower(world: World) -> World:
    """The same where the load is slower now than its baseline, whose commit is not asked."""
    world.alone = WORSE
    world.next_run(confirm=False)
    return world


def end(judge: TestGate, *, early: bool = True) -> None:
    """End the test, here with an error of its own."""
    judge.ended_early = early
    judge.close()


def ended(world: World, *asserted: Metric, nodeid: str = "test_x.py::test_a", early: bool = True) -> TestGate:
    """The judge of a test that asserts these metrics of its one load, and then ends."""
    judge = world.judge(nodeid)
    run = judge.measure(target(), SHAPE, None)
    for metric in asserted:
        ask(run, metric)
    end(judge, early=early)
    return judge


def rows(judge: TestGate, *, asserted: bool = False) -> list[Judgement]:
    """What is told of its loads, of what was not asserted or of what was."""
    told = (each for measurement in judge.measurements for each in measurement.judgements.values())
    return [each for each in told if each.asserted is asserted]


@pytest.mark.parametrize(
    ("alone", "foreign_cores", "comparisons", "expected"),
    [
        pytest.param(SAME, 0.0, 2, (Verdict.PASS, ""), id="passed"),
        pytest.param(WORSE, 0.0, 2, (Verdict.REGRESSED, ""), id="worse"),
        pytest.param(WORSE, 1.5, 2, (Verdict.INVALID, "shared"), id="on a host that others use"),
        pytest.param(WORSE, 0.0, 10**40, (Verdict.INCONCLUSIVE, "by itself"), id="not sure enough among so many"),
    ],
)
def test_it_is_what_the_assertion_would_have_come_to(
    world: World, alone: Build, foreign_cores: float, comparisons: int, expected: tuple[Verdict, str]
) -> None:
    """By the same data a metric gets the same verdict with the same numbers, marked as not asserted."""
    world.alone, world.foreign_cores = alone, foreign_cores
    told = []
    for metrics in ((THROUGHPUT, P50), (THROUGHPUT,)):
        world.claims, world.sessions = HolmCorrection(comparisons), 100
        world.next_run(confirm=False, budget_seconds=1.0)
        told.append(ended(world, *metrics).measurements[0].judgements["latency.p50", "baseline"])
    verdict, words = expected
    assert told[0].verdict is verdict
    assert words in text_of(told[0])
    # That a budget ended it is said of what was asked for.
    reasons = [reason for reason in told[0].reasons if reason.kind is not ReasonKind.BUDGET_SPENT]
    assert told[1] == replace(told[0], asserted=False, reasons=(NOT_ASSERTED, *reasons))


def test_nothing_more_is_measured(world: World) -> None:
    """Neither a session, nor a look side by side that nobody has begun: the row says that it is not settled."""
    world.alone = Build(0.07)
    world.next_run(metrics=frozenset({"throughput", "latency.p99"}))
    before = world.sessions
    judge = ended(world, P99)
    (told,) = rows(judge)
    assert rows(judge, asserted=True)[0].verdict is Verdict.PASS
    assert (told.metric, told.verdict, told.reference_kind) == (THROUGHPUT, Verdict.REGRESSED, "baseline")
    assert UNSETTLED in told.reasons
    assert (world.sessions - before, world.pairings) == (1, [])


@pytest.mark.parametrize(("paired", "verdict"), [(WORSE, Verdict.REGRESSED), (SAME, Verdict.PASS)])
def test_rounds_beside_the_baselines_commit_settle_it(world: World, paired: Build, verdict: Verdict) -> None:
    """What was measured beside the commit for one metric settles the others too, and is not measured on for them."""
    world.alone, world.paired = WORSE, paired
    history = world.history = KeptInMemory()
    world.next_run()
    judge = ended(world, THROUGHPUT)
    (told,) = rows(judge)
    assert (told.metric, told.verdict, told.reference_kind) == (P50, verdict, "against")
    assert "the stored baseline alone says REGRESSED" in text_of(told)
    (asserted,) = (each for each in rows(judge, asserted=True) if each.reference_kind == "against")
    assert told.rounds == asserted.rounds
    assert [set(kept.metrics) for kept in history.kept.values()] == [{"throughput"}]


def test_a_commit_that_cannot_be_asked_is_told(world: World) -> None:
    """Why the first metric was not settled is why the others are not."""
    world.recorded(where={"revision": Revision(COMMIT, clean=False, code=COMMIT)})
    world.alone = WORSE
    world.next_run(metrics=BOTH)
    (told,) = rows(ended(world, THROUGHPUT))
    assert told.verdict is Verdict.REGRESSED
    assert "uncommitted" in text_of(told)


def test_it_spends_no_claim_of_the_run(slower: World) -> None:
    """The next claim of the run is judged as if there had been none of it, however sure it was."""
    slower.claims = HolmCorrection(4)
    slower.next_run()
    assert rows(ended(slower, THROUGHPUT))[0].verdict is Verdict.REGRESSED
    assert slower.claims.planned == 4
    assert not slower.claims.uphold(("another", "throughput"), ALPHA / 2)
    assert slower.claims.uphold(("another", "throughput"), ALPHA / 3)


def test_a_drift_from_the_anchor_is_no_pass_here_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the newest baseline alone does not call worse its anchor does; its commit is not measured for it."""
    world = World(tmp_path, noise=0.001, start_noise=0.001).standing_in(monkeypatch)
    for day, change in enumerate((0.0, 0.045, 0.10), start=1):
        revision = Revision(str(day) * 40, clean=True, code=str(day) * 40, content=str(day) * 40)
        world.here = replace(world.here, occasion=f"2025-01-0{day}T03:00:00+00:00", revision=revision)
        world.alone = Build(change)
        if day < 3:
            world.record()
    world.next_run(record_all=False, confirm=False, budget_seconds=1.0, metrics=BOTH)
    told = ended(world, P50).measurements[0].judgements["throughput", "baseline"]
    assert (told.verdict, told.asserted) == (Verdict.REGRESSED, False)
    assert "drift: the baseline here is the anchor" in text_of(told)
    assert UNASKED in told.reasons
    assert world.looks == 0


def test_side_by_side_the_rounds_judge_it(world: World) -> None:
    """Against a revision the rest is judged by the rounds, at their look, and nothing is remembered of it."""
    world.paired = WORSE
    history = world.history = KeptInMemory()
    world.next_run(world.against, metrics=frozenset({*BOTH, "latency.p99"}))
    p50, p99 = rows(ended(world, THROUGHPUT))
    assert (p50.metric, p50.verdict, p50.reference_kind) == (P50, Verdict.REGRESSED, "against")
    assert (p99.metric, p99.verdict) == (P99, Verdict.INCONCLUSIVE)
    assert "full round" in text_of(p99)
    assert world.looks == 1
    assert [set(kept.metrics) for kept in history.kept.values()] == [{"throughput"}]


def test_a_base_that_failed_leaves_the_rest_missing(world: World) -> None:
    """Beside a base that is gone by the second metric there is nothing to compare the third with."""
    world.next_run(world.against)
    judge = world.judge()
    ask(judge.measure(target(), SHAPE, None), THROUGHPUT)
    (gone,) = because("it did not start again", kind=ReasonKind.NOT_SIDE_BY_SIDE)
    judge.measurements[0].absent = gone
    end(judge)
    (told,) = rows(judge)
    assert (told.metric, told.verdict) == (P50, Verdict.MISSING)
    assert told.reasons == (NOT_ASSERTED, gone)


def test_trouble_at_the_servers_end_is_still_a_problem_of_the_test(world: World) -> None:
    """The rest is INVALID for what shows only then, which takes nothing off the test's own error."""
    world.paired, world.leak = Build(-0.3), "memory not given back"
    world.next_run(world.against)
    judge = ended(world, THROUGHPUT)
    assert rows(judge, asserted=True)[0].verdict.passes
    (told,) = rows(judge)
    assert (told.verdict, said(told.reasons)) == (Verdict.INVALID, (str(NOT_ASSERTED), world.leak))
    assert judge.unjudged_problems() == [world.leak]


def test_a_refused_recording_tells_all_that_it_would_loosen(world: World) -> None:
    """So that one reason can be given for all of it; and nothing is recorded."""
    world.alone = WORSE
    path = world.folder / "baselines" / "test_x.json"
    before = path.read_bytes()
    world.next_run(record_all=True, record_sessions=2)
    (told,) = rows(ended(world, THROUGHPUT))
    assert "would loosen latency.p50" in text_of(told)
    assert path.read_bytes() == before


def test_a_test_that_failed_records_nothing_and_says_so(world: World) -> None:
    """What it did not come to is not recorded if the test passes: it has failed."""
    world.next_run(record_new=True, record_sessions=2)
    judge = ended(world, THROUGHPUT, nodeid="test_x.py::test_new")
    (asserted,), (told,) = rows(judge, asserted=True), rows(judge)
    assert (asserted.verdict, told.verdict) == (Verdict.MISSING, Verdict.MISSING)
    assert "recorded by this run" in text_of(asserted)
    assert "recorded by this run" not in text_of(told)
    assert "has no entry 'test_new'" in text_of(told)


@pytest.mark.parametrize("early", [True, False])
def test_the_outcome_of_the_test_is_what_it_asserted(slower: World, *, early: bool) -> None:
    """What is told afterwards is no comparison that did not hold, and nothing to skip for; hooks hear of it.

    What a test that came to its end does not compare it does not mean to, and nothing is told of that.
    """
    slower.next_run(skip_inconclusive=True)
    judge = ended(slower, THROUGHPUT, early=early)
    assert [each.metric for each in judge.unheld()] == [THROUGHPUT]
    assert judge.skip_reason() == ""
    judge.close()
    assert [(each.metric, each.asserted) for each in slower.told] == [(THROUGHPUT, True), (P50, False)][: 1 + early]


def test_only_loads_that_were_compared_are_judged(slower: World) -> None:
    """Of a load that was compared with nothing yet nobody knows what it is for; a duel's limits are the test's own."""
    judge = slower.judge()
    first = judge.measure(target(), SHAPE, None)
    judge.measure(target(), SHAPE, None)
    duel = judge.duel(target(), target("other"), SHAPE, None)
    ask(first, THROUGHPUT)
    judge.against_ratio(duel.run, THROUGHPUT, 2.0)
    end(judge)
    told = [[each.metric for each in measurement.judgements.values()] for measurement in judge.measurements]
    assert told == [[THROUGHPUT, P50], [], [THROUGHPUT]]


def test_what_has_a_row_or_cannot_have_one_gets_none(slower: World) -> None:
    """A metric that was judged by a limit, which the test meant, and memory without a card, which nobody asserted."""
    slower.next_run(metrics=BOTH | {"gpu_memory"})
    judge = slower.judge()
    run = judge.measure(target(), SHAPE, None)
    judge.against_limit(run, P50, 1.0)
    ask(run, THROUGHPUT)
    end(judge)
    assert rows(judge) == []
