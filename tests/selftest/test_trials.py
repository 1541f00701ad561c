"""Which comparisons the self-test plans; they are made in order, within their time, and none is cut short."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING

import pytest

from pytest_gpuserve.gate.reason import Reason, ReasonKind
from pytest_gpuserve.gate.verdict import Verdict
from pytest_gpuserve.selftest import trials
from pytest_gpuserve.selftest.server import Options
from pytest_gpuserve.selftest.trials import (
    BATCH,
    CASES,
    GATED,
    SHAPE,
    BuiltIn,
    Case,
    FinishedTrial,
    Trial,
    TrialResult,
    TrialSettings,
    Truth,
    comparisons,
    interleaved,
)
from tests.support.builders import judgement

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from pytest_gpuserve.load.totals import RunningTotals
    from pytest_gpuserve.load.wire import Tick
    from pytest_gpuserve.selftest.trials import Planned
    from pytest_gpuserve.servers.base import Ask, ServerKind
    from pytest_gpuserve.servers.instance import Instance


SETTING = TrialSettings(SHAPE, GATED, "host", None, 1000.0, 60.0)


class Watcher:
    """A progress line that counts how often it was cleared."""

    def __init__(self) -> None:
        self.cleared = 0

    def show(self, totals: RunningTotals, tick: Tick, seconds_left: float | None) -> None:
        """Nothing is shown."""

    def clear(self) -> None:
        """Count."""
        self.cleared += 1


class Clock:
    """A clock that trials move on, and the trials that were made."""

    def __init__(self, lasting: Callable[[str], float]) -> None:
        self.now = 1000.0
        self.trials: list[Trial] = []
        self._lasting = lasting

    def monotonic(self) -> float:
        """The time."""
        return self.now

    def run_trial(
        self, trial: Trial, setting: TrialSettings, progress: Watcher, note: Callable[[str], None]
    ) -> TrialResult:
        """Let time pass."""
        seconds = self._lasting(trial.name)
        self.now += seconds
        self.trials.append(trial)
        return TrialResult(trial, Verdict.PASS, (judgement(Verdict.PASS),), (), seconds)


def nowhere(kind: ServerKind, ask: Ask, beside: object = None) -> AbstractContextManager[Instance]:
    """Starts nothing."""
    raise NotImplementedError


def make(
    monkeypatch: pytest.MonkeyPatch, clock: Clock, *, seconds: float, times: int = 3
) -> tuple[Iterator[FinishedTrial], Watcher, list[Planned]]:
    """The comparisons by this clock, who watches them, and those that were begun."""
    monkeypatch.setattr(trials, "run_trial", clock.run_trial)
    monkeypatch.setattr(time, "monotonic", clock.monotonic)
    watcher = Watcher()
    begun: list[Planned] = []

    def progress(planned: Planned) -> Watcher:
        begun.append(planned)
        return watcher

    found = comparisons(
        interleaved(times),
        Options(turns=1000),
        SETTING,
        nowhere,
        seconds=seconds,
        progress=progress,
        note=lambda line: None,
    )
    return found, watcher, begun


def test_all_that_fits_is_made_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """With time enough each planned one, against the server as it is, cleared from the terminal afterwards."""
    clock = Clock(lambda name: 10.0)
    found, watcher, begun = make(monkeypatch, clock, seconds=1e6)
    assert [one.planned for one in found] == begun == list(interleaved(3))
    assert watcher.cleared == len(begun)
    for trial, planned in zip(clock.trials, begun, strict=True):
        base, candidate = (side.server.kind for side in (trial.base, trial.candidate))
        assert base.workload() == BuiltIn(Options(turns=1000)).workload()
        assert candidate.workload() == BuiltIn(planned.case.of(Options(turns=1000))).workload()
        assert (trial.name, trial.number) == (planned.case.name, planned.number)


def test_what_would_not_end_in_time_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the longest of its kind so far, or what is usual before the first; a shorter kind may still fit.

    The first is always made, however short the time.
    """
    clock = Clock(lambda name: 100.0 if name == "5 % slower" else 5.0)
    found, _, _ = make(monkeypatch, clock, seconds=200.0)
    names = [one.planned.case.name for one in found]
    # 6 x 5 + 100 in the first turn, then 12 x 5 of the others.
    assert names.count("5 % slower") == 1
    assert all(names.count(case.name) == 3 for case in CASES if case.name != "5 % slower")
    assert clock.now - 1000.0 == 190.0
    found, _, _ = make(monkeypatch, Clock(lambda name: 10.0), seconds=30.0 + trials.TYPICAL_SECONDS - 1, times=1)
    assert len(list(found)) == 3
    found, _, _ = make(monkeypatch, Clock(lambda name: 30.0), seconds=1e-3)
    assert [one.planned.case.name for one in found] == ["wrong answers"]


