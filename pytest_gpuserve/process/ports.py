"""TCP ports of this machine's loopback: claims of free ones, and the process that listens on one."""

from __future__ import annotations

import contextlib
import random
import shlex
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from pytest_gpuserve.errors import ServerFailed
from pytest_gpuserve.process.logs import printable
from pytest_gpuserve.process.secrets import masked, without_secret_values

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

_REACHED_BY_LOOPBACK = frozenset({"127.0.0.1", "0.0.0.0", "::", "::ffff:127.0.0.1"})  # noqa: S104 - compared, not bound


_LOWEST = 15_000
"""Ports below this are for services."""

_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")

_LOWEST_EPHEMERAL = 32_768
"""Linux's default."""


@contextlib.contextmanager
def claimed_ports(count: int) -> Iterator[list[int]]:
    """Claim this number of free TCP ports of 127.0.0.1, which no other claim of this machine gets meanwhile.

    A server takes its port seconds after the choice. Outgoing connections do not take it before, because it is below
    the kernel's range for them. Other pytest runs do not take it, because each claim is the name of an abstract socket.
    Such a name exists once in a network namespace, and ends with its process.

    Raises:
        ServerFailed: Not enough ports are free.
    """
    with contextlib.ExitStack() as held:
        candidates = _candidates()
        ports: list[int] = []
        while len(ports) < count:
            port = next(candidates, None)
            if port is None:
                raise ServerFailed(
                    f"a server needs free ports of 127.0.0.1: {count}",
                    found=f"{len(ports)} of the ports from {_LOWEST} on are free",
                    remedies=["end the program that listens there: `ss -ltnp` lists it"],
                )
            claim = held.enter_context(socket.socket(socket.AF_UNIX))
            try:
                claim.bind(f"\0pytest-gpuserve-port-{port}")
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
            except OSError:
                claim.close()
                continue
            ports.append(port)
        yield ports


def free_port() -> int:
    """A TCP port of 127.0.0.1 that was free and unclaimed a moment ago (`claimed_ports` keeps it so)."""
    with claimed_ports(1) as ports:
        return ports[0]


def _candidates() -> Iterator[int]:
    """Ports in a random order: first those that no outgoing connection gets, then the higher ones."""
    try:
        ephemeral = int(_EPHEMERAL.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        ephemeral = _LOWEST_EPHEMERAL
    chance = random.SystemRandom()  # no test's seed may give two processes one order
    for ports in (range(_LOWEST, ephemeral), range(max(ephemeral, _LOWEST), 2**16)):
        yield from chance.sample(ports, len(ports))


def port_owner(port: int, *, besides: Callable[[], Collection[int]] = frozenset) -> str | None:
    """Describe the process that listens for connections to 127.0.0.1:port.

    Args:
        besides: Called for pids that do not count, after the listeners were read, because a server may start workers.

    Returns:
        Pid and command line, "an unknown process" if it cannot be read, None without a listener.
    """
    found = _listening(port)
    known = besides() if found else ()
    others = [pid for pid in found if pid not in known]
    return describe_process(others[0]) if others else None


def listeners(port: int) -> set[int]:
    """Pids of the processes that listen for connections to 127.0.0.1:port, and their descendants, as far as known."""
    found: set[int] = set()
    for pid in _listening(port):
        if pid is not None:
            with contextlib.suppress(psutil.Error):
                found |= {pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))}
    return found


def is_here(host: str) -> bool:
    """Whether a name or address is one of this machine's; False if unknown."""
    try:
        found = {str(address[0]) for *_, address in socket.getaddrinfo(host, None)}
    except OSError:
        return False
    own = {entry.address for entries in psutil.net_if_addrs().values() for entry in entries}
    return any(address in own or address.startswith("127.") for address in found)


def _listening(port: int) -> list[int | None]:
    return [
        connection.pid
        for connection in psutil.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
        and connection.laddr
        and connection.laddr.port == port
        and connection.laddr.ip in _REACHED_BY_LOOPBACK
    ]


def describe_process(pid: int | None) -> str:
    """Describe a process for a message: pid, command line, and its state if that is the problem."""
    if pid is None:
        return "an unknown process"
    try:
        process = psutil.Process(pid)
        # Word by word, because a quotation mark in a secret is escaped on a command line.
        words = map(masked, without_secret_values(process.cmdline()))
        line, state = shlex.join(words) or process.name(), process.status()
    except psutil.Error:
        return f"pid {pid}"
    return f"pid {pid} ({printable(line)}{', in state D' if state == psutil.STATUS_DISK_SLEEP else ''})"
