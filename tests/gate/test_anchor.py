"""Drift from an anchor: how often it is told of identical builds, when a creep is, and the formula."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from statistics import stdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuserve.gate.anchor import AnchorPoint, AnchorResult, judge_anchor
from pytest_gpuserve.gate.metric import METRICS, Growth
from pytest_gpuserve.gate.stored import ALPHA, LOOKS, SessionPoint, judge_stored, withstand_drift
from pytest_gpuserve.gate.verdict import Verdict

THROUGHPUT = METRICS["throughput"]
GROWTH = Growth(0.05)
SESSIONS = 3
UPDATES = 50

LOG_COSTS = st.lists(st.floats(-1, 1), min_size=1, max_size=6)


def judge(anchor: list[float], now: list[float], between: dict[str, list[float]] | None = None) -> AnchorResult:
    """Compare throughput with an anchor, each of one occasion."""
    return judge_anchor(THROUGHPUT, AnchorPoint.of({"then": anchor}), {"now": now}, between or {}, most_growth=GROWTH)


@dataclass
class Chain:
    """A project that records again and again, as `trial.anchoring` does; nobody ever gives a reason.

    Args:
        rng: Its luck.
        session_sd: Standard deviation of log cost between sessions of an occasion.
        occasion_sd: The same between occasions.
    """

    rng: random.Random
    session_sd: float
    occasion_sd: float
    occasion: int = 0
    between: dict[str, list[float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        first = self.measure(0.0, SESSIONS)
        self.anchor = AnchorPoint.of(first)
        self.stored = first

    def measure(self, cost: float, sessions: int) -> dict[str, list[float]]:
        """Sessions of another occasion."""
        self.occasion += 1
        level = cost + self.rng.gauss(0, self.occasion_sd)
        return {str(self.occasion): [self.rng.gauss(level, self.session_sd) for _ in range(sessions)]}

    def update(self, cost: float = 0.0) -> bool:
        """Record a build; whether it is refused as a drift, which leaves everything as it is."""
        now = self.measure(cost, SESSIONS)
        result = judge_anchor(THROUGHPUT, self.anchor, now, self.between, most_growth=GROWTH)
        if result.has_drifted:
            return True
        if result.has_improved:
            self.anchor = AnchorPoint.of(now)
        self.stored = self.between = now
        return False

    def gate(self, cost: float = 0.0) -> tuple[bool, bool]:
        """Gate a build: whether its newest baseline calls it REGRESSED, and whether only its anchor does."""
        (new,) = self.measure(cost, LOOKS).values()
        then = [SessionPoint("here", y, 0.0, 2) for ys in self.stored.values() for y in ys]
        for looks in range(1, LOOKS + 1):
            seen = [SessionPoint("here", y, 0.0, 2) for y in new[:looks]]
            stored = withstand_drift(judge_stored(THROUGHPUT, then, seen, most_growth=GROWTH), self.stored)
            if stored.verdict is not Verdict.INCONCLUSIVE:
                break
        result = judge_anchor(THROUGHPUT, self.anchor, {"now": new[:looks]}, self.between, most_growth=GROWTH)
        regressed = stored.verdict is Verdict.REGRESSED
        return regressed, result.has_drifted and not regressed


def false_alarms(session_sd: float, occasion_sd: float, chains: int = 20) -> tuple[float, float]:
    """Shares of the updates and of the gates of identical builds that are told to have drifted."""
    updates = gates = 0
    for number in range(chains):
        chain = Chain(random.Random(f"{number} {session_sd} {occasion_sd}"), session_sd, occasion_sd)
        for _ in range(UPDATES):
            updates += chain.update()
            gates += chain.gate()[1]
    return updates / chains / UPDATES, gates / chains / UPDATES


@pytest.mark.parametrize(
    ("session_sd", "occasion_sd"), [(0.003, 0.02), (0.01, 0.01), (0.01, 0.02), (0.02, 0.0), (0.02, 0.02)]
)
def test_fifty_updates_of_one_build_do_not_alarm(session_sd: float, occasion_sd: float) -> None:
    """Of updates, and of gates after them, no more are told to have drifted than the stored gate's level allows."""
    updates, gates = false_alarms(session_sd, occasion_sd)
    assert updates <= ALPHA
    assert gates <= ALPHA


@pytest.mark.parametrize("noise", [0.003, 0.01])
def test_a_creep_is_told_by_ten_percent(noise: float) -> None:
    """One percent a step, each within any tolerance of the one before: an update is refused before the sum is 10 %."""
    caught_at = []
    for number in range(60):
        chain = Chain(random.Random(f"creep {number} {noise}"), noise, noise)
        refused = (step for step in range(1, 11) if chain.update(math.log(1 + 0.01 * step)))
        caught_at.append(next(refused, None))
    caught = [step for step in caught_at if step is not None]
    assert len(caught) >= (60 if noise < 0.01 else 54)
    # Not at the first noise either.
    assert sum(step > 4 for step in caught) >= 95 * len(caught) / 100


