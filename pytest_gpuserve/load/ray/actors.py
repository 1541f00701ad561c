"""Workers as actors on a Ray cluster: all that needs Ray itself is here, and in the actor's own process."""

from __future__ import annotations

import asyncio
import os
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec

from pytest_gpuserve import __version__
from pytest_gpuserve.errors import LoadFailed, UsageProblem
from pytest_gpuserve.load.ray.address import CLIENT
from pytest_gpuserve.load.ray.cluster import QUIET, Versions, not_importable, plain
from pytest_gpuserve.load.ray.placing import WorkerLocation
from pytest_gpuserve.load.ray.pool import WorkerLost
from pytest_gpuserve.load.ray.worker import RayWorker, WorkerReport
from pytest_gpuserve.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pytest_gpuserve.load.wire import Plan

CONNECT_SECONDS: Final = 30.0
"""How long the cluster may take to let us in; it was looked at before a server was started."""

CALLS_AT_ONCE: Final = 8
"""To a worker: one waits for news, another asks for the time, a third gives an order."""

CLIENT_QUIET: Final = {
    # A load does not survive a broken connection; without this, its workers would for half a minute.
    "RAY_CLIENT_RECONNECT_GRACE_PERIOD": "0",
}


def ray_library() -> Any:  # noqa: ANN401 -- a module without types
    """Return Ray's library, quiet.

    Raises:
        UsageProblem: It is not installed, or broken.
    """
    os.environ.update(QUIET)
    os.environ.update(CLIENT_QUIET)
    try:
        import ray  # noqa: PLC0415 -- optional, and takes a second
    except ImportError as problem:
        raise UsageProblem(
            f"a load on Ray needs Ray's library: {problem}", remedies=["pip install 'pytest-gpuserve[ray]'"]
        ) from problem
    return ray


class RayCluster:
    """A cluster that this process has joined; see ``pool.Cluster``.

    Raises:
        LoadFailed: It cannot be joined, or does not take the plan.
        UsageProblem: Ray is not installed.
    """

    def __init__(self, address: str, plan: Plan, give_up: Callable[[str], None]) -> None:
        self._ray = ray = ray_library()
        self._address = address
        self._by_client = address.startswith(CLIENT)
        self._nodes: dict[str, str] = {}
        self._handles: list[Any] = []
        late = f"the Ray cluster at {address} could not be joined in {format_seconds(CONNECT_SECONDS)}"
        try:
            # Ray waits where no exception reaches it.
            with _at_most(CONNECT_SECONDS, give_up, late):
                ray.init(address=address, log_to_driver=False, logging_level="ERROR")
        except Exception as problem:
            raise LoadFailed(f"the Ray cluster at {address} could not be joined: {plain(problem)}") from problem
        try:
            self._plan = ray.put(msgspec.msgpack.encode(plan))
            self._actor = ray.remote(
                num_cpus=1,
                max_restarts=0,
                max_task_retries=0,
                max_concurrency=CALLS_AT_ONCE,
                scheduling_strategy="SPREAD",
            )(RayWorker)
        except Exception as problem:
            raise LoadFailed(f"the Ray cluster at {address} does not take the load: {plain(problem)}") from problem

    def place(self) -> RemoteActor:
        """See ``pool.Cluster``."""
        try:
            handle = self._actor.remote()
        except Exception as problem:
            raise LoadFailed(f"the Ray cluster at {self._address} takes no worker: {plain(problem)}") from problem
        self._handles.append(handle)
        return RemoteActor(self, handle)

    def room(self) -> str:
        """See ``pool.Cluster``."""
        try:
            there = self._ray.cluster_resources().get("CPU", 0)
            free = self._ray.available_resources().get("CPU", 0)
        except Exception as problem:  # noqa: BLE001 -- only words are missing
            return plain(problem)
        return f"the cluster has {there:g} logical CPUs, {free:g} of them free"

    def leave(self) -> None:
        """End all workers, and leave the cluster."""
        for handle in self._handles:
            self.end(handle)
        with suppress(Exception):
            self._ray.shutdown()

    def end(self, handle: Any) -> None:  # noqa: ANN401 -- see above
        """End a worker, if it is still there."""
        with suppress(Exception):
            self._ray.kill(handle)

    def node_address(self, node: str) -> str:
        """The address of a node of the cluster.

        Raises:
            WorkerLost: There is no such node any more.
        """
        try:
            if node not in self._nodes:
                self._nodes = {each["NodeID"]: each["NodeManagerAddress"] for each in self._ray.nodes()}
            return self._nodes[node]
        except Exception as problem:
            raise WorkerLost(f"its node is not known: {plain(problem)}") from problem

    async def call(self, method: Any, *arguments: object) -> Any:  # noqa: ANN401 -- see above
        """Call a method of a worker, and wait for what it returns.

        Raises:
            LoadFailed: The node cannot import the worker.
            WorkerLost: The worker is gone, or the way to it.
        """
        try:
            if self._by_client:
                # Ray's client waits until the server has the call.
                future = await asyncio.to_thread(lambda: method.remote(*arguments).future())
            else:
                future = method.remote(*arguments).future()
            return await asyncio.wrap_future(future)
        except Exception as problem:
            told = not_importable(problem, __version__)
            if told:
                raise LoadFailed(told) from problem
            raise WorkerLost(plain(problem)) from problem

    async def start(self, handle: Any, part: int, parts: int, seed: int) -> str:  # noqa: ANN401 -- see above
        """Give a worker the plan; see ``RayWorker.start``."""
        return str(await self.call(handle.start, self._plan, part, parts, seed))


