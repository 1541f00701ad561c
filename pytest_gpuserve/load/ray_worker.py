"""A worker of a load on Ray: an actor on a node, with one ordinary load engine that is a child of its process."""

from __future__ import annotations

import ipaddress
import os
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from pytest_gpuserve import __version__
from pytest_gpuserve.errors import GpuserveError, LoadFailed
from pytest_gpuserve.load.driver import EngineProcess
from pytest_gpuserve.load.source import END_SECONDS, LOCAL
from pytest_gpuserve.load.tick import Tick  # noqa: TC001 -- msgspec reads the annotation at run time
from pytest_gpuserve.load.validity import one_line
from pytest_gpuserve.load.wire import Again, Begin, Plan

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pytest_gpuserve.load.wire import Endpoint

_NETWORK: Final = "/proc/self/ns/net"
"""File that identifies the network of a process: the same for all processes with the same loopback."""

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


class WorkerAnswer(msgspec.Struct, frozen=True):
    """Result of a call to a worker.

    Args:
        problem: Reason of a failure, in one line; empty after success.
        node: The address of its node.
        clock_ns: Time of its own monotonic clock.
        tick: The next report of its engine.
    """

    problem: str = ""
    node: str = ""
    clock_ns: int = 0
    tick: Tick | None = None


def _in_words(call: Callable[[], WorkerAnswer]) -> bytes:
    """A `WorkerAnswer` as MessagePack; an error of ours is sent as its text."""
    try:
        return msgspec.msgpack.encode(call())
    except GpuserveError as problem:
        return msgspec.msgpack.encode(WorkerAnswer(problem=in_one_line(problem)))


class RayWorker:
    """A worker; each call returns a `WorkerAnswer` as MessagePack."""

    def __init__(self) -> None:
        self._engine: EngineProcess | None = None

    def start(self, plan: bytes, part: int, files: Mapping[str, str], version: str) -> bytes:
        """Start the engine of this part, and wait until it can begin.

        Args:
            plan: ``wire.Plan`` as MessagePack, with the number of parts.
            part: Number of this part.
            files: Files that must be the same here as on the coordinator; see `files_of_this_host`.
            version: Version of this package on the coordinator.
        """
        import ray  # noqa: PLC0415 -- the rest needs none

        def started() -> WorkerAnswer:
            node = str(ray.util.get_node_ip_address())
            if version != __version__:
                raise LoadFailed(
                    f"its node {node} has pytest-gpuserve {__version__}, here it is {version}",
                    remedies=[f"on each node: pip install pytest-gpuserve=={version}"],
                )
            if any(not known or identity(path) != known for path, known in files.items()):
                raise LoadFailed(
                    f"{node} is another host, and reaches the server in another way than this one",
                    remedies=["load a server that all nodes reach: remote_server('http://HOST:PORT')"],
                )
            engine = EngineProcess(LOCAL.launches(1)[0].command, END_SECONDS)
            self._engine = engine
            engine.tell(msgspec.structs.replace(msgspec.msgpack.decode(plan, type=Plan), part=part))
            engine.wait_ready(LOCAL.ready_seconds)
            return WorkerAnswer(node=node)

        return _in_words(started)

    def clock(self) -> bytes:
        """Return the time of this host."""
        return _in_words(lambda: WorkerAnswer(clock_ns=time.perf_counter_ns()))

    def begin(self, at_ns: int) -> bytes:
        """Order the engine to begin at a time of this host's clock."""

        def begun() -> WorkerAnswer:
            self._own.tell(Begin(at_ns))
            return WorkerAnswer()

        return _in_words(begun)

    def tick(self) -> bytes:
        """Wait for the engine's next report."""
        return _in_words(lambda: WorkerAnswer(tick=self._own.next_tick()))

    def again(self, seed: int) -> bytes:
        """Let the engine end its load, and wait until it can begin anew with this seed."""

        def readied() -> WorkerAnswer:
            self._own.tell(Again(seed))
            self._own.wait_ready_again(LOCAL.ready_seconds)
            return WorkerAnswer()

        return _in_words(readied)

    @property
    def _own(self) -> EngineProcess:
        if self._engine is None:
            raise LoadFailed("the worker was not started")
        return self._engine


def files_of_this_host(plan: Plan) -> dict[str, str]:
    """Files that a worker must share with this process to reach the server in the same way, each with its identity.

    The loopback stands for the network of this process; names are resolved by this host.
    """
    endpoint = plan.endpoint
    paths = []
    if plan.outputs is not None:
        paths.append(plan.outputs.file)
    if not endpoint.port:
        paths.append(endpoint.host)
    elif _is_loopback(endpoint):
        paths.append(_NETWORK)
    if endpoint.tls is not None and endpoint.tls.ca_file:
        paths.append(endpoint.tls.ca_file)
    return {path: identity(path) for path in paths}


def identity(path: str) -> str:
    """Identity of a file among those of all hosts, also of a socket or a namespace; empty if it does not exist."""
    try:
        found = os.stat(path)  # noqa: PTH116 -- a string goes in and travels
        return f"{_BOOT_ID.read_text().strip()} {found.st_dev} {found.st_ino}"
    except OSError:
        return ""


def _is_loopback(endpoint: Endpoint) -> bool:
    try:
        found: list[Any] = socket.getaddrinfo(endpoint.host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        # Its engine tells whether a node knows the name.
        return False
    addresses = [ipaddress.ip_address(address[0].partition("%")[0]) for *_, address in found]
    # ::ffff:127.0.0.1 is 127.0.0.1, and 0.0.0.0 leads to the own host too.
    plain = [getattr(address, "ipv4_mapped", None) or address for address in addresses]
    return any(address.is_loopback or address.is_unspecified for address in plain)


def in_one_line(problem: GpuserveError) -> str:
    """An error in one line, with the last line of its log, which has the reason of a process' end."""
    told = f"{problem.summary} ({problem.found})" if problem.found else problem.summary
    last = problem.log_tail.strip().rpartition("\n")[2]
    return one_line("; ".join([f"{told}: {last}" if last else told, *problem.remedies]))
