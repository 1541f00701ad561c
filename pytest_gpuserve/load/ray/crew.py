"""The workers of a load as their coordinator knows them: found places for, given their parts, replaced, timed.

What carries them is behind ``Cluster`` and ``Remote``; nothing here knows Ray.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

import msgspec

from pytest_gpuserve.errors import LoadFailed
from pytest_gpuserve.load.ray.clock import Exchange, Offset, best_offset
from pytest_gpuserve.load.ray.placing import (
    Replacements,
    elsewhere_problem,
    needed_here,
    version_problem,
    worker_name,
)
from pytest_gpuserve.load.ray.worker import READY_SECONDS
from pytest_gpuserve.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence

    from pytest_gpuserve.load.ray.messages import News
    from pytest_gpuserve.load.ray.versions import Versions
    from pytest_gpuserve.load.wire import Plan

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
"""Exchanges for one offset, and where the best of them does not do, at most."""

MOST_UNCERTAIN_NS: Final = 5_000_000
"""A worker's clock has to be known as well as this: a twentieth of a tick."""

DRIFT_NS: Final = 5_000_000
"""By so much a clock may certainly have moved until ticks of the same number are no longer of the same time."""

FRESH_NS: Final = 5_000_000_000
"""What was measured of a clock is good for so long before a load: two that nobody sets drift 0.5 ms apart meanwhile."""

TIMED_AT_ONCE: Final = 4
"""Workers whose clocks are asked for at the same time: more would make each other wait, and be known less well."""


class Lost(Exception):
    """The worker is gone, with its process, its node or the way to it; the text says how in one line."""


class Remote(Protocol):
    """A worker somewhere; see ``worker.Worker``. Each of its methods but ``end`` raises ``Lost``."""

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

    async def clock(self) -> int:
        """What time it is there, in ns."""

    async def begin(self, at_ns: int) -> int:
        """Tell it to begin; returns when it had been told."""

    async def again(self, seed: int) -> None:
        """Tell it to end its load and to be ready for another."""

    async def poll(self) -> News:
        """Wait for news of it."""

    def end(self) -> None:
        """End it, if it is still there."""


class Cluster(Protocol):
    """Where workers run."""

    def place(self) -> Remote:
        """Begin to find a place for a worker.

        Raises:
            LoadFailed: The cluster does not take it.
        """

    def room(self) -> str:
        """Say in a few words how much room there is."""


@dataclass(frozen=True, slots=True)
class Timing:
    """A measurement of a worker's clock.

    Args:
        offset: How far it is ahead of ours.
        slowest_ns: The longest call to the worker meanwhile.
        at_ns: When, by our clock.
    """

    offset: Offset
    slowest_ns: int
    at_ns: int


@dataclass(eq=False)
class Member:
    """A worker that can begin.

    Args:
        part: Which share of the load is its own.
        name: What it is called.
        remote: The worker itself.
        timing: Of its clock, the newest.
    """

    part: int
    name: str
    remote: Remote
    timing: Timing


