"""Next command: the options that help a judgement, the command that runs its test with them, and a run's last lines.

A failed assertion and the last lines of a run share one rule, and name the same test: the worst one that keeps the run
from passing, in the order of `SessionResult.rows`. A command contains nothing of the run except quoted test ids. A
reason may hold a server's text, and must not become a command.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.report.results import RECORDABLE
from pytest_gpuserve.verdict.reason import ReasonKind
from pytest_gpuserve.verdict.verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pytest_gpuserve.report.results import Row, SessionResult
    from pytest_gpuserve.verdict.verdict import Judgement


BUDGETS: Final = 4
"""Factor by which a too small budget is raised in the proposal."""

UPDATE: Final = "--baseline-update"
UPDATE_NEW: Final = "--baseline-update-new"
ACCEPT: Final = (UPDATE, "--reason=why it is worth it")

CLOSER: Final = "compare side by side with the previous code"
"""Step before a regression is accepted that only a stored number shows, because the machine may have changed."""

MOST_IDS: Final = 3
"""Number of tests that a command names; further ones are counted."""

FAILED_LAST: Final = ("--lf", "--lfnf=none")
"""Options that select the last failed tests; without such a record, the second keeps pytest from running all."""

REPORT: Final = "--gpuserve-report=report.html"

_NEXT: Final = "next: "

_OR: Final = "  or: "

_UNKNOWN: Final = "fix the problem that its reason names"


def command(selection: Iterable[str], device: object, *options: str) -> str:
    """``pytest 'a.py::test_z[50]' --gpu=T4 --baseline-update``, as a shell takes it.

    Args:
        selection: Ids of tests, or options without a value that select tests.
        device: The baseline set; left out if unknown, or if it cannot be typed.
        options: Further options; their values are quoted here.
    """
    known = isinstance(device, str) and device and device.isprintable()
    typed = map(_typed, (*([f"--gpu={device}"] if known else ()), *options))
    return " ".join(["pytest", *map(shlex.quote, selection), *typed])


def _options_for(judgements: Sequence[Judgement]) -> tuple[str, ...]:
    """Options that accept, record or decide a comparison with a stored baseline; empty if none helps."""
    verdicts = {judgement.verdict for judgement in judgements}
    if verdicts == {Verdict.REGRESSED}:
        return ACCEPT
    if verdicts == {Verdict.MISSING}:
        # An entry that cannot be compared has to be replaced, which --baseline-update-new does not do.
        return (UPDATE_NEW if all(judgement.has(ReasonKind.NO_ENTRY) for judgement in judgements) else UPDATE,)
    if verdicts == {Verdict.INCONCLUSIVE}:
        seconds = BUDGETS * max(map(_spent_budget, judgements))
        return (f"--gpuserve-budget={seconds}",) if seconds else ()
    return ()


def steps_of(judgement: Judgement, nodeid: str, gpu: str, *, before: str) -> list[str]:
    """Steps below a test's failed comparison with a stored baseline, a line each: ``to record it: pytest ...``.

    A regression that only a stored number shows is looked at more closely first.

    Args:
        before: The revision from `code_before`.
    """
    options = _options_for([judgement])
    if not nodeid.isprintable():
        return []
    alone = judgement.verdict is Verdict.REGRESSED and judgement.reference_kind == "baseline"
    closer = [f"first {CLOSER}: {command([nodeid], gpu, f'--against={before}')}"] if alone and before else []
    if not options:
        return closer
    purpose = {
        Verdict.REGRESSED: "to accept the new number",
        Verdict.MISSING: "to record it",
        Verdict.INCONCLUSIVE: "to look longer",
    }[judgement.verdict]
    confirmed = ", if that confirms it" if closer else ""
    return [*closer, f"{purpose}{confirmed}: {command([nodeid], gpu, *options)}"]


def code_before(commit: str | None, *, clean: bool) -> str:
    """Revision for a closer look: the commit of a checkout with changes, else the one before; empty without git.

    Args:
        commit: The code under test; None if unknown.
    """
    if commit is None:
        return ""
    return "HEAD~1" if clean else "HEAD"


def _spent_budget(judgement: Judgement) -> int:
    """The budget in seconds that was too small, at least 1; 0 if the budget was not the reason."""
    found = [reason.seconds for reason in judgement.reasons if reason.seconds is not None]
    return max((max(1, round(seconds)) for seconds in found), default=0)


def _typed(option: str) -> str:
    name, equals, value = option.partition("=")
    return f"{name}={shlex.quote(value)}" if equals else name


_LONGER: Final = "measure longer, load(..., seconds=...)"
_KEEP_UP: Final = "let the client keep up, load(..., processes=...)"

REMEDIES: Final[Mapping[ReasonKind, str]] = {
    ReasonKind.NO_STEADY_STATE: "give the server a longer warm-up, load(..., warmup_seconds=...)",
    ReasonKind.COMPILED_UNDER_LOAD: "let the warm-up send all shapes, load(..., warmup_seconds=...)",
    ReasonKind.CLIENT_HELD_UP: "use a host without a CPU quota, swapping or an overcommitted hypervisor",
    ReasonKind.CLIENT_SATURATED: _KEEP_UP,
    ReasonKind.CLIENT_LATE: _KEEP_UP,
    ReasonKind.RATE_NOT_REACHED: f"{_KEEP_UP}, or lower the rate",
    ReasonKind.OVERLOADED: "lower the rate",
    ReasonKind.STUCK_REQUESTS: _LONGER,
    ReasonKind.TOO_SHORT: _LONGER,
    ReasonKind.HOST_SHARED: "stop other work on the host",
    ReasonKind.COMMIT_UNKNOWN: "fetch the missing history",
    ReasonKind.NOT_COMMITTED: "commit the baseline, with the code that it belongs to",
    ReasonKind.OUTSIDE_GIT: "remove the difference that its reason names",
    ReasonKind.FOREIGN_PROCESS: "end other processes on the GPU",
    ReasonKind.GPU_UNUSED: "let the server use the GPU",
    ReasonKind.THROTTLED: "cool the GPU, or lower its clocks",
    ReasonKind.UNLIKE_ANSWERS: "say which answers are right, expect=...",
    ReasonKind.WRONG_ANSWERS: "fix the server's answers, or expect=",
    ReasonKind.REQUEST_ERRORS: "fix the requests that the server answers with errors",
    ReasonKind.TOO_FEW_REQUESTS: f"{_LONGER}, or widen the tolerance",
}
"""Remedy of each kind of reason."""


def next_step(result: SessionResult) -> str:
    """The next step: ``next: record the missing entries: pytest ... --baseline-update-new``; empty if all is done."""
    bad = [row for row in result.rows if row.is_bad]
    for verdict, step in _STEPS.items():
        line = step(result, [row for row in bad if row.judgement.verdict is verdict])
        if line:
            return line
    better = [] if result.update else result.improvements
    return _line("record the better numbers, so that they stay", result, better, UPDATE)


def _regressed(result: SessionResult, rows: Sequence[Row]) -> str:
    stored = [row for row in rows if _is_stored(result, row)]
    alone = [row for row in stored if row.judgement.reference_kind == "baseline"]
    # The run records already, and only lacks the reason.
    closer = "" if result.update else _closer(result, alone)
    if closer:
        return closer
    if not stored:
        return _again("run it again when it is fixed", result, rows)
    seen = () if result.update else _beside(stored)
    # A person looks at the moved parts before accepting.
    steps = [("see what moved", (*seen, REPORT))] if seen else []
    steps.append(("accept the new numbers, if they are worth it", _options(stored)))
    # `stored` is not empty, so every step has a line.
    return _NEXT + f"\n{_OR}".join(_step(what, result, stored, *options) for what, options in steps)


def _missing(result: SessionResult, rows: Sequence[Row]) -> str:
    stored = [row for row in rows if _is_stored(result, row)]
    return _line("record the missing entries", result, stored, *_options(stored))


def _inconclusive(result: SessionResult, rows: Sequence[Row]) -> str:
    short = [row for row in rows if _options([row])]
    if short:
        return _again("look longer", result, short, *_options(short))
    advised = [row for row in rows if _advice(row) != _UNKNOWN]
    if advised:
        return _advised(result, advised)
    alone = [row for row in rows if _is_stored(result, row) and row.judgement.reference_kind == "baseline"]
    return _closer(result, alone)


def _options(rows: Sequence[Row]) -> tuple[str, ...]:
    return _options_for([row.judgement for row in rows])


def _advised(result: SessionResult, rows: Sequence[Row]) -> str:
    """Propose the remedy of the worst row, and a repeat of all tests with the same remedy."""
    advice = _advice(rows[0]) if rows else ""
    return _again(f"{advice}, then run it again", result, [row for row in rows if _advice(row) == advice])


_STEPS: Final[Mapping[Verdict, Callable[[SessionResult, Sequence[Row]], str]]] = {
    Verdict.REGRESSED: _regressed,
    Verdict.INVALID: _advised,
    Verdict.MISSING: _missing,
    Verdict.INCONCLUSIVE: _inconclusive,
}


def _closer(result: SessionResult, rows: Sequence[Row]) -> str:
    before = code_before(result.commit, clean=result.clean)
    return _line(CLOSER, result, rows, f"--against={before}") if before else ""


def _again(what: str, result: SessionResult, rows: Sequence[Row], *options: str) -> str:
    """Repeat these tests with the same options: beside the same base, or with the same recording."""
    if not rows:
        return ""
    beside = () if result.stored else _beside(rows)
    if not result.stored and not beside:
        return ""
    return _line(what, result, rows, *([result.update] if result.stored and result.update else beside), *options)


def _line(what: str, result: SessionResult, rows: Sequence[Row], *options: str) -> str:
    """Line for the tests of these rows; empty without rows."""
    step = _step(what, result, rows, *options)
    return f"{_NEXT}{step}" if step else ""


def _step(what: str, result: SessionResult, rows: Sequence[Row], *options: str) -> str:
    wanted = list(dict.fromkeys(row.test.nodeid for row in rows))
    if not wanted:
        return ""
    # A recording accepts its measurements, so its command must not select other tests, such as earlier failures.
    is_recording = any(option.startswith(UPDATE) for option in options)
    selection, note = _selection(result, wanted, only_these=is_recording)
    if not selection:
        return f"{what}: select the tests by hand, because their ids cannot be typed"
    return f"{what}{note}: {command(selection, result.gpu.get('name'), *options)}"


def _selection(result: SessionResult, wanted: Sequence[str], *, only_these: bool) -> tuple[Sequence[str], str]:
    """Arguments that select these tests, with a note if they do not select all; empty if impossible."""
    named = [nodeid for nodeid in wanted if nodeid.isprintable()][:MOST_IDS]
    if len(named) == len(wanted):
        return named, ""
    failed = {test.nodeid for test in result.tests if test.outcome in {"failed", "error"}}
    if not only_these and failed.issuperset(wanted):
        return FAILED_LAST, ""
    first = "the first " if named == wanted[: len(named)] else ""
    return named, f" ({first}{len(named)} of {len(wanted)} tests)"


def _is_stored(result: SessionResult, row: Row) -> bool:
    """Whether the reference is a stored baseline, even if a paired comparison decided."""
    return result.stored and row.judgement.reference_kind in RECORDABLE


def _advice(row: Row) -> str:
    """Remedy of its first reason of a known kind."""
    return next((REMEDIES[reason.kind] for reason in row.judgement.reasons if reason.kind in REMEDIES), _UNKNOWN)


def _beside(rows: Sequence[Row]) -> tuple[str, ...]:
    """Options that name the base of these tests; empty if the bases differ or are unknown."""
    options = {row.run.base_options for row in rows}
    return options.pop() if len(options) == 1 else ()
