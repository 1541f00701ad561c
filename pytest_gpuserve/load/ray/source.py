"""Workers on a Ray cluster as a source of load engines: a cluster of this run's own, or an existing one."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.load.ray.check import check_cluster, check_guarded, check_installed
from pytest_gpuserve.load.ray.cluster import Joining, LocalCluster, environment_to_join
from pytest_gpuserve.load.source import EngineLaunch
from pytest_gpuserve.process.command_line import module_command
from pytest_gpuserve.process.ports import is_here

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path
    from types import TracebackType

    from typing_extensions import Self

    from pytest_gpuserve.load.ray.address import ClusterAddress
    from pytest_gpuserve.load.ray.check import Node
    from pytest_gpuserve.load.source import EngineSource

READY_SECONDS: Final = 240.0
"""How long the coordinator may take until all workers can begin: to join the cluster, to find the last place, and for
what the worker there then does (``pool``). Whoever takes too long is named by the coordinator before."""

END_SECONDS: Final = 15.0
"""How long it may take to end them."""


@dataclass(frozen=True, slots=True)
class RaySource:
    """A coordinator on this host and its workers on a cluster's nodes; see ``EngineSource`` and ``EngineLaunch``."""

    name: str
    is_here: bool
    join: Callable[[], Joining]
    ready_seconds: float = READY_SECONDS

    def launches(self, workers: int) -> Sequence[EngineLaunch]:  # noqa: ARG002 -- the plan tells the coordinator how many
        """See ``EngineSource``."""
        joining = self.join()
        command = module_command("pytest_gpuserve.load.ray", str(os.getpid()), joining.address)
        return [EngineLaunch(joining.command(command), self.name, 0, END_SECONDS)]


class RayEngine:
    """Makes the loads of a run on Ray; a context manager, so that a cluster of its own ends with its block.

    That cluster is started when the first load needs it, and another one when the next load finds that it has died. One
    that is there is never ended.

    Args:
        address: Of a cluster that is there; None for one of this run's own.
        option: Which option says so, for messages.
    """

    def __init__(self, address: ClusterAddress | None, option: str) -> None:
        self._address = address
        self._option = option
        self._nodes: tuple[Node, ...] | None = None
        self._own: LocalCluster | None = None
        self._starting = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __str__(self) -> str:
        """What it is, for people: ``Ray at ray://head:10001, 2 nodes (10.0.0.1, 10.0.0.2)``."""
        if self._address is None:
            return "Ray, a cluster of this run on this host"
        if self._nodes is None:
            return f"Ray at {self._address}"
        if not self._nodes:
            return f"Ray at {self._address}, no node with a CPU yet"
        plural = "" if len(self._nodes) == 1 else "s"
        hosts = ", ".join(dict.fromkeys(node.address for node in self._nodes))
        return f"Ray at {self._address}, {len(self._nodes)} node{plural} ({hosts})"

    def check(self) -> None:
        """See that it will be able to make loads, before a server is started for them.

        Raises:
            UsageProblem: Ray is not installed, or too old for a cluster of its own; or the cluster cannot be joined, or
                runs other versions.
        """
        check_installed(self._option)
        if self._address is None:
            check_guarded(self._option)
        else:
            self._nodes = check_cluster(self._address, self._option)

    def source(self, log: Path) -> EngineSource:
        """Where its workers come from.

        Args:
            log: File for what a cluster of its own writes.
        """
        if self._address is not None:
            joining = Joining(str(self._address), environment_to_join(self._address.host))
            nodes = self._nodes or ()
            here = bool(nodes) and all(is_here(node.address) for node in nodes)
            return RaySource(str(self), here, lambda: joining)
        return RaySource(str(self), is_here=True, join=lambda: self._started(log).joining)

    def close(self) -> None:
        """End the cluster, if it is its own and was started.

        Raises:
            ServerFailed: Something of it cannot be ended or removed.
        """
        with self._starting:
            own, self._own = self._own, None
        if own is not None:
            own.close()

    def _started(self, log: Path) -> LocalCluster:
        with self._starting:
            if self._own is not None and self._own.has_ended():
                ended, self._own = self._own, None
                ended.close()
            if self._own is None:
                self._own = LocalCluster.start(log)
            return self._own
