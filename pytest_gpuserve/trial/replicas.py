"""A load of several replicas: how many workers it takes, and what each replica did in it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.gate.share import Share
from pytest_gpuserve.load.driver import most_under_way
from pytest_gpuserve.load.merging import added
from pytest_gpuserve.load.schedule import Closed, Trace
from pytest_gpuserve.load.shares import shares
from pytest_gpuserve.measure.histogram import merge
from pytest_gpuserve.measure.replicas import ReplicaWindow, replicas_of
from pytest_gpuserve.trial.capacity.shape import SearchShape
from pytest_gpuserve.units import format_fraction

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpuserve.load.schedule import Schedule
    from pytest_gpuserve.load.totals import Totals
    from pytest_gpuserve.load.wire import Tick
    from pytest_gpuserve.measure.window import Window
    from pytest_gpuserve.trial.handle import Target
    from pytest_gpuserve.trial.shape import LoadShape

ERROR: Final = 0.01
"""Chance that a replica of several, each of which fails as often as is allowed, is said to fail more often."""


def for_replicas(shape: LoadShape, *targets: Target) -> LoadShape:
    """Return a load that can be dealt out evenly to the replicas of each of these deployments.

    Each worker goes to one replica, so that their number is a multiple of the replicas. The one worker that a load has
    unless its test says otherwise becomes so many.

    Args:
        shape: The load.
        targets: What is sent, to whom.

    Raises:
        UsageProblem: Another number of workers, or the number of users or of rotating requests, cannot be dealt out.
    """
    replicas = math.lcm(*(target.replicas for target in targets))
    if replicas == 1:
        return shape
    for target in targets:
        _check_rotation(target, shape.schedule)
    if isinstance(shape, SearchShape):
        shape = shape.for_users(replicas)
    most = most_under_way(shape.schedule)
    if most is not None and most < replicas:
        raise UsageProblem(
            f"{_counted(most, 'request')} at a time cannot be shared by {replicas} replicas: each needs one at least",
            remedies=[f"load(..., concurrency={replicas}), or a multiple of it", "fewer URLs: remote_server([...])"],
        )
    workers = replicas if shape.processes == 1 else shape.processes
    if workers % replicas:
        fewer = workers - workers % replicas
        would_do = [number for number in (fewer, fewer + replicas) if number]
        raise UsageProblem(
            f"load(processes={workers}) cannot be dealt out evenly to {replicas} replicas: each engine goes to one",
            remedies=[f"processes={' or '.join(map(str, would_do))}", "leave out processes=...: one for each replica"],
        )
    return replace(shape, processes=workers)


def warmup_of(shape: LoadShape, replicas: int) -> tuple[Schedule, int]:
    """What warms up the servers of a load that is measured as a whole, and how many workers that takes.

    Args:
        shape: The load.
        replicas: How many servers there are, each of which one worker at least goes to, with a user at least.
    """
    schedule = shape.warmup
    if isinstance(schedule, Closed) and schedule.users < replicas:
        schedule = Closed(replicas, schedule.think_seconds)
    return schedule, replicas


def _check_rotation(target: Target, schedule: Schedule) -> None:
    """See that each replica gets every request: they rotate by their number, as the replicas do."""
    requests, replicas = len(target.requests), target.replicas
    common = math.gcd(requests, replicas)
    if common == 1 or isinstance(schedule, Trace):
        return
    raise UsageProblem(
        f"rotate([...]) of {requests} requests to {replicas} replicas: each would get only"
        f" {_counted(requests // common, 'request')} of them, always the same",
        remedies=["one request more or fewer, so that the two numbers have no common divisor"],
    )


@dataclass
class ReplicaShares:
    """Finds out what each replica did by what the workers report that went to it.

    Args:
        names: Of the replicas, in the order of the plan; empty where one server has the load alone.
    """

    names: tuple[str, ...] = ()
    _replica_of: dict[str, str] = field(default_factory=dict)

    def hear(self, tick: Tick) -> None:
        """Learn from the first tick of a load, in which each worker has a part, who goes where."""
        if self.names and tick.number == 0:
            self._replica_of = {worker: self.names[part % len(self.names)] for part, worker in enumerate(tick.workers)}

    def window(self, ticks: Sequence[Tick]) -> tuple[ReplicaWindow, ...]:
        """What each replica did in a window of these ticks; empty where that is not known, and of one server."""
        known = shares(ticks) if self.names else {}
        if not known or not known.keys() <= self._replica_of.keys():
            return ()
        found: dict[str, list[Totals]] = {name: [] for name in self.names}
        for worker, totals in known.items():
            found[self._replica_of[worker]].append(totals)
        return tuple(
            ReplicaWindow(
                name,
                requests=sum(totals.requests for totals in each),
                errors=added(totals.errors for totals in each),
                latency=merge(totals.latency.histogram for totals in each),
            )
            for name, each in found.items()
        )

    def failing(self, tick: Tick) -> str:
        """Which replicas failed a request in a tick, for a message; empty where that is not known."""
        names = dict.fromkeys(
            self._replica_of[worker]
            for worker, part in tick.workers.items()
            if part.errors and worker in self._replica_of
        )
        return f" of {', '.join(names)}" if names else ""

    def problems(self, windows: Sequence[Window], *, allowed_errors: float) -> list[str]:
        """Why nothing may be concluded from what was measured: a replica that has no part in it, or fails too much.

        Args:
            windows: What was measured.
            allowed_errors: Share of each replica's requests that may fail; that more do has to be shown, for among the
                few requests of one of many a single failure is a large share.
        """
        if not self.names or not windows:
            return []
        if any(not window.replicas for window in windows):
            return [f"replicas: what each of the {len(self.names)} did is not known"]
        found = []
        for replica in replicas_of(windows):
            sent = replica.requests + replica.failed
            kinds = "; ".join(f"{kind}: {count}" for kind, count in sorted(replica.errors.items()))
            if not replica.requests:
                failed = f", and {_counted(replica.failed, 'request')} to it failed: {kinds}" if kinds else ""
                found.append(f"replica {replica.name}: it answered nothing{failed}")
            elif self._fails(replica.failed, sent, allowed_errors):
                share, may = format_fraction(replica.failed / sent), format_fraction(allowed_errors)
                found.append(
                    f"replica {replica.name}: {replica.failed} of {sent} requests to it ({share}) failed, {may} may:"
                    f" {kinds}"
                )
        return found

    def _fails(self, failed: int, sent: int, allowed: float) -> bool:
        """Whether more of these requests failed than may, by the exact binomial limit."""
        if not allowed or not failed:
            return failed > 0
        share = Share(failed / sent, sent)
        return share.value > allowed and share.chance_of_so_many(allowed) <= ERROR / len(self.names)


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'s' if count != 1 else ''}"
