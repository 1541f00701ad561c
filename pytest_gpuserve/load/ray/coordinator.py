"""Speaks for all workers of a load as one engine would: takes the orders, hands them on, puts the ticks together.

One ``asyncio`` loop does it. Each worker is followed by a task that asks it for news, one question after the other;
what it hears, and what the owner orders, goes through one queue, so that everything happens in one order.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from pytest_gpuserve.errors import LoadFailed
from pytest_gpuserve.load.ray.clock import Exchange
from pytest_gpuserve.load.ray.cluster import plain
from pytest_gpuserve.load.ray.pool import CALL_SECONDS, WorkerLost, all_of, answered
from pytest_gpuserve.load.ray.worker import check_kept
from pytest_gpuserve.load.totals import together
from pytest_gpuserve.load.wire import Again, Begin, Ready
from pytest_gpuserve.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytest_gpuserve.load.ray.pool import Member, WorkerPool
    from pytest_gpuserve.load.ray.worker import WorkerReport
    from pytest_gpuserve.load.wire import Order, Report, Tick


class TickGatherer:
    """The ticks of one load."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = tuple(names)
        self._waiting: list[deque[Tick]] = [deque() for _ in names]
        self._next = [0] * len(self._names)
        self._last = [False] * len(self._names)

    @property
    def ended(self) -> bool:
        """Whether all have reported their last tick, and all was taken."""
        return all(self._last) and not any(self._waiting)

    def has_ended(self, part: int) -> bool:
        """Whether this worker has reported its last tick."""
        return self._last[part]

    def add(self, part: int, tick: Tick) -> None:
        """Add the tick that a worker reports next.

        Raises:
            ValueError: One before it is missing, or the load had ended for it.
        """
        name = self._names[part]
        if self._last[part]:
            raise ValueError(f"{name} reports after the end")
        if tick.number != self._next[part]:
            raise ValueError(f"{name} reports tick {tick.number} after {self._next[part] - 1}")
        self._next[part] += 1
        self._last[part] = tick.last
        self._waiting[part].append(tick)

    def take(self) -> list[Tick]:
        """Take the ticks that are complete, oldest first: all workers have reported them, or ended before.

        The last of all of them says that the load has ended.
        """
        complete: list[Tick] = []
        while True:
            # One whose load is shorter takes part no more.
            parts = [part for part, waiting in enumerate(self._waiting) if waiting or not self._last[part]]
            if not parts or not all(self._waiting[part] for part in parts):
                return complete
            ticks = {self._names[part]: self._waiting[part].popleft() for part in parts}
            complete.append(msgspec.structs.replace(together(ticks), last=self.ended))


SILENCE_SECONDS: Final = 15.0
"""A worker that reports no tick for so long is given up: before its owner gives us up, who would not know its name."""

LOOK_SECONDS: Final = 0.5
"""How often it is seen whether one is silent."""

HALT_SECONDS: Final = 30.0
"""How long workers may take to be ready again: their engines wait for answers, but not for ever."""

LEAST_LEAD_NS: Final = 100_000_000
LEAD_A_WORKER_NS: Final = 2_000_000
"""From an order to begin until the begin, at least, and how much more for each worker that is to be told."""

LEAD_TRIPS: Final = 4
"""So many times the longest call to a worker is waited where that is more."""

TOLD_NS: Final = 5_000_000
"""So long before the begin an engine has been told of it, that it can be there in time."""


@dataclass(frozen=True)
class _Heard:
    """News of a worker."""

    member: Member
    news: WorkerReport


@dataclass(frozen=True)
class _Gone:
    """A worker was lost."""

    member: Member
    reason: str


class _Look:
    """Time has passed."""


_Event = Begin | Again | _Heard | _Gone | _Look


