"""Owner of engine processes: starts them together, reads and merges their ticks, ends them."""

from __future__ import annotations

import os
import resource
import select
import selectors
import subprocess
import tempfile
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from pytest_gpuserve.errors import LoadFailed, UsageProblem
from pytest_gpuserve.load.engine.loop import OWN_FILES
from pytest_gpuserve.load.schedule import Closed, Steps
from pytest_gpuserve.load.tick import aligned, together
from pytest_gpuserve.load.wire import (
    LENGTH,
    MAX_MESSAGE_BYTES,
    Again,
    Begin,
    Failed,
    Order,
    Plan,
    Ready,
    Report,
    frame,
)
from pytest_gpuserve.measure.window import Window
from pytest_gpuserve.process.command_line import module_command

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from typing_extensions import Self

    from pytest_gpuserve.load.schedule import Schedule
    from pytest_gpuserve.load.wire import Plan

SILENCE_SECONDS: Final = 20.0
"""Silence after which an engine, or the machine, is stuck; its ticks are 0.1 s."""

TAIL_CHARACTERS: Final = 8000
"""Most characters of an engine's log that are shown; a traceback through the loop has some 3000."""


@dataclass(frozen=True, slots=True)
class EngineSource:
    """Source of processes that take part in a load, with the messages of an engine (``load.wire``).

    Args:
        name: Name in a report.
        is_here: Whether all its workers run on this host, concurrently.
        ready_seconds: Longest time of a process until it can begin.
        end_seconds: Longest time of a process to end by itself after its input is closed.
        commands: Returns program and arguments of each process for a number of workers, in the order of their parts.
    """

    name: str
    is_here: bool
    ready_seconds: float
    end_seconds: float
    commands: Callable[[int], Sequence[Sequence[str]]]


def _local_engines(workers: int) -> Sequence[Sequence[str]]:
    return [module_command("pytest_gpuserve.load.engine", str(os.getpid()))] * workers


LOCAL: Final = EngineSource("local", is_here=True, ready_seconds=20.0, end_seconds=5.0, commands=_local_engines)
"""An engine process of this host for each worker."""


