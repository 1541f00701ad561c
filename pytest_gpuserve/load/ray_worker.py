"""A worker of a load on Ray: an actor on a node, with one ordinary load engine that is a child of its process."""

from __future__ import annotations

import ipaddress
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from pytest_gpuserve import __version__
from pytest_gpuserve.errors import LoadFailed
from pytest_gpuserve.load.driver import LOCAL, EngineProcess
from pytest_gpuserve.load.wire import Again, Begin, Plan

if TYPE_CHECKING:
    from pytest_gpuserve.measure.window import Window


class RayWorker:
    """A worker; its calls raise LoadFailed, which Ray passes on to the caller."""

    _engine: EngineProcess

    def start(self, plan: bytes, part: int, network: str, version: str) -> str:
        """Start the engine of this part, wait until it can begin, and return the address of the node.

        Args:
            plan: ``wire.Plan`` as MessagePack, with the number of parts.
            part: Number of this part.
            network: Network that the node must have; see `network_of`.
            version: Version of this package on the coordinator.
        """
        import ray  # noqa: PLC0415 -- the rest needs none

        node = str(ray.util.get_node_ip_address())
        if version != __version__:
            raise LoadFailed(
                f"its node {node} has pytest-gpuserve {__version__}, here it is {version}",
                remedies=[f"on each node: pip install pytest-gpuserve=={version}"],
            )
        if network and network != own_network():
            raise LoadFailed(
                f"{node} is another host, from which this host's server cannot be reached",
                remedies=["load a server that all nodes reach: remote_server('http://HOST:PORT')"],
            )
        self._engine = EngineProcess(LOCAL.commands(1)[0], LOCAL.end_seconds)
        self._engine.tell(msgspec.structs.replace(msgspec.msgpack.decode(plan, type=Plan), part=part))
        self._engine.wait_ready(LOCAL.ready_seconds)
        return node

    def clock(self) -> int:
        """Return the time of this host's monotonic clock, in ns."""
        return time.perf_counter_ns()

    def begin(self, at_ns: int) -> None:
        """Order the engine to begin at a time of this host's clock."""
        self._engine.tell(Begin(at_ns))

    def tick(self) -> Window:
        """Wait for the engine's next report."""
        return self._engine.next_tick()

    def again(self, seed: int) -> None:
        """Let the engine end its load, and wait until it can begin anew with this seed."""
        self._engine.tell(Again(seed))
        self._engine.wait_ready(LOCAL.ready_seconds)


def network_of(plan: Plan) -> str:
    """This host's network, if only its processes reach the server of a plan; else empty."""
    return own_network() if _is_loopback(plan.endpoint.host) else ""


def own_network() -> str:
    """Identity of this process' network among those of all hosts: processes with the same one share a loopback."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text()
    return f"{boot.strip()} {Path('/proc/self/ns/net').stat().st_ino}"


def _is_loopback(host: str) -> bool:
    try:
        found: list[Any] = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        # Its engine tells whether a node knows the name.
        return False
    addresses = [ipaddress.ip_address(address[0].partition("%")[0]) for *_, address in found]
    # ::ffff:127.0.0.1 is 127.0.0.1, and 0.0.0.0 leads to the own host too.
    plain = [getattr(address, "ipv4_mapped", None) or address for address in addresses]
    return any(address.is_loopback or address.is_unspecified for address in plain)
