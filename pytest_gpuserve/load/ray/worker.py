"""A worker: the actor on a Ray node that has one ordinary load engine, and speaks for it.

Its methods are called from afar, each in a thread of its own, so that the clock can be asked for while somebody waits
for news. The engine is a child of the actor's process: when that ends, however it does, so does the engine.
"""

from __future__ import annotations

import os
import platform
import queue
import threading
import time
from typing import TYPE_CHECKING, Final

import msgspec

from pytest_gpuserve import __version__
from pytest_gpuserve.errors import GpuserveError, LoadFailed
from pytest_gpuserve.load.driver import EngineProcess, check_users, host_process
from pytest_gpuserve.load.ray.placing import PIDS, WorkerLocation, fitted, identity
from pytest_gpuserve.load.source import END_SECONDS, LOCAL
from pytest_gpuserve.load.validity import one_line
from pytest_gpuserve.load.wire import Again, Begin, Plan, Tick
from pytest_gpuserve.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpuserve.load.ray.clock import Offset, Track
    from pytest_gpuserve.load.wire import Order, Tick


class WorkerReport(msgspec.Struct, frozen=True):
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


MOST_UNCERTAIN_NS: Final = 5_000_000
"""A worker's clock has to be known as well as this before and after a load: a twentieth of a tick."""

MOST_VAGUE_NS: Final = 10_000_000
"""And in mid-load as well as this, or it is not known when its reports were."""

MOST_ASTRAY_NS: Final = 5_000_000
"""By so much a clock may certainly go astray in a load: it was set, or runs so wrong that durations are wrong too."""

MOST_MOVED_NS: Final = 50_000_000
"""And by so much it may drift: half a tick. Each engine's ticks are a tenth of a second by its own clock, so that those
of the same number come to be of other times."""


def check_kept(name: str, clock: Track) -> None:
    """See that a clock keeps time well enough.

    Raises:
        LoadFailed: It went away from ours, or is not known any more.
    """
    if clock.astray_ns > MOST_ASTRAY_NS:
        raise LoadFailed(
            f"the clock of {name} went away from this host's during the load, by"
            f" {format_seconds(clock.astray_ns / 1e9)} at least"
        )
    if clock.moved_ns > MOST_MOVED_NS:
        raise LoadFailed(
            f"the clock of {name} has drifted by {format_seconds(clock.moved_ns / 1e9)} from this host's since the load"
            " began, so that what is reported together was not at the same time; have NTP steer the clocks of all"
            " hosts, or measure for less long"
        )
    if clock.offset.uncertainty_ns > MOST_VAGUE_NS:
        raise LoadFailed(
            f"when {name} did what it reports is not known: its clock {known_to(clock.offset)}; its node, or the way to"
            " it, is overloaded"
        )


def known_to(offset: Offset) -> str:
    """How well a clock is known, in words."""
    return f"is known only to within {format_seconds(offset.uncertainty_ns / 1e9)}"


POLL_SECONDS: Final = 1.0
"""After so long without news the asker is answered all the same, so that it knows that we live."""

ORPHAN_SECONDS: Final = 10.0
"""A load that nobody has asked about for so long ends: who began it is gone, and Ray may take longer to see that."""

READY_SECONDS: Final = LOCAL.ready_seconds
"""How long an engine may take until it can begin."""