def test_ctrl_c_ends_it_with_what_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes through, and the line on the terminal is cleared."""
    clock = Clock(lambda name: 10.0)
    found, watcher, _ = make(monkeypatch, clock, seconds=1e6)
    assert next(found).planned.number == 1

    def interrupted(*_: object) -> TrialResult:
        raise KeyboardInterrupt

    monkeypatch.setattr(trials, "run_trial", interrupted)
    with pytest.raises(KeyboardInterrupt):
        next(found)
    assert watcher.cleared == 2


WRONG = Reason(ReasonKind.WRONG_ANSWERS, "1 of 2")


@pytest.mark.parametrize(
    ("name", "verdict", "reason", "alarmed"),
    [
        ("identical", Verdict.REGRESSED, None, True),
        ("identical", Verdict.INVALID, WRONG, False),
        ("10 % slower", Verdict.REGRESSED, None, True),
        ("10 % slower", Verdict.PASS, None, False),
        ("wrong answers", Verdict.INVALID, WRONG, True),
        ("wrong answers", Verdict.INVALID, WRONG.of("the base"), False),
        ("wrong answers", Verdict.INVALID, Reason(ReasonKind.NO_STEADY_STATE, "wrong answers"), False),
        ("wrong answers", Verdict.REGRESSED, None, False),
    ],
)
def test_what_counts_as_an_alarm(name: str, verdict: Verdict, *, reason: Reason | None, alarmed: bool) -> None:
    """REGRESSED; where the candidate's answers are wrong, INVALID for just that and for nothing else."""
    (planned,) = [planned for planned in interleaved(1) if planned.case.name == name]
    target = trials._target(Options(turns=1), nowhere)
    trial = Trial(name, 1, target, target)
    outcome = TrialResult(trial, verdict, (judgement(verdict, reasons=(reason,) if reason else ()),), (), 1.0)
    assert FinishedTrial(planned, outcome).alarmed is alarmed


BASE = Options(turns=1000, max_batch=BATCH)


def test_all_kinds_have_the_same_hours() -> None:
    """Each kind comes once in each turn, numbered; the first turn stands as it is listed, later ones vary."""
    plan = interleaved(5)
    turns = [plan[first : first + len(CASES)] for first in range(0, len(plan), len(CASES))]
    assert [planned.case for planned in turns[0]] == list(CASES)
    for number, turn in enumerate(turns, 1):
        assert {planned.case.name for planned in turn} == {case.name for case in CASES}
        assert {planned.number for planned in turn} == {number}
    assert len({tuple(planned.case.name for planned in turn) for turn in turns}) > 2
    assert interleaved(5) == plan
    assert interleaved(5, seed=1) != plan


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_candidate_differs_in_what_its_name_says(case: Case) -> None:
    """And in nothing else; only the identical one does not differ at all."""
    candidate = case.of(BASE)
    differs = {name for name, value in asdict(candidate).items() if value != asdict(BASE)[name]}
    assert differs == set(case.change)
    assert bool(differs) == (case.truth is not Truth.ALIKE)
    if "slower" in differs:
        assert case.name == f"{candidate.slower * 100:.0f} % slower"


def test_a_tail_is_not_a_slowdown() -> None:
    """Its mean stays within a quarter of the tolerance of 5 %, and it reaches more than one request in a hundred."""
    cases = {case.name: case.of(BASE) for case in CASES}
    candidate = cases["tail only"]
    turns = [candidate.turns_of_batch(number) for number in range(1, 1 + 10 * candidate.tail_every)]
    assert sum(turns) / len(turns) / BASE.turns <= 1 + 0.05 / 4 + 1e-9
    assert sum(count > BASE.turns for count in turns) / len(turns) > 0.01
    # More than any tolerance of the batching ratio.
    assert cases["smaller batches"].max_batch == 0.75 * BASE.max_batch
