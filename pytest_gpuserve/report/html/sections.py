"""What a page says of a single test: its numbers, its plots, its settings, and the ends of its servers' logs."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pytest_gpuserve.gate.metric import GOODPUT, METRICS, OUTPUT_TOKENS
from pytest_gpuserve.measure.points import OF_STREAMS, NotMeasured, pooled_value
from pytest_gpuserve.measure.window import Client
from pytest_gpuserve.report.html.load_plots import batches, distribution, windows
from pytest_gpuserve.report.html.measured import UNKNOWN, block, cut, fact, one_line, starts_of
from pytest_gpuserve.units import format_rate, format_ratio, format_seconds, format_value

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pytest_gpuserve.measure.summary import Summary
    from pytest_gpuserve.measure.window import Session
    from pytest_gpuserve.report.html.figure import Figure
    from pytest_gpuserve.report.html.measured import MeasuredRun
    from pytest_gpuserve.report.results import TestResult

_NUMBERS: Final[Mapping[str, Callable[[Summary], str]]] = {
    "throughput": lambda summary: format_rate(summary.throughput),
    "mean latency": lambda summary: format_seconds(summary.mean),
    "p50": lambda summary: format_seconds(summary.quantile(0.5)),
    "p90": lambda summary: format_seconds(summary.quantile(0.9)),
    "p95": lambda summary: format_seconds(summary.quantile(0.95)),
    "p99": lambda summary: format_seconds(summary.quantile(0.99)),
    "longest": lambda summary: format_seconds(summary.max),
    "answered requests": lambda summary: str(summary.requests),
    "failed requests": lambda summary: str(summary.errors),
    "measured time": lambda summary: format_seconds(summary.seconds),
}

"""Of what is said of each server that shared a load."""


@dataclass(frozen=True)
class SettingRow:
    """A setting of a server; every text is fit to be shown.

    Args:
        differs: Whether it is known to use something else.
    """

    name: str
    asked: str
    used: str
    differs: bool


@dataclass(frozen=True)
class RunSection:
    """A load of a test; every text is fit to be shown.

    Args:
        base: Whom it was measured beside; empty for nobody.
        numbers: Name, value now, value of the one beside it.
        problems: Why nothing may be concluded, a line each.
    """

    label: str
    base: str
    numbers: tuple[tuple[str, str, str], ...]
    facts: tuple[tuple[str, str], ...]
    problems: tuple[str, ...]
    figures: tuple[Figure, ...]
    load: tuple[tuple[str, str], ...]
    server: tuple[tuple[str, str], ...]
    settings: tuple[SettingRow, ...]


@dataclass(frozen=True)
class TestSection:
    """A test; every text is fit to be shown.

    Args:
        anchor: Where it is in the page.
        name: The test without its file, cut where it is long.
        is_open: Whether it is shown at once: it did not pass.
        verdicts: How many judgements there are of each verdict.
        logs: Names and last lines of its servers' logs.
    """

    # Not a test class, whatever its name looks like to pytest.
    __test__ = False

    anchor: str
    name: str
    nodeid: str
    outcome: str
    is_open: bool
    verdicts: tuple[tuple[str, int], ...]
    problem: str
    runs: tuple[RunSection, ...]
    logs: tuple[tuple[str, str], ...]


def section_of(anchor: str, name: str, test: TestResult, runs: Sequence[MeasuredRun]) -> TestSection:
    """Write a test's section."""
    verdicts = Counter(str(judgement.verdict) for run in test.runs for judgement in run.judgements)
    return TestSection(
        anchor,
        cut(name),
        one_line(test.nodeid),
        one_line(test.outcome),
        test.outcome != "passed",
        tuple(verdicts.items()),
        block(test.problem),
        tuple(_run(run) for run in runs),
        tuple((one_line(log.name), block(log.text)) for log in test.logs),
    )


def facts_of(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Write facts as names and texts; one that is not known says so."""
    return [(one_line(str(name)).replace("_", " "), fact(value)) for name, value in facts.items()]


def _run(run: MeasuredRun) -> RunSection:
    figures = (distribution(run), batches(run), windows(run))
    return RunSection(
        one_line(run.run.label),
        "" if run.run.base is None else one_line(run.run.base),
        _numbers(run),
        tuple(_counted(run)),
        tuple(
            dict.fromkeys(
                one_line(problem.text) for session in (*run.run.sessions, *run.sessions) for problem in session.problems
            )
        ),
        tuple(figure for figure in figures if figure is not None),
        tuple(facts_of(run.run.load)),
        tuple(facts_of(run.run.server)),
        _settings(run.sessions),
    )


def _numbers(run: MeasuredRun) -> tuple[tuple[str, str, str], ...]:
    rows = [(name, _text(run.summary, write), _text(run.base, write)) for name, write in _NUMBERS.items()]
    sizes = (UNKNOWN if size is None else format_ratio(size) for size in (run.batch, run.base_batch))
    now, base = sizes
    return (*rows, ("items in a batch", now, base))


def _text(summary: Summary | None, write: Callable[[Summary], str]) -> str:
    return UNKNOWN if summary is None else write(summary)


def _counted(run: MeasuredRun) -> list[tuple[str, str]]:
    """What else is worth knowing of a load, each where it is known."""
    sessions, starts = run.sessions, run.starts
    client = Client.pooled(session.client for session in sessions)
    errors: Counter[str] = Counter()
    for window in run.windows:
        errors.update(window.errors)
    cold = [start.cold_start_seconds for start in starts]
    facts = [
        ("sessions and starts", f"{len(sessions)} and {len(starts)}"),
        (
            "cold starts",
            ", ".join(UNKNOWN if seconds is None else format_seconds(seconds) for seconds in cold) or UNKNOWN,
        ),
        ("send lag p99", format_seconds(client.lag.quantile(0.99)) if client.lag.total else UNKNOWN),
        ("load engine's ceiling", UNKNOWN if client.ceiling is None else format_rate(client.ceiling)),
    ]
    answers = sum(session.answers for session in sessions)
    if answers:
        checked = sum(session.answers_checked for session in sessions)
        facts.append(("checked answers", f"{checked} of {answers}"))
    facts += _of_streams(sessions)
    if client.resent:
        facts.append(("requests sent again", str(client.resent)))
    facts += [(f"failed: {one_line(kind)}", str(count)) for kind, count in errors.items()]
    return facts


def _of_streams(sessions: Sequence[Session]) -> list[tuple[str, str]]:
    found = []
    for metric in METRICS.values():
        if metric.times in OF_STREAMS or metric.name in {OUTPUT_TOKENS, GOODPUT}:
            with suppress(NotMeasured):
                found.append((metric.name, format_value(pooled_value(metric, sessions), metric.unit)))
    return found


def _settings(sessions: Sequence[Session]) -> tuple[SettingRow, ...]:
    """Those of the last start, and of earlier ones where they had another value."""
    rows: dict[tuple[str, str | None, str | None], SettingRow] = {}
    for start in reversed(starts_of(sessions)):
        for name, setting in start.settings.items():
            rows.setdefault(
                (name, setting.asked, setting.used),
                SettingRow(
                    one_line(name),
                    "left to it" if setting.asked is None else one_line(setting.asked),
                    "not told" if setting.used is None else one_line(setting.used),
                    setting.differs,
                ),
            )
    return tuple(rows.values())
