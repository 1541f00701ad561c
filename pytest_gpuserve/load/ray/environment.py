"""The environment of processes that join a Ray cluster, and of those that are one of our own."""

from __future__ import annotations

import os
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

QUIET: Final[Mapping[str, str]] = MappingProxyType(
    {
        # Nobody is told of our loads.
        "RAY_USAGE_STATS_ENABLED": "0",
        # Under `uv run` Ray would send the working folder to the cluster.
        "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    }
)
"""What every process of ours that uses Ray is told."""

ON_LOOPBACK: Final[Mapping[str, str]] = MappingProxyType({"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"})
"""Else Ray takes 127.0.0.1 for the address by which other hosts see this one. (The name is from systems on which that
is not the default.)"""

OWN: Final[Mapping[str, str]] = MappingProxyType(
    {
        **QUIET,
        **ON_LOOPBACK,
        # Whoever may connect to a cluster can run anything in it, as its user: on a shared host not everybody may.
        "RAY_AUTH_MODE": "token",
        # No process is begun that nobody has asked for, and the memory of a server is no reason to kill a worker.
        "RAY_prestart_worker_first_driver": "0",
        "RAY_enable_worker_prestart": "0",
        "RAY_memory_monitor_refresh_ms": "0",
    }
)
"""What all processes of our own cluster are told, and what joins it."""

TOKEN_FILE: Final = "RAY_AUTH_TOKEN_PATH"  # noqa: S105 -- the name of a variable
"""Variable: the file with the secret of a cluster."""

OTHERS: Final = frozenset(
    {
        "RAY_ADDRESS",
        "RAY_AUTH_TOKEN",
        "RAY_JOB_CONFIG_JSON_ENV_VAR",
        "RAY_REDIS_ADDRESS",
        "RAY_RUNTIME_ENV_HOOK",
        "RAY_START_HOOK",
        "RAY_TMPDIR",
    }
)
"""Variables of the user's that are about another cluster."""

_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})


def environment_to_join(host: str) -> dict[str, str]:
    """What a process is told that joins somebody else's cluster.

    Args:
        host: Of the cluster's address, as it was typed.
    """
    return {**QUIET, **(ON_LOOPBACK if host in _LOOPBACK else {})}


def own_cluster_environment() -> dict[str, str]:
    """This process's environment, without what is about other clusters and with what is about our own."""
    return {**{name: value for name, value in os.environ.items() if name not in OTHERS}, **OWN}
