"""What each worker of a load did by itself: an average hides the one that could not keep up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from pytest_gpuserve.gate.reason import Reason, ReasonKind
from pytest_gpuserve.load.totals import RunningTotals
from pytest_gpuserve.load.validity import SATURATED_SHARE, reasons
from pytest_gpuserve.load.wire import Tick
from pytest_gpuserve.units import format_fraction

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pytest_gpuserve.load.schedule import Schedule
    from pytest_gpuserve.load.totals import Totals

OF_A_WORKER: Final = frozenset(
    {
        ReasonKind.CLIENT_SATURATED,
        ReasonKind.CLIENT_LATE,
        ReasonKind.CLIENT_HELD_UP,
        ReasonKind.RATE_NOT_REACHED,
        ReasonKind.NOTHING_MEASURED,
    }
)
"""What shows in a worker's share; the rest is asked of all of the load."""


def packed(tick: Tick) -> Tick:
    """Return a tick that can be kept for long: what each worker did in it takes a tenth of the memory, or less.

    ``RunningShares`` reads it as before. Each tick keeps its own, so that what is measured again, or cut off in the
    end, is in nobody's share.
    """
    if not tick.workers:
        return tick
    return msgspec.structs.replace(tick, workers={}, packed=msgspec.msgpack.encode(tick.workers))


def _workers(tick: Tick) -> dict[str, Tick]:
    return msgspec.msgpack.decode(tick.packed, type=dict[str, Tick]) if tick.packed else tick.workers


class RunningShares:
    """Adds up what each worker did, in the order of their parts; empty where one engine alone is at work."""

    def __init__(self) -> None:
        self._running: dict[str, RunningTotals] = {}

    def add(self, tick: Tick) -> None:
        """Add the tick that came next.

        Raises:
            ValueError: The tick of a worker ends before it begins.
        """
        for name, part in _workers(tick).items():
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

    Of workers named ``NODE/worker-P`` also whether those of one node, of which each may have used little, together used
    up its cores.

    Args:
        found: What each did.
        schedule: The load that they shared.
        among: Cores that they share; None for one each. Workers that share fewer cores than they are cannot use one
            each, so that none of them shows by itself that they are saturated; that shows in the whole.
    """
    told: list[Reason] = []
    for name, totals in found.items():
        if not (totals.sent or totals.due or totals.error_count or totals.opening):
            # Of a few requests over many workers some get none.
            continue
        kinds = OF_A_WORKER - ({ReasonKind.CLIENT_SATURATED} if among is not None and among < len(found) else set())
        told += [
            reason.of(name)
            for reason in reasons(totals, schedule=schedule, processes=1, allowed_errors=_ANY)
            if reason.kind in kinds
        ]
    return (*told, *_saturated_nodes(found, among))


def _saturated_nodes(found: Mapping[str, Totals], among: int | None) -> Iterator[Reason]:
    nodes: dict[str, list[Totals]] = {}
    for name, totals in found.items():
        node, of_a_node, _ = name.rpartition(_WORKER)
        if of_a_node:
            nodes.setdefault(node, []).append(totals)
    for node, workers in nodes.items():
        cores = max(totals.host_cores for totals in workers)
        # Workers with a core for each show it by themselves, and those that share all of this host in the whole.
        if len(workers) <= max(1, cores) or (among is not None and among <= cores):
            continue
        if not cores:
            yield Reason(ReasonKind.NOT_COUNTED, f"cores of {node} not known: its {len(workers)} workers tell none")
            continue
        used = sum(totals.cpu_seconds for totals in workers)
        offered = cores * max(totals.seconds for totals in workers)
        if used > SATURATED_SHARE * offered > 0:
            plural = "" if cores == 1 else "s"
            yield Reason(
                ReasonKind.CLIENT_SATURATED,
                f"{node}: client saturated: its {len(workers)} workers together used {format_fraction(used / offered)}"
                f" of the {cores} core{plural} that they may, over {format_fraction(SATURATED_SHARE)}, and so measured"
                " themselves; spread the load over more nodes",
            )


_WORKER: Final = "/worker-"
"""Stands between a worker's node and its part; see ``load.ray``."""

_ANY: Final = 1 - 1e-9
"""Errors are judged of the whole load."""
