"""A cluster without Ray: workers in this process with clocks of their own, whose faults a test writes down."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import msgspec

from pytest_gpuserve.load.ray.cluster import Versions
from pytest_gpuserve.load.ray.coordinator import Coordinator
from pytest_gpuserve.load.ray.placing import PIDS, WorkerLocation, identity
from pytest_gpuserve.load.ray.pool import WorkerLost, WorkerPool
from pytest_gpuserve.load.ray.worker import WorkerReport
from pytest_gpuserve.load.wire import Again, Begin, HostProcess, Ready, Tick
from tests.fakes.http_server import plan

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    from pytest_gpuserve.load.wire import Report

TICK_NS: Final = 100_000_000

VERSIONS: Final = Versions("3.11.7", "2.60.0", "0.1.0")

FACT_SECONDS: Final = 30.0


@dataclass
class HandClock:
    """A clock that goes on by a microsecond whenever it is read, and otherwise only by hand."""

    at_ns: int = 1_000_000_000_000

    def now_ns(self) -> int:
        """Read it."""
        self.at_ns += 1000
        return self.at_ns


@dataclass(frozen=True)
class Script:
    """What a worker is like.

    Args:
        ahead_ns: How far its clock is ahead of ours at first.
        way_ns: How long each way of a call takes.
        first_ns: How much longer it takes to ask it for the time at first.
        begin_ns: How much longer it takes to tell it to begin.
        dies_in: The method in which it dies.
        hangs_in: The method that never answers.
        refuses: Why its engine cannot start.
        versions: What it runs.
        sees: Whether it sees the files of this host.
        never_placed: Whether it finds no place.
    """

    ahead_ns: int = 0
    way_ns: int = 10_000
    first_ns: int = 0
    begin_ns: int = 0
    dies_in: str = ""
    hangs_in: str = ""
    refuses: str = ""
    versions: Versions = VERSIONS
    sees: bool = True
    never_placed: bool = False


@dataclass(eq=False)
class ScriptedWorker:
    """A worker that does nothing by itself: a test says what its engine reports.

    Args:
        script: What it is like.
        ours: Our clock.
        address: The address of its node.
        part: Its share of the load, once it has one.
        seeds: That it was told, in order.
        begun_ns: When it was told to begin, by its own clock, time after time.
        news: That it has yet to tell.
        moved_ns: How far its clock went away.
        hangs_in: The method that does not answer any more.
        silent: Whether it is never ready again.
        asked: How often it was asked for the time.
        polled: How often it was asked for news.
        ended: Whether it was ended.
    """

    script: Script
    ours: HandClock
    address: str
    part: int | None = None
    seeds: list[int] = field(default_factory=list)
    begun_ns: list[int] = field(default_factory=list)
    news: asyncio.Queue[WorkerReport | Exception] = field(default_factory=asyncio.Queue)
    moved_ns: int = 0
    hangs_in: str = ""
    silent: bool = False
    asked: int = 0
    polled: int = 0
    ended: bool = False

    def there_ns(self) -> int:
        """What time it is there."""
        return self.ours.now_ns() + self.script.ahead_ns + self.moved_ns

    async def _called(self, method: str) -> None:
        await asyncio.sleep(0)
        if self.script.dies_in == method:
            raise WorkerLost("its process has died")
        if method in (self.script.hangs_in, self.hangs_in):
            await asyncio.Event().wait()
        self.ours.at_ns += self.script.way_ns

    async def versions(self) -> Versions:
        """See ``RemoteWorker``."""
        if self.script.never_placed:
            await asyncio.Event().wait()
        await self._called("versions")
        return self.script.versions

    async def node(self) -> str:
        """See ``RemoteWorker``."""
        await self._called("node")
        return self.address

    async def identities(self, paths: Sequence[str]) -> Mapping[str, str]:
        """See ``RemoteWorker``."""
        await self._called("identities")
        return {path: identity(path) if self.script.sees else "elsewhere" for path in paths}

    async def start(self, part: int, parts: int, seed: int) -> str:
        """See ``RemoteWorker``."""
        del parts
        await self._called("start")
        self.part = part
        self.seeds.append(seed)
        return self.script.refuses

    async def location(self) -> WorkerLocation:
        """See ``RemoteWorker``; the number that it tells is its part's."""
        await self._called("location")
        assert self.part is not None
        return WorkerLocation(identity(PIDS) if self.script.sees else "elsewhere", [HostProcess(self.part, 7)])

    async def clock(self) -> int:
        """See ``RemoteWorker``."""
        await self._called("clock")
        there_ns = self.there_ns()
        self.ours.at_ns += self.script.way_ns + (0 if self.asked else self.script.first_ns)
        self.asked += 1
        return there_ns

    async def begin(self, at_ns: int) -> int:
        """See ``RemoteWorker``."""
        await self._called("begin")
        self.ours.at_ns += self.script.begin_ns
        self.begun_ns.append(at_ns)
        return self.there_ns()

    async def again(self, seed: int) -> None:
        """See ``RemoteWorker``."""
        await self._called("again")
        self.seeds.append(seed)
        if not self.silent:
            self.tell(ready=True)

    async def poll(self) -> WorkerReport:
        """See ``RemoteWorker``."""
        self.polled += 1
        received_ns = self.there_ns()
        news = await self.news.get()
        if isinstance(news, Exception):
            raise news
        return msgspec.structs.replace(news, received_ns=received_ns, answered_ns=self.there_ns())

    def end(self) -> None:
        """See ``RemoteWorker``."""
        self.ended = True

    # -- for the test

    def tell(self, *ticks: Tick, ready: bool = False, problem: str = "") -> None:
        """Have news."""
        self.news.put_nowait(WorkerReport(0, 0, list(ticks), ready, problem))

    def report(self, number: int, *, last: bool = False) -> None:
        """Report a tick of the load that was begun last, on time by its own clock."""
        begin_ns = self.begun_ns[-1] + number * TICK_NS
        self.tell(Tick(number, begin_ns, begin_ns + TICK_NS, requests=1, sent=1, last=last))

    def die(self) -> None:
        """Die."""
        self.news.put_nowait(WorkerLost("its node has died"))


