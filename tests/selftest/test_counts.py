"""What comparisons of known truth came to, counted; and how little a few of them prove."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuserve.gate.reason import Reason, ReasonKind
from pytest_gpuserve.gate.sequential import BLOCKS
from pytest_gpuserve.gate.verdict import Verdict
from pytest_gpuserve.measure.rounds import ABBA, Block, Round
from pytest_gpuserve.selftest.counts import binomial_bounds, summary
from pytest_gpuserve.selftest.trials import CASES, FinishedTrial, Planned, Trial, TrialResult, interleaved
from tests.support.builders import judgement, window

if TYPE_CHECKING:
    from pytest_gpuserve.experiment.handle import Target
    from pytest_gpuserve.report.selftest import CaseResult, SelftestResult

NOWHERE: Target = None  # type: ignore[assignment]

GOOD = {
    "identical": Verdict.PASS,
    "wrong answers": Verdict.INVALID,
    "5 % slower": Verdict.INCONCLUSIVE,
    "tail only": Verdict.INCONCLUSIVE,
}
"""What lets the self-test pass; of all others REGRESSED does."""

WRONG = Reason(ReasonKind.WRONG_ANSWERS, "wrong answers: 3 of 5")
UNSTEADY = Reason(ReasonKind.NO_STEADY_STATE, "no steady state")
LATE = Reason(ReasonKind.CLIENT_LATE, "client late")


def made(
    name: str,
    verdict: Verdict | None = None,
    *,
    number: int = 1,
    reason: Reason = WRONG,
    **outcome: Any,  # noqa: ANN401 -- fields of several types
) -> FinishedTrial:
    """A comparison of a kind, with the verdict that is right for it, and other fields of its outcome."""
    (case,) = [case for case in CASES if case.name == name]
    verdict = verdict or GOOD.get(name, Verdict.REGRESSED)
    judgements = (judgement(verdict, reasons=(reason,)),)
    fields: dict[str, Any] = {"rounds": (), "seconds": 10.0, "error": "", **outcome}
    return FinishedTrial(
        Planned(case, number), TrialResult(Trial(name, number, NOWHERE, NOWHERE), verdict, judgements, **fields)
    )


def result_of(*changed: FinishedTrial, times: int = 1) -> SelftestResult:
    """The summary where all comparisons come out well but for these, which take the place of their kind's."""
    names = {one.planned.case.name for one in changed}
    rest = [made(case.name) for case in CASES if case.name not in names]
    return summary(interleaved(times), [*rest, *changed])


def case_of(result: SelftestResult, name: str) -> CaseResult:
    """One kind of a result."""
    (case,) = [case for case in result.cases if case.name == name]
    return case


@pytest.mark.parametrize(
    ("hits", "trials", "low", "high"),
    [(0, 10, 0.0, 0.3085), (10, 10, 0.6915, 1.0), (5, 10, 0.1871, 0.8129), (30, 100, 0.2124, 0.3998), (0, 0, 0.0, 1.0)],
)
def test_bounds_are_those_of_the_tables(hits: int, trials: int, low: float, high: float) -> None:
    """Clopper and Pearson's, to four digits."""
    assert binomial_bounds(hits, trials) == pytest.approx((low, high), abs=5e-5)


@pytest.mark.parametrize(("hits", "trials", "confidence"), [(-1, 3, 0.95), (4, 3, 0.95), (1, 3, 0.0), (1, 3, 1.0)])
def test_what_is_no_share_is_refused(hits: int, trials: int, confidence: float) -> None:
    """Not answered with some number."""
    with pytest.raises(ValueError, match="is no share"):
        binomial_bounds(hits, trials, confidence)


@given(st.integers(1, 60).flatmap(lambda trials: st.tuples(st.integers(0, trials), st.just(trials))))
def test_bounds_hold_what_was_seen(seen: tuple[int, int]) -> None:
    """They lie around the share that was seen, mirror with it, and are wider where more confidence is asked."""
    hits, trials = seen
    low, high = binomial_bounds(hits, trials)
    assert 0 <= low <= hits / trials <= high <= 1
    assert binomial_bounds(trials - hits, trials) == pytest.approx((1 - high, 1 - low))
    wider = binomial_bounds(hits, trials, 0.99)
    assert wider[0] <= low
    assert wider[1] >= high


