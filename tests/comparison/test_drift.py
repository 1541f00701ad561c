"""A metric that has drifted from its anchor in small steps: who says so, who settles it, and what is said of it."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

import pytest

from pytest_gpuserve.builds.checkout import Revision
from pytest_gpuserve.comparison.holm import HolmCorrection
from pytest_gpuserve.experiment.pairing import BaseFailed
from pytest_gpuserve.gate.effort import Effort
from pytest_gpuserve.gate.metric import METRICS
from pytest_gpuserve.gate.verdict import Judgement, Verdict
from pytest_gpuserve.report.junit import properties
from pytest_gpuserve.report.next_step import ACCEPT, next_step
from pytest_gpuserve.report.ranking import rows_of
from pytest_gpuserve.report.remarks import bases_lines
from pytest_gpuserve.report.results import SessionResult, TestResult
from tests.comparison.world import SAME, SHAPE, THROUGHPUT, WORSE, World, ask, loaded, target, text_of
from tests.fakes.scripted_pairing import Build, KeptInMemory
from tests.support.builders import here
from tests.support.reasons import said

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from pytest_gpuserve.comparison.judging import TestGate
    from pytest_gpuserve.experiment.environment import RunEnvironment
    from pytest_gpuserve.experiment.handle import Target
    from pytest_gpuserve.experiment.shape import Terms
    from pytest_gpuserve.experiment.watch import Progress
    from pytest_gpuserve.measure.rounds import Round
    from tests.comparison.world import FakeKind
    from tests.fakes.scripted_pairing import ScriptedPairing

FIRST, SECOND, NOW = ("1" * 40, "2" * 40, "3" * 40)
STEP = 0.045
"""Of log cost: from the first to the second recording."""

DRIFT = 0.11
"""What there is now, against the first one: from the second it would be told without an anchor."""


@dataclass
class Creeping(World):
    """A world in which each base has a build of its own.

    Args:
        beside: The candidate against the base of a commit, by the commit.
        asked: Whom the candidate was measured beside, in order.
        failing: What is raised instead of rounds beside a commit.
    """

    beside: dict[str, Build] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    failing: dict[str, Exception] = field(default_factory=dict)

    def pairing(
        self,
        base: Target,
        candidate: Target,
        terms: Terms,
        progress: Progress,
        rounds: Iterable[Round],
        **more: object,
    ) -> ScriptedPairing:
        """Stand for `Pairing`."""
        name = cast("FakeKind", base.server.kind).revision
        self.asked.append(name)
        self.paired = next((build for commit, build in self.beside.items() if commit[:12] in name), self.paired)
        failure = next((failure for commit, failure in self.failing.items() if commit[:12] in name), None)
        self.failures = {} if failure is None else {0: failure}
        return super().pairing(base, candidate, terms, progress, rounds, **more)

    def at(self, commit: str, day: int, host: str = "host-a", software: str = "3.11.9") -> RunEnvironment:
        """The circumstances of a run of pytest."""
        return replace(
            here(host),
            software={"python": software},
            revision=Revision(commit, clean=True, code=commit, content=commit),
            occasion=f"2025-01-{day:02d}T03:00:00+00:00",
        )

    def record_build(self, where: RunEnvironment, change: float, **changes: Any) -> list[str]:  # noqa: ANN401 -- fields of the policy
        """Record a build; what is said."""
        self.here, self.alone = where, Build(change)
        return self.record(**changes)

    def gate(self, where: RunEnvironment, change: float, **changes: Any) -> tuple[Judgement, TestGate]:  # noqa: ANN401 -- as above
        """Gate a build in a test that ends."""
        self.here, self.alone = where, Build(change)
        self.asked.clear()
        self.next_run(**{"record_all": False, "reason": None, **changes})
        judge = self.judge()
        comparison = ask(judge.measure(target(), SHAPE, None), THROUGHPUT)
        assert comparison.holds is comparison.judgement.verdict.passes
        judge.close()
        assert all(pairing.closed for pairing in self.pairings)
        return comparison.judgement, judge


def reported(judge: TestGate) -> SessionResult:
    """What reports are made of, after the test has failed."""
    test = TestResult(judge.nodeid, "failed", [each.result() for each in judge.reported])
    return SessionResult({"name": "cpu"}, {"id": "host-a"}, (test,), commit=NOW, clean=True)


def proposed(judge: TestGate) -> list[str]:
    """The options of the command that comes next."""
    return shlex.split(next_step(reported(judge)).partition("--gpu=cpu ")[2])


def creeping(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, revision: Revision | None = None) -> Creeping:
    """A machine on which a build of a revision was recorded, and after it a slower one, within the tolerance."""
    made = Creeping(tmp_path, noise=0.001, start_noise=0.001).standing_in(monkeypatch)
    first = made.at(FIRST, 1)
    made.record_build(replace(first, revision=revision or first.revision), 0.0)
    (_, said) = made.record_build(made.at(SECOND, 2), STEP)
    assert "within tolerance, anchor stays at" in said
    # Beside the second commit the newest build is not too much slower; what it is beside the first, each test says.
    made.beside = {SECOND: Build(0.005)}
    return made


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Creeping:
    """Where the first build was that of a clean commit."""
    return creeping(tmp_path, monkeypatch)


def test_a_drift_is_confirmed_by_the_anchors_commit(world: Creeping) -> None:
    """No step was told, all of them are: REGRESSED beside the anchor's commit, and why nothing was before.

    That is reported as a load of its own: each row stands beside the samples and the base that it is of, and none
    counts twice.
    """
    world.beside[FIRST] = Build(DRIFT)
    final, judge = world.gate(world.at(NOW, 3), DRIFT)
    assert (final.verdict, final.reference_kind) == (Verdict.REGRESSED, "against")
    assert world.asked[-1] == f"the anchor's commit ({FIRST[:12]})"
    assert "drift: the baseline here is the anchor" in text_of(final)
    assert f"accepted at {FIRST[:12]} on 2025-01-01" in text_of(final)
    assert [(each.reference_kind, each.verdict) for each in world.told][-2:] == [
        ("baseline", Verdict.REGRESSED),
        ("against", Verdict.REGRESSED),
    ]
    # What it took is taken off the test's budget, as any measuring.
    assert world.looks
    assert judge._loads.spent_seconds() == pytest.approx(
        world.session_seconds * len(judge.measurements[0].run.sessions) + world.look_seconds * world.looks
    )
    result = reported(judge)
    alone, beside = result.tests[0].runs
    assert (alone.label, alone.settles, alone.base) == ("", None, f"the baseline's commit ({SECOND[:12]})")
    assert (beside.label, beside.settles) == (f"beside the anchor's commit {FIRST[:12]}", "")
    assert beside.base == f"the anchor's commit ({FIRST[:12]})"
    assert beside.judgements == (final,)
    assert judge.compared(judge.measurements[0].run, final) == (list(beside.base_sessions), list(beside.sessions))
    assert beside.sessions
    rows = [(row.run is beside, row.judgement.verdict, row.counts) for row in rows_of(result.tests[0])]
    assert rows == [(False, Verdict.REGRESSED, False), (False, Verdict.PASS, True), (True, Verdict.REGRESSED, True)]
    assert f"side by side: the candidate and {beside.base}" in bases_lines(result.tests)
    names = [name for name, _ in properties(result.tests[0].runs)]
    assert len(set(names)) == len(names)


def test_what_was_decided_in_an_earlier_run_is_reported_too(world: Creeping) -> None:
    """Rounds that are remembered have samples, though nothing more is measured."""
    world.history = KeptInMemory()
    world.beside[FIRST] = Build(DRIFT)
    for _ in range(2):
        final, judge = world.gate(world.at(NOW, 3), DRIFT)
    assert (world.looks, final.verdict) == (0, Verdict.REGRESSED)
    assert reported(judge).tests[0].runs[-1].sessions


@pytest.mark.parametrize(
    ("effort", "now", "verdict"),
    [
        (Effort.MERGE, 0.08, Verdict.REGRESSED),
        (Effort.PUSH, 0.08, Verdict.PASS),
        (Effort.NIGHTLY, STEP, Verdict.PASS),
    ],
)
def test_an_effort_tightens_no_anchor(world: Creeping, effort: Effort, now: float, verdict: Verdict) -> None:
    """A step that was recorded without a reason is no regression of a nightly run; a push takes the drift as it does.

    The nightly build is 4.4 % worse than the anchor, which is more than 2 %, and less than what recordings go by.
    """
    world.beside = {SECOND: SAME, FIRST: Build(now)}
    final, _ = world.gate(world.at(NOW, 3), now, effort=effort)
    assert final.verdict is verdict


def test_a_drift_of_the_machine_is_cleared(world: Creeping) -> None:
    """Where the anchor's commit is as slow by now the code has not drifted; the verdict before stays."""
    world.beside[FIRST] = SAME
    final, _ = world.gate(world.at(NOW, 3), DRIFT)
    assert final.verdict is Verdict.PASS
    assert f"side by side with the anchor's commit ({FIRST[:12]}) it is PASS: not the code has" in text_of(final)


