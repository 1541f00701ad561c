"""A machine that is not as fast as it was: its stored numbers decide nothing, and the baseline's commit does."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuserve.builds.checkout import Revision
from pytest_gpuserve.device.yardstick import YardstickFailed
from pytest_gpuserve.experiment import machine
from pytest_gpuserve.experiment.machine import Machine, speed_text
from pytest_gpuserve.gate.metric import METRICS
from pytest_gpuserve.gate.reason import ReasonKind
from pytest_gpuserve.gate.verdict import Verdict
from pytest_gpuserve.measure.yardstick import Yardstick
from tests.comparison.vocabulary import cases
from tests.comparison.world import SAME, SHAPE, THROUGHPUT, WORSE, World, ask, loaded, target, text_of
from tests.fakes.scripted_pairing import Build
from tests.support.builders import COMMIT, here

if TYPE_CHECKING:
    from pathlib import Path

P50 = METRICS["latency.p50"]
BETTER = Build(-0.35)
TWICE = Build(-0.69)
"""A build on a machine that is twice as fast."""

OTHER = Revision("fedc" * 10, clean=True, code="fedc" * 10, content="d" * 64)
NOBODY = Revision(None, clean=False, code=None)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """A machine without baselines, whose starts are alike."""
    return World(tmp_path, start_noise=0.003).standing_in(monkeypatch)


def record(world: World, **changes: Any) -> list[str]:  # noqa: ANN401 -- fields of the policy
    """Record once more, a month later; what is said."""
    before, policy = world.here, world.policy
    world.here = replace(before, occasion="2025-02-01T03:00:00+00:00")
    lines = world.record(**{"record_sessions": 2, **changes})
    assert lines
    world.here, world.policy = before, policy
    world.next_run()
    return lines


@cases(
    "speed, alone, paired, verdict",
    {
        "a fast machine hides no slower build": (2.0, Build(-0.69 + 0.35), WORSE, Verdict.REGRESSED),
        "one build on a fast machine": (2.0, TWICE, SAME, Verdict.PASS),
        "one build on a slow machine": (0.5, Build(0.69), SAME, Verdict.PASS),
    },
)
def test_on_a_machine_of_another_speed_the_pair_decides(
    world: World, speed: float, alone: Build, paired: Build, verdict: Verdict
) -> None:
    """A build is what it is beside its baseline's commit; nothing is measured alone for it."""
    world.recorded()
    world.speed, world.alone, world.paired = speed, alone, paired
    measured_alone = world.sessions
    final = loaded(world)
    assert (final.verdict, final.reference_kind) == (verdict, "against")
    assert f"this machine is {speed:.2g} times as fast as when the baseline was recorded" in text_of(final)
    assert world.sessions == measured_alone
    assert {each.reference_kind for each in world.told} == {"against"}


def test_of_a_hundred_comparisons_of_one_build_none_is_a_claim(world: World) -> None:
    """Baselines whose hour was 1.5 to 3 times slower or faster call no identical build REGRESSED or IMPROVED.

    Counted over starts that lie 1 % and windows that lie 2 % apart, at the tolerance of 5 %.
    """
    world.paired = Build(0.0, start_sd=0.01, window_sd=0.02)
    world.recorded()
    counted: Counter[tuple[str, Verdict]] = Counter()
    for number in range(100):
        speed = (1.5 + 1.5 * (number % 10) / 9) ** (1 if number % 2 else -1)
        world.next_run()
        world.seed, world.speed, world.alone = number, speed, Build(-math.log(speed))
        final = loaded(world)
        counted[final.reference_kind, final.verdict] += 1
    assert {kind for kind, _ in counted} == {"against"}
    assert counted["against", Verdict.REGRESSED] + counted["against", Verdict.IMPROVED] == 0
    assert counted["against", Verdict.PASS] >= 95


@pytest.mark.parametrize("without", ["git", "a clean checkout", "confirmation"])
def test_what_cannot_be_settled_there_is_inconclusive(world: World, without: str) -> None:
    """On another machine, without the baseline's commit, nobody knows: that is no pass, whatever the numbers say."""
    if without != "confirmation":
        dirty = Revision(COMMIT, clean=False, code=COMMIT, content="c" * 64)
        world.here = replace(world.here, revision=NOBODY if without == "git" else dirty)
    world.recorded()
    world.next_run(confirm=without != "confirmation")
    world.speed, world.alone = 2.0, TWICE
    final = loaded(world)
    assert (final.verdict, final.reference_kind) == (Verdict.INCONCLUSIVE, "baseline")
    assert (final.change, final.tolerance) == (None, None)
    assert final.reasons[0].kind is ReasonKind.MACHINE_SPEED
    assert final.reasons[0].text.startswith("this machine is 2 times as fast as when the baseline was recorded")
    assert ("recorded outside of git" in text_of(final)) is (without == "git")


