"""What a report is made of."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 -- msgspec reads the annotations
from dataclasses import dataclass, field
from typing import Any

from pytest_gpuserve.measure.window import Session  # noqa: TC001 -- msgspec reads the annotations
from pytest_gpuserve.verdict.verdict import Judgement  # noqa: TC001 -- msgspec reads the annotations


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


@dataclass(frozen=True)
class SessionResult:
    """Everything that a session has to say, or one worker of it.

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
