"""Decides which workers may take part in a load: their versions, their host, how many lost ones are replaced."""

from __future__ import annotations

import ipaddress
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from pytest_gpuserve.errors import LoadFailed
from pytest_gpuserve.load.ray.cluster import difference, remedies
from pytest_gpuserve.load.wire import HostProcess  # noqa: TC001 -- msgspec reads the annotations

if TYPE_CHECKING:
    from pytest_gpuserve.load.ray.cluster import Versions
    from pytest_gpuserve.load.wire import Endpoint, Plan, Tick

MOST_BYTES: Final = 1 << 25
"""Of the answers that all workers together report in a tick: half of what a message may hold. Beyond it comes what the
worker reports whose turn it is: one answer of any size, and small ones (``engine.tick_counters``)."""


class WorkerLocation(msgspec.Struct, frozen=True):
    """Where a worker runs.

    Args:
        pids: Which numbers its processes have: the same for all who see the same processes, see ``identity``.
        processes: The worker itself and its engine.
    """

    pids: str
    processes: list[HostProcess] = []


def fitted(tick: Tick, plan: Plan) -> Tick:
    """Return the tick without the answers that are too many; they count as unchecked.

    Each worker may report its share of what a message holds. Answers larger than that are reported by one worker in
    each tick, in turn, so that large ones are checked as well, some of each worker. Where all answers are to be checked
    nothing is left out: that they do not fit is then for who passes them on to say.
    """
    if plan.keep_answers != "some" or tick.number % plan.parts == plan.part:
        return tick
    left = MOST_BYTES // plan.parts
    if sum(len(answer.body) for answer in tick.answers) <= left:
        return tick
    kept = []
    unchecked = tick.unchecked
    for answer in tick.answers:
        if len(answer.body) <= left:
            kept.append(answer)
            left -= len(answer.body)
        else:
            unchecked += answer.count
    return msgspec.structs.replace(tick, answers=kept, unchecked=unchecked)


NET: Final = "/proc/self/ns/net"
"""Stands for the network of a process: the same file for all who share its loopback."""

PIDS: Final = "/proc/self/ns/pid"
"""Stands for the numbers of processes: the same file for all to whom a number is the same process."""

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


def worker_name(node: str, part: int) -> str:
    """What a worker is called in reports: where it is, and which part of the load is its own."""
    return f"{node}/worker-{part}"


def version_problem(name: str, theirs: Versions, ours: Versions) -> str:
    """Say in one line why a worker's node cannot take part; empty if it can."""
    found = difference(theirs, ours)
    return f"{name} has other versions: {found}; {'; '.join(remedies([theirs], ours))}" if found else ""


def needed_here(plan: Plan) -> dict[str, str]:
    """Return the files that must be the very same for the worker of this part as for us, and what for.

    Where the server has a name, this host's resolver is asked what it leads to here.
    """
    endpoint = plan.endpoint
    needed = {}
    if plan.outputs is not None:
        needed[plan.outputs.file] = "answers come through shared memory of this host"
    if not endpoint.port:
        needed[endpoint.host] = "the in-process worker listens on a socket of this host"
    elif _is_loopback(endpoint):
        needed[NET] = f"the server listens on {endpoint.host} of this host alone"
    if endpoint.tls is not None and endpoint.tls.ca_file:
        needed[endpoint.tls.ca_file] = "the certificates that are to be trusted are a file of this host"
    return needed


def identity(path: str) -> str:
    """Say which file this is among those of all hosts, also of a socket or a namespace; empty if there is none."""
    try:
        found = os.stat(path)  # noqa: PTH116 -- a string goes in and travels
        return f"{_BOOT_ID.read_text().strip()} {found.st_dev} {found.st_ino}"
    except OSError:
        return ""


def unreachable_problem(name: str, needed: dict[str, str], theirs: dict[str, str]) -> str:
    """Say in one line why a worker on another host cannot do its part; empty if it can."""
    for path, purpose in needed.items():
        ours = identity(path)
        if not ours or theirs.get(path) != ours:
            return (
                f"{name} runs on another host, and {purpose}; load a server that it can reach with nothing of this"
                " host, as remote_server('http://HOST:PORT'), or with --load-engine=local"
            )
    return ""


def processes_here(there: WorkerLocation) -> tuple[HostProcess, ...]:
    """Return a worker's processes if their pids mean the same here; none of a worker on another host."""
    return tuple(there.processes) if there.pids and there.pids == identity(PIDS) else ()


class Replacements:
    """How many more workers may be lost before a load begins."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lost: list[str] = []

    def lose(self, name: str, reason: str) -> None:
        """Note that a worker was lost, which is to be replaced.

        Raises:
            LoadFailed: Too many were.
        """
        self._lost.append(name)
        if len(self._lost) > self._most:
            raise LoadFailed(
                f"{name} was lost before the load began, after {self._most} others that were replaced: {reason}"
            )


def _is_loopback(endpoint: Endpoint) -> bool:
    if endpoint.host == "localhost" or endpoint.host.endswith(".localhost"):
        return True
    try:
        found = [ipaddress.ip_address(endpoint.host)]
    except ValueError:
        found = _resolved(endpoint.host)
    # ::ffff:127.0.0.1 is 127.0.0.1, and 0.0.0.0 too leads to the own host.
    plain = [getattr(address, "ipv4_mapped", None) or address for address in found]
    return any(address.is_loopback or address.is_unspecified for address in plain)


def _resolved(host: str) -> list[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        # A name that is unknown here leads nowhere here; whether a worker knows it, its engine says.
        return []
    return [ipaddress.ip_address(address[0]) for *_, address in found]
