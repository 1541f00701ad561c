"""The results in the forms of other tools, one module a form; here is what all of them share: loads and their names."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pytest_gpuserve.gate.metric import LATENCY, METRICS, Metric
from pytest_gpuserve.gate.verdict import Verdict
from pytest_gpuserve.measure.points import NotMeasured, value_of_starts
from pytest_gpuserve.measure.summary import Summary, summary_of
from pytest_gpuserve.report.names import printable
from pytest_gpuserve.report.ranking import rows_by_load
from pytest_gpuserve.units import digest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pytest_gpuserve.measure.window import Start
    from pytest_gpuserve.report.ranking import Row
    from pytest_gpuserve.report.results import RunResult, SessionResult, TestResult


LONGEST_NAME_BYTES: Final = 1024
"""Of a load's name, in UTF-8: the longest that Bencher takes, which is the strictest."""


@dataclass(frozen=True, slots=True)
class ExportedLoad:
    """A load, as other tools are told of it.

    What was measured while something was wrong, or was judged to be INVALID, has no numbers here: these tools keep
    numbers and not their reasons, and one that cannot be trusted would be taken for what the server does.

    Args:
        test: The test's id; no other test is called so.
        label: Tells apart several loads of one test; empty for the first.
        name: Both in one, of `LONGEST_NAME_BYTES` at most; no other load is called so.
        rows: Its judgements, those that were overruled too.
        starts: Its server starts; none where what was measured cannot be trusted.
        summary: Counts and latencies of the starts; None where nothing was answered.
    """

    test: str
    label: str
    name: str
    outcome: str
    run: RunResult
    rows: tuple[Row, ...]
    starts: tuple[Start, ...]
    summary: Summary | None

    def known(self) -> dict[Metric, float]:
        """All metrics that are known, over all that was measured."""
        found = {}
        for metric in METRICS.values():
            if metric.quantile is None or metric.times != LATENCY:
                with suppress(NotMeasured):
                    found[metric] = value_of_starts(metric, self.starts)
            elif self.summary is not None:
                found[metric] = self.summary.quantile(metric.quantile)
        return found


@dataclass(frozen=True, slots=True)
class ExportedTest:
    """A test, as other tools are told of it.

    Args:
        name: Its id; no other test is called so.
    """

    name: str
    outcome: str
    loads: tuple[ExportedLoad, ...]


def tests_of(result: SessionResult) -> tuple[ExportedTest, ...]:
    """Name all tests and their loads, so that no two are called the same, in the order in which they ran."""
    tests: set[str] = set()
    loads: set[str] = set()
    return tuple(_test(test, tests, loads) for test in result.tests)


def loads_of(result: SessionResult) -> Iterator[ExportedLoad]:
    """The loads of `tests_of`."""
    for test in tests_of(result):
        yield from test.loads


def plain(value: Any) -> Any:  # noqa: ANN401 -- anything that JSON has
    """Facts with each text in them as one line that is fit to be shown; what is unknown (None) is left out."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items() if each is not None}
    return [plain(each) for each in value] if isinstance(value, (list, tuple)) else value


def json_text(document: object) -> str:
    """Write a document as JSON of ASCII signs alone, which no reader can misread.

    Raises:
        ValueError: A number in it is infinite or NaN.
    """
    return json.dumps(document, indent=1, allow_nan=False) + "\n"


def _test(test: TestResult, tests: set[str], loads: set[str]) -> ExportedTest:
    name = _unique(printable(test.nodeid), tests)
    labels: set[str] = set()
    found = []
    for run, rows in zip(test.runs, rows_by_load(test), strict=True):
        label = _unique(printable(run.label), labels)
        whole = _fitted(_unique(f"{name} {label}" if label else name, loads))
        starts = _sound_starts(run, rows)
        found.append(ExportedLoad(name, label, whole, test.outcome, run, tuple(rows), starts, _summary(starts)))
    return ExportedTest(name, test.outcome, tuple(found))


def _unique(name: str, taken: set[str]) -> str:
    """The name, with a number behind it where another has it already."""
    found, number = name, 1
    while found in taken:
        number += 1
        found = f"{name} #{number}".lstrip()
    taken.add(found)
    return found


def _fitted(name: str) -> str:
    written = name.encode()
    if len(written) <= LONGEST_NAME_BYTES:
        return name
    # The digest tells apart names that begin alike.
    mark = f" {digest(name)}"
    return written[: LONGEST_NAME_BYTES - len(mark)].decode(errors="ignore") + mark


def _sound_starts(run: RunResult, rows: Iterable[Row]) -> tuple[Start, ...]:
    # That others used the host is no problem of a session: what passed in spite of them stands.
    judged = any(row.counts and row.judgement.verdict is Verdict.INVALID for row in rows)
    if judged or any(session.problems for session in run.sessions):
        return ()
    return tuple(start for session in run.sessions for start in session.starts)


def _summary(starts: Sequence[Start]) -> Summary | None:
    try:
        return summary_of(window for start in starts for window in start.windows)
    except NotMeasured:
        return None
