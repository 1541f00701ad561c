"""What each worker of a load did by itself: an average hides the one that could not keep up."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.load.totals import RunningTotals
from pytest_gpuserve.load.validity import Reason, ReasonKind, reasons

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pytest_gpuserve.load.schedule import Schedule
    from pytest_gpuserve.load.totals import Totals
    from pytest_gpuserve.load.wire import Tick

OF_A_WORKER: Final = frozenset({ReasonKind.SATURATED, ReasonKind.LATE, ReasonKind.RATE, ReasonKind.NOTHING})
"""What shows in a worker's share; the rest is asked of all of the load."""


class RunningShares:
    """Adds up what each worker did, in the order of their parts; empty where one engine alone is at work."""

    def __init__(self) -> None:
        self._running: dict[str, RunningTotals] = {}

    def add(self, tick: Tick) -> None:
        """Add the tick that came next.

        Raises:
            ValueError: The tick of a worker ends before it begins.
        """
        for name, part in tick.workers.items():
            self._running.setdefault(name, RunningTotals()).add(part)

    def totals(self) -> dict[str, Totals]:
        """What each has come to."""
        return {name: running.totals() for name, running in self._running.items()}


def shares(ticks: Iterable[Tick]) -> dict[str, Totals]:
    """Add up what each worker did in these ticks, oldest first; see ``RunningShares``.

    Raises:
        ValueError: A tick ends before it begins.
    """
    running = RunningShares()
    for tick in ticks:
        running.add(tick)
    return running.totals()


def share_reasons(found: Mapping[str, Totals], schedule: Schedule, *, among: int | None = None) -> tuple[Reason, ...]:
    """Return why nothing may be concluded from a load, of workers by name: saturated, late, behind, or never answered.

    Args:
        found: What each did.
        schedule: The load that they shared.
        among: Cores that they share; None for one each. Workers that share fewer cores than they are cannot use one
            each, so that none of them shows by itself that they are saturated; that shows in the whole.
    """
    told: list[Reason] = []
    for name, totals in found.items():
        if not totals.sent:
            continue
        kinds = OF_A_WORKER - ({ReasonKind.SATURATED} if among is not None and among < len(found) else set())
        told += [
            replace(reason, text=f"{name}: {reason.text}")
            for reason in reasons(totals, schedule=schedule, processes=1, allowed_errors=_ANY)
            if reason.kind in kinds
        ]
    return tuple(told)


_ANY: Final = 1 - 1e-9
"""Errors are judged of the whole load."""
