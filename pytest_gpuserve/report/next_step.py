"""The last lines of a run: the command that most likely comes next, and of a settled regression how it is accepted.

Of what keeps tests from passing the worst verdict is spoken of, in the order of `report.ranking`. No word of it is from
the run but ids of tests, which are quoted: what a server wrote into a reason must not become a command.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pytest_gpuserve.gate.reason import ReasonKind
from pytest_gpuserve.gate.verdict import Verdict
from pytest_gpuserve.measure.window import is_searched
from pytest_gpuserve.report.commands import (
    CLOSER,
    CLOSER_BY_ANCHOR,
    UPDATE,
    anchor_of,
    code_before,
    command,
    options_for,
)
from pytest_gpuserve.report.ranking import is_side_by_side, ranked
from pytest_gpuserve.report.totals import RECORDABLE, improvements

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pytest_gpuserve.report.ranking import Row
    from pytest_gpuserve.report.results import SessionResult

MOST_IDS: Final = 3
"""Tests that a command names; of more of them it names the first."""

FAILED_LAST: Final = ("--lf", "--lfnf=none")
"""What selects tests that failed last. Where nothing is known of them pytest would run all, but for the second."""

_QUIET: Final = "let nothing else use the host"


def _mended_by(load: str, *, lower: str) -> dict[ReasonKind, str]:
    """What a reason asks for.

    Args:
        load: The call that measured.
        lower: What is added where a lower rate helps too; empty where nobody chose the rate.
    """
    longer = f"measure longer, {load}(..., seconds=...)"
    keep_up = f"let the client keep up, {load}(..., processes=...)"
    return {
        ReasonKind.NO_STEADY_STATE: f"give it longer before it is measured, {load}(..., warmup_seconds=...)",
        ReasonKind.COMPILED_UNDER_LOAD: f"let it see all its shapes before, {load}(..., warmup_seconds=...)",
        ReasonKind.CLIENT_HELD_UP: _QUIET,
        ReasonKind.CLIENT_SATURATED: keep_up,
        ReasonKind.CLIENT_LATE: keep_up,
        ReasonKind.CAPACITY_OF_CLIENT: keep_up,
        ReasonKind.RATE_NOT_REACHED: f"{keep_up}{lower}",
        ReasonKind.OVERLOADED: "lower the rate",
        ReasonKind.STUCK_REQUESTS: longer,
        ReasonKind.TOO_SHORT: longer,
        ReasonKind.OBJECTIVE_MISSED: "ask load.capacity(...) for a longer latency, or a lower quantile of it",
        ReasonKind.OBJECTIVE_NOT_SHOWN: "allow more time to show it, load.capacity(..., seconds=...)",
        ReasonKind.CONTRADICTORY: f"{_QUIET}, or allow more time, load.capacity(..., seconds=...)",
        ReasonKind.REPLICA: "mend that replica, or leave its URL out",
        ReasonKind.HOST_SHARED: _QUIET,
        ReasonKind.COMMIT_UNKNOWN: "fetch the commit that it names",
        ReasonKind.FOREIGN_PROCESS: "let nobody else use the card",
        ReasonKind.ANOTHER_CLIENT: "let nobody else use the server",
        ReasonKind.THROTTLED: "cool the card, or lower its clocks",
        ReasonKind.WRONG_ANSWERS: "mend the server's answers",
        ReasonKind.REQUEST_ERRORS: "mend what the server answers with errors",
        ReasonKind.TOO_FEW_REQUESTS: f"{longer}, or widen the tolerance",
    }


MENDED_BY: Final[Mapping[ReasonKind, str]] = _mended_by("load", lower=", or lower the rate")
"""What a reason asks for."""

MENDED_IN_SEARCH: Final[Mapping[ReasonKind, str]] = _mended_by("load.capacity", lower="")
"""The same of a search for a capacity, which chooses the rates."""

REPORT: Final = "--gpuserve-report=report.html"

_NEXT: Final = "next: "
_OR: Final = "  or: "


def next_step(result: SessionResult) -> str:
    """What to do next: ``next: record what is missing: pytest ... --baseline-update-new``; empty where nothing is.

    Returns:
        A line, or two of a regression that was settled side by side.
    """
    bad = [row for row in ranked(result.tests) if row.is_bad]
    for verdict, step in _STEPS.items():
        line = step(result, [row for row in bad if row.judgement.verdict is verdict])
        if line:
            return line
    better = [] if result.update else improvements(result)
    return _line("record what got better, so that it stays", result, better, UPDATE)


def _regressed(result: SessionResult, rows: Sequence[Row]) -> str:
    stored = [row for row in rows if _is_stored(result, row)]
    alone = [row for row in stored if not _is_side_by_side(row)]
    # A recording was asked to accept it already, and only lacks the reason.
    closer = "" if result.update else _closer(result, alone)
    if closer:
        return closer
    if not stored:
        return _again("run it again when it is mended", result, rows)
    seen = () if result.update else _beside(stored)
    # A person looks at what moved before accepting it.
    steps = [("see what moved", (*seen, REPORT))] if seen else []
    steps.append(("accept the new numbers, if they are worth it", _options(stored)))
    # `stored` is not empty, so each of them has a line.
    return _NEXT + f"\n{_OR}".join(_step(what, result, stored, *options) for what, options in steps)


def _invalid(result: SessionResult, rows: Sequence[Row]) -> str:
    return _advised(result, rows)


def _missing(result: SessionResult, rows: Sequence[Row]) -> str:
    stored = [row for row in rows if _is_stored(result, row)]
    return _line("record what is missing", result, stored, *_options(stored))


def _inconclusive(result: SessionResult, rows: Sequence[Row]) -> str:
    short = [row for row in rows if _options([row])]
    if short:
        return _again("look longer", result, short, *_options(short))
    advised = [row for row in rows if _advice(row) != _UNKNOWN]
    if advised:
        return _advised(result, advised)
    alone = [row for row in rows if _is_stored(result, row) and not _is_side_by_side(row)]
    return _closer(result, alone)


_STEPS: Final[Mapping[Verdict, Callable[[SessionResult, Sequence[Row]], str]]] = {
    Verdict.REGRESSED: _regressed,
    Verdict.INVALID: _invalid,
    Verdict.MISSING: _missing,
    Verdict.INCONCLUSIVE: _inconclusive,
}

_UNKNOWN: Final = "mend what its reason says"


def _options(rows: Sequence[Row]) -> tuple[str, ...]:
    return options_for([row.judgement for row in rows])


def _advised(result: SessionResult, rows: Sequence[Row]) -> str:
    """Mend what the worst of these asks for, and run again whatever asks for the same."""
    advice = _advice(rows[0]) if rows else ""
    return _again(f"{advice}, then run it again", result, [row for row in rows if _advice(row) == advice])


def _closer(result: SessionResult, rows: Sequence[Row]) -> str:
    anchors = [anchor_of(row.judgement) for row in rows]
    steps = [row for row, anchor in zip(rows, anchors, strict=True) if anchor is None]
    before = code_before(result.commit, clean=result.clean)
    if not before:
        return ""
    if steps or not rows:
        return _line(CLOSER, result, steps, f"--against={before}")
    # Beside the code before, what has come in small steps is one of them, and passes.
    accepted = next(filter(None, anchors), "")
    same = [row for row, anchor in zip(rows, anchors, strict=True) if accepted and anchor == accepted]
    return _line(CLOSER_BY_ANCHOR, result, same, f"--against={accepted}")


def _again(what: str, result: SessionResult, rows: Sequence[Row], *options: str) -> str:
    """Run these tests again as they were: beside the same base, or to record the same."""
    if not rows:
        return ""
    beside = () if result.stored else _beside(rows)
    if not result.stored and not beside:
        return ""
    return _line(what, result, rows, *([result.update] if result.stored and result.update else beside), *options)


def _line(what: str, result: SessionResult, rows: Sequence[Row], *options: str) -> str:
    """The line for the tests of these rows; empty where there are none."""
    step = _step(what, result, rows, *options)
    return f"{_NEXT}{step}" if step else ""


def _step(what: str, result: SessionResult, rows: Sequence[Row], *options: str) -> str:
    wanted = list(dict.fromkeys(row.test.nodeid for row in rows))
    if not wanted:
        return ""
    # A recording accepts what it measures, so that no other test may be in it, as those that failed elsewhere would be.
    selection, note = _selection(result, wanted, only_these=any(option.startswith(UPDATE) for option in options))
    if not selection:
        return f"{what}: there is no command for it, as the ids of these tests cannot be typed"
    return f"{what}{note}: {command(selection, result.gpu.get('name'), *options)}"


def _selection(result: SessionResult, wanted: Sequence[str], *, only_these: bool) -> tuple[Sequence[str], str]:
    """What selects these tests, and what to say of it where it does not select all; nothing where nothing does.

    Args:
        result: The run.
        wanted: The ids of these tests.
        only_these: Whether no other test may be selected with them.
    """
    named = [nodeid for nodeid in wanted if nodeid.isprintable()][:MOST_IDS]
    if len(named) == len(wanted):
        return named, ""
    failed = {test.nodeid for test in result.tests if test.outcome in {"failed", "error"}}
    if not only_these and failed.issuperset(wanted):
        return FAILED_LAST, ""
    first = "the first " if named == wanted[: len(named)] else ""
    return named, f" ({first}{len(named)} of {len(wanted)} tests)"


def _is_stored(result: SessionResult, row: Row) -> bool:
    """Whether a stored baseline was asked, whoever decided."""
    return result.stored and row.judgement.reference_kind in RECORDABLE


def _is_side_by_side(row: Row) -> bool:
    return is_side_by_side(row.test, row.run, row.judgement.metric)


def _advice(row: Row) -> str:
    """What its first reason that is known asks for."""
    searched = is_searched(start for session in row.run.sessions for start in session.starts)
    mended_by = MENDED_IN_SEARCH if searched else MENDED_BY
    return next((mended_by[reason.kind] for reason in row.judgement.reasons if reason.kind in mended_by), _UNKNOWN)


def _beside(rows: Sequence[Row]) -> tuple[str, ...]:
    """The options that name whom these were measured beside; none where they differ, or it cannot be told."""
    options = {row.run.base_options for row in rows}
    return options.pop() if len(options) == 1 else ()