class Crew:
    """All workers of a load.

    Args:
        cluster: Where they run.
        plan: The load, with the number of parts.
        versions: What we run ourselves.
        now_ns: Our clock.
    """

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
            Lost: The worker is gone.
        """
        if self._now_ns() - member.timing.at_ns > FRESH_NS:
            member.timing = await self._known_timing(member)

    async def check_clock(self, member: Member) -> None:
        """Measure a worker's clock again after a load, and go by that from now on.

        Raises:
            LoadFailed: It went away from ours, or cannot be known.
            Lost: The worker is gone.
        """
        timing = await self._known_timing(member)
        check_drift(member, timing.offset)
        member.timing = timing

    async def _member(self, part: int) -> Member:
        while True:
            remote = self._cluster.place()
            try:
                return await self._joined(part, remote)
            except Lost as problem:
                remote.end()
                self._replacements.lose(worker_name("?", part), str(problem))
            except _Mistimed as problem:
                remote.end()
                if part in self._mistimed:
                    raise LoadFailed(f"{problem}, and that of the one before it neither") from problem
                self._mistimed.add(part)

    async def _joined(self, part: int, remote: Remote) -> Member:
        """Make a worker that looks for a place ready to begin.

        Raises:
            LoadFailed: No other could do better.
            Lost: It is gone.
        """
        plan = msgspec.structs.replace(self._plan, part=part)
        seconds = min(PLACE_SECONDS + PLACE_A_WORKER_SECONDS * plan.parts, MOST_PLACE_SECONDS)
        try:
            versions = await asyncio.wait_for(remote.versions(), seconds)
        except asyncio.TimeoutError as problem:
            raise LoadFailed(
                f"worker-{part} of {plan.parts} found no place in {format_seconds(seconds)}:"
                f" {self._cluster.room()}; add nodes, or ask for fewer workers: load(processes=N)"
            ) from problem
        name = worker_name(await answered(f"worker-{part} of {plan.parts}", remote.node(), CALL_SECONDS), part)
        _complain(version_problem(name, versions, self._versions))
        # A resolver may be asked.
        needed = await asyncio.to_thread(needed_here, plan)
        if needed:
            theirs = await answered(name, remote.identities(list(needed)), CALL_SECONDS)
            _complain(elsewhere_problem(name, needed, dict(theirs)))
        problem_text = await answered(name, remote.start(part, plan.parts, self.seed), START_SECONDS)
        _complain(f"{name}: {problem_text}" if problem_text else "")
        timing = await self._timed(name, remote)
        if timing.offset.uncertainty_ns > MOST_UNCERTAIN_NS:
            raise _Mistimed(f"the clock of {name} {_known(timing.offset)}")
        return Member(part, name, remote, timing)

    async def _known_timing(self, member: Member) -> Timing:
        timing = await self._timed(member.name, member.remote)
        if timing.offset.uncertainty_ns > MOST_UNCERTAIN_NS:
            raise LoadFailed(f"whether the clock of {member.name} kept time is not known: it {_known(timing.offset)}")
        return timing

    async def _timed(self, name: str, remote: Remote) -> Timing:
        exchanges: list[Exchange] = []
        async with self._timing:
            while len(exchanges) < MOST_ROUNDS:
                sent_ns = self._now_ns()
                there_ns = await answered(name, remote.clock(), CALL_SECONDS)
                exchanges.append(Exchange(sent_ns, there_ns, there_ns, self._now_ns()))
                if len(exchanges) >= ROUNDS and best_offset(exchanges).uncertainty_ns <= MOST_UNCERTAIN_NS:
                    break
        slowest_ns = max(exchange.round_trip_ns for exchange in exchanges)
        return Timing(best_offset(exchanges), slowest_ns, self._now_ns())


class _Mistimed(Exception):
    """The worker's clock is not known well enough; another worker's may be."""


def check_drift(member: Member, offset: Offset) -> None:
    """See that a worker's clock is still where it was.

    Raises:
        LoadFailed: It went away.
    """
    gap_ns = member.timing.offset.gap_ns(offset)
    if gap_ns > DRIFT_NS:
        raise LoadFailed(
            f"the clock of {member.name} went away from this host's during the load, by"
            f" {format_seconds(gap_ns / 1e9)} at least"
        )


async def answered(name: str, call: Awaitable[_Result], seconds: float) -> _Result:
    """Wait for what a worker answers, but not for ever: one whose process has stopped never does, and is not lost.

    Args:
        name: The worker's.
        call: To it.
        seconds: How long it may take.

    Raises:
        LoadFailed: It does not answer; the text names it.
        Lost: It is gone.
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


def _known(offset: Offset) -> str:
    return f"is known only to within {format_seconds(offset.uncertainty_ns / 1e9)}"


def _complain(problem: str) -> None:
    if problem:
        raise LoadFailed(problem)