class RemoteActor:
    """A worker on the cluster; see ``pool.RemoteWorker``."""

    def __init__(self, cluster: RayCluster, handle: Any) -> None:  # noqa: ANN401 -- see above
        self._cluster = cluster
        self._handle = handle

    async def versions(self) -> Versions:
        """See ``pool.RemoteWorker``."""
        return Versions(*await self._cluster.call(self._handle.versions))

    async def node(self) -> str:
        """See ``pool.RemoteWorker``."""
        node = await self._cluster.call(self._handle.node)
        # The cluster may have to be asked, which blocks.
        return await asyncio.to_thread(self._cluster.node_address, node)

    async def identities(self, paths: Sequence[str]) -> Mapping[str, str]:
        """See ``pool.RemoteWorker``."""
        found: Mapping[str, str] = await self._cluster.call(self._handle.identities, list(paths))
        return found

    async def start(self, part: int, parts: int, seed: int) -> str:
        """See ``pool.RemoteWorker``."""
        return await self._cluster.start(self._handle, part, parts, seed)

    async def location(self) -> WorkerLocation:
        """See ``pool.RemoteWorker``."""
        return msgspec.msgpack.decode(await self._cluster.call(self._handle.location), type=WorkerLocation)

    async def clock(self) -> int:
        """See ``pool.RemoteWorker``."""
        return int(await self._cluster.call(self._handle.clock))

    async def begin(self, at_ns: int) -> int:
        """See ``pool.RemoteWorker``."""
        return int(await self._cluster.call(self._handle.begin, at_ns))

    async def again(self, seed: int) -> None:
        """See ``pool.RemoteWorker``."""
        await self._cluster.call(self._handle.again, seed)

    async def poll(self) -> WorkerReport:
        """See ``pool.RemoteWorker``."""
        return msgspec.msgpack.decode(await self._cluster.call(self._handle.poll), type=WorkerReport)

    def end(self) -> None:
        """See ``pool.RemoteWorker``."""
        self._cluster.end(self._handle)


@contextmanager
def _at_most(seconds: float, give_up: Callable[[str], None], late: str) -> Iterator[None]:
    timer = threading.Timer(seconds, give_up, (late,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