class RayWorker:
    """One worker; it does nothing before it is given a plan."""

    def __init__(self) -> None:
        self._engine: EngineProcess | None = None
        self._orders: queue.SimpleQueue[Order] = queue.SimpleQueue()
        self._interrupted = threading.Event()
        self._changed = threading.Condition()
        self._ticks: list[Tick] = []
        self._ready = False
        self._problem = ""
        self._asked_seconds = time.monotonic()

    def versions(self) -> tuple[str, str, str]:
        """Return what this process runs, as ``Versions`` has it; plain text, for the asker's may be another."""
        import ray  # noqa: PLC0415 -- the rest needs none

        return platform.python_version(), ray.__version__, __version__

    def node(self) -> str:
        """Return the id of its node."""
        import ray  # noqa: PLC0415 -- the rest needs none

        return str(ray.get_runtime_context().get_node_id())

    def identities(self, paths: Sequence[str]) -> dict[str, str]:
        """Return which file each of these is here; see ``placing.identity``."""
        return {path: identity(path) for path in paths}

    def start(self, plan: bytes, part: int, parts: int, seed: int) -> str:
        """Start the engine, and wait until it can begin.

        Returns:
            Why that cannot be, in one line; empty if it can.
        """
        own = msgspec.structs.replace(msgspec.msgpack.decode(plan, type=Plan), part=part, parts=parts, seed=seed)
        try:
            check_users(own.schedule, parts)
            engine = EngineProcess(LOCAL.launches(1)[0].command, END_SECONDS)
            try:
                engine.tell(own)
                engine.wait_ready(READY_SECONDS)
            except GpuserveError:
                engine.close()
                raise
        except GpuserveError as problem:
            return in_one_line(problem)
        self._engine = engine
        threading.Thread(target=self._follow, args=(engine, own), daemon=True).start()
        return ""

    def location(self) -> bytes:
        """Return which processes these are, the engine's too: ``WorkerLocation`` as MessagePack."""
        pids = [os.getpid(), *([] if self._engine is None else [self._engine.pid])]
        found = [process for process in map(host_process, pids) if process is not None]
        return msgspec.msgpack.encode(WorkerLocation(identity(PIDS), found))

    def clock(self) -> int:
        """Return what time it is, in nanoseconds of this host's clock."""
        with self._changed:
            # Who asks for the time asks for reports only after it.
            self._asked_seconds = time.monotonic()
        return time.perf_counter_ns()

    def begin(self, at_ns: int) -> int:
        """Tell the engine when to begin.

        Returns:
            When the engine had the order, by the same clock.
        """
        self._tell(Begin(at_ns))
        return time.perf_counter_ns()

    def again(self, seed: int) -> None:
        """Have the engine end its load and make itself ready to begin anew; there is news when it is."""
        # Who reads ticks has to know it before the engine does.
        self._interrupted.set()
        self._tell(Again(seed))

    def poll(self) -> bytes:
        """Wait until something has happened, and return it: ``WorkerReport`` as MessagePack."""
        received_ns = time.perf_counter_ns()
        with self._changed:
            self._asked_seconds = time.monotonic()
            self._changed.wait_for(lambda: self._ticks or self._ready or self._problem, POLL_SECONDS)
            ticks, self._ticks = self._ticks, []
            ready, self._ready = self._ready, False
            problem = self._problem
            # In the time that nobody asks because an answer is on its way, nobody is missing.
            self._asked_seconds = time.monotonic()
        return msgspec.msgpack.encode(WorkerReport(received_ns, time.perf_counter_ns(), ticks, ready, problem))

    def _tell(self, order: Order) -> None:
        """Tell the engine, and then who listens to it."""
        assert self._engine is not None
        try:
            self._engine.tell(order)
        except LoadFailed as problem:
            self._tell_of(in_one_line(problem))
        self._orders.put(order)

    def _follow(self, engine: EngineProcess, plan: Plan) -> None:
        """Read the engine's reports, order by order."""
        try:
            while True:
                if isinstance(self._orders.get(), Begin):
                    self._pass_on(engine, plan)
                else:
                    engine.wait_ready_again(READY_SECONDS)
                    self._interrupted.clear()
                    with self._changed:
                        self._ready = True
                        self._changed.notify_all()
        except LoadFailed as problem:
            self._tell_of(in_one_line(problem))

    def _pass_on(self, engine: EngineProcess, plan: Plan) -> None:
        """Keep the ticks of a load for who asks, until its end, or until it is to end."""
        while not engine.ended and not self._interrupted.is_set():
            tick = fitted(engine.next_tick(), plan)
            with self._changed:
                self._ticks.append(tick)
                self._changed.notify_all()
            if time.monotonic() - self._asked_seconds > ORPHAN_SECONDS:
                engine.close()
                raise LoadFailed(f"nobody has asked for {ORPHAN_SECONDS:.0f} s how the load gets on")

    def _tell_of(self, problem: str) -> None:
        with self._changed:
            self._problem = self._problem or problem
            self._changed.notify_all()


def in_one_line(problem: GpuserveError) -> str:
    """An error in one line, with the last line of its log, which says why the process ended."""
    told = problem.summary
    if problem.found:
        told += f" ({problem.found})"
    last = problem.log_tail.strip().rpartition("\n")[2]
    return one_line(f"{told}: {last}" if last else told)
