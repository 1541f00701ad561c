"""What the coordinator and a worker say to each other besides plans and orders."""

from __future__ import annotations

import msgspec

from pytest_gpuserve.load.wire import HostProcess, Tick  # noqa: TC001 -- msgspec reads the annotations at run time


class News(msgspec.Struct, frozen=True):
    """What happened to a worker since it was asked last; together with the asking it is an exchange of clocks.

    Args:
        received_ns: When it was asked, by its own clock.
        answered_ns: When it answers, by its own clock.
        ticks: What its engine reported, by its own clock.
        ready: Whether its engine can begin again.
        problem: Why its engine is of no use any more, in one line; empty if it is.
    """

    received_ns: int
    answered_ns: int
    ticks: list[Tick] = []
    ready: bool = False
    problem: str = ""


class Whereabouts(msgspec.Struct, frozen=True):
    """Where a worker runs.

    Args:
        pids: Which numbers its processes have: the same for all who see the same processes, see ``placing.identity``.
        processes: The worker itself and its engine.
    """

    pids: str
    processes: list[HostProcess] = []
