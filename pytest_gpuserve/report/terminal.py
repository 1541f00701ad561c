"""The table at the end of a run: one line a metric."""

from __future__ import annotations

import io
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pytest_gpuserve.gate.verdict import Judgement, Verdict
from pytest_gpuserve.measure.settings import differences
from pytest_gpuserve.measure.window import Client
from pytest_gpuserve.report.explain import REFERENCE_WORDS
from pytest_gpuserve.units import format_change, format_fraction, format_seconds, format_value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpuserve.report.results import TestResult

STYLES = {
    Verdict.PASS: "green",
    Verdict.IMPROVED: "green",
    Verdict.REGRESSED: "red",
    Verdict.INVALID: "red",
    Verdict.INCONCLUSIVE: "yellow",
    Verdict.MISSING: "yellow",
}

UNKNOWN = "-"

NARROWEST = 40
"""Columns below which the table is not made narrower."""

NAME_WIDTH = 20
"""Columns that a test's name should have before it is folded."""

LEFT_OUT_FIRST = ("detectable", "tolerance", "interval", "reference", "change", "now")
"""What a narrow terminal goes without, in this order; the metric and its verdict are always shown, and whole."""

_GAP = 2
_EDGES = 2


@dataclass(frozen=True)
class _Line:
    name: str
    verdict: Verdict
    cells: dict[str, str]


def bases_lines(tests: Sequence[TestResult]) -> list[str]:
    """Say in a line each whom loads were measured beside."""
    named = dict.fromkeys(
        run.base
        for test in tests
        for run in test.runs
        if run.base is not None and any(judgement.reference_kind == "against" for judgement in run.judgements)
    )
    return [f"side by side: the candidate and {name}" for name in named]


def distinct_reasons(tests: Sequence[TestResult]) -> list[str]:
    """Why verdicts are what they are, each reason once: a missing file would else be said for every metric."""
    judgements = [judgement for test in tests for run in test.runs for judgement in run.judgements]
    lines = (f"{judgement.verdict}: {reason}" for judgement in judgements for reason in judgement.reasons)
    return list(dict.fromkeys(lines))


def settings_lines(tests: Sequence[TestResult]) -> list[str]:
    """Say in a line each where a server used something else than what it was asked for."""
    return list(
        dict.fromkeys(
            f"server settings of {_printable(_short(test.nodeid))}: {_printable(difference)}"
            for test in tests
            for run in test.runs
            for session in run.sessions
            for start in session.starts
            for difference in differences(start.settings)
        )
    )


def client_lines(tests: Sequence[TestResult]) -> list[str]:
    """Say in one line how the load engine did in all loads; none where there was no load."""
    runs = [run for test in tests for run in test.runs if run.sessions]
    clients = [Client.pooled(session.client for session in run.sessions) for run in runs]
    lags = [client.lag.quantile(0.99) for client in clients if client.lag.total]
    windows = [window for run in runs for session in run.sessions for window in session.windows]
    seconds = sum(window.seconds for window in windows)
    if not lags or not seconds:
        return []
    share = format_fraction(sum(window.client_cpu_seconds for window in windows) / seconds)
    return [f"load engine: send lag p99 {format_seconds(max(lags))} at most, {share} of a core on average"]


def measured_again_lines(tests: Sequence[TestResult]) -> list[str]:
    """Say in a line for each test how many windows were measured again, and what disturbed the card in them."""
    lines = []
    for test in tests:
        for run in test.runs:
            starts = [start for session in run.sessions for start in session.starts]
            reasons = [reason for start in starts for reason in start.rejected]
            if not reasons:
                continue
            windows = len(reasons) + sum(len(start.windows) + start.discarded for start in starts)
            known = list(dict.fromkeys(reasons))
            others = len(known) - 1
            more = f"; {others} other reason{'s are' if others > 1 else ' is'} in --gpuserve-json" if others else ""
            name = _printable(f"{_short(test.nodeid)} {run.label}".strip())
            lines.append(f"{name}: {len(reasons)} of {windows} windows measured again: {_printable(known[0])}{more}")
    return lines


def table(tests: Sequence[TestResult], *, width: int, color: bool) -> str:
    """Draw the judgements of all tests.

    Args:
        tests: What to draw.
        width: Columns of the terminal.
        color: Whether it understands colours.
    """
    lines = _lines(tests)
    width = max(width, NARROWEST)
    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True, expand=False)
    grid.add_column("test", overflow="fold")
    columns = _columns_that_fit(lines, width)
    for name in columns:
        grid.add_column(name, justify="left" if name in {"metric", "verdict"} else "right", no_wrap=True)
    for line in lines:
        cells = [Text(line.cells[name], style=STYLES[line.verdict] if name == "verdict" else "") for name in columns]
        grid.add_row(Text(line.name), *cells)
    console = Console(
        file=io.StringIO(),
        width=width,
        force_terminal=color,
        no_color=not color,
    )
    with console.capture() as captured:
        console.print(grid)
    return "\n".join(line.rstrip() for line in captured.get().splitlines()).strip("\n")


def _lines(tests: Sequence[TestResult]) -> list[_Line]:
    short = Counter(_short(test.nodeid) for test in tests)
    lines = []
    for test in tests:
        # Tests of one name in several files are told apart by the file.
        name = _short(test.nodeid) if short[_short(test.nodeid)] == 1 else test.nodeid
        for run in test.runs:
            shown = f"{name} {run.label}".strip()
            for judgement in run.judgements:
                lines.append(_Line(_printable(shown), judgement.verdict, _cells(judgement)))
                name = shown = ""
    return lines


def _short(nodeid: str) -> str:
    return nodeid.partition("::")[2] or nodeid


def _printable(text: str) -> str:
    # A name may hold anything, the escape sequences of a terminal too.
    return "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in text)


def _columns_that_fit(lines: Sequence[_Line], width: int) -> list[str]:
    columns = list(_HEADINGS)
    name_width = min(NAME_WIDTH, max((cell_len(line.name) for line in lines), default=0))
    widths = {name: max(cell_len(text) for text in (name, *(line.cells[name] for line in lines))) for name in columns}
    for left_out in LEFT_OUT_FIRST:
        if _EDGES + name_width + sum(_GAP + widths[name] for name in columns) <= width:
            break
        columns.remove(left_out)
    return columns


_HEADINGS = ("metric", "now", "reference", "change", "interval", "tolerance", "detectable", "verdict")


def _cells(judgement: Judgement) -> dict[str, str]:
    unit = judgement.unit
    interval = UNKNOWN
    if judgement.interval is not None:
        interval = " .. ".join(format_change(bound) for bound in judgement.interval)
    texts = (
        judgement.metric.name,
        UNKNOWN if judgement.value is None else format_value(judgement.value, unit),
        _reference(judgement),
        UNKNOWN if judgement.change is None else format_change(judgement.change),
        interval,
        UNKNOWN if judgement.tolerance is None else format_fraction(judgement.tolerance),
        UNKNOWN if judgement.detectable is None else format_fraction(judgement.detectable),
        str(judgement.verdict),
    )
    return dict(zip(_HEADINGS, texts, strict=True))


def _reference(judgement: Judgement) -> str:
    """What it was compared with, so that two rows of one metric, by its baseline and by its base, are told apart."""
    if judgement.reference is None:
        return UNKNOWN
    value = format_value(judgement.reference, judgement.unit)
    if judgement.reference_kind in {"limit", "duel"}:
        return f"{'>=' if judgement.metric.higher_is_better else '<='} {value}"
    return value if judgement.reference_kind == "baseline" else f"{REFERENCE_WORDS[judgement.reference_kind]} {value}"