def test_all_well() -> None:
    """No false alarm, what has to be found is found: nothing fails; an edge or a tail that is undecided does not."""
    result = result_of()
    assert result.failures == []
    assert result.problems == []
    assert [(case.name, case.made, case.planned) for case in result.cases] == [(case.name, 1, 1) for case in CASES]
    found = {case.name for case in result.cases if case.alarms == 1}
    assert found == {"wrong answers", "20 % slower", "10 % slower", "smaller batches"}
    assert sum(case.alarms for case in result.cases) == len(found)


@pytest.mark.parametrize(
    ("one", "failures"),
    [
        (made("identical", Verdict.REGRESSED), ["identical: 1 of 1 REGRESSED, a false alarm"]),
        (made("identical", Verdict.INCONCLUSIVE), ["identical: none of 1 came to PASS"]),
        (made("10 % slower", Verdict.INCONCLUSIVE), ["10 % slower: 0 of 1 found"]),
        (made("20 % slower", Verdict.INVALID), ["20 % slower: 0 of 1 found"]),
        (made("20 % slower", Verdict.PASS), ["20 % slower: 1 of 1 came to PASS", "20 % slower: 0 of 1 found"]),
        (made("wrong answers", reason=UNSTEADY), ["wrong answers: 0 of 1 found"]),
        (made("wrong answers", Verdict.REGRESSED), ["wrong answers: 0 of 1 found"]),
        (made("tail only", Verdict.PASS), ["tail only: 1 of 1 came to PASS"]),
        (made("smaller batches", Verdict.IMPROVED), ["smaller batches: 1 of 1 came to PASS"]),
        (made("5 % slower", Verdict.PASS), []),
        (made("5 % slower", Verdict.INVALID), []),
        (made("5 % slower", Verdict.REGRESSED), []),
    ],
)
def test_one_thing_is_wrong(one: FinishedTrial, failures: list[str]) -> None:
    """And that alone is said; a slowdown of just the tolerance may be called either way."""
    lines = result_of(one).failures
    assert len(lines) == len(failures)
    assert all(line.startswith(failure) for line, failure in zip(lines, failures, strict=True))


def test_nine_in_ten_are_enough() -> None:
    """Of ten one may be missed, of fewer none."""
    found = [made("10 % slower", number=number) for number in range(1, 10)]
    missed = made("10 % slower", Verdict.INCONCLUSIVE, number=10)
    assert result_of(*found, missed).failures == []
    assert len(result_of(*found[1:], missed).failures) == 1


def test_nothing_made_is_not_well() -> None:
    """Where the time was too short for a kind that has to be found, the self-test does not pass."""
    result = summary(interleaved(2), [], interrupted=True)
    names = ["wrong answers", "identical", "20 % slower", "10 % slower"]
    assert result.failures == [f"{name}: none was compared, so nothing is shown" for name in names]
    assert result.interrupted
    assert all((case.made, case.planned, case.bounds) == (0, 2, (0.0, 1.0)) for case in result.cases)
    assert all(case.median_seconds is case.p90_seconds is case.median_share is None for case in result.cases)


def test_times_are_of_comparisons_that_ended() -> None:
    """Median, the time that one in ten exceeds, and the windows; what was INVALID for another reason has no time."""
    full = Round((Block(ABBA, (window((0.01,) * 100),) * len(ABBA)),) * BLOCKS, "base", {}, "2025-01-02T03:04:05+00:00")
    ones = [made("identical", number=n, seconds=float(n), rounds=(full,) * (1 + n % 2)) for n in range(1, 11)]
    case = case_of(result_of(*ones, made("identical", Verdict.INVALID, seconds=1e6, number=11), times=11), "identical")
    assert (case.median_seconds, case.p90_seconds) == (5.5, 9.0)
    assert case.median_share == pytest.approx(1.5 / 8)
    assert case.verdicts == {Verdict.PASS: 10, Verdict.INVALID: 1}
    assert case_of(result_of(made("wrong answers", seconds=2.0)), "wrong answers").median_seconds == 2.0


def test_problems_are_told_once() -> None:
    """Why something was INVALID, but not of answers that are wrong on purpose; and no more than a few."""
    late = [made("identical", Verdict.INVALID, reason=LATE, number=number) for number in range(3)]
    assert result_of(*late, made("identical")).problems == ["INVALID: identical: client late"]
    broken = [made("tail only", Verdict.INVALID, error=f"it broke {number}") for number in range(8)]
    problems = result_of(*broken).problems
    assert problems[0] == "INVALID: tail only: it broke 0"
    assert problems[5:] == ["INVALID: 3 more"]