def test_what_both_share_is_not_cleared(world: Creeping) -> None:
    """With other packages than at the anchor both sides are slow, so that a PASS beside it says nothing."""
    world.beside[FIRST] = SAME
    world.record_build(world.at(SECOND, 3, software="3.12.1"), STEP)
    final, _ = world.gate(world.at(NOW, 4, software="3.12.1"), DRIFT)
    assert (final.verdict, final.reference_kind) == (Verdict.REGRESSED, "baseline")
    assert "python 3.11.9 -> 3.12.1" in text_of(final)


def test_without_confirmation_the_anchor_has_the_last_word(world: Creeping) -> None:
    """`--no-confirm`: REGRESSED in the anchor's numbers; the anchor's commit is proposed, not the one before it.

    Where so many are compared that chance makes such claims, nobody knows, nor on a host that others use.
    """
    final, judge = world.gate(world.at(NOW, 3), 0.095, confirm=False)
    assert (final.verdict, final.reference_kind) == (Verdict.REGRESSED, "baseline")
    assert world.pairings == []
    assert final.value is not None
    assert final.reference is not None
    assert final.value / final.reference == pytest.approx(0.909, abs=0.01)
    assert proposed(judge) == [f"--against={FIRST[:12]}"]
    world.claims = HolmCorrection(10**40)
    final, judge = world.gate(world.at(NOW, 4), 0.095, confirm=False)
    assert final.verdict is Verdict.INCONCLUSIVE
    assert "by itself" in text_of(final)
    assert proposed(judge) == [f"--against={FIRST[:12]}"]
    # While others use the host its numbers are not held against the build.
    world.claims, world.foreign_cores = HolmCorrection(1), 1.5
    final, _ = world.gate(world.at(NOW, 5), 0.095, confirm=False)
    assert final.verdict is Verdict.INVALID
    assert "shared" in text_of(final)


