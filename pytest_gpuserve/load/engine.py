"""The engine process: a closed loop at fixed concurrency, on uvloop and httptools.

Run as ``python -m pytest_gpuserve.load.engine``: it reads one ``Plan`` from standard input, loads the server until
standard input is closed (by its owner, or by the owner's death), and writes a ``Tick`` to standard output for
every tick. It measures; it concludes nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import gc
import os
import sys
import time
from typing import Any, Final

import msgspec
import uvloop

from pytest_gpuserve.load.connection import Connection
from pytest_gpuserve.load.tally import Tally
from pytest_gpuserve.load.wire import LENGTH, Plan, frame

RECONNECT_SECONDS: Final = 0.05
"""Pause of a user whose connection failed, so that a dead server is not hammered."""

PIPE_BYTES: Final = 1 << 20
"""Room for a second of the fullest ticks, very large answers apart: a busy owner rarely makes the load wait."""


class ClosedLoop:
    """Keeps ``plan.connections`` users busy: each sends its next request when the last was answered."""

    def __init__(self, plan: Plan) -> None:
        self.payload = plan.payload
        self.head = plan.head
        self.tally = Tally(time.perf_counter_ns(), time.process_time_ns())
        self._plan = plan
        self._loop = asyncio.get_running_loop()
        self._users: list[asyncio.Task[None]] = []
        self._live: dict[Connection, asyncio.Future[bool]] = {}

    def start(self) -> None:
        """Set all users to work."""
        self._users = [self._loop.create_task(self._user()) for _ in range(self._plan.connections)]

    def lost(self, connection: Connection, *, failed: bool) -> None:
        """Wake the user behind the connection; ``failed`` if something went wrong on it."""
        gone = self._live.pop(connection, None)
        if gone is not None and not gone.done():
            gone.set_result(failed)

    def tick(self) -> bytes:
        """Close the current tick and return its message."""
        now_ns = time.perf_counter_ns()
        for connection in self._live:
            connection.expire(now_ns, self._plan.timeout_ns)
        sent_ns = [connection.sent_ns for connection in self._live if connection.sent_ns >= 0]
        oldest_ns = now_ns - min(sent_ns, default=now_ns)
        tick = self.tally.close(now_ns, time.process_time_ns(), len(sent_ns), oldest_ns)
        if tick.errors:
            # Tracebacks of failed connections are cycles; nobody measures while requests fail, so there is time.
            gc.collect()
        return frame(tick)

    def stop(self) -> None:
        """Abandon all that is under way."""
        for user in self._users:
            user.cancel()
        for connection in self._live:
            connection.abandon()

    async def _user(self) -> None:
        """Open one connection after the other; never two, so that the concurrency is what was asked for."""
        while True:
            failed = await self._connect_and_stay()
            if failed:
                await asyncio.sleep(RECONNECT_SECONDS)

    async def _connect_and_stay(self) -> bool:
        plan = self._plan
        connection = Connection(self)
        # Known before it is open, because it sends its first request from within the opening.
        gone: asyncio.Future[bool] = self._loop.create_future()
        self._live[connection] = gone
        try:
            await asyncio.wait_for(
                self._loop.create_connection(lambda: connection, plan.host, plan.port), plan.timeout_ns / 1e9
            )
        except asyncio.TimeoutError:
            self.tally.failed("connect timeout", f"no connection within {plan.timeout_ns / 1e9:g} s")
        except ConnectionRefusedError as problem:
            self.tally.failed("connection refused", str(problem))
        except OSError as problem:
            self.tally.failed("connect", str(problem))
        else:
            return await gone
        self._live.pop(connection, None)
        return True


async def run(plan: Plan, owner: int) -> None:
    """Load the server until standard input ends, or until we are no longer a child of ``owner``."""
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(_die)
    ended = asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), ended.set)
    load = ClosedLoop(plan)
    load.start()
    tick_seconds = plan.tick_ns / 1e9
    next_tick = loop.time() + tick_seconds
    # A fork of a killed owner may keep our standard input open.
    while not ended.is_set() and os.getppid() == owner:
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(ended.wait(), max(0.0, next_tick - loop.time()))
        if not ended.is_set():
            _write(load.tick())
            # Absolute times, so that the ticks do not drift; a late one is followed by its successor on time.
            next_tick = max(next_tick + tick_seconds, loop.time())
    loop.remove_reader(sys.stdin.fileno())
    load.stop()


def _die(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """End the engine at the first surprise: asyncio would log it and go on counting, without the requests it lost."""
    loop.default_exception_handler(context)
    sys.stderr.flush()
    os._exit(70)


def _write(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(sys.stdout.fileno(), view) :]


def _read_exactly(count: int) -> bytes:
    """Read so many bytes of standard input without reading ahead, so that its end is seen by the event loop."""
    data = b""
    while len(data) < count:
        piece = os.read(sys.stdin.fileno(), count - len(data))
        if not piece:
            sys.exit("the plan ended early")
        data += piece
    return data


def main() -> None:
    """Read the plan and run it."""
    owner = os.getppid()
    (length,) = LENGTH.unpack(_read_exactly(LENGTH.size))
    plan = msgspec.msgpack.decode(_read_exactly(length), type=Plan)
    # F_SETPIPE_SZ; the constant's name exists from Python 3.10 on, the kernel may allow less.
    with contextlib.suppress(OSError):
        fcntl.fcntl(sys.stdout.fileno(), fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    # Without errors the engine leaves no reference cycles; a collection in mid-load would show up as latency.
    gc.collect()
    gc.freeze()
    gc.disable()
    with contextlib.suppress(BrokenPipeError, KeyboardInterrupt):
        uvloop.run(run(plan, owner))


if __name__ == "__main__":
    main()