class Coordinator:
    """One load, from the search for workers to its last order."""

    def __init__(
        self, pool: WorkerPool, write: Callable[[Report], None], now_ns: Callable[[], int] = time.perf_counter_ns
    ) -> None:
        self._pool = pool
        self._write = write
        self._now_ns = now_ns
        self._events: asyncio.Queue[_Event] = asyncio.Queue()
        self._followed: dict[Member, asyncio.Task[None]] = {}
        self._under_way = False

    def order(self, order: Order) -> None:
        """Take an order of the owner; must be called in the loop."""
        self._events.put_nowait(order)

    async def run(self) -> None:
        """Make the load, as often as the owner says, until cancelled.

        Raises:
            LoadFailed: A worker could not take part, or was lost in mid-load; the text names it.
        """
        looking = asyncio.ensure_future(self._look())
        try:
            await self._pool.assemble()
            for member in self._pool.members:
                self._follow(member)
            self._write(Ready(self._pool.processes_here))
            order = await self._next_order()
            while True:
                if isinstance(order, Begin):
                    order = await self._load(order)
                await self._halt(order)
                order = await self._next_order()
        finally:
            looking.cancel()
            for task in self._followed.values():
                task.cancel()
            await asyncio.gather(looking, *self._followed.values(), return_exceptions=True)

    # -- between loads

    async def _next_order(self) -> Order:
        """Wait for an order; workers that are lost meanwhile are replaced."""
        while True:
            event = await self._events.get()
            if isinstance(event, (Begin, Again)):
                return event
            if isinstance(event, _Gone):
                await self._replace(event)
            elif isinstance(event, _Heard):
                _complain(event)

    async def _replace(self, gone: _Gone) -> None:
        if gone.member in self._followed:
            del self._followed[gone.member]
            self._follow(await self._pool.replace(gone.member, gone.reason))

    async def _halt(self, again: Again) -> None:
        """Have all workers end their load and be ready for another."""
        self._pool.seed = again.seed
        missing = set(self._pool.members)
        deadline = time.monotonic() + HALT_SECONDS
        await all_of([_told_again(member, again.seed) for member in missing])
        while missing:
            event = await self._events.get()
            if isinstance(event, _Gone):
                # Who takes the place is told the seed at once.
                await self._replace(event)
                missing.discard(event.member)
            elif isinstance(event, _Heard):
                _complain(event)
                if event.news.ready:
                    missing.discard(event.member)
            if missing and time.monotonic() > deadline:
                names = ", ".join(sorted(member.name for member in missing))
                raise LoadFailed(f"not ready to begin again in {format_seconds(HALT_SECONDS)}: {names}")
        if self._under_way:
            await all_of([self._check_clock(member) for member in self._pool.members])
            self._under_way = False
        self._write(Ready(self._pool.processes_here))

    # -- a load

    async def _load(self, begin: Begin) -> Again:
        """Make the load until it is to begin anew, which can be after its end."""
        begun_ns = await self._begin(begin)
        self._under_way = True
        names = [member.name for member in self._pool.members]
        gatherer = TickGatherer(names)
        heard_ns = dict.fromkeys(self._pool.members, begun_ns)
        while not gatherer.ended:
            event = await self._events.get()
            if isinstance(event, Again):
                return event
            if isinstance(event, Begin):
                raise LoadFailed("a load that is under way cannot begin")
            if isinstance(event, _Gone):
                raise LoadFailed(f"{event.member.name} was lost in mid-load: {event.reason}")
            if isinstance(event, _Heard):
                _complain(event)
                check_kept(event.member.name, event.member.clock)
                if event.news.ticks:
                    heard_ns[event.member] = self._now_ns()
                await self._gather(gatherer, event)
            silent_ns = self._now_ns() - round(SILENCE_SECONDS * 1e9)
            for member, since_ns in heard_ns.items():
                if since_ns < silent_ns and not gatherer.has_ended(member.part):
                    raise LoadFailed(f"{member.name} reported nothing for {format_seconds(SILENCE_SECONDS)}")
        self._under_way = False
        order = await self._next_order()
        if isinstance(order, Begin):
            raise LoadFailed("a load that has ended cannot begin before it is made ready again")
        return order

    async def _begin(self, begin: Begin) -> int:
        """Tell all workers to begin at the same time; returns when that is.

        Raises:
            LoadFailed: One heard of it too late.
        """
        members = self._pool.members
        await all_of([self._refresh_clock(member) for member in members])
        least_ns = LEAST_LEAD_NS + LEAD_A_WORKER_NS * len(members)
        lead_ns = max(least_ns, LEAD_TRIPS * max(member.slowest_ns for member in members))
        for member in members:
            member.clock.begin()
        at_ns = max(begin.at_ns, self._now_ns() + lead_ns)
        await all_of([self._told_to_begin(member, at_ns) for member in members])
        return at_ns

    async def _told_to_begin(self, member: Member, at_ns: int) -> None:
        offset = member.clock.offset
        try:
            told_there_ns = await answered(member.name, member.remote.begin(offset.theirs(at_ns)), CALL_SECONDS)
        except WorkerLost as problem:
            raise _lost_at_begin(member, problem) from problem
        late_ns = offset.ours(told_there_ns) + TOLD_NS - at_ns
        if late_ns > 0:
            raise LoadFailed(
                f"{member.name} heard of the begin too late, by {format_seconds(late_ns / 1e9)}: its node, or the way"
                " to it, is overloaded"
            )

    async def _gather(self, gatherer: TickGatherer, heard: _Heard) -> None:
        member = heard.member
        try:
            for tick in heard.news.ticks:
                gatherer.add(member.part, member.clock.in_our_time(tick))
        except ValueError as problem:
            raise LoadFailed(str(problem)) from problem
        for tick in gatherer.take():
            if tick.last:
                # Before it is said that the load has ended well.
                await all_of([self._check_clock(member, in_load=True) for member in self._pool.members])
            self._write(tick)

    async def _refresh_clock(self, member: Member) -> None:
        try:
            await self._pool.refresh_clock(member)
        except WorkerLost as problem:
            raise _lost_at_begin(member, problem) from problem

    async def _check_clock(self, member: Member, *, in_load: bool = False) -> None:
        """Measure a clock again; workers lost between loads are replaced while the next order is awaited."""
        try:
            await self._pool.check_clock(member)
        except WorkerLost as problem:
            if in_load:
                raise LoadFailed(f"{member.name} was lost at the end of the load: {problem}") from problem

    # -- what goes on all the time

    def _follow(self, member: Member) -> None:
        self._followed[member] = asyncio.ensure_future(self._ask(member))

    async def _ask(self, member: Member) -> None:
        """Ask a worker for news, as long as it is there."""
        try:
            while True:
                sent_ns = self._now_ns()
                news = await member.remote.poll()
                member.clock.hear(Exchange(sent_ns, news.received_ns, news.answered_ns, self._now_ns()))
                self._events.put_nowait(_Heard(member, news))
                if news.problem:
                    return
                await self._pool.sharpen_clock(member)
        except WorkerLost as problem:
            self._events.put_nowait(_Gone(member, str(problem)))
        except Exception as problem:  # noqa: BLE001 -- whatever it is, nobody follows the worker any more
            self._events.put_nowait(_Gone(member, plain(problem)))

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self._events.put_nowait(_Look())


async def _told_again(member: Member, seed: int) -> None:
    try:
        await answered(member.name, member.remote.again(seed), HALT_SECONDS)
    except WorkerLost:
        # Who follows it hears of that too.
        return


def _lost_at_begin(member: Member, problem: WorkerLost) -> LoadFailed:
    return LoadFailed(f"{member.name} was lost as the load began: {problem}")


def _complain(heard: _Heard) -> None:
    if heard.news.problem:
        raise LoadFailed(f"{heard.member.name}: {heard.news.problem}")
