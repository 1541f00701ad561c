"""Texts of a run on the terminal: the table, one line a metric, and the lines above and below it."""

from __future__ import annotations

import io
from collections import Counter
from typing import TYPE_CHECKING, Final

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pytest_gpuserve.measure.counters import differences
from pytest_gpuserve.measure.window import Window
from pytest_gpuserve.measure.work import cached_share, preemptions_of_thousand
from pytest_gpuserve.report.names import printable, some_of
from pytest_gpuserve.report.results import HEADINGS
from pytest_gpuserve.units import format_change, format_fraction, format_seconds
from pytest_gpuserve.verdict.reason import ReasonKind
from pytest_gpuserve.verdict.verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pytest_gpuserve.report.results import Row, SessionResult
    from pytest_gpuserve.verdict.reason import Reason


MOST_OF_PASSES: Final = 3
"""Number of reasons of passed comparisons that are shown by default, because a green run is short."""

PROBLEM_CHARACTERS: Final = 200
"""Lines of an error that are repeated, although pytest shows it in full."""

REASONS_PAGE: Final = "reference/reasons.md"
"""Page with an anchor for each kind of reason."""

_OF_ENTRIES: Final[Mapping[ReasonKind, str]] = {
    ReasonKind.NO_ENTRY: "{about} has no entry '...'",
    ReasonKind.NOT_COMPARABLE: "{about} has another workload under '...'",
}
"""Common text of reasons of several tests about one baseline file, in which each test has its own entry."""

_WORDS: Final[Mapping[Verdict, str]] = {
    Verdict.PASS: "passed",
    Verdict.IMPROVED: "improved",
    Verdict.REGRESSED: "regressed",
    Verdict.INVALID: "invalid",
    Verdict.MISSING: "missing",
    Verdict.INCONCLUSIVE: "inconclusive",
}

_RECORDED: Final = "recorded"

STYLES: Final = {
    Verdict.PASS: "green",
    Verdict.IMPROVED: "green",
    Verdict.REGRESSED: "red",
    Verdict.INVALID: "red",
    Verdict.INCONCLUSIVE: "yellow",
    Verdict.MISSING: "yellow",
}

NARROWEST: Final = 40
"""Width in columns below which the table is not made narrower."""

NAME_WIDTH: Final = 20
"""Fewest columns of a test's name before it is folded."""

LEFT_OUT_FIRST: Final = ("tolerance", "at worst", "reference", "change", "now")
"""Headings that a narrow terminal leaves out, in this order; the metric and its verdict are always shown whole."""

_GAP: Final = 2
_EDGES: Final = 2


def table(rows: Sequence[Row], *, width: int, color: bool) -> str:
    """Draw rows; empty without rows."""
    if not rows:
        return ""
    width = max(width, NARROWEST)
    # A load is named in its first line; its other rows follow.
    cells = [dict(zip(HEADINGS, row.cells, strict=True)) for row in rows]
    for number in range(1, len(rows)):
        if rows[number].run is rows[number - 1].run:
            cells[number]["test"] = ""
    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True, expand=False)
    columns = _columns_that_fit(cells, width)
    for name in columns:
        left = name in {"test", "metric", "verdict"}
        grid.add_column(name, justify="left" if left else "right", overflow="fold", no_wrap=name != "test")
    for row, texts in zip(rows, cells, strict=True):
        style = STYLES[row.judgement.verdict]
        grid.add_row(*(Text(texts[name], style=style if name == "verdict" else "") for name in columns))
    console = Console(file=io.StringIO(), width=width, force_terminal=color, no_color=not color)
    with console.capture() as captured:
        console.print(grid)
    return "\n".join(line.rstrip() for line in captured.get().splitlines()).strip("\n")


def _columns_that_fit(rows: Sequence[dict[str, str]], width: int) -> list[str]:
    columns = list(HEADINGS)
    widths = {name: max(cell_len(text) for text in (name, *(row[name] for row in rows))) for name in columns}
    widths["test"] = min(NAME_WIDTH, max(cell_len(row["test"]) for row in rows))
    for left_out in LEFT_OUT_FIRST:
        if _EDGES + sum(widths[name] for name in columns) + _GAP * (len(columns) - 1) <= width:
            break
        columns.remove(left_out)
    return columns


