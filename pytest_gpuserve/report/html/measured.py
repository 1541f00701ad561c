"""What all parts of a page are made of: texts fit to be shown, and loads with their numbers, each worked out once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from pytest_gpuserve.gate.metric import METRICS
from pytest_gpuserve.measure.points import NotMeasured, value_of
from pytest_gpuserve.measure.summary import StepResult, Summary, steps_of, summary_of
from pytest_gpuserve.report.names import printable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_gpuserve.measure.window import Session, Start, Window
    from pytest_gpuserve.report.results import RunResult, SessionResult


UNKNOWN: Final = "not known"

LABEL_CHARACTERS: Final = 60
"""A longer text is cut where there is little room: on an axis, in a table's row."""

_KEPT: Final = frozenset("\n\t")
"""What is not printable, and still has its place in a text of several lines."""


def block(text: str) -> str:
    """A text of several lines made visible: what is not printable stands there as an escape sequence."""
    return printable(text, _KEPT)


def one_line(text: str) -> str:
    """A text made visible in one line; the page's template, and `figure.draw` in plots, escape the signs of HTML."""
    return " ".join(block(text).split())


def short(text: str) -> str:
    """A text made visible where there is little room."""
    return cut(one_line(text))


def fact(value: Any) -> str:  # noqa: ANN401 -- facts are whatever was found out
    """A fact made visible; one that is not known says so."""
    if value is None:
        return UNKNOWN
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return "; ".join(f"{one_line(str(name))}: {fact(each)}" for name, each in value.items()) or "none"
    return one_line(str(value))


def cut(text: str) -> str:
    """Cut a text that is fit to be shown where there is little room."""
    return text if len(text) <= LABEL_CHARACTERS else f"{text[: LABEL_CHARACTERS - 1]}…"


@dataclass(frozen=True)
class MeasuredRun:
    """A load of a test.

    Args:
        name: The load, for people; fit to be shown.
    """

    nodeid: str
    name: str
    run: RunResult

    @property
    def series(self) -> str:
        """What the loads have in common that differ by parameters or labels only: the test without them."""
        return self.nodeid.partition("[")[0]

    @property
    def sessions(self) -> tuple[Session, ...]:
        """What decided: the rounds beside its base where there were some, else what was measured alone."""
        return self.run.candidate_sessions or self.run.sessions

    @cached_property
    def starts(self) -> tuple[Start, ...]:
        """The starts of its server, in order."""
        return starts_of(self.sessions)

    @cached_property
    def windows(self) -> tuple[Window, ...]:
        """The windows of all starts."""
        return _windows_of(self.sessions)

    @cached_property
    def summary(self) -> Summary | None:
        """What it came to; None where nothing was answered."""
        return _summary(self.windows)

    @cached_property
    def base(self) -> Summary | None:
        """What the one beside it came to; None where there was none, or nothing was answered."""
        return _summary(_windows_of(self.run.base_sessions))

    @cached_property
    def batch(self) -> float | None:
        """Items of an average batch; None where that is not known."""
        return _batch(self.windows)

    @cached_property
    def base_batch(self) -> float | None:
        """The same of the one beside it."""
        return _batch(_windows_of(self.run.base_sessions))

    @property
    def users(self) -> int | None:
        """How many users there were all the time; None of other loads."""
        return self.run.users

    @cached_property
    def steps(self) -> tuple[StepResult, ...]:
        """What each step of a stepped load came to; empty of other loads, and where its windows are too long."""
        try:
            return steps_of(self.run.steps, self.starts) if self.run.steps else ()
        except (NotMeasured, ValueError):
            return ()


def measured_runs(result: SessionResult, names: Mapping[str, str]) -> list[MeasuredRun]:
    """All loads of all tests of which there is what was measured; of merged results there are only the conclusions."""
    return [
        MeasuredRun(test.nodeid, load_name(names[test.nodeid], run), run)
        for test in result.tests
        for run in test.runs
        if run.sessions
    ]


def load_name(test: str, run: RunResult) -> str:
    """What a load is called: its test, and its label where it has one."""
    return f"{test} {one_line(run.label)}".strip()


def starts_of(sessions: Sequence[Session]) -> tuple[Start, ...]:
    """The starts of some sessions, in order."""
    return tuple(start for session in sessions for start in session.starts)


def _windows_of(sessions: Sequence[Session]) -> tuple[Window, ...]:
    """The windows of some sessions, in order."""
    return tuple(window for start in starts_of(sessions) for window in start.windows)


def _summary(windows: Sequence[Window]) -> Summary | None:
    try:
        return summary_of(windows)
    except NotMeasured:
        return None


def _batch(windows: Sequence[Window]) -> float | None:
    try:
        return value_of(METRICS["batching_ratio"], windows)
    except NotMeasured:
        return None
