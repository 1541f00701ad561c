"""The result of a run, the input of every report, and its rows: the lines of every table, the worst first."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from pytest_gpuserve.report.explain import basis, reasons_of, reference_text
from pytest_gpuserve.report.names import names_of, printable
from pytest_gpuserve.units import format_change, format_fraction, format_value
from pytest_gpuserve.verdict.verdict import Judgement, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pytest_gpuserve.measure.window import Session
    from pytest_gpuserve.verdict.reason import Reason


@dataclass(frozen=True)
class RunResult:
    """A load of a test.

    Args:
        label: Distinguishes several loads of one test; empty for the first.
        base: Name of the base for people; None if the load was measured alone.
        base_options: Options that measure it beside that base again; empty if none do.
        candidate_sessions: Sessions of the candidate beside the base. If a stored baseline was settled side by side,
            `sessions` are the earlier ones without the base.
    """

    label: str
    sessions: tuple[Session, ...]
    judgements: tuple[Judgement, ...]
    load: Mapping[str, str]
    server: Mapping[str, str]
    base: str | None = None
    base_options: tuple[str, ...] = ()
    base_sessions: tuple[Session, ...] = ()
    candidate_sessions: tuple[Session, ...] = ()


@dataclass(frozen=True)
class LogTail:
    """The last lines of a server's log."""

    name: str
    text: str


@dataclass
class TestResult:
    """A test that measured.

    Args:
        outcome: pytest's outcome: passed, failed, skipped, error or interrupted.
        problem: Reason why it did not pass, in pytest's words; empty if it did.
        logs: Logs of the last servers that were started for it.
    """

    # Not a test class, although its name looks like one to pytest.
    __test__ = False

    nodeid: str
    outcome: str
    runs: list[RunResult] = field(default_factory=list)
    problem: str = ""
    logs: tuple[LogTail, ...] = ()

    @property
    def failed(self) -> bool:
        """Whether it failed; an unknown outcome did."""
        return self.outcome not in _OUTCOME_RANKS

    @property
    def judgements(self) -> tuple[Judgement, ...]:
        """Judgements of all its loads, in order."""
        return tuple(judgement for run in self.runs for judgement in run.judgements)

    def is_bad(self, judgement: Judgement) -> bool:
        """Whether a judgement is, or may be, the reason why the test did not pass."""
        return not judgement.verdict.passes and self.outcome != "passed"


UNKNOWN: Final = "-"
"""Text of an unknown value."""

HEADINGS: Final = ("test", "metric", "now", "reference", "change", "at worst", "tolerance", "verdict")
"""Headings of the columns of every table, in the order of `Row.cells`."""


@dataclass(frozen=True)
class Row:
    """A judgement as a line of a table.

    Args:
        name: Name of the test and the load.
        cells: Texts below `HEADINGS`.
        reasons: Reasons of the verdict.
        basis: Interval and evidence of the verdict; empty without any.
        is_bad: Whether it is, or may be, the reason why its test did not pass.
    """

    test: TestResult
    run: RunResult
    judgement: Judgement
    name: str
    cells: tuple[str, ...]
    reasons: tuple[Reason, ...]
    basis: str
    is_bad: bool


def _row(test: TestResult, run: RunResult, judgement: Judgement, name: str) -> Row:
    unit, worst, tolerance = judgement.unit, judgement.worst, judgement.tolerance
    cells = (
        name,
        judgement.metric.name,
        UNKNOWN if judgement.value is None else format_value(judgement.value, unit),
        reference_text(judgement) or UNKNOWN,
        UNKNOWN if judgement.change is None else format_change(judgement.change),
        UNKNOWN if worst is None else format_change(worst),
        UNKNOWN if tolerance is None else format_fraction(tolerance),
        str(judgement.verdict),
    )
    reasons = reasons_of(judgement)
    return Row(test, run, judgement, name, cells, reasons, basis(judgement), test.is_bad(judgement))


RECORDABLE: Final = frozenset({"baseline", "against"})
"""Kinds of reference with a stored baseline; a printed number or a limit cannot be recorded."""

_OUTCOME_RANKS: Final[Mapping[str, int]] = {"skipped": 1, "passed": 2}

_VERDICT_RANKS: Final[Mapping[Verdict, int]] = {
    Verdict.REGRESSED: 0,
    Verdict.INVALID: 1,
    Verdict.MISSING: 2,
    Verdict.INCONCLUSIVE: 3,
    Verdict.PASS: 4,
    Verdict.IMPROVED: 4,
}

_LAST: Final = (max(_VERDICT_RANKS.values()) + 1, True, 0.0)


def _rank(judgement: Judgement) -> tuple[int, bool, float]:
    """By the verdict, then by the size of the change as a multiple of its tolerance; an unknown change is last."""
    change = judgement.change
    tolerance = judgement.tolerance or judgement.metric.default_tolerance
    return _VERDICT_RANKS[judgement.verdict], change is None, 0.0 if change is None else -abs(change) / tolerance


def _worst_rank(judgements: Iterable[Judgement]) -> tuple[int, bool, float]:
    return min(map(_rank, judgements), default=_LAST)


@dataclass(frozen=True)
class SessionResult:
    """Content of all reports of a session.

    Args:
        tests: Its tests, in the order of their runs.
        notes: Written files and remarks, a line each.
        places: Unknown facts of the device, and places of files, a line each.
        header: Device and reference of the measurement, in a line.
        at: Begin of the session, ISO 8601 in UTC.
        commit: The code under test, as git's full hash; None if unknown.
        clean: Whether the code was that commit without changes, except in baselines.
        stored: Whether comparisons are with stored baselines, not with another revision or interpreter.
        update: The option that records baselines; empty without a recording.
        against: Name of the base for people; empty if comparisons are with stored baselines.
    """

    gpu: Mapping[str, Any]
    host: Mapping[str, Any]
    tests: tuple[TestResult, ...]
    notes: tuple[str, ...] = ()
    places: tuple[str, ...] = ()
    header: str = ""
    at: str = ""
    commit: str | None = None
    clean: bool = False
    software: Mapping[str, str] = field(default_factory=dict)
    stored: bool = True
    update: str = ""
    against: str = ""

    @cached_property
    def names(self) -> Mapping[str, str]:
        """The short name of each test, by its id."""
        return names_of([test.nodeid for test in self.tests])

    def name_of(self, test: TestResult, run: RunResult) -> str:
        """The short name of a load: name of its test, and its label."""
        return f"{self.names[test.nodeid]} {printable(run.label)}".strip()

    @cached_property
    def ranked_tests(self) -> tuple[TestResult, ...]:
        """Failed tests, then skipped ones, then passed ones; each by its worst judgement."""
        return tuple(
            sorted(self.tests, key=lambda test: (_OUTCOME_RANKS.get(test.outcome, 0), _worst_rank(test.judgements)))
        )

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """All judgements, the worst first: the rows of one test stay together, and so do those of one load."""
        return tuple(
            _row(test, run, judgement, self.name_of(test, run))
            for test in self.ranked_tests
            for run in sorted(test.runs, key=lambda run: _worst_rank(run.judgements))
            for judgement in sorted(run.judgements, key=_rank)
        )

    @property
    def improvements(self) -> list[Row]:
        """Improvements that could be recorded, so that the gate gets stricter: the largest change first.

        They come from passed tests only. If another metric of the test regressed, an update needs a reason.
        """
        return [
            row
            for row in self.rows
            if self.stored
            and row.test.outcome == "passed"
            and row.judgement.verdict is Verdict.IMPROVED
            and row.judgement.reference_kind in RECORDABLE
        ]