@dataclass
class ScriptedCluster:
    """Gives places to workers, each as the next script says, and without one a faultless one."""

    scripts: Sequence[Script] = ()
    clock: HandClock = field(default_factory=HandClock)
    placed: list[ScriptedWorker] = field(default_factory=list)

    def place(self) -> ScriptedWorker:
        """See ``Cluster``."""
        number = len(self.placed)
        script = self.scripts[number] if number < len(self.scripts) else Script()
        self.placed.append(ScriptedWorker(script, self.clock, f"10.0.0.{number}"))
        return self.placed[-1]

    def room(self) -> str:
        """See ``Cluster``."""
        return "the cluster has 2 logical CPUs, 0 of them free"

    def of(self, part: int) -> ScriptedWorker:
        """The newest worker of a part."""
        return next(worker for worker in reversed(self.placed) if worker.part == part)


@dataclass
class ScriptedOwner:
    """The other end of a coordinator: gives orders, takes reports."""

    coordinator: Coordinator
    running: asyncio.Task[None]
    reports: asyncio.Queue[Report]

    async def next(self) -> Report:
        """Return the next report, or raise what ended the coordinator."""
        getting = asyncio.ensure_future(self.reports.get())
        await asyncio.wait({getting, self.running}, timeout=FACT_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        if getting.done():
            return getting.result()
        getting.cancel()
        assert self.running.done(), "neither a report nor an end"
        await self.running
        raise AssertionError("the coordinator ended without a reason")

    async def ready(self) -> Ready:
        """Wait until the load can begin."""
        report = await self.next()
        assert isinstance(report, Ready)
        return report

    async def tick(self) -> Tick:
        """Return the next report, which is a tick."""
        report = await self.next()
        assert isinstance(report, Tick)
        return report

    async def begin(self, cluster: ScriptedCluster, times: int = 1) -> int:
        """Order to begin; returns when it was ordered, after all workers were told so often."""
        at_ns = cluster.clock.now_ns()
        self.coordinator.order(Begin(at_ns))
        parts = {worker.part for worker in cluster.placed if worker.part is not None}
        await self.until(lambda: all(len(cluster.of(part).begun_ns) >= times for part in parts))
        return at_ns

    def again(self, seed: int) -> None:
        """Order to begin anew."""
        self.coordinator.order(Again(seed))

    async def until(self, fact: Callable[[], bool]) -> None:
        """Wait until this is true, or the coordinator has failed, which is raised."""
        end = time.monotonic() + FACT_SECONDS
        while not fact():
            if self.running.done():
                await self.running
            assert time.monotonic() < end, f"not in {FACT_SECONDS} s"
            await asyncio.sleep(0.001)


@asynccontextmanager
async def coordinated(
    cluster: ScriptedCluster, parts: int = 2, *, host: str = "10.0.0.99"
) -> AsyncIterator[ScriptedOwner]:
    """Run a coordinator over a scripted cluster, with the seed 7, and end it with the block."""
    load = msgspec.structs.replace(plan(8000, host=host), parts=parts, seed=7)
    reports: asyncio.Queue[Report] = asyncio.Queue()
    pool = WorkerPool(cluster, load, VERSIONS, cluster.clock.now_ns)
    coordinator = Coordinator(pool, reports.put_nowait, cluster.clock.now_ns)
    running = asyncio.ensure_future(coordinator.run())
    try:
        yield ScriptedOwner(coordinator, running, reports)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
