"""The last line of a run: the one command that most likely comes next.

Of what keeps tests from passing the worst verdict is spoken of, in the order of `report.ranking`. No word of it is from
the run but ids of tests, which are quoted: what a server wrote into a reason must not become a command.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.gate.verdict import Verdict
from pytest_gpuserve.report.ranking import ranked
from pytest_gpuserve.report.totals import RECORDABLE, improvements

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pytest_gpuserve.report.ranking import Row
    from pytest_gpuserve.report.results import SessionResult

MOST_IDS: Final = 3
"""Tests that a command names; more of them are those that failed last, or some of them."""

BUDGETS: Final = 4
"""How many times the budget that was too small is proposed."""

UPDATE: Final = "--baseline-update"
UPDATE_NEW: Final = "--baseline-update-new"
ACCEPT: Final = (UPDATE, "--reason='why it is worth it'")

MENDED_BY: Final = (
    (r"no steady state", "give it longer before it is measured, load(..., warmup_seconds=...)"),
    (r"compiled under load", "let it see all its shapes before, load(..., warmup_seconds=...)"),
    (r"client (saturated|late)", "let the client keep up, load(..., processes=...)"),
    (r"rate not reached", "let the client keep up, load(..., processes=...), or lower the rate"),
    (r"overloaded", "lower the rate"),
    (r"stuck requests|in flight|not reached|not decided: until", "measure longer, load(..., seconds=...)"),
    (r"the host was shared", "let nothing else use the host"),
    (r"foreign process", "let nobody else use the card"),
    (r"another client", "let nobody else use the server"),
    (r"throttled", "cool the card, or lower its clocks"),
    (r"wrong answers", "mend the server's answers"),
    (r"request errors", "mend what the server answers with errors"),
    (r"\S+ at a tolerance of .+ needs \d+ requests", "measure longer, load(..., seconds=...), or widen the tolerance"),
)
"""How reasons begin, and what they ask for."""

_BUDGET: Final = re.compile(r"the test's budget of (\d{1,9}) s; raise it with --gpuserve-budget")
_NO_ENTRY: Final = re.compile(r"has no entry ['\"]")
_BASE: Final = re.compile(
    r"(?:(?P<hash>[0-9a-f]{12,64})|(?P<revision>\S+) \([0-9a-f]{12}\))?(?:(?:^| with )the packages of (?P<python>.+))?"
)


@dataclass(frozen=True)
class _Run:
    result: SessionResult
    update: str


def next_step(result: SessionResult, *, update: str = "") -> str:
    """What to do next: ``next: record what is missing: pytest ... --baseline-update-new``; empty where nothing is.

    Args:
        result: What the run came to.
        update: The option by which it records baselines; empty where it does not.
    """
    run = _Run(result, update)
    bad = [row for row in ranked(result.tests) if row.is_bad]
    for verdict, step in _STEPS.items():
        line = step(run, [row for row in bad if row.judgement.verdict is verdict])
        if line:
            return line
    better = [] if update else improvements(result)
    return _line("record what got better, so that it stays", run, better, UPDATE, exact=True)


def _regressed(run: _Run, rows: Sequence[Row]) -> str:
    stored = [row for row in rows if _is_stored(run, row)]
    alone = [row for row in stored if not _is_side_by_side(row)]
    # A recording was asked to accept it already, and only lacks the reason.
    if alone and run.result.commit is not None and not run.update:
        return _closer(run, alone)
    if stored:
        return _line("accept the new numbers, if they are worth it", run, stored, *ACCEPT, exact=True)
    return _again("run it again when it is mended", run, rows)


def _invalid(run: _Run, rows: Sequence[Row]) -> str:
    return _advised(run, rows)


def _missing(run: _Run, rows: Sequence[Row]) -> str:
    stored = [row for row in rows if _is_stored(run, row)]
    new = all(_NO_ENTRY.search(reason) for row in stored for reason in row.judgement.reasons[:1])
    # What is there but cannot be compared with has to be replaced, which the other one does not do.
    flag = UPDATE_NEW if new else UPDATE
    return _line("record what is missing", run, stored, flag, exact=not new)


def _inconclusive(run: _Run, rows: Sequence[Row]) -> str:
    short = [(row, budget) for row in rows if (budget := _budget(row))]
    if short:
        seconds = BUDGETS * max(budget for _, budget in short)
        return _again("look longer", run, [row for row, _ in short], f"--gpuserve-budget={seconds}")
    advised = [row for row in rows if _advice(row) != _UNKNOWN]
    if advised:
        return _advised(run, advised)
    alone = [row for row in rows if _is_stored(run, row) and not _is_side_by_side(row)]
    return _closer(run, alone) if run.result.commit is not None else ""


_STEPS: Final[Mapping[Verdict, Callable[[_Run, Sequence[Row]], str]]] = {
    Verdict.REGRESSED: _regressed,
    Verdict.INVALID: _invalid,
    Verdict.MISSING: _missing,
    Verdict.INCONCLUSIVE: _inconclusive,
}

_UNKNOWN: Final = "mend what its reason says"


def _advised(run: _Run, rows: Sequence[Row]) -> str:
    """Mend what the worst of these asks for, and run again whatever asks for the same."""
    advice = _advice(rows[0]) if rows else ""
    return _again(f"{advice}, then run it again", run, [row for row in rows if _advice(row) == advice])


def _closer(run: _Run, rows: Sequence[Row]) -> str:
    # Of a checkout with changes the code before them is its commit.
    before = "HEAD~1" if run.result.clean else "HEAD"
    return _line("look closer, side by side with the code before", run, rows, f"--against={before}")


def _again(what: str, run: _Run, rows: Sequence[Row], *flags: str) -> str:
    """Run these tests again as they were: beside the same base, or to record the same."""
    if not rows:
        return ""
    asked = ([run.update] if run.update else []) if run.result.stored else _beside(rows)
    return "" if asked is None else _line(what, run, rows, *asked, *flags, exact=bool(run.update))


def _line(what: str, run: _Run, rows: Sequence[Row], *flags: str, exact: bool = False) -> str:
    tests, note = _selection(run.result, rows, exact=exact)
    if tests is None:
        return ""
    name = run.result.gpu.get("name")
    device = [f"--gpu={shlex.quote(name)}"] if isinstance(name, str) and name and name.isprintable() else []
    return f"next: {what}{note}: {' '.join(('pytest', *tests, *device, *flags))}"


def _selection(result: SessionResult, rows: Sequence[Row], *, exact: bool) -> tuple[list[str] | None, str]:
    """The arguments that select the tests of these rows, and what to say of it; None where nothing does.

    Args:
        result: The run.
        rows: Whose tests.
        exact: Whether no other test may be among them: a recording would accept what it measures.
    """
    wanted = list(dict.fromkeys(row.test.nodeid for row in rows))
    ids = [nodeid for nodeid in wanted if nodeid.isprintable()]
    if 0 < len(wanted) <= MOST_IDS and len(ids) == len(wanted):
        return [shlex.quote(nodeid) for nodeid in ids], ""
    failed = {test.nodeid for test in result.tests if test.outcome in {"failed", "error"}}
    if wanted and (set(wanted) == failed or (not exact and failed.issuperset(wanted))):
        return ["--lf"], ""
    if not ids:
        return None, ""
    some = ids[:MOST_IDS]
    return [shlex.quote(nodeid) for nodeid in some], f" (the first {len(some)} of {len(wanted)} tests)"


def _is_stored(run: _Run, row: Row) -> bool:
    """Whether a stored baseline was asked, whoever decided."""
    return run.result.stored and row.judgement.reference_kind in RECORDABLE


def _is_side_by_side(row: Row) -> bool:
    metric = row.judgement.metric
    return any(other.reference_kind == "against" and other.metric == metric for other in row.run.judgements)


def _budget(row: Row) -> int:
    """The budget in seconds that was too small, at least 1; 0 where it was not for the budget."""
    found = [max(1, int(match[1])) for reason in row.judgement.reasons if (match := _BUDGET.search(reason))]
    return max(found, default=0)


def _advice(row: Row) -> str:
    """What its first reason that is known asks for."""
    for reason in row.judgement.reasons:
        for begin, advice in MENDED_BY:
            if re.match(begin, reason.removeprefix("the base: ")):
                return advice
    return _UNKNOWN


def _beside(rows: Sequence[Row]) -> list[str] | None:
    """The options that name whom these were measured beside, by what people call it; None where it cannot be told."""
    names = {row.run.base for row in rows}
    name = names.pop() if len(names) == 1 else None
    match = _BASE.fullmatch(name) if name else None
    if match is None:
        return None
    revision = match["revision"] or match["hash"]
    flags = [f"--against={shlex.quote(revision)}"] if revision else []
    python = match["python"]
    return [*flags, f"--against-python={shlex.quote(python)}"] if python else flags
