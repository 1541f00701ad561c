"""The value of ``--load-engine``: ``local``, ``ray``, or the address of a Ray cluster."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Final, Literal

from pytest_gpuserve.errors import UsageProblem

CLIENT: Final = "ray://"
"""How an address begins that Ray's client is to connect to."""

_HOST: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
_PORT: Final = re.compile(r"[0-9]{1,5}")


@dataclass(frozen=True, slots=True)
class ClusterAddress:
    """Where a Ray cluster listens; written as Ray itself takes it.

    Args:
        host: Name or address, without brackets.
        port: Its port.
        by_client: Whether Ray's client connects there; else it is the cluster's own address, for its own nodes.
    """

    host: str
    port: int
    by_client: bool = False

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{CLIENT if self.by_client else ''}{host}:{self.port}"


EngineChoice = ClusterAddress | Literal["local", "ray"]
"""Processes of this host, workers on a Ray cluster of this run's own, or on one that is there."""


def parse_engine(text: str, option: str) -> EngineChoice:
    """Read what makes the loads.

    Args:
        text: As it was typed.
        option: Which option it is the value of, for messages: ``--load-engine``.

    Raises:
        UsageProblem: It is neither ``local`` nor ``ray`` nor an address.
    """
    if text == "local":
        return "local"
    if text == "ray":
        return "ray"
    address = parse_address(text)
    if address is not None:
        return address
    # What stands before an @ may be a password.
    found = "a user's name before the host" if "@" in text else repr(text[:200])
    raise UsageProblem(
        f"{option} is neither the name of a load engine nor the address of a Ray cluster",
        found=found,
        remedies=[
            f"{option}=local, processes of this host, the default",
            f"{option}=ray, workers on a Ray cluster that this run begins and ends",
            f"{option}=ray://HOST:PORT, workers on a cluster that is there (most listen at port 10001)",
            f"{option}=HOST:PORT, the same from one of its own nodes (most listen at port 6379)",
        ],
    )


def parse_address(text: str) -> ClusterAddress | None:
    """Read ``HOST:PORT`` or ``ray://HOST:PORT``, an IPv6 address in brackets; None where it is no such thing."""
    by_client = text.startswith(CLIENT)
    host, colon, port = text.removeprefix(CLIENT).rpartition(":")
    if not colon or not _PORT.fullmatch(port) or not 1 <= int(port) <= 65535:
        return None
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        if "%" in host:
            return None
        try:
            ipaddress.IPv6Address(host)
        except ValueError:
            return None
    elif not _HOST.fullmatch(host):
        return None
    return ClusterAddress(host, int(port), by_client)