@pytest.mark.parametrize(
    ("why", "words"),
    [
        ("no start", "no such flag"),
        ("undecided", "not settled side by side with the anchor's commit (111111111111) either: INCONCLUSIVE"),
        ("dirty", "uncommitted changes on top of 111111111111"),
        ("no commit", "names no commit"),
    ],
)
def test_what_cannot_be_settled_stays_regressed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str, words: str
) -> None:
    """The reason is told, nothing passes for the want of the anchor's commit, and to accept it is all that is left."""
    revisions = {"dirty": Revision(FIRST, clean=False, code=FIRST), "no commit": Revision(None, clean=False, code=None)}
    world = creeping(tmp_path, monkeypatch, revisions.get(why))
    world.beside[FIRST] = Build(0.042, start_sd=0.002, window_sd=0.01)
    if why == "no start":
        world.failing = {FIRST: BaseFailed("the base could not be started: no such flag")}
    final, judge = world.gate(world.at(NOW, 3), DRIFT, budget_seconds=25.0)
    assert (final.verdict, final.reference_kind) == (Verdict.REGRESSED, "baseline")
    assert words in text_of(final)
    assert proposed(judge) == list(ACCEPT)
    # What was not measured beside it is no load that could be reported.
    assert (judge.reported == judge.measurements) is (why != "undecided")
    if why == "dirty":
        _, judge = world.gate(world.at(NOW, 3), 0.095, confirm=False)
        assert proposed(judge) == list(ACCEPT)


