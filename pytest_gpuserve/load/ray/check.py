"""Checks before a server is started that a Ray cluster can be reached, and that its nodes run what runs here.

The pytest process runs ``python -m pytest_gpuserve.load.ray.check ADDRESS``, which prints one JSON object,
`ClusterState`. That is a process of its own: Ray's library waits where it cannot be interrupted, and ends a process
that has lost its cluster.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec

from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.load.ray.cluster import Versions, difference, environment_to_join, plain, remedies
from pytest_gpuserve.load.validity import one_line
from pytest_gpuserve.process.command_line import module_command
from pytest_gpuserve.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_gpuserve.load.ray.address import ClusterAddress

JOIN_SECONDS: Final = 12.0
"""Longest time to join a cluster, from when Ray's library is loaded; it takes a second or two."""

NODES_SECONDS: Final = 30.0
"""Longest time for all nodes to tell their versions: each starts a process for that."""

LEAVE_SECONDS: Final = 5.0


class Node(msgspec.Struct, frozen=True):
    """A node that can take workers."""

    address: str
    versions: Versions | None = None
    problem: str = ""


class ClusterState(msgspec.Struct, frozen=True):
    """State of a cluster before a load."""

    here: Versions | None = None
    nodes: list[Node] = []
    problem: str = ""


def main(address: str) -> None:
    """Print the state of the cluster at this address."""
    # Ray's library prints as well: on standard output only what we say may stand.
    answer = os.dup(1)
    os.dup2(2, 1)
    # Ray would have nodes look for modules in the folder where we work.
    os.chdir("/")
    seen = _state_of(address, answer)
    with os.fdopen(answer, "wb") as file:
        file.write(msgspec.json.encode(seen))
    _leave()


def _state_of(address: str, answer: int) -> ClusterState:
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
    """Return the versions of the process that this is called in.

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


LEAST_OF_OUR_OWN: Final = (2, 52)
"""Ray before that knows no tokens, and says nothing when it is told to ask for them: it lets everybody in."""

LISTEN_SECONDS: Final = 5.0
"""Longest time for a cluster's port to take a connection."""

LOAD_SECONDS: Final = 60.0
"""Longest time for Ray's library to be loaded, on a machine in trouble."""


def check_installed(option: str) -> None:
    """See that Ray's library is there, without loading it.

    Raises:
        UsageProblem: It is not.
    """
    spec = importlib.util.find_spec("ray")
    # A folder of that name is no library.
    if spec is None or spec.origin is None:
        raise UsageProblem(
            f"{option} needs ray, which is not installed",
            remedies=["pip install 'pytest-gpuserve[ray]'", f"{option}=local"],
        )


def check_guarded(option: str) -> None:
    """See that a cluster of our own would let nobody else in, without loading Ray's library.

    Raises:
        UsageProblem: It would, or that is not known.
    """
    try:
        version = importlib.metadata.version("ray")
    except importlib.metadata.PackageNotFoundError:
        version = "unknown"
    number = re.match(r"(\d+)\.(\d+)", version)
    if number is None or (int(number[1]), int(number[2])) < LEAST_OF_OUR_OWN:
        least = ".".join(map(str, LEAST_OF_OUR_OWN))
        raise UsageProblem(
            f"{option}=ray needs ray {least} at least: with an older one, everybody who may connect to the cluster"
            " could run anything in it",
            found=f"ray's version is {version}",
            remedies=[f"pip install 'ray>={least}'", f"{option}=local"],
        )


def check_cluster(address: ClusterAddress, option: str) -> tuple[Node, ...]:
    """See that a cluster can be reached and that all of its nodes that take workers run what we run.

    Returns:
        These nodes; none where a cluster grows by itself when there is something to do.

    Raises:
        UsageProblem: It cannot be reached (seconds where nobody listens, some 15 s where nobody lets us in, a minute
            where a node hangs, less than two minutes in all), or a node runs other versions.
    """
    _check_listens(address, option)
    seen = _ask(address, option)
    if seen.problem:
        raise _unreachable(address, option, seen.problem)
    found = unlike(seen)
    if found:
        raise _unlike(address, seen, found)
    return tuple(seen.nodes)


def unlike(seen: ClusterState) -> list[str]:
    """Return for each node that cannot share a load with us why not."""
    assert seen.here is not None
    found = []
    for node in seen.nodes:
        why = node.problem if node.versions is None else difference(node.versions, seen.here)
        if why or node.versions is None:
            found.append(f"{node.address}: {why or 'it did not tell its versions'}")
    return found


def _unlike(address: ClusterAddress, seen: ClusterState, found: Sequence[str]) -> UsageProblem:
    assert seen.here is not None
    versions = [node.versions for node in seen.nodes if node.versions is not None]
    return UsageProblem(
        f"the Ray cluster at {address} cannot make the load: not all of its nodes run what runs here",
        found="\n".join(found),
        remedies=remedies(versions, seen.here) or [f"ray status --address={address}, and the logs of these nodes"],
    )


def _check_listens(address: ClusterAddress, option: str) -> None:
    try:
        socket.create_connection((address.host, address.port), timeout=LISTEN_SECONDS).close()
    except TimeoutError as problem:
        raise _unreachable(address, option, f"no answer in {format_seconds(LISTEN_SECONDS)}") from problem
    except OSError as problem:
        raise _unreachable(address, option, problem.strerror or str(problem)) from problem


def _ask(address: ClusterAddress, option: str) -> ClusterState:
    command = module_command("pytest_gpuserve.load.ray.check", str(address))
    allowed = LOAD_SECONDS + JOIN_SECONDS + NODES_SECONDS + LEAVE_SECONDS
    try:
        ran = subprocess.run(
            command,
            env={**os.environ, **environment_to_join(address.host)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            # Its own group: Ctrl-C is ours, and ends it.
            start_new_session=True,
            timeout=allowed,
            check=False,
        )
    except subprocess.TimeoutExpired as problem:
        raise _unreachable(address, option, f"Ray's library did not end in {format_seconds(allowed)}") from problem
    try:
        return msgspec.json.decode(ran.stdout, type=ClusterState)
    except msgspec.DecodeError:
        # Its C++ part ends a process that it cannot help.
        last = one_line((ran.stderr.decode(errors="replace").strip().splitlines() or [""])[-1])
        found = f"Ray's library ended its process with status {ran.returncode}"
        raise _unreachable(address, option, f"{found}: {last}" if last else found) from None


def _unreachable(address: ClusterAddress, option: str, found: str) -> UsageProblem:
    helps = ["see whether it runs: `ray status` on its head node"]
    if address.by_client:
        helps.append("ray:// is for the port of Ray's client server, 10001 if `ray start` was not told another")
    else:
        helps.append(
            f"where this machine is none of the cluster's nodes: {option}=ray://{address.host}:10001, by Ray's client"
        )
    if "RAY_AUTH_MODE" not in os.environ:
        helps.append("where it asks for a token: RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH=FILE in the environment")
    helps.append(f"{option}=ray, workers on a cluster that this run begins and ends")
    return UsageProblem(
        f"the Ray cluster at {address} could not be joined", found=found, looked=[str(address)], remedies=helps
    )


if __name__ == "__main__":
    main(sys.argv[1])
