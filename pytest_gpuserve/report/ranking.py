"""In which order people look at what a run came to: the worst first.

Tests come by their outcome, those that failed before those that were skipped before those that passed; of one outcome
by their worst row. The rows of a test stay together, so that what moved with what is seen at a glance, and so do those
of each of its loads. Rows come by their verdict (REGRESSED, INVALID, MISSING, INCONCLUSIVE, then all that passes), of
one verdict by the size of their change as a multiple of their tolerance, and those without a change last. What is alike
in all of that stays in the order in which it was measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.report.explain import reasons_of
from pytest_gpuserve.verdict.verdict import Judgement, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pytest_gpuserve.report.results import RunResult, TestResult
    from pytest_gpuserve.verdict.reason import Reason

FAILED: Final = frozenset({"failed", "error", "interrupted"})
"""Outcomes of a test that did not come to a good end."""

_BY_OUTCOME: Final[Mapping[str, int]] = {"skipped": 1, "passed": 2}

_BY_VERDICT: Final[Mapping[Verdict, int]] = {
    Verdict.REGRESSED: 0,
    Verdict.INVALID: 1,
    Verdict.MISSING: 2,
    Verdict.INCONCLUSIVE: 3,
    Verdict.PASS: 4,
    Verdict.IMPROVED: 4,
}

_NOTHING: Final = (max(_BY_VERDICT.values()) + 1, True, 0.0)


@dataclass(frozen=True)
class Row:
    """A judgement and whose it is."""

    test: TestResult
    run: RunResult
    judgement: Judgement

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """Why it is what it is."""
        return reasons_of(self.judgement)

    @property
    def is_bad(self) -> bool:
        """Whether it is why its test did not pass, or may be: what is not known is bad."""
        return not self.judgement.verdict.passes and self.test.outcome != "passed"


def ranked(tests: Iterable[TestResult]) -> list[Row]:
    """All rows of these tests, the worst first; see the module."""
    return [
        row
        for test in ranked_tests(tests)
        for rows in sorted(rows_by_load(test), key=_rank_of_load)
        for row in sorted(rows, key=_rank_of_row)
    ]


def ranked_tests(tests: Iterable[TestResult]) -> list[TestResult]:
    """These tests, the worst first."""
    return sorted(tests, key=_rank_of_test)


def rows_of(test: TestResult) -> list[Row]:
    """The rows of a test, in the order in which they were judged."""
    return [row for rows in rows_by_load(test) for row in rows]


def rows_by_load(test: TestResult) -> list[list[Row]]:
    """The same for each of its loads; of one without a judgement none."""
    return [[Row(test, run, judgement) for judgement in run.judgements] for run in test.runs]


def _rank_of_row(row: Row) -> tuple[int, bool, float]:
    judgement = row.judgement
    change = judgement.change
    tolerance = judgement.tolerance or judgement.metric.default_tolerance
    return _BY_VERDICT[judgement.verdict], change is None, 0.0 if change is None else -abs(change) / tolerance


def _rank_of_load(rows: Iterable[Row]) -> tuple[int, bool, float]:
    return min((_rank_of_row(row) for row in rows), default=_NOTHING)


def _rank_of_test(test: TestResult) -> tuple[int, tuple[int, bool, float]]:
    return _BY_OUTCOME.get(test.outcome, 0), _rank_of_load(rows_of(test))
