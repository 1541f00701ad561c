"""A judgement in words."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest

from pytest_gpuserve.gate.verdict import ReferenceKind, Verdict
from pytest_gpuserve.report.explain import evidence, explain, reasons_of
from tests.support.builders import judgement

KINDS: tuple[ReferenceKind, ...] = get_args(ReferenceKind)


def test_a_regression_explains_itself() -> None:
    """Measured, baseline, change, what moved; interval and evidence, what to type; then why, and the rest."""
    text = explain(
        judgement(reasons=("first", "second\nline")),
        {"latency.p50": 0.4, "latency.p99": -0.02, "batching_ratio": -0.031},
        "pytest t --gpu=cpu",
        ["moved with it: compute per batch 4.10 ms -> 4.52 ms (+10.2 %)", "of the whole: 98 %", "not counted: clocks"],
    )
    assert text == [
        "REGRESSED: throughput is 1432/s, baseline 2047/s: -30.1 % (tolerance 5 %)",
        "moved with it: compute per batch 4.10 ms -> 4.52 ms (+10.2 %)",
        "interval -34.1 % to -26.2 %, from 2 sessions; a change of 6 % would have been seen",
        "of the whole: 98 %",
        "to accept the new number: pytest t --gpu=cpu",
        "first",
        "second",
        "line",
        "metrics that moved with it: latency.p50 +40.0 %, batching_ratio -3.1 %",
        "not counted: clocks",
    ]


def test_a_closer_look_comes_before_the_number_is_accepted() -> None:
    """Where only a stored number shows it, both commands stand together, in the order in which they are typed."""
    lines = explain(judgement(), {}, "pytest t --baseline-update", closer="look closer: pytest t --against=HEAD~1")
    assert lines[2:] == [
        "first look closer: pytest t --against=HEAD~1",
        "to accept the new number, if that shows it: pytest t --baseline-update",
    ]


@pytest.mark.parametrize("verdict", Verdict)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("command", ["", "pytest t"])
def test_every_judgement_can_be_explained(verdict: Verdict, kind: ReferenceKind, command: str) -> None:
    """No verdict, reference or command makes the explanation itself fail; the verdict comes first."""
    lines = explain(judgement(verdict, kind=kind), {"latency.p50": 0.5}, command)
    assert lines[0].startswith(f"{verdict}: throughput")
    assert any(line.endswith(": pytest t") for line in lines) is bool(command)
    assert not any("None" in line for line in lines)


@pytest.mark.parametrize("verdict", Verdict)
def test_only_a_change_is_explained_by_what_moved(verdict: Verdict) -> None:
    """What moved with it stands below a change or a doubt, and not beside a pass or what cannot be trusted."""
    shown = any("compute" in line for line in explain(judgement(verdict), {}, "", ["moved with it: compute"]))
    assert shown is (verdict in (Verdict.REGRESSED, Verdict.IMPROVED, Verdict.INCONCLUSIVE))


def test_small_moves_explain_nothing() -> None:
    """What hardly moved, moved unknowably, or stands beside a pass is not named; nor are made-up numbers."""
    moved = {"latency.p50": 0.029, "latency.p90": float("nan")}
    assert not any("moved" in line for line in explain(judgement(), moved, ""))
    assert not any("moved" in line for line in explain(judgement(Verdict.PASS), {"latency.p50": 0.5}, ""))
    assert explain(judgement(Verdict.MISSING, reasons=("no entry",)), {}, "") == ["MISSING: throughput", "no entry"]


@pytest.mark.parametrize("kind", KINDS)
def test_evidence_is_counted_in_its_own_unit(kind: ReferenceKind) -> None:
    """Side by side it is rounds and their windows, else sessions; also where they bound nothing."""
    paired = kind in ("against", "duel")
    seen = replace(judgement(kind=kind), rounds=3, windows=72)
    counted = "3 rounds (72 windows)" if paired else "3 sessions"
    assert evidence(seen) == f"from {counted}; a change of 6 % would have been seen"
    one = replace(seen, rounds=1, windows=1)
    assert evidence(one).startswith("from 1 round (1 window);" if paired else "from 1 session;")
    thin = replace(seen, verdict=Verdict.INCONCLUSIVE, interval=None, detectable=None)
    if paired:
        assert f"from {counted}" in explain(thin, {}, "")


@pytest.mark.parametrize("verdict", [Verdict.PASS, Verdict.IMPROVED])
def test_a_pass_says_what_it_could_not_have_seen(verdict: Verdict) -> None:
    """A tolerance below what would surely have been seen is said, and so is that nothing is known of it."""
    fine = replace(judgement(verdict), detectable=0.05)
    assert evidence(fine).endswith("; a change of 5 % would have been seen")
    assert evidence(judgement(verdict)).endswith(
        "; a change of 6 % would have been seen, one of just the tolerance (5 %) not surely"
    )
    assert evidence(replace(fine, detectable=None)).endswith("; it cannot say which change would have been seen")
    assert any("would have been seen" in line for line in explain(fine, {}, ""))


@pytest.mark.parametrize(("metric", "worse"), [("throughput", -1), ("latency.p50", 1)])
def test_a_regression_within_the_tolerance_says_why_it_is_one(metric: str, worse: int) -> None:
    """A change of 21.6 % at a tolerance of 30 % is no contradiction for a reader, whichever direction is worse."""
    interval = min(worse * 0.35, worse * 0.11), max(worse * 0.35, worse * 0.11)
    seen = replace(judgement(metric=metric, reasons=("a reason",)), change=worse * 0.216, interval=interval)
    seen = replace(seen, tolerance=0.3)
    reaches = f"the interval reaches {worse * 35:+.1f} %"
    why = f"within the tolerance of 30 % by its estimate, but not shown to be within it: {reaches}"
    assert explain(seen, {}, "")[2] == why
    assert reasons_of(seen) == (why, "a reason")
    for other in ({"tolerance": 0.2}, {"tolerance": 0.4}, {"tolerance": None}, {"verdict": Verdict.PASS}):
        assert reasons_of(replace(seen, **other)) == ("a reason",)