def test_a_creep_is_told_by_a_gate_too() -> None:
    """Whoever records every step by force of luck is told by the next gate of a build that is far from the anchor."""
    told = 0
    for number in range(100):
        chain = Chain(random.Random(f"gate {number}"), 0.005, 0.005)
        chain.stored = chain.between = chain.measure(math.log(1.12), SESSIONS)
        regressed, drifted = chain.gate(math.log(1.13))
        assert not regressed
        told += drifted
    assert told >= 95


def test_the_formula() -> None:
    """Two-sample variance of sessions, and of occasions, with pooled degrees of freedom; computed by hand."""
    anchor, now, between = [0.0, 0.02, 0.01], [0.1, 0.11], {"a": [0.05, 0.06], "b": [0.04]}
    result = judge(anchor, now, between)
    squares = 0.0002 + 0.00005 + sum((y - 0.05) ** 2 for y in (0.05, 0.06, 0.04))
    session = (2 * 0.02**2 + squares) / (2 + 5)
    drift = (3 * 0.02**2 + (0.055 - 0.0475) ** 2 + (0.04 - 0.0475) ** 2) / (3 + 1)
    seen = result.evidence
    assert seen.estimate == pytest.approx(0.105 - 0.01)
    assert seen.standard_error**2 == pytest.approx(session * (1 / 2 + 1 / 3) + drift * 2)
    assert (seen.df, seen.level) == (7, ALPHA)
    assert result.change == pytest.approx(math.exp(-0.095) - 1)


def test_what_noise_explains_is_neither_drift_nor_improvement() -> None:
    """One session then and one now have the default spreads, with three degrees of freedom, and decide little."""
    seen = judge([0.0], [0.1]).evidence
    assert seen.standard_error**2 == pytest.approx(4 * 0.02**2)
    assert seen.df == 3
    result = judge([0.0], [0.055])
    assert result.is_beyond
    assert not result.has_drifted
    assert not judge([0.0, 0.0, 0.0], [-0.03, -0.03, -0.03]).has_improved
    assert judge([0.0, 0.0, 0.0], [-0.15, -0.15, -0.15]).has_improved


def test_a_judgement_is_in_the_unit_of_the_metric() -> None:
    """A drift reads as a regression from the anchor's value, looked at once."""
    judgement = judge([-math.log(1000)] * 3, [-math.log(800)] * 3).judgement()
    assert (judgement.verdict, judgement.reference_kind) == (Verdict.REGRESSED, "baseline")
    assert judgement.value == pytest.approx(800)
    assert judgement.reference == pytest.approx(1000)
    assert judgement.change == pytest.approx(-0.2)
    assert (judgement.rounds, judgement.looks) == (3, 1)


@given(costs=st.dictionaries(st.text(min_size=1), LOG_COSTS, min_size=1, max_size=3))
def test_an_anchor_is_what_its_sessions_say(costs: dict[str, list[float]]) -> None:
    """Mean, spread and numbers of any sessions make an anchor."""
    ys = [y for each in costs.values() for y in each]
    anchor = AnchorPoint.of(costs)
    assert anchor.y == pytest.approx(sum(ys) / len(ys), abs=1e-12)
    assert (anchor.sessions, anchor.occasions) == (len(ys), len(costs))
    assert anchor.sd == (pytest.approx(stdev(ys), abs=1e-12) if len(ys) > 1 else None)


@pytest.mark.parametrize(
    ("y", "sd", "sessions", "occasions"),
    [
        (math.nan, None, 1, 1),
        (math.inf, None, 1, 1),
        (0.0, None, 0, 0),
        (0.0, 0.1, 2, 0),
        (0.0, 0.1, 2, 3),
        (0.0, None, 2, 1),
        (0.0, 0.1, 1, 1),
        (0.0, -0.1, 2, 1),
        (0.0, math.nan, 2, 1),
    ],
)
def test_an_impossible_anchor_is_refused(y: float, sd: float | None, sessions: int, occasions: int) -> None:
    """NaN, no session, more occasions than sessions, and a spread where there can be none; no session is no drift."""
    with pytest.raises(ValueError, match=r"anchor|sessions"):
        AnchorPoint(y, sd, sessions, occasions)
    with pytest.raises(ValueError, match="nothing was measured"):
        judge_anchor(THROUGHPUT, AnchorPoint.of({"a": [0.0]}), {}, {}, most_growth=GROWTH)
