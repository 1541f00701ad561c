"""The pytest side of the engines: starts them together, reads and merges their ticks, ends them."""

from __future__ import annotations

import resource
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

import msgspec

from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.load import beside
from pytest_gpuserve.load.engine.http2_codec import check_endpoint
from pytest_gpuserve.load.engine.loop import OWN_FILES
from pytest_gpuserve.load.engine_process import EngineProcess
from pytest_gpuserve.load.merging import together
from pytest_gpuserve.load.schedule import Closed, Steps
from pytest_gpuserve.load.source import LOCAL
from pytest_gpuserve.load.wire import Again, Begin

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

    from pytest_gpuserve.load.schedule import Schedule
    from pytest_gpuserve.load.source import EngineSource
    from pytest_gpuserve.load.wire import Plan, Tick

HEAD_START_NS: Final = 5_000_000
"""From the last engine's readiness to the begin: time enough to tell them all."""


class Engines:
    """Running engine processes that share one load; a context manager, so that they end with its block.

    Args:
        plan: The load.
        processes: How many workers share it.
        source: Where these come from.

    Raises:
        LoadFailed: A process could not be started, or the host is unknown.
        UsageProblem: More users than the limit on open files or the slots in shared memory allow, or fewer than
            processes; or metadata that cannot be sent.
    """

    def __init__(self, plan: Plan, processes: int = 1, source: EngineSource = LOCAL) -> None:
        for endpoint in (plan.endpoint, *plan.replicas):
            check_endpoint(endpoint)
        check_users(plan.schedule, processes)
        _check_slots(plan)
        self._stack = ExitStack()
        self._source = source
        launches = source.launches(processes)
        self._names = [launch.name for launch in launches]
        with ExitStack() as stack:
            self._engines = [
                stack.enter_context(EngineProcess(launch.command, launch.end_seconds)) for launch in launches
            ]
            for launch, engine in zip(launches, self._engines, strict=True):
                engine.tell(msgspec.structs.replace(plan, part=launch.part, parts=processes))
            for engine in self._engines:
                engine.wait_ready(source.ready_seconds)
            self.begin()
            self._stack = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def pids(self) -> tuple[int, ...]:
        """The processes on this host, our own first: of workers on a cluster those that its nodes run here too."""
        own = [engine.pid for engine in self._engines]
        return tuple(dict.fromkeys([*own, *(pid for teller in own for pid in beside.pids(teller))]))

    def next_tick(self) -> Tick:
        """Return the next report of all engines together, waiting for it; not to be asked for after the last.

        Raises:
            LoadFailed: An engine died, fell silent or talks nonsense.
        """
        ticks = {
            name: engine.next_tick()
            for name, engine in zip(self._names, self._engines, strict=True)
            if not engine.ended
        }
        if len(self._engines) == 1:
            return next(iter(ticks.values()))
        return msgspec.structs.replace(together(ticks), last=all(engine.ended for engine in self._engines))

    def halt(self, *, seed: int) -> None:
        """End the load, under way, over or not begun, and wait until it could begin; no request is under way then.

        Requests that were sent are answered before, unless the server takes seconds for it.

        Args:
            seed: In place of the plan's.

        Raises:
            LoadFailed: An engine died or fell silent.
        """
        for engine in self._engines:
            engine.tell(Again(seed))
        for engine in self._engines:
            engine.wait_ready_again(self._source.ready_seconds)

    def begin(self) -> None:
        """Begin again after a halt, with ticks from number 0.

        Raises:
            LoadFailed: An engine does not read that.
        """
        begin = Begin(time.perf_counter_ns() + HEAD_START_NS)
        for engine in self._engines:
            engine.tell(begin)

    def close(self) -> None:
        """End the processes."""
        self._stack.close()


def check_users(schedule: Schedule, processes: int) -> None:
    """Say beforehand that there cannot be so many requests under way, or that they cannot be shared.

    Raises:
        UsageProblem: More than the limit on open files allows, or fewer than processes.
    """
    most = most_under_way(schedule)
    users = processes if most is None else most
    if users < processes:
        # A process without a user would never send its share of the requests.
        raise UsageProblem(
            f"{processes} processes cannot share {users} connections", remedies=[f"processes={users} at most"]
        )
    needed = -(-users // processes) + OWN_FILES
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if needed > hard:
        raise UsageProblem(
            f"{users} connections need {needed} open files in a process",
            found=f"the hard limit on open files is {hard}",
            remedies=[f"`ulimit -Hn {needed}` before the start", "processes=n, which shares them out"],
        )


def most_under_way(schedule: Schedule) -> int | None:
    """The most requests under way at the same time; None where nothing bounds them."""
    if isinstance(schedule, Closed):
        return schedule.users
    if isinstance(schedule, Steps):
        return max(users for users, _ in schedule.steps)
    return schedule.max_in_flight


def _check_slots(plan: Plan) -> None:
    """Say beforehand that requests under way would overwrite each other's answers in shared memory."""
    most = most_under_way(plan.schedule)
    slots = min((len(forms) for forms in plan.payloads if plan.outputs is not None or len(forms) > 1), default=None)
    if slots is None:
        return
    if most is None:
        raise UsageProblem(
            "an open loop through shared memory needs a ceiling: each request under way takes a slot",
            found=f"slots={slots}, and no max_in_flight",
            remedies=[f"max_in_flight={slots}"],
        )
    if most > slots:
        raise UsageProblem(
            f"{most} requests under way at the same time need as many slots in shared memory",
            found=f"slots={slots}",
            remedies=[f"share(..., slots={most})", f"a load of {slots} at a time at most"],
        )
