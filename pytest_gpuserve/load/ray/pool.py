"""The workers of a load as their coordinator sees them: placed, given their parts, replaced, timed.

What carries them is behind ``Cluster`` and ``RemoteWorker``; nothing here knows Ray.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

import msgspec

from pytest_gpuserve.errors import LoadFailed
from pytest_gpuserve.load.ray.clock import Exchange, Track
from pytest_gpuserve.load.ray.placing import (
    Replacements,
    WorkerLocation,
    needed_here,
    processes_here,
    unreachable_problem,
    version_problem,
    worker_name,
)
from pytest_gpuserve.load.ray.worker import MOST_UNCERTAIN_NS, READY_SECONDS, check_kept, known_to
from pytest_gpuserve.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence

    from pytest_gpuserve.load.ray.cluster import Versions
    from pytest_gpuserve.load.ray.worker import WorkerReport
    from pytest_gpuserve.load.wire import HostProcess, Plan

_Result = TypeVar("_Result")

PLACE_SECONDS: Final = 60.0
PLACE_A_WORKER_SECONDS: Final = 2.0
MOST_PLACE_SECONDS: Final = 120.0
"""How long a worker may take to find a place and to start there, where there are few, how much longer for each that may
have to start on the same host, and at most; a cluster that grows by itself has time to."""

CALL_SECONDS: Final = 8.0
"""How long a worker may take to answer what takes it no time: less than its owner waits after a begin (20 s), who would
not know which one hangs."""

START_SECONDS: Final = READY_SECONDS + 2 * CALL_SECONDS
"""How long a call may take in which an engine starts."""

ROUNDS: Final = 16
MOST_ROUNDS: Final = 96
"""Calls for one offset, and where what they tell together does not do, at most."""

VAGUE_NS: Final = 2_000_000_000
"""A worker whose reports tell too little of its clock is asked for the time so often in mid-load."""

FRESH_NS: Final = 5_000_000_000
"""What was measured of a clock is good for so long before a load: two that nobody sets drift 0.5 ms apart meanwhile."""

TIMED_AT_ONCE: Final = 4
"""Workers whose clocks are asked for at the same time: more would make each other wait, and be known less well."""

WORKERS_BY: Final = "load(processes=N), or --workers N of the command"
"""What says how many workers there are."""


class WorkerLost(Exception):
    """The worker is gone, with its process, its node or the way to it; the text says how in one line."""


class RemoteWorker(Protocol):
    """A worker somewhere; see ``worker.RayWorker``. Each of its methods but ``end`` raises ``WorkerLost``."""

    async def versions(self) -> Versions:
        """What it runs; where it has found no place yet, that is waited for.

        Raises:
            LoadFailed: Its node has not what a worker needs.
        """

    async def node(self) -> str:
        """The address of its node."""

    async def identities(self, paths: Sequence[str]) -> Mapping[str, str]:
        """Which files these are there."""

    async def start(self, part: int, parts: int, seed: int) -> str:
        """Start the engine of the plan that the cluster has; returns why that cannot be."""

    async def location(self) -> WorkerLocation:
        """Which processes it is made of, once it has an engine."""

    async def clock(self) -> int:
        """What time it is there, in ns."""

    async def begin(self, at_ns: int) -> int:
        """Tell it to begin; returns when it had the order."""

    async def again(self, seed: int) -> None:
        """Tell it to end its load and to be ready for another."""

    async def poll(self) -> WorkerReport:
        """Wait for news of it."""

    def end(self) -> None:
        """End it, if it is still there."""


class Cluster(Protocol):
    """Where workers run."""

    def place(self) -> RemoteWorker:
        """Begin to find a place for a worker.

        Raises:
            LoadFailed: The cluster does not take it.
        """

    def room(self) -> str:
        """Say in a few words how much room there is."""


@dataclass(eq=False)
class Member:
    """A worker that can begin; ``slowest_ns`` and ``asked_ns`` are of the last time that its clock was asked."""

    part: int
    name: str
    remote: RemoteWorker
    clock: Track
    slowest_ns: int
    asked_ns: int
    processes: tuple[HostProcess, ...] = ()


class WorkerPool:
    """All workers of a load."""

    def __init__(
        self, cluster: Cluster, plan: Plan, versions: Versions, now_ns: Callable[[], int] = time.perf_counter_ns
    ) -> None:
        self._cluster = cluster
        self._plan = plan
        self._versions = versions
        self._now_ns = now_ns
        self._replacements = Replacements(plan.parts)
        self._mistimed: set[int] = set()
        self._timing = asyncio.Semaphore(TIMED_AT_ONCE)
        self.members: list[Member] = []
        self.seed = plan.seed

    @property
    def processes_here(self) -> tuple[HostProcess, ...]:
        """Those of the workers that run on this host."""
        return tuple(process for member in self.members for process in member.processes)

    async def assemble(self) -> None:
        """Find all workers and make them ready.

        Raises:
            LoadFailed: That cannot be; it says with whom.
        """
        self.members = await all_of([self._member(part) for part in range(self._plan.parts)])

    async def replace(self, lost: Member, reason: str) -> Member:
        """Put another worker into the place of one that was lost, ready to begin.

        Raises:
            LoadFailed: Too many were lost, or no other can do it.
        """
        lost.remote.end()
        self._replacements.lose(lost.name, reason)
        member = await self._member(lost.part)
        self.members[lost.part] = member
        return member

    async def refresh_clock(self, member: Member) -> None:
        """Measure a worker's clock again before a load, if it was measured long ago.

        Raises:
            LoadFailed: It cannot be known.
            WorkerLost: The worker is gone.
        """
        if self._now_ns() - member.asked_ns > FRESH_NS:
            await self._measure(member)

    async def check_clock(self, member: Member) -> None:
        """Measure a worker's clock again after a load, and go by that from now on.

        Raises:
            LoadFailed: It went away from ours, or cannot be known.
            WorkerLost: The worker is gone.
        """
        await self._measure(member)
        check_kept(member.name, member.clock)

    async def sharpen_clock(self, member: Member) -> None:
        """Ask a worker for the time in mid-load, where its reports come so late that they tell too little of it.

        Raises:
            LoadFailed: It does not answer.
            WorkerLost: The worker is gone.
        """
        vague = member.clock.offset.uncertainty_ns > MOST_UNCERTAIN_NS
        if vague and self._now_ns() - member.asked_ns > VAGUE_NS:
            member.slowest_ns = await self._asked(member.name, member.remote, member.clock, ROUNDS)
            member.asked_ns = self._now_ns()

    async def _member(self, part: int) -> Member:
        while True:
            remote = self._cluster.place()
            try:
                return await self._joined(part, remote)
            except WorkerLost as problem:
                remote.end()
                self._replacements.lose(worker_name("?", part), str(problem))
            except _Mistimed as problem:
                remote.end()
                if part in self._mistimed:
                    raise LoadFailed(f"{problem}, and that of the one before it neither") from problem
                self._mistimed.add(part)

    async def _joined(self, part: int, remote: RemoteWorker) -> Member:
        """Make a worker that looks for a place ready to begin.

        Raises:
            LoadFailed: No other could do better.
            WorkerLost: It is gone.
        """
        plan = msgspec.structs.replace(self._plan, part=part)
        seconds = min(PLACE_SECONDS + PLACE_A_WORKER_SECONDS * plan.parts, MOST_PLACE_SECONDS)
        try:
            versions = await asyncio.wait_for(remote.versions(), seconds)
        except asyncio.TimeoutError as problem:
            raise LoadFailed(
                f"worker-{part} of {plan.parts} found no place in {format_seconds(seconds)}:"
                f" {self._cluster.room()}; add nodes, or ask for fewer workers: {WORKERS_BY}"
            ) from problem
        name = worker_name(await answered(f"worker-{part} of {plan.parts}", remote.node(), CALL_SECONDS), part)
        _complain(version_problem(name, versions, self._versions))
        # A resolver may be asked.
        needed = await asyncio.to_thread(needed_here, plan)
        if needed:
            theirs = await answered(name, remote.identities(list(needed)), CALL_SECONDS)
            _complain(unreachable_problem(name, needed, dict(theirs)))
        problem_text = await answered(name, remote.start(part, plan.parts, self.seed), START_SECONDS)
        _complain(f"{name}: {problem_text}" if problem_text else "")
        there = await answered(name, remote.location(), CALL_SECONDS)
        clock = Track()
        slowest_ns = await self._asked(name, remote, clock, MOST_ROUNDS)
        clock.settle()
        if clock.uncertainty_ns > MOST_UNCERTAIN_NS:
            raise _Mistimed(f"the clock of {name} {known_to(clock.offset)}")
        return Member(part, name, remote, clock, slowest_ns, self._now_ns(), processes_here(there))

    async def _measure(self, member: Member) -> None:
        member.slowest_ns = await self._asked(member.name, member.remote, member.clock, MOST_ROUNDS)
        member.asked_ns = self._now_ns()
        member.clock.settle()
        if member.clock.uncertainty_ns > MOST_UNCERTAIN_NS:
            known = known_to(member.clock.offset)
            raise LoadFailed(f"whether the clock of {member.name} kept time is not known: it {known}")

    async def _asked(self, name: str, remote: RemoteWorker, clock: Track, most_rounds: int) -> int:
        """Ask for the time until it is known well enough; returns how long the longest call took."""
        slowest_ns = 0
        async with self._timing:
            for asked in range(1, most_rounds + 1):
                sent_ns = self._now_ns()
                there_ns = await answered(name, remote.clock(), CALL_SECONDS)
                exchange = Exchange(sent_ns, there_ns, there_ns, self._now_ns())
                clock.hear(exchange)
                slowest_ns = max(slowest_ns, exchange.round_trip_ns)
                if asked >= ROUNDS and clock.uncertainty_ns <= MOST_UNCERTAIN_NS:
                    break
        return slowest_ns


class _Mistimed(Exception):
    """The worker's clock is not known well enough; another worker's may be."""


async def answered(name: str, call: Awaitable[_Result], seconds: float) -> _Result:
    """Wait for a worker's answer for a limited time: a stopped process never answers, and is not lost.

    Raises:
        LoadFailed: It does not answer; the text names it.
        WorkerLost: It is gone.
    """
    try:
        return await asyncio.wait_for(call, seconds)
    except asyncio.TimeoutError as problem:
        raise LoadFailed(
            f"{name} did not answer in {format_seconds(seconds)}: its process, its node or the way to it hangs"
        ) from problem


async def all_of(tasks: Sequence[Coroutine[None, None, _Result]]) -> list[_Result]:
    """Run coroutines at the same time; if one fails, the others are cancelled, and ended when this raises."""
    running = [asyncio.ensure_future(task) for task in tasks]
    try:
        return await asyncio.gather(*running)
    except BaseException:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        raise


def _complain(problem: str) -> None:
    if problem:
        raise LoadFailed(problem)
