"""Runs a load to its end, or until Ctrl-C or the loss of an engine."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.errors import LoadFailed
from pytest_gpuserve.load.driver import Engines
from pytest_gpuserve.load.source import LOCAL
from pytest_gpuserve.load.tick import Tick, shares
from pytest_gpuserve.load.validity import one_line, reasons, share_reasons
from pytest_gpuserve.verdict.reason import Reason, ReasonKind

if TYPE_CHECKING:
    from pytest_gpuserve.load.answers import AnswerCheck, Complaint
    from pytest_gpuserve.load.source import EngineSource
    from pytest_gpuserve.load.wire import Plan

_OF_A_WORKER: Final = re.compile(r"\S/worker-\d+\b(?P<lost> was lost\b)?")
"""Form of a coordinator's last line: ``NODE/worker-P``, and whether it already tells the result of the load."""


def lost_in_mid_load(problem: LoadFailed) -> Reason:
    """Reason why a load was lost, in one line: the last line of a process's log has the cause.

    If it names a remote worker, it is the whole reason, because the end of the engine here is a consequence.
    """
    said = [line for line in problem.log_tail.splitlines() if line.strip()]
    last = one_line(said[-1]) if said else ""
    of_a_worker = _OF_A_WORKER.search(last)
    if of_a_worker is not None:
        text = last if of_a_worker["lost"] else f"lost in mid-load: {last}"
    else:
        why = last or one_line(problem.found)
        text = f"lost in mid-load: {problem.summary}" + (f": {why}" if why else "")
    return Reason(ReasonKind.LOAD_LOST, text)


@dataclass(frozen=True)
class LoadOutcome:
    """Result of a load.

    Args:
        totals: Sum of all ticks.
        reasons: Reasons why the load proves nothing; empty if it is valid.
        interrupted: Whether Ctrl-C ended it.
        checked: Number of good answers that were compared with the expected ones; None without expectations.
    """

    totals: Tick
    reasons: tuple[Reason, ...]
    interrupted: bool = False
    checked: int | None = None


def run_load(
    plan: Plan,
    *,
    processes: int = 1,
    cores: int | None = None,
    warmup_ns: int = 0,
    check: AnswerCheck | None = None,
    allowed_errors: float = 0.0,
    source: EngineSource = LOCAL,
) -> LoadOutcome:
    """Run a load and add up its ticks; a load that is lost on the way is kept, with the reason.

    Args:
        plan: The load; without an end of its own it needs Ctrl-C.
        processes: Engines that share it.
        cores: Cores that they may use together; None for one each.
        warmup_ns: Ticks that begin within this time are thrown away, except for their errors and wrong answers.
        check: Check of the answers.
        allowed_errors: Share of the requests that may fail.
        source: Source of the engines.

    Raises:
        LoadFailed: An engine failed before the first tick.
        UsageProblem: The limit on open files is too low.
    """
    totals = Tick()
    of_each: dict[str, Tick] = {}
    complaints: list[Complaint] = []
    interrupted = False
    lost: LoadFailed | None = None
    begin_ns: int | None = None
    try:
        with Engines(plan, processes, source) as engines:
            while True:
                tick = engines.next_tick()
                begin_ns = tick.begin_ns if begin_ns is None else begin_ns
                if check is not None:
                    complaints.extend(check.check(tick)[: 1 if not complaints else 0])
                warm = tick.begin_ns - begin_ns >= warmup_ns
                totals += tick if warm else _errors_alone(tick)
                if warm:
                    of_each = shares([tick], of_each)
                if tick.last:
                    break
    except KeyboardInterrupt:
        interrupted = True
    except LoadFailed as problem:
        if begin_ns is None:
            # The load never began, so an error loses no measurement.
            raise
        lost = problem
    found = _cut_short(lost, interrupted=interrupted)
    found += reasons(totals, schedule=plan.schedule, processes=processes, cores=cores, allowed_errors=allowed_errors)
    found += share_reasons(of_each, plan.schedule, among=cores)
    found += [] if check is None else answer_reasons(check, complaints)
    checked = check.checked if check is not None and check.expects_something else None
    return LoadOutcome(totals, tuple(found), interrupted, checked)


def _errors_alone(tick: Tick) -> Tick:
    """Return the part of a warm-up tick that counts."""
    return Tick(tick.number, tick.end_ns, tick.end_ns, errors=tick.errors, error_samples=tick.error_samples)


def _cut_short(lost: LoadFailed | None, *, interrupted: bool) -> list[Reason]:
    """Return the reason why a load ended early."""
    if interrupted:
        return [Reason(ReasonKind.INTERRUPTED, "interrupted by Ctrl-C: not decided")]
    return [] if lost is None else [lost_in_mid_load(lost)]


def answer_reasons(check: AnswerCheck, complaints: list[Complaint]) -> list[Reason]:
    """Return reasons why a load's answers make it invalid."""
    if check.wrong:
        mixed_up = f", {check.mixed_up} of them right for another request" if check.mixed_up else ""
        return [
            Reason(
                ReasonKind.WRONG_ANSWERS,
                f"wrong answers: {check.wrong} of {check.checked} checked{mixed_up}; the first: {complaints[0]}",
            )
        ]
    missed = check.unchecked if check.wants_all else check.answers if not check.checked else 0
    if check.expects_something and missed:
        return [
            Reason(
                ReasonKind.ANSWERS_UNCHECKED,
                f"{missed} of {check.answers} answers could not be checked: they exceed the size or number that the"
                " engine passes on",
            )
        ]
    return []
