"""Runs a load to its end, or until Ctrl-C or the loss of an engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpuserve.errors import LoadFailed
from pytest_gpuserve.load.driver import Engines
from pytest_gpuserve.load.source import LOCAL
from pytest_gpuserve.load.tick import Tick, shares
from pytest_gpuserve.load.validity import one_line, reasons, share_reasons
from pytest_gpuserve.verdict.reason import Reason, ReasonKind

if TYPE_CHECKING:
    from pytest_gpuserve.load.source import EngineSource
    from pytest_gpuserve.load.wire import Plan


def lost_in_mid_load(problem: LoadFailed) -> Reason:
    """Reason why a load was lost, in one line: the last line of a process's log has the cause."""
    said = [line for line in problem.log_tail.splitlines() if line.strip()]
    why = one_line(said[-1] if said else problem.found)
    return Reason(ReasonKind.LOAD_LOST, f"lost in mid-load: {problem.summary}" + (f": {why}" if why else ""))


@dataclass(frozen=True)
class LoadOutcome:
    """Result of a load.

    Args:
        totals: Sum of all ticks.
        reasons: Reasons why the load proves nothing; empty if it is valid.
    """

    totals: Tick
    reasons: tuple[Reason, ...]

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C ended it."""
        return any(reason.kind is ReasonKind.INTERRUPTED for reason in self.reasons)


def run_load(
    plan: Plan,
    *,
    processes: int = 1,
    cores: int | None = None,
    warmup_ns: int = 0,
    allowed_errors: float = 0.0,
    source: EngineSource = LOCAL,
) -> LoadOutcome:
    """Run a load and add up its ticks; a load that is lost on the way is kept, with the reason.

    Args:
        plan: The load; without an end of its own it needs Ctrl-C.
        processes: Engines that share it.
        cores: Cores that they may use together; None for one each.
        warmup_ns: Ticks that begin within this time are thrown away, except for their errors.
        allowed_errors: Share of the requests that may fail.
        source: Source of the engines.

    Raises:
        LoadFailed: An engine failed before the first tick.
        UsageProblem: The limit on open files is too low.
    """
    totals = Tick()
    of_each: dict[str, Tick] = {}
    found: list[Reason] = []
    begin_ns: int | None = None
    try:
        with Engines(plan, processes, source) as engines:
            while True:
                tick = engines.next_tick()
                begin_ns = tick.begin_ns if begin_ns is None else begin_ns
                if tick.begin_ns - begin_ns >= warmup_ns:
                    totals += tick
                    of_each = shares([tick], of_each)
                else:
                    end_ns, errors, samples = tick.end_ns, tick.errors, tick.error_samples
                    totals += Tick(begin_ns=end_ns, end_ns=end_ns, errors=errors, error_samples=samples)
                if tick.last:
                    break
    except KeyboardInterrupt:
        found.append(Reason(ReasonKind.INTERRUPTED, "interrupted by Ctrl-C: not decided"))
    except LoadFailed as problem:
        if begin_ns is None:
            # The load never began, so an error loses no measurement.
            raise
        found.append(lost_in_mid_load(problem))
    found += reasons(totals, schedule=plan.schedule, processes=processes, cores=cores, allowed_errors=allowed_errors)
    found += share_reasons(of_each, plan.schedule, among=cores)
    return LoadOutcome(totals, tuple(found))