def header_line(
    device: str,
    product: str,
    mode: str,
    *,
    budget_seconds: float,
    stock: tuple[int, int] | None = None,
    engine: str = "",
) -> str:
    """First line: device and reference of the measurement.

    Args:
        mode: Mode and reference: ``gating against /.../baselines/T4``.
        budget_seconds: Most measuring time of one test.
        stock: The existing entries, and files that cannot be read; None if baselines are not used.
        engine: The load engines; empty if processes of this host make the load.
    """
    there = ""
    if stock is not None:
        entries, unreadable = stock
        more = f", {unreadable} file{'s' if unreadable > 1 else ''} that cannot be read" if unreadable else ""
        there = f" ({entries or 'no'} entr{'y' if entries == 1 else 'ies'}{more})"
    budget = f"at most {format_seconds(budget_seconds)} of measuring a test"
    made = f", loads made by {engine}" if engine else ""
    return printable(f"{device} ({product}), {mode}{there}{made}, {budget}")


def reason_lines(rows: Iterable[Row], *, verbose: bool = True) -> list[str]:
    """Reasons of verdicts, each once, with its tests; those of the worst row first.

    Args:
        verbose: Whether to show all reasons of passed comparisons; else the first `MOST_OF_PASSES`.
    """
    found: dict[tuple[Verdict, str], list[tuple[Row, Reason]]] = {}
    for row in rows:
        for reason in row.reasons:
            found.setdefault((row.judgement.verdict, _in_common(reason)), []).append((row, reason))
    passed = [key for key in found if key[0].passes]
    left_out = set() if verbose else set(passed[MOST_OF_PASSES:])
    lines = []
    for (verdict, general), told in found.items():
        if (verdict, general) in left_out:
            continue
        who = _who([row for row, _ in told])
        # The reason's own words, if it belongs to one load.
        text = general if len(who) > 1 else told[0][1].text
        lines.extend(_with_names(f"{verdict}: {text}", who))
    return [*lines, f"{len(left_out)} more notes on what passed: -v shows them"] if left_out else lines


def kinds_lines(rows: Iterable[Row]) -> list[str]:
    """One line on where the reasons of missing verdicts are explained; empty if all are reached."""
    kinds = dict.fromkeys(
        f"#{reason.kind}"
        for row in rows
        if row.is_bad and row.judgement.verdict is not Verdict.REGRESSED
        for reason in row.judgement.reasons
    )
    if not kinds:
        return []
    return [f"reasons explained: {some_of(list(kinds))} in {REASONS_PAGE} (pytest --gpuserve-docs prints its folder)"]


def problem_lines(result: SessionResult) -> list[str]:
    """Errors of tests without a verdict: each error once, with the tests that it ended."""
    found: dict[str, list[str]] = {}
    for test in result.tests:
        is_explained = test.outcome != "error" and any(map(test.is_bad, test.judgements))
        problem = next((line.strip() for line in test.problem.splitlines() if line.strip()), "")
        if not test.failed or is_explained or not problem:
            continue
        text = problem if len(problem) <= PROBLEM_CHARACTERS else f"{problem[:PROBLEM_CHARACTERS]} ..."
        found.setdefault(f"{test.outcome.upper()}: {text}", []).append(result.names[test.nodeid])
    return [line for text, who in found.items() for line in _with_names(text, who)]


def basis_lines(rows: Iterable[Row]) -> list[str]:
    """Interval and evidence of each verdict."""
    return [
        f"{row.name} {row.judgement.metric.name}, {row.judgement.verdict}: {row.basis}" for row in rows if row.basis
    ]


def bases_lines(rows: Iterable[Row]) -> list[str]:
    """One line for each base of a comparison side by side."""
    named = dict.fromkeys(row.run.base for row in rows if row.judgement.reference_kind == "against")
    return [f"side by side: the candidate and {printable(name)}" for name in named if name is not None]


def settings_lines(result: SessionResult) -> list[str]:
    """One line for each setting that a server uses otherwise than requested, with its tests."""
    found: dict[str, dict[str, None]] = {}
    for test in result.tests:
        for run in test.runs:
            for session in run.sessions:
                for start in session.starts:
                    for difference in differences(start.settings):
                        found.setdefault(difference, {})[result.names[test.nodeid]] = None
    return [
        line for difference, who in found.items() for line in _with_names(f"server settings: {difference}", list(who))
    ]


def client_lines(result: SessionResult) -> list[str]:
    """One line on the load engine in all loads; empty without a load."""
    sessions = [session for test in result.tests for run in test.runs for session in run.sessions]
    totals = [Window.pooled(session.windows) for session in sessions]
    lags = [total.lag.quantile(0.99) for total in totals if total.lag.total]
    whole = Window.pooled(totals)
    if not lags or not whole.seconds:
        return []
    share, resent = format_fraction(whole.cpu_seconds / whole.seconds), whole.resent
    again = f", {resent} requests sent again: the server closed connections that it had kept open" if resent else ""
    return [f"load engine: send lag p99 {format_seconds(max(lags))} at most, {share} of a core on average{again}"]


