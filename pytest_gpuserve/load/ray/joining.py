"""The pytest process's look at somebody else's Ray cluster: it can be reached, and its nodes run what we run."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import socket
import subprocess
from typing import TYPE_CHECKING, Final

import msgspec

from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.load.ray.check import JOIN_SECONDS, LEAVE_SECONDS, NODES_SECONDS, ClusterState, Node
from pytest_gpuserve.load.ray.cluster import difference, environment_to_join, remedies
from pytest_gpuserve.load.validity import one_line
from pytest_gpuserve.process.command_line import module_command
from pytest_gpuserve.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpuserve.load.ray.address import ClusterAddress

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

    Args:
        address: Where it listens.
        option: Which option named it, for messages.

    Returns:
        These nodes; none where a cluster grows by itself when there is something to do.

    Raises:
        UsageProblem: It cannot be reached (seconds where nobody listens, some 15 s where nobody lets us in, a minute
            where a node hangs, less than two minutes in all), or a node runs other versions.
    """
    _check_listens(address, option)
    seen = _look(address, option)
    if seen.problem:
        raise _unreachable(address, option, seen.problem)
    found = unlike(seen)
    if found:
        raise _unlike(address, seen, found)
    return tuple(seen.nodes)


def unlike(seen: ClusterState) -> list[str]:
    """Say of each node that cannot share a load with us why not."""
    assert seen.here is not None
    found = []
    for node in seen.nodes:
        why = node.problem if node.versions is None else difference(node.versions, seen.here)
        if why or node.versions is None:
            found.append(f"{node.address}: {why or 'it did not tell its versions'}")
    return found


def _unlike(address: ClusterAddress, seen: ClusterState, found: Sequence[str]) -> UsageProblem:
    assert seen.here is not None
    told = [node.versions for node in seen.nodes if node.versions is not None]
    return UsageProblem(
        f"the Ray cluster at {address} cannot make the load: not all of its nodes run what runs here",
        found="\n".join(found),
        remedies=remedies(told, seen.here) or [f"ray status --address={address}, and the logs of these nodes"],
    )


def _check_listens(address: ClusterAddress, option: str) -> None:
    try:
        socket.create_connection((address.host, address.port), timeout=LISTEN_SECONDS).close()
    except TimeoutError as problem:
        raise _unreachable(address, option, f"no answer in {format_seconds(LISTEN_SECONDS)}") from problem
    except OSError as problem:
        raise _unreachable(address, option, problem.strerror or str(problem)) from problem


def _look(address: ClusterAddress, option: str) -> ClusterState:
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
