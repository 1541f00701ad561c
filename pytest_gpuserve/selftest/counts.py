"""Counts what comparisons with known truth came to, and says how much so many of them prove."""

from __future__ import annotations

import math
from collections import Counter
from statistics import median
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.gate.sequential import BLOCKS, LOOKS
from pytest_gpuserve.gate.verdict import Verdict
from pytest_gpuserve.measure.rounds import ABBA
from pytest_gpuserve.report.selftest import CaseResult, SelftestResult
from pytest_gpuserve.selftest.trials import CASES, Case, Truth
from pytest_gpuserve.units import format_fraction

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytest_gpuserve.selftest.trials import FinishedTrial, Planned

FIXED_WINDOWS: Final = LOOKS[-1][0] * BLOCKS * len(ABBA)
"""Measured where every comparison goes on to the last look."""

FOUND_SHARE: Final = 0.9
"""Of what must be found; of fewer than ten that is all."""

CONFIDENCE: Final = 0.95

_BISECTIONS: Final = 60
_MOST_PROBLEMS: Final = 5

_EXPECTED: Final = {
    Truth.ALIKE: Verdict.PASS,
    Truth.EDGE: Verdict.REGRESSED,
    Truth.WORSE: Verdict.REGRESSED,
    Truth.WRONG: Verdict.INVALID,
}


def summary(plan: Sequence[Planned], made: Sequence[FinishedTrial], *, interrupted: bool = False) -> SelftestResult:
    """Sum up the comparisons that were made of a plan."""
    planned = Counter(one.case.name for one in plan)
    of = {case.name: [one for one in made if one.planned.case is case] for case in CASES}
    return SelftestResult(
        cases=[_result(case, planned[case.name], of[case.name]) for case in CASES],
        failures=[line for case in CASES for line in _failures(case, of[case.name])],
        problems=_problems(made),
        fixed_windows=FIXED_WINDOWS,
        interrupted=interrupted,
    )


def binomial_bounds(hits: int, trials: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Exact bounds of a share (C. J. Clopper and E. S. Pearson, Biometrika 26, 1934, 404-413).

    Raises:
        ValueError: Hits do not lie in 0 to ``trials``, or the confidence (of both bounds) not in (0, 1).
    """
    if not 0 <= hits <= trials or not 0 < confidence < 1:
        raise ValueError(f"{hits} of {trials} at {confidence} is no share")
    beyond = (1 - confidence) / 2
    low = 0.0 if not hits else _root(lambda share: _at_least(hits, trials, share) > beyond)
    high = 1.0 if hits == trials else _root(lambda share: _at_least(hits + 1, trials, share) > 1 - beyond)
    return low, high


def _at_least(hits: int, trials: int, share: float) -> float:
    return math.fsum(
        math.comb(trials, count) * share**count * (1 - share) ** (trials - count) for count in range(hits, trials + 1)
    )


def _root(too_large: Callable[[float], bool]) -> float:
    low, high = 0.0, 1.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (low, middle) if too_large(middle) else (middle, high)
    return (low + high) / 2


def _result(case: Case, planned: int, made: Sequence[FinishedTrial]) -> CaseResult:
    alarms = sum(one.alarmed for one in made)
    # INVALID is no verdict on the candidate, except where that is what is wrong with it.
    decided = [one.outcome for one in made if one.outcome.verdict is not Verdict.INVALID or one.alarmed]
    seconds = sorted(outcome.seconds for outcome in decided)
    return CaseResult(
        name=case.name,
        expected=_EXPECTED[case.truth],
        planned=planned,
        verdicts=Counter(_shown(one.outcome.verdict) for one in made),
        alarms=alarms,
        bounds=binomial_bounds(alarms, len(made)),
        median_seconds=median(seconds) if seconds else None,
        p90_seconds=seconds[math.ceil(0.9 * len(seconds)) - 1] if seconds else None,
        median_share=median(outcome.windows for outcome in decided) / FIXED_WINDOWS if decided else None,
    )


def _shown(verdict: Verdict) -> Verdict:
    return Verdict.PASS if verdict.passes else verdict


def _failures(case: Case, made: Sequence[FinishedTrial]) -> list[str]:
    """Why the self-test fails by this kind."""
    if not made:
        needed = case.must_be_found or case.truth is Truth.ALIKE
        return [f"{case.name}: none was compared, so nothing is shown"] if needed else []
    alarms = sum(one.alarmed for one in made)
    passed = sum(one.outcome.verdict.passes for one in made)
    of = f"of {len(made)}"
    if case.truth is Truth.ALIKE:
        if alarms:
            return [f"{case.name}: {alarms} {of} REGRESSED, a false alarm"]
        return [] if passed else [f"{case.name}: none {of} came to PASS, so nothing shows that builds alike do"]
    lines = []
    if passed and case.truth is not Truth.EDGE:
        lines.append(f"{case.name}: {passed} {of} came to PASS")
    if case.must_be_found and alarms < FOUND_SHARE * len(made):
        lines.append(f"{case.name}: {alarms} {of} found; it takes {format_fraction(FOUND_SHARE)}")
    return lines


def _problems(made: Sequence[FinishedTrial]) -> list[str]:
    """What was wrong with comparisons that nothing can be concluded from, each once."""
    seen: Counter[str] = Counter()
    for one in made:
        if one.outcome.verdict is Verdict.INVALID and not one.alarmed:
            reasons = [reason for judgement in one.outcome.judgements for reason in judgement.reasons]
            seen[f"{one.planned.case.name}: {(one.outcome.error or '; '.join(map(str, reasons))).strip()}"] += 1
    lines = [f"INVALID: {text}" for text in seen]
    more = len(lines) - _MOST_PROBLEMS
    return lines if more <= 0 else [*lines[:_MOST_PROBLEMS], f"INVALID: {more} more"]