class EngineProcess:
    """Engine process, which its owner closes.

    Raises:
        LoadFailed: The process could not be started.
    """

    def __init__(self, command: Sequence[str], end_seconds: float) -> None:
        self._end_seconds = end_seconds
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 -- closed in close, with the process that writes to it
        try:
            self._process = subprocess.Popen(
                list(command),
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                # Its own group, because Ctrl-C is handled here, and would cut the engine off in mid-report.
                start_new_session=True,
            )
        except OSError as problem:
            self._log.close()
            raise LoadFailed("the load engine could not be started", found=str(problem)) from problem
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        os.set_blocking(self._stdin.fileno(), False)
        self._buffer = bytearray()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._stdout, selectors.EVENT_READ)
        self.pid = self._process.pid
        self.ended = False

    def tell(self, message: Plan | Order) -> None:
        """Send a message.

        Raises:
            LoadFailed: The engine does not read it.
        """
        stdin = self._stdin.fileno()
        room = select.poll()
        room.register(stdin, select.POLLOUT)
        rest = memoryview(frame(message))
        # If it died at once, the next report tells that, with its log.
        with suppress(BrokenPipeError):
            while rest:
                if not room.poll(SILENCE_SECONDS * 1000):
                    raise LoadFailed(
                        f"the load engine did not read its orders for {SILENCE_SECONDS:.0f} s", log_tail=self._tail()
                    )
                rest = rest[os.write(stdin, rest) :]

    def wait_ready(self, seconds: float) -> None:
        """Wait until the engine can begin, and discard the ticks that it wrote before it read the order to begin anew.

        Raises:
            LoadFailed: The engine died, or fell silent.
        """
        while not isinstance(self._next(seconds), Ready):
            pass
        self.ended = False

    def next_tick(self) -> Window:
        """Return its next tick.

        Raises:
            LoadFailed: The engine died, fell silent, or sent an invalid report.
        """
        tick = self._next(SILENCE_SECONDS)
        if not isinstance(tick, Window):
            raise self._garbled("ready twice")
        self.ended = tick.last
        return tick

    def close(self) -> None:
        """End the process; it exits when its input is closed."""
        if self._log.closed:
            return
        self._selector.close()
        # Its output is closed too, because an engine that is writing must not wait for a reader.
        self._stdout.close()
        self._stdin.close()
        try:
            self._process.wait(self._end_seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def _next(self, seconds: float) -> Ready | Window:
        deadline = time.monotonic() + seconds
        self._fill(LENGTH.size, deadline, seconds)
        (length,) = LENGTH.unpack_from(self._buffer)
        if length > MAX_MESSAGE_BYTES:
            raise self._garbled(
                f"{length} bytes are announced, begin {bytes(self._buffer[:80])!r}. If these are answers, check fewer:"
                " load(check='some')"
            )
        end = LENGTH.size + length
        self._fill(end, deadline, seconds)
        data = bytes(self._buffer[LENGTH.size : end])
        del self._buffer[:end]
        try:
            report: Report = msgspec.msgpack.decode(data, type=Report)
        except msgspec.DecodeError as problem:
            raise self._garbled(str(problem)) from problem
        if isinstance(report, Failed):
            raise LoadFailed(report.reason)
        return report

    def _fill(self, size: int, deadline: float, seconds: float) -> None:
        """Read until the buffer has this many bytes."""
        while len(self._buffer) < size:
            if not self._selector.select(max(0.0, deadline - time.monotonic())):
                raise LoadFailed(f"the load engine reported nothing for {seconds:.0f} s", log_tail=self._tail())
            data = os.read(self._stdout.fileno(), 1 << 16)
            if not data:
                status = self._process.wait()
                raise LoadFailed("the load engine died", found=f"exit status {status}", log_tail=self._tail())
            self._buffer += data

    def _garbled(self, found: str) -> LoadFailed:
        return LoadFailed("the load engine sent a garbled report", found=found, log_tail=self._tail())

    def _tail(self) -> str:
        self._log.seek(0)
        return self._log.read().decode(errors="replace")[-TAIL_CHARACTERS:]


HEAD_START_NS: Final = 5_000_000
"""Time from the last engine's readiness to the begin, in which all engines get the order."""


class Engines:
    """Engine processes that share one load; a context manager, so that they end with its block.

    Args:
        plan: The load.
        processes: Number of engines that share it.
        source: Source of the engines.

    Raises:
        LoadFailed: A process could not be started, or the host is unknown.
        UsageProblem: More users than the limit on open files allows, or fewer than processes.
    """

    def __init__(self, plan: Plan, processes: int = 1, source: EngineSource = LOCAL) -> None:
        check_users(plan.schedule, processes)
        self._stack = ExitStack()
        self._source = source
        with ExitStack() as stack:
            self._engines: list[EngineProcess] = []
            for command in source.commands(processes):
                self._engines.append(EngineProcess(command, source.end_seconds))
                stack.callback(self._engines[-1].close)
            for part, engine in enumerate(self._engines):
                engine.tell(msgspec.structs.replace(plan, part=part, parts=processes))
            for engine in self._engines:
                engine.wait_ready(source.ready_seconds)
            self.begin()
            self._stack = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pids(self) -> tuple[int, ...]:
        """Pids of the engine processes on this host."""
        return tuple(engine.pid for engine in self._engines)

    def next_tick(self) -> Window:
        """Wait for the next report of all engines together; not to be called after the last one.

        Raises:
            LoadFailed: An engine died, fell silent, or sent an invalid report.
        """
        if len(self._engines) == 1:
            return self._engines[0].next_tick()
        engines = {f"engine {part}": engine for part, engine in enumerate(self._engines) if not engine.ended}

        def read(names: Collection[str]) -> dict[str, Window]:
            return {name: engines[name].next_tick() for name in names}

        ticks = aligned(read(engines), read)
        return msgspec.structs.replace(together(ticks), last=all(engine.ended for engine in self._engines))

    def halt(self, *, seed: int) -> None:
        """End a load in any state, and wait until a new one could begin, without requests in flight.

        Sent requests are answered first, unless the server takes seconds for that.

        Args:
            seed: Replaces the plan's seed.

        Raises:
            LoadFailed: An engine died or fell silent.
        """
        for engine in self._engines:
            engine.tell(Again(seed))
        for engine in self._engines:
            engine.wait_ready(self._source.ready_seconds)

    def begin(self) -> None:
        """Begin again after a halt, with ticks from number 0.

        Raises:
            LoadFailed: An engine does not read the order.
        """
        begin = Begin(time.perf_counter_ns() + HEAD_START_NS)
        for engine in self._engines:
            engine.tell(begin)

    def close(self) -> None:
        """End the processes."""
        self._stack.close()


def check_users(schedule: Schedule, processes: int) -> None:
    """Check before a start that enough requests can be in flight, and that the processes can share them.

    Raises:
        UsageProblem: The limit on open files is too low, or the users are fewer than the processes.
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
    """The most requests in flight at the same time; None if unlimited."""
    if isinstance(schedule, Closed):
        return schedule.users
    if isinstance(schedule, Steps):
        return max(users for users, _ in schedule.steps)
    return schedule.max_in_flight
