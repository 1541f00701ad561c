"""The result of a run, which every report is a function of, and its rows: the lines of every table, the worst first."""

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
        label: Tells apart several loads of one test; empty for the first.
        base: Whom it was measured beside, as people call it; None where it was measured alone.
        base_options: What measures it beside that one again, on the command line; empty where nothing does.
        candidate_sessions: What was measured beside it. Where a stored baseline was settled side by side, `sessions`
            is what was measured alone before.
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
    """The last lines of what a server wrote."""

    name: str
    text: str


@dataclass
class TestResult:
    """A test that measured.

    Args:
        outcome: pytest's outcome: passed, failed, skipped, error or interrupted.
        problem: Why it did not pass, in pytest's words; empty where it did.
        logs: Of the servers that were started for it, the last ones.
    """

    # Not a test class, whatever its name looks like to pytest.
    __test__ = False

    nodeid: str
    outcome: str
    runs: list[RunResult] = field(default_factory=list)
    problem: str = ""
    logs: tuple[LogTail, ...] = ()

    @property
    def failed(self) -> bool:
        """Whether it did not come to a good end; an unknown outcome did not."""
        return self.outcome not in _OUTCOME_RANKS

    @property
    def judgements(self) -> tuple[Judgement, ...]:
        """Those of all its loads, in the order in which they were made."""
        return tuple(judgement for run in self.runs for judgement in run.judgements)

    def is_bad(self, judgement: Judgement) -> bool:
        """Whether a judgement is why the test did not pass, or may be."""
        return not judgement.verdict.passes and self.outcome != "passed"


UNKNOWN: Final = "-"
"""Shown for a value that is not known."""

HEADINGS: Final = ("test", "metric", "now", "reference", "change", "at worst", "tolerance", "verdict")
"""Of the columns of every table, in the order of `Row.cells`."""


@dataclass(frozen=True)
class Row:
    """A judgement as a line of a table.

    Args:
        name: Name of the test and the load.
        cells: Texts below `HEADINGS`.
        reasons: Why the verdict is what it is.
        basis: The interval and the evidence that the verdict rests on; empty if there is none.
        is_bad: Whether it is why its test did not pass, or may be.
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
    """Everything that a session has to say.

    Args:
        tests: Its tests, in the order in which they ran.
        notes: What was written and what is worth knowing, a line each.
        places: What could not be read of the device, and where things are, a line each.
        header: On what and against what was measured, in a line.
        at: When the session began, ISO 8601 in UTC.
        commit: The code under test, as git's full hash; None where it is not known.
        clean: Whether it was that commit, unchanged but for baselines.
        stored: Whether comparisons are with stored baselines, not with another revision or interpreter.
        update: The option by which the run records baselines; empty where it does not.
        against: Whom it was measured beside, as people call it; empty where comparisons are with stored baselines.
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
        """The short name of a load: that of its test, and its label."""
        return f"{self.names[test.nodeid]} {printable(run.label)}".strip()

    @cached_property
    def ranked_tests(self) -> tuple[TestResult, ...]:
        """The tests that failed, then those that were skipped, then those that passed; each by its worst judgement."""
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