def language_model_lines(result: SessionResult) -> list[str]:
    """Lines on prefix caches and preemptions; empty if servers do not count them."""
    cached, preempted = [], []
    for test in result.tests:
        for run in test.runs:
            windows = [window for session in run.sessions for window in session.windows]
            share, preemptions = cached_share(windows), preemptions_of_thousand(windows)
            name = result.name_of(test, run)
            cached += [] if share is None else [f"{format_fraction(share)} ({name})"]
            preempted += [f"{preemptions:.3g} in 1000 requests ({name})"] if preemptions else []
    return [
        *([f"prompt tokens from the prefix cache: {some_of(cached)}"] if cached else []),
        *([f"preemptions, because the KV cache was full: {some_of(preempted)}"] if preempted else []),
    ]


def measured_again_lines(result: SessionResult, *, verbose: bool = False) -> list[str]:
    """Number of windows that were measured again, and their disturbances.

    Args:
        verbose: Whether to write a line for each load, with all disturbances; else one line in total.
    """
    lines = []
    again = every = 0
    for test in result.tests:
        for run in test.runs:
            starts = [start for session in run.sessions for start in session.starts]
            reasons = [reason for start in starts for reason in start.rejected]
            if not reasons:
                continue
            windows = len(reasons) + sum(len(start.windows) + start.discarded for start in starts)
            known = "; ".join(map(printable, dict.fromkeys(reasons)))
            name = result.name_of(test, run)
            lines.append(f"{name}: {len(reasons)} of {windows} windows measured again: {known}")
            again, every = again + len(reasons), every + windows
    if verbose or len(lines) < 2:
        return lines
    return [f"{again} of {every} windows in {len(lines)} loads were measured again: -v shows why"]


def _in_common(reason: Reason) -> str:
    """Common text of a reason of several tests."""
    of_entries = _OF_ENTRIES.get(reason.kind)
    return reason.text if of_entries is None or not reason.about else of_entries.format(about=reason.about)


def _who(rows: Sequence[Row]) -> list[str]:
    """Loads of a reason, with the metric if it is about only one."""
    loads: dict[str, list[Row]] = {}
    for row in rows:
        loads.setdefault(row.name, []).append(row)
    return [
        f"{name} {those[0].judgement.metric.name}" if len(those) == 1 < len(those[0].run.judgements) else name
        for name, those in loads.items()
    ]


def _with_names(text: str, who: Sequence[str]) -> list[str]:
    """A text with its tests after the first line; further lines are indented below it."""
    first, *rest = text.splitlines() or [""]
    count = f"{len(who)} tests: " if len(who) > 1 else ""
    return [f"{printable(first)} ({count}{some_of(who)})", *(f"  {printable(line)}" for line in rest)]


def totals_line(result: SessionResult) -> str:
    """Count the final verdicts: ``comparisons: 12 passed, 1 regressed, 2 inconclusive``.

    Args:
        result: Result of the run. If it records baselines, missing ones of passed tests are recorded, and improvements
            are not proposed.

    Returns:
        The line, with the improvements that could be recorded; empty without comparisons.
    """
    recording = bool(result.update)
    counts = Counter(_word(row, recording=recording) for row in result.rows)
    parts = [f"{counts[word]} {word}" for word in (*_WORDS.values(), _RECORDED) if counts[word]]
    # A test that passed may have forgotten its assertion.
    without = sum((test.failed or test.outcome == "passed") and not test.judgements for test in result.tests)
    if without:
        parts.append(f"{without} test{'s' if without > 1 else ''} ended without a comparison")
    if not parts:
        return ""
    improved = [] if recording else result.improvements
    what = [f"{result.names[row.test.nodeid]} {row.judgement.metric.name}{_change(row)}" for row in improved]
    proposed = f"; could be recorded: {some_of(what)}" if what else ""
    return f"comparisons: {', '.join(parts)}{proposed}"


def _word(row: Row, *, recording: bool) -> str:
    verdict = row.judgement.verdict
    return _RECORDED if recording and verdict is Verdict.MISSING and row.test.outcome == "passed" else _WORDS[verdict]


def _change(row: Row) -> str:
    change = row.judgement.change
    return "" if change is None else f" {format_change(change)}"