def test_a_machine_that_changes_while_it_is_measured_is_noticed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A first reading that is alike does not bind: what the readings around the session say counts."""
    world.recorded()
    speeds = iter([1.0, 1.5])
    monkeypatch.setattr(world.paired_runner.machine, "reading", lambda _: {"interpreter": 1000.0 * next(speeds)})
    final = loaded(world)
    assert (final.verdict, final.reference_kind) == (Verdict.PASS, "against")
    assert "its speed varies too much" in text_of(final) or "times as fast" in text_of(final)


def test_sessions_of_the_same_speed_are_compared_with_each_other(world: World) -> None:
    """Recorded at two speeds, a run at either is judged by the sessions of its own, without a pair."""
    world.recorded()
    world.speed, world.alone = 2.0, TWICE
    record(world, record_sessions=4)
    for speed, alone in ((1.0, SAME), (2.0, TWICE)):
        world.next_run()
        world.speed, world.alone = speed, alone
        assert loaded(world).verdict is Verdict.PASS
        # It is judged by them, and settled where so few do not decide it yet.
        assert "baseline" in {each.reference_kind for each in world.told}


# -- better


def test_a_better_number_is_settled_like_a_worse_one(world: World) -> None:
    """IMPROVED by the stored baseline is so only if the pair says it too, and hides no trouble in the pair."""
    world.recorded()
    world.alone, world.paired = BETTER, BETTER
    assert (loaded(world).verdict, loaded(world).reference_kind) == (Verdict.IMPROVED, "against")
    world.next_run()
    world.paired = SAME
    final = loaded(world, P50)
    assert (final.verdict, final.reference_kind) == (Verdict.PASS, "against")
    assert "the stored baseline alone says IMPROVED" in text_of(final)
    world.next_run()
    world.problems = {0: ("wrong answers: 3 of 80 checked",)}
    final = loaded(world)
    assert final.verdict is Verdict.INVALID
    assert "wrong answers" in text_of(final)


def test_a_better_number_that_nobody_can_settle_is_a_pass_and_no_claim(world: World) -> None:
    """Without the baseline's commit a build is not called better, and recording it is not proposed."""
    world.here = replace(world.here, revision=NOBODY)
    world.recorded()
    world.alone = BETTER
    judge = world.judge()
    final = ask(judge.measure(target(), SHAPE, None), THROUGHPUT).judgement
    assert (final.verdict, final.reference_kind) == (Verdict.PASS, "baseline")
    assert "recorded outside of git" in text_of(final)
    assert judge.record() == []


# -- words


def test_a_machine_that_cannot_be_measured_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reading that fails is no reading, and is said; what is not known is never alike, and is named."""

    def fail(_: int) -> dict[str, float]:
        raise YardstickFailed("no", found="exit status 9")

    monkeypatch.setattr(machine, "measure_cores", fail)
    notes: list[str] = []
    assert Machine(here().device, notes.append).reading("python") == {}
    assert notes == ["how fast this machine is could not be measured: exit status 9"]
    assert "could not be measured" in speed_text(Yardstick({"a": (1.0,)}), Yardstick(), "x")
    then, now = Yardstick({"a": (1.0,), "matrix multiply": (5.0,)}), Yardstick({"a": (1.0,)})
    assert "matrix multiply" in speed_text(then, now, "x")


# -- what else is asked of a load that began beside its baseline's commit


def test_another_hosts_sessions_are_not_asked(world: World) -> None:
    """Of a host with slow hours: they tell less than the commit does, though that host is as fast now."""
    now = world.here
    world.recorded()
    world.here = replace(now, device=here("host-b").device)
    world.speed, world.alone = 2.0, TWICE
    record(world)
    world.here = now
    final = loaded(world)
    assert (final.verdict, final.reference_kind) == (Verdict.PASS, "against")


def test_another_hosts_numbers_at_another_speed_are_missing(world: World) -> None:
    """They are another host's first of all, so that without their commit a laptop skips."""
    world.here = replace(world.here, revision=NOBODY)
    world.recorded(where={"device": here("host-b").device})
    world.speed = 2.0
    final = loaded(world)
    assert final.verdict is Verdict.MISSING
    assert "'host-b'" in text_of(final)


def test_a_limit_is_about_a_server_alone(world: World) -> None:
    """A load that began beside its commit is measured alone for a plain limit, once."""
    world.recorded()
    world.speed, world.alone = 2.0, TWICE
    measured = world.sessions
    judge = world.judge()
    run = judge.measure(target(), SHAPE, None)
    assert world.sessions == measured
    assert bool(run.latency.p50 <= 1.0)
    assert bool(run.latency.p99 <= 1.0)
    assert world.sessions == measured + 1
    assert ask(run, THROUGHPUT).judgement.reference_kind == "against"
    judge.close()


def test_a_retry_takes_no_rounds_for_sessions(world: World) -> None:
    """What was measured beside the commit in a first try is not judged by stored numbers in the next."""
    world.recorded()
    world.speed, world.alone = 2.0, TWICE
    first = world.judge()
    ask(first.measure(target(), SHAPE, None), THROUGHPUT)
    first.close()
    world.speed, world.alone, measured = 1.0, SAME, world.sessions
    again = world.judge(earlier=first)
    again.measure(target(), SHAPE, None)
    assert world.sessions == measured + 1
    again.close()
