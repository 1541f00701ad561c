"""The coordinator's process: ``python -m pytest_gpuserve.load.ray OWNER ADDRESS``.

OWNER is the process id of who starts it. To its owner it is an engine: it reads one ``Plan`` and orders from standard
input, and writes ``Ready`` and ticks to standard output (``load.wire``), except that a tick tells of several workers.
With the end of standard input, by its owner or by the owner's death, it ends its workers and itself. Where the load
cannot go on, the last line on standard error says why.
"""

from __future__ import annotations

import asyncio
import os
import platform
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from pytest_gpuserve import __version__
from pytest_gpuserve.errors import GpuserveError, LoadFailed
from pytest_gpuserve.load.engine.pipes import MOST_PENDING_BYTES, read_order, read_plan
from pytest_gpuserve.load.ray.actors import RayCluster, ray_library
from pytest_gpuserve.load.ray.cluster import Versions
from pytest_gpuserve.load.ray.coordinator import Coordinator
from pytest_gpuserve.load.ray.pool import WORKERS_BY, WorkerPool
from pytest_gpuserve.load.ray.worker import in_one_line
from pytest_gpuserve.load.wire import LENGTH, MAX_MESSAGE_BYTES, frame
from pytest_gpuserve.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpuserve.load.wire import Order, Plan, Report

LEAVE_SECONDS: Final = 5.0
"""How long it may take to leave the cluster; what is left of us there then, the cluster ends when it misses us."""


def main() -> None:
    """Read the plan, and make the load as often as the owner says."""
    owner, address = int(sys.argv[1]), sys.argv[2]
    # Ray prints too, at length: only reports may stand on standard output, and the reason is to stand out elsewhere.
    reports = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    # Ray would have its workers look for modules in the folder where we work.
    os.chdir("/")
    reason = ""
    cluster = None
    try:
        plan = read_plan(owner)
        link = _Link(owner)
        ray = ray_library()
        cluster = RayCluster(address, plan, _give_up)
        pool = WorkerPool(cluster, plan, Versions(platform.python_version(), ray.__version__, __version__))
        asyncio.run(_serve(pool, plan, link, reports))
    except (EOFError, asyncio.CancelledError):
        pass
    except GpuserveError as problem:
        reason = _reason(problem)
    _end_in_time(reason)
    if cluster is not None:
        cluster.leave()
    _give_up(reason)


class _Link:
    """Reads the owner's orders in a thread; when the owner is gone, the process ends."""

    def __init__(self, owner: int) -> None:
        self._owner = owner
        self._take: Callable[[Order], object]
        self._end: Callable[[], object] = _nobody
        self._connected = threading.Event()
        threading.Thread(target=self._listen, daemon=True).start()

    def connect(self, take: Callable[[Order], None]) -> None:
        """Pass orders to this loop, and cancel the calling task when there are no more."""
        loop, serving = asyncio.get_running_loop(), asyncio.current_task()
        assert serving is not None
        self._take = lambda order: loop.call_soon_threadsafe(take, order)
        self._end = lambda: loop.call_soon_threadsafe(serving.cancel)
        self._connected.set()

    def _listen(self) -> None:
        # A loop that is closed has said why.
        with suppress(RuntimeError):
            try:
                while True:
                    order = read_order(self._owner)
                    # Orders come after readiness, which is told through the loop.
                    self._connected.wait()
                    self._take(order)
            except EOFError:
                _end_in_time("")
                self._end()


def _nobody() -> None:
    """Do nothing: there is no loop yet."""


async def _serve(pool: WorkerPool, plan: Plan, link: _Link, reports: int) -> None:
    loop = asyncio.get_running_loop()
    all_answers = "check fewer of the answers: load(check='some')"
    too_much = all_answers if plan.keep_answers == "all" else f"have fewer workers make the load: {WORKERS_BY}"
    pipe = os.fdopen(reports, "wb", buffering=0)
    transport, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, pipe)

    def write(report: Report) -> None:
        data = frame(report)
        size = len(data) - LENGTH.size
        if size > MAX_MESSAGE_BYTES:
            raise LoadFailed(
                f"the workers report {format_bytes(size)} in one tick, where {format_bytes(MAX_MESSAGE_BYTES)} can be"
                f" told; {too_much}"
            )
        if transport.get_write_buffer_size() > MOST_PENDING_BYTES:
            raise LoadFailed(f"{format_bytes(transport.get_write_buffer_size())} of reports were not read")
        transport.write(data)

    coordinator = Coordinator(pool, write)
    link.connect(coordinator.order)
    try:
        await coordinator.run()
    except GpuserveError as problem:
        # The loop waits for calls under way before it ends, and Ray's client may be stuck in one.
        _end_in_time(_reason(problem))
        raise


def _reason(problem: GpuserveError) -> str:
    return "; ".join([in_one_line(problem), *problem.remedies])


def _end_in_time(reason: str) -> None:
    """End the process after a while, whatever it waits for."""
    timer = threading.Timer(LEAVE_SECONDS, _give_up, (reason,))
    timer.daemon = True
    timer.start()


def _give_up(reason: str) -> None:
    """End the process at once, without Ray's own end."""
    if reason:
        os.write(2, f"\n{reason}\n".encode())
    os._exit(1 if reason else 0)


if __name__ == "__main__":
    main()
