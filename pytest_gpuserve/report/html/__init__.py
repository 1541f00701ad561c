"""The report for people: one HTML file that needs no network (``--gpuserve-report``)."""

from __future__ import annotations

import importlib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.gate.verdict import Verdict
from pytest_gpuserve.report.explain import cells, evidence
from pytest_gpuserve.report.html.figure import draw
from pytest_gpuserve.report.html.measured import UNKNOWN, block, cut, load_name, measured_runs, one_line
from pytest_gpuserve.report.html.run_plots import components, forest, throughput, use
from pytest_gpuserve.report.html.sections import facts_of, section_of
from pytest_gpuserve.report.names import names_of
from pytest_gpuserve.report.next_step import next_step
from pytest_gpuserve.report.ranking import ranked
from pytest_gpuserve.report.remarks import totals_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import jinja2

    from pytest_gpuserve.report.html.figure import Figure
    from pytest_gpuserve.report.html.measured import MeasuredRun
    from pytest_gpuserve.report.ranking import Row
    from pytest_gpuserve.report.results import SessionResult


MOST_AT_ONCE: Final = 24
"""Of more judgements those of tests in which all passed are folded away."""

_Named = tuple[str, "Row"]

_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
"""Nothing is run, and nothing is loaded."""

OVERRULED = "settled side by side: that verdict is the last word"

EXTRA: Final = "pip install 'pytest-gpuserve[report]'"

_HERE: Final = Path(__file__).parent


def document(result: SessionResult) -> str:
    """Write a session's result as one HTML file, which loads nothing from anywhere.

    Raises:
        UsageProblem: The library for templates is not installed.
    """
    names = names_of(result.tests)
    rows = [(load_name(names[row.test.nodeid], row.run), row) for row in ranked(result.tests)]
    notable, fine = _divided(rows)
    runs = measured_runs(result, names)
    of_test: dict[str, list[MeasuredRun]] = {}
    for run in runs:
        of_test.setdefault(run.nodeid, []).append(run)
    anchors = {test.nodeid: f"test-{number}" for number, test in enumerate(result.tests)}
    return _page(
        "report.html.jinja",
        title="gpuserve report",
        header=one_line(result.header),
        at=one_line(result.at),
        commit=_commit(result),
        outcomes=_outcomes(result),
        verdicts=_counted(row for _, row in rows),
        totals=one_line(totals_line(result)),
        next=block(next_step(result)),
        notable=_group(notable),
        fine=_group(fine),
        anchors=anchors,
        overview=[plot for plot in (throughput(runs), *components(runs)) if plot is not None],
        use=use(runs),
        tests=[
            section_of(anchors[test.nodeid], names[test.nodeid], test, of_test.get(test.nodeid, []))
            for test in result.tests
        ],
        facts=[
            ("Device", facts_of(result.gpu)),
            ("Host", facts_of(result.host)),
            ("Software", facts_of(result.software)),
        ],
        notes=[one_line(note) for note in (*result.notes, *result.places)],
    )


def _page(name: str, **parts: Any) -> str:  # noqa: ANN401 -- whatever the template names
    return _template(name).render(policy=_POLICY, style=_own("page.css"), **parts)


@dataclass(frozen=True)
class _Group:
    """Some judgements."""

    forest: Figure | None
    lines: tuple[VerdictLine, ...]


def _group(rows: Sequence[_Named]) -> _Group:
    return _Group(forest(rows), tuple(line_of(row, name) for name, row in rows))


def _divided(rows: Sequence[_Named]) -> tuple[list[_Named], list[_Named]]:
    """What is shown at once, and what would hide it: many judgements of tests in which all passed."""
    if len(rows) <= MOST_AT_ONCE:
        return list(rows), []
    nodeids = {row.test.nodeid for _, row in rows if row.judgement.verdict is not Verdict.PASS}
    nodeids |= {row.test.nodeid for _, row in rows if row.test.outcome != "passed"}
    notable = [(name, row) for name, row in rows if row.test.nodeid in nodeids]
    return notable, [(name, row) for name, row in rows if row.test.nodeid not in nodeids]


def _commit(result: SessionResult) -> str:
    if result.commit is None:
        return UNKNOWN
    return f"{one_line(result.commit)}{'' if result.clean else ', with changes'}"


def _outcomes(result: SessionResult) -> list[tuple[str, int]]:
    """How many tests there are of each outcome, those that did not pass first."""
    counts: dict[str, int] = {}
    for test in result.tests:
        outcome = one_line(test.outcome)
        counts[outcome] = counts.get(outcome, 0) + 1
    return sorted(counts.items(), key=lambda item: item[0] == "passed")


@dataclass(frozen=True)
class VerdictLine:
    """A judgement as a line of the table; every text is fit to be shown.

    Args:
        nodeid: The test's id as it was measured, to find its section by.
        counts: Whether it decides something.
        cells: What stands in the columns, by their headings.
        reasons: Why, and what it rests on, a line each.
    """

    nodeid: str
    name: str
    metric: str
    verdict: str
    counts: bool
    cells: dict[str, str]
    reasons: tuple[str, ...]


def _counted(rows: Iterable[Row]) -> list[tuple[str, int]]:
    """How many judgements that decide something there are of each verdict, in the order in which rows have them."""
    return list(Counter(str(row.judgement.verdict) for row in rows if row.counts).items())


def line_of(row: Row, name: str) -> VerdictLine:
    """Write a judgement as a line."""
    judgement = row.judgement
    reasons = [one_line(reason.text) for reason in row.reasons]
    # What a pass rests on stands in the test's own section: 200 lines of it would hide those that matter.
    if judgement.rounds and judgement.verdict is not Verdict.PASS:
        reasons.append(evidence(judgement))
    if row.judgement.overruled:
        reasons.append(OVERRULED)
    return VerdictLine(
        row.test.nodeid,
        cut(name),
        judgement.metric.name,
        str(judgement.verdict),
        row.counts,
        cells(judgement, unknown=UNKNOWN, always_named=True),
        tuple(reasons),
    )


def _own(name: str) -> str:
    """A style sheet of this folder."""
    return (_HERE / name).read_text(encoding="utf-8")


def _template(name: str) -> jinja2.Template:
    """A template of this folder, which escapes all that is put into it."""
    try:
        jinja = importlib.import_module("jinja2")
    except ImportError:
        raise UsageProblem(
            "an HTML report is made with jinja2, which is not installed",
            looked=["the packages of this interpreter"],
            remedies=[EXTRA],
        ) from None
    environment: jinja2.Environment = jinja.Environment(
        loader=jinja.FileSystemLoader(_HERE),
        autoescape=True,
        undefined=jinja.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["draw"] = draw
    return environment.get_template(name)