def test_it_is_asked_once_for_all_metrics(world: Creeping) -> None:
    """Of several metrics that drift the rounds beside the anchor's commit are shared, and its servers end."""
    world.beside[FIRST] = Build(DRIFT)
    gated = (THROUGHPUT, METRICS["latency.p50"])
    names = frozenset(metric.name for metric in gated)
    for where, change in ((world.at(FIRST, 4), 0.0), (world.at(SECOND, 5), STEP)):
        world.record_build(where, change, nodeid="test_x.py::test_b", metrics=names, reason="why")
    world.here, world.alone = world.at(NOW, 6), Build(DRIFT)
    world.next_run(record_all=False, metrics=names, reason=None)
    judge = world.judge("test_x.py::test_b")
    run = judge.measure(target(), SHAPE, None)
    alone = list(run.sessions)
    for metric in gated:
        judgement = ask(run, metric).judgement
        assert (judgement.verdict, judgement.reference_kind) == (Verdict.REGRESSED, "against")
        base, candidate = judge.compared(run, judgement)
        assert base
        assert candidate
        assert candidate != run.sessions
    assert run.sessions[: len(alone)] == alone
    assert sum(FIRST[:12] in name for name in world.asked) == 1
    judge.close()
    assert all(pairing.closed for pairing in world.pairings)


def test_where_the_anchor_plays_no_part(world: Creeping) -> None:
    """That of another machine is not compared, which is said; nor where the newest baseline and its commit tell enough.

    `--against` asks its revision, and no baseline.
    """
    final, _ = world.gate(world.at(NOW, 3, host="host-b"), DRIFT)
    assert final.verdict is Verdict.PASS
    assert "no drift is judged, its anchor was measured on 'host-a', not here" in text_of(final)
    world.here, world.alone, world.paired = world.at(NOW, 3), Build(DRIFT), SAME
    world.next_run(against=world.against, record_all=False)
    judgement = loaded(world)
    assert judgement.verdict is Verdict.PASS
    assert "anchor" not in text_of(judgement)
    world.beside = {SECOND: WORSE}
    assert world.gate(world.at(NOW, 4), 0.35)[0].verdict is Verdict.REGRESSED
    assert all(FIRST[:12] not in name for name in world.asked)


@pytest.mark.parametrize("commits", ["other commits", "one commit"])
def test_an_update_by_small_steps_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commits: str) -> None:
    """Recording what has drifted needs a reason, also under the same code, as of a server elsewhere, or of weights."""
    world = Creeping(tmp_path, noise=0.001, start_noise=0.001).standing_in(monkeypatch)
    for step in range(8):
        commit = FIRST if commits == "one commit" else f"{1 + step}" * 40
        lines = world.record_build(world.at(commit, 1 + step), 0.015 * step)
        last = world.told[-1]
        if "needs a reason" in text_of(last):
            break
    else:
        pytest.fail("the creep was never refused")
    assert last.verdict is Verdict.REGRESSED
    assert "drift: the baseline here is the anchor" in text_of(last)
    # The session writes only of tests that passed; what the judge would write is nobody's.
    assert lines
    # A gate of the same commit tells it as well, until a reason is given, which is shown from then on.
    assert world.gate(world.at(commit, 10), 0.015 * step, confirm=False)[0].verdict is Verdict.REGRESSED
    world.record_build(world.at("a" * 40, 11), 0.12, reason="a larger model")
    final, _ = world.gate(world.at("b" * 40, 12), 0.12, confirm=False)
    assert final.verdict is Verdict.PASS
    assert f"throughput was loosened at {'a' * 12}: a larger model" in text_of(final)
    assert text_of(final).count("a larger model") == 1


def test_a_reason_is_shown_though_it_moved_no_anchor(world: Creeping) -> None:
    """What the file keeps is told by every run from then on, with a new anchor or without."""
    world.record_build(world.at("4" * 40, 4), STEP, reason="the new tokenizer is safer")
    final, _ = world.gate(world.at(NOW, 5), STEP, confirm=False)
    assert final.verdict is Verdict.PASS
    assert "the baseline was recorded with the reason: the new tokenizer is safer" in said(final.reasons)


def test_what_got_better_is_proposed(world: Creeping) -> None:
    """A run that records nothing says how to hold on to an improvement, and nothing where there is none."""
    final, judge = world.gate(world.at(NOW, 3), -0.3, confirm=False)
    assert final.verdict is Verdict.IMPROVED
    (line,) = judge.record()
    assert "throughput IMPROVED " in line
    assert line.endswith("to tighten its baseline: pytest test_x.py::test_a --gpu=cpu --baseline-update")
    _, judge = world.gate(world.at(NOW, 4), STEP, confirm=False)
    assert judge.record() == []
