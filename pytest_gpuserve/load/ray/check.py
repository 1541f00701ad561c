"""Looks at a Ray cluster before a server is started: ``python -m pytest_gpuserve.load.ray.check ADDRESS``.

Prints one JSON object, `ClusterState`. It is a process of its own: Ray's library waits where it cannot be interrupted,
and ends a process that has lost its cluster.
"""

from __future__ import annotations

import os
import sys
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec

from pytest_gpuserve.load.ray.cluster import Versions
from pytest_gpuserve.load.ray.wording import plain
from pytest_gpuserve.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator

JOIN_SECONDS: Final = 12.0
"""Longest time to join a cluster, from when Ray's library is loaded; it takes a second or two."""

NODES_SECONDS: Final = 30.0
"""Longest time for all nodes to tell their versions: each starts a process for that."""

LEAVE_SECONDS: Final = 5.0


class Node(msgspec.Struct, frozen=True):
    """A node that can take workers.

    Args:
        address: Of its host, as the cluster knows it.
        versions: What it runs; None where it did not tell.
        problem: Why it did not.
    """

    address: str
    versions: Versions | None = None
    problem: str = ""


class ClusterState(msgspec.Struct, frozen=True):
    """What there is to know of a cluster before a load.

    Args:
        here: What this process runs; None where not even Ray can be loaded.
        nodes: That are alive and have a CPU.
        problem: Why nothing more is known; empty if all went well.
    """

    here: Versions | None = None
    nodes: list[Node] = []
    problem: str = ""


def main(address: str) -> None:
    """Look at the cluster there, and print what is seen."""
    # Ray's library prints as well: on standard output only what we say may stand.
    answer = os.dup(1)
    os.dup2(2, 1)
    # Ray would have nodes look for modules in the folder where we work.
    os.chdir("/")
    seen = _look(address, answer)
    with os.fdopen(answer, "wb") as file:
        file.write(msgspec.json.encode(seen))
    _leave()


def _look(address: str, answer: int) -> ClusterState:
    try:
        import ray  # noqa: PLC0415 -- it takes seconds, and a broken one is to be told
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy  # noqa: PLC0415
    except ImportError as problem:
        return ClusterState(problem=f"ray cannot be imported: {plain(problem)}")
    here = Versions(*_versions())
    late = ClusterState(here, problem=f"it could not be joined in {format_seconds(JOIN_SECONDS)}")
    try:
        with _at_most(JOIN_SECONDS, answer, late):
            ray.init(address=address, log_to_driver=False, logging_level="ERROR")
        ask = ray.remote(num_cpus=0, max_retries=0)(_versions)
        asked = {}
        for node, where in _nodes(ray).items():
            there = NodeAffinitySchedulingStrategy(node, soft=False)
            asked[node] = where, ask.options(scheduling_strategy=there).remote()
        if asked:
            references = [reference for _, reference in asked.values()]
            ray.wait(references, num_returns=len(references), timeout=NODES_SECONDS)
        # Who has left meanwhile is no node of the cluster any more.
        nodes = [_told(ray, *asked[node]) for node in asked.keys() & _nodes(ray).keys()]
    except Exception as problem:  # noqa: BLE001 -- Ray raises many kinds, RuntimeError and ConnectionError among them
        return ClusterState(here, problem=plain(problem))
    return ClusterState(here, sorted(nodes, key=lambda node: node.address))


def _nodes(ray: Any) -> dict[str, str]:  # noqa: ANN401 -- a module without types
    """Address of each node that is there and can take workers, by its id."""
    return {
        node["NodeID"]: node["NodeManagerAddress"]
        for node in ray.nodes()
        if node["Alive"] and node["Resources"].get("CPU", 0) >= 1
    }


def _told(ray: Any, address: str, reference: object) -> Node:  # noqa: ANN401 -- a module without types
    try:
        return Node(address, Versions(*ray.get(reference, timeout=0)))
    except ray.exceptions.GetTimeoutError:
        return Node(address, problem=f"it did not tell its versions in {format_seconds(NODES_SECONDS)}")
    except Exception as problem:  # noqa: BLE001 -- as above
        return Node(address, problem=plain(problem))


def _versions() -> tuple[str, str, str]:
    """What the process runs that this is called in.

    It travels to the nodes as it stands here, with no name of this module in it, for they may not have one.
    """
    import platform  # noqa: PLC0415 -- travels

    import ray  # noqa: PLC0415 -- travels

    try:
        from pytest_gpuserve import __version__  # noqa: PLC0415 -- travels
    except ImportError:
        return platform.python_version(), ray.__version__, ""
    return platform.python_version(), ray.__version__, __version__


@contextmanager
def _at_most(seconds: float, answer: int, late: ClusterState) -> Iterator[None]:
    """End this process with an answer if the block takes longer: it may wait where no exception reaches it."""

    def give_up() -> None:
        os.write(answer, msgspec.json.encode(late))
        os._exit(0)

    timer = threading.Timer(seconds, give_up)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _leave() -> None:
    """Leave the cluster; one that is not left in good order keeps a client's place for half a minute."""
    ray: Any = sys.modules.get("ray")
    if ray is None:
        return
    timer = threading.Timer(LEAVE_SECONDS, os._exit, (0,))
    timer.daemon = True
    timer.start()
    with suppress(Exception):
        ray.shutdown()
    timer.cancel()


if __name__ == "__main__":
    main(sys.argv[1])
