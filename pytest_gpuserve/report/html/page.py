"""The pages as a whole: a run's report, and a history of metrics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pytest_gpuserve.gate.verdict import Verdict
from pytest_gpuserve.report.html.assets import own, template
from pytest_gpuserve.report.html.components import components
from pytest_gpuserve.report.html.forest import forest
from pytest_gpuserve.report.html.history import history
from pytest_gpuserve.report.html.measured import load_name, measured_runs
from pytest_gpuserve.report.html.sections import REPLICA_HEADINGS, facts_of, section_of
from pytest_gpuserve.report.html.text import UNKNOWN, Texts
from pytest_gpuserve.report.html.throughput import throughput
from pytest_gpuserve.report.html.use import use
from pytest_gpuserve.report.html.verdicts import counted, line_of
from pytest_gpuserve.report.names import names_of
from pytest_gpuserve.report.next_step import next_step
from pytest_gpuserve.report.ranking import ranked
from pytest_gpuserve.report.replicas import PROBE_HEADINGS
from pytest_gpuserve.report.totals import totals_line

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytest_gpuserve.report.html.figure import Figure
    from pytest_gpuserve.report.html.lines import MetricLine
    from pytest_gpuserve.report.html.measured import MeasuredRun
    from pytest_gpuserve.report.html.verdicts import Line
    from pytest_gpuserve.report.ranking import Row
    from pytest_gpuserve.report.results import SessionResult

MOST_AT_ONCE: Final = 24
"""Of more judgements those of tests in which all passed are folded away."""

_Named = tuple[str, "Row"]

_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
"""Nothing is run, and nothing is loaded."""


def document(result: SessionResult, shown: Callable[[str], str] = str) -> str:
    """Write a session's result as one HTML file, which loads nothing from anywhere.

    Args:
        result: The result.
        shown: Makes each text of the run fit to be shown.

    Raises:
        UsageProblem: The library for templates is not installed.
    """
    texts = Texts(shown)
    names = names_of(result.tests, texts.block)
    rows = [(load_name(names[row.test.nodeid], row.run, texts), row) for row in ranked(result.tests)]
    told, fine = _divided(rows)
    runs = measured_runs(result, names, texts)
    of_test: dict[str, list[MeasuredRun]] = {}
    for run in runs:
        of_test.setdefault(run.nodeid, []).append(run)
    anchors = {test.nodeid: f"test-{number}" for number, test in enumerate(result.tests)}
    return _page(
        "report.html.jinja",
        title="gpuserve report",
        header=texts.line(result.header),
        at=texts.line(result.at),
        commit=_commit(result, texts),
        outcomes=_outcomes(result, texts),
        verdicts=counted(row for _, row in rows),
        totals=texts.line(totals_line(result)),
        next=texts.block(next_step(result)),
        told=_group(told, texts),
        fine=_group(fine, texts),
        anchors=anchors,
        replica_headings=REPLICA_HEADINGS,
        probe_headings=PROBE_HEADINGS,
        overview=[plot for plot in (throughput(runs, texts), *components(runs, texts)) if plot is not None],
        use=use(runs),
        tests=[
            section_of(anchors[test.nodeid], names[test.nodeid], test, of_test.get(test.nodeid, []), texts)
            for test in result.tests
        ],
        facts=[
            ("Device", facts_of(result.gpu, texts)),
            ("Host", facts_of(result.host, texts)),
            ("Software", facts_of(result.software, texts)),
        ],
        notes=[texts.line(note) for note in (*result.notes, *result.places)],
    )


def history_document(lines: Sequence[MetricLine], title: str, shown: Callable[[str], str] = str) -> str:
    """Draw metrics over time as one HTML file, which loads nothing from anywhere.

    Args:
        lines: The metrics.
        title: What they are of.
        shown: Makes each text in it fit to be shown.

    Raises:
        UsageProblem: The library for templates is not installed.
    """
    texts = Texts(shown)
    return _page(
        "history.html.jinja",
        title=texts.line(title),
        figures=[history(line, texts) for line in lines if line.points],
        empty=[texts.line(line.title) for line in lines if not line.points],
    )


def _page(name: str, **parts: Any) -> str:  # noqa: ANN401 -- whatever the template names
    return template(name).render(policy=_POLICY, style=own("page.css"), **parts)


@dataclass(frozen=True)
class _Group:
    """Some judgements.

    Attributes:
        forest: Their plot; None where none has a change.
        lines: Their table.
    """

    forest: Figure | None
    lines: tuple[Line, ...]


def _group(rows: Sequence[_Named], texts: Texts) -> _Group:
    return _Group(forest(rows), tuple(line_of(row, name, texts) for name, row in rows))


def _divided(rows: Sequence[_Named]) -> tuple[list[_Named], list[_Named]]:
    """What is shown at once, and what would hide it: many judgements of tests in which all passed."""
    if len(rows) <= MOST_AT_ONCE:
        return list(rows), []
    notable = {row.test.nodeid for _, row in rows if row.judgement.verdict is not Verdict.PASS}
    notable |= {row.test.nodeid for _, row in rows if row.test.outcome != "passed"}
    told = [(name, row) for name, row in rows if row.test.nodeid in notable]
    return told, [(name, row) for name, row in rows if row.test.nodeid not in notable]


def _commit(result: SessionResult, texts: Texts) -> str:
    if result.commit is None:
        return UNKNOWN
    return f"{texts.line(result.commit)}{'' if result.clean else ', with changes'}"


def _outcomes(result: SessionResult, texts: Texts) -> list[tuple[str, int]]:
    """How many tests there are of each outcome, those that did not pass first."""
    counts: dict[str, int] = {}
    for test in result.tests:
        outcome = texts.line(test.outcome)
        counts[outcome] = counts.get(outcome, 0) + 1
    return sorted(counts.items(), key=lambda item: item[0] == "passed")
