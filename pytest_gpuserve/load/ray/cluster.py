"""A Ray cluster of this run's own: one node on this host's loopback, which ends with this process however that ends."""

from __future__ import annotations

import os
import re
import secrets
import sys
import tempfile
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import msgspec

import pytest_gpuserve
from pytest_gpuserve.errors import LoadFailed
from pytest_gpuserve.load.ray.address import parse_address
from pytest_gpuserve.load.validity import one_line
from pytest_gpuserve.process.child import Command, Process, SupervisorProcess
from pytest_gpuserve.process.command_line import module_command
from pytest_gpuserve.process.deadline import Deadline
from pytest_gpuserve.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

    from typing_extensions import Self

NOT_INSTALLED = ""
"""In the place of a version."""


class Versions(msgspec.Struct, frozen=True):
    """What a process runs.

    Args:
        python: Of its interpreter, as ``3.11.7``.
        ray: Of Ray.
        package: Of pytest-gpuserve; empty where it is not installed.
    """

    python: str
    ray: str
    package: str


def difference(theirs: Versions, ours: Versions) -> str:
    """Say why processes of these versions cannot share a load; empty if they can.

    Python's may differ in the last number: what travels between them are messages of this package.
    """
    found = []
    if theirs.package == NOT_INSTALLED:
        found.append(f"pytest-gpuserve is not installed, here it is {ours.package}")
    elif theirs.package != ours.package:
        found.append(f"pytest-gpuserve {theirs.package}, here {ours.package}")
    if theirs.ray != ours.ray:
        found.append(f"ray {theirs.ray}, here {ours.ray}")
    if _minor(theirs.python) != _minor(ours.python):
        found.append(f"Python {theirs.python}, here {ours.python}")
    return "; ".join(found)


def remedies(found: list[Versions], ours: Versions) -> list[str]:
    """What to run on nodes of these versions, so that they can share a load with ours."""
    help_by_kind = {
        f"on each of these nodes: pip install pytest-gpuserve=={ours.package}": any(
            theirs.package != ours.package for theirs in found
        ),
        f"on each of these nodes, and where it was started: pip install ray=={ours.ray}": any(
            theirs.ray != ours.ray for theirs in found
        ),
        f"start these nodes with Python {_minor(ours.python)}, or pytest with theirs": any(
            _minor(theirs.python) != _minor(ours.python) for theirs in found
        ),
    }
    return [text for text, helps in help_by_kind.items() if helps]


def _minor(python: str) -> str:
    return ".".join(python.split(".")[:2])


QUIET: Final[Mapping[str, str]] = MappingProxyType(
    {
        # No usage statistics are sent.
        "RAY_USAGE_STATS_ENABLED": "0",
        # Under `uv run` Ray would send the working folder to the cluster.
        "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    }
)
"""Environment of every process of ours that uses Ray."""

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
"""Environment of all processes of our own cluster, and of what joins it."""

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
    """Return the environment of a process that joins somebody else's cluster."""
    return {**QUIET, **(ON_LOOPBACK if host in _LOOPBACK else {})}


def own_cluster_environment() -> dict[str, str]:
    """This process's environment, without what is about other clusters and with what is about our own."""
    return {**{name: value for name, value in os.environ.items() if name not in OTHERS}, **OWN}


ADDRESS_FILE: Final = "address"

LOOK_SECONDS: Final = 0.5
"""How often it is seen whether all of its processes are there."""

LOOPBACK: Final = "127.0.0.1"


def main(folder: Path, cpus: int, object_store_bytes: int) -> None:
    """Start the node, and wait."""
    # The variable, for Ray also leaves a note there for whoever looks for a cluster on this host: that is not for them.
    os.environ["RAY_TMPDIR"] = str(folder)
    from ray.cluster_utils import Cluster  # noqa: PLC0415 -- it takes seconds, and reads the environment

    cluster = Cluster(
        initialize_head=True,
        head_node_args={
            "num_cpus": cpus,
            "num_gpus": 0,
            "object_store_memory": object_store_bytes,
            "node_ip_address": LOOPBACK,
            "include_dashboard": False,
            "include_log_monitor": False,
            "no_monitor": True,
        },
    )
    whole = folder / f"{ADDRESS_FILE}.new"
    whole.write_text(cluster.address)
    whole.replace(folder / ADDRESS_FILE)
    while not (dead := cluster.head_node.dead_processes()):
        time.sleep(LOOK_SECONDS)
    # At once: Ray's own end would wait for what is no longer there.
    ended = ", ".join(f"{kind} (exit status {process.returncode})" for kind, process in dead)
    os.write(2, f"the Ray cluster has lost its {ended}\n".encode())
    os._exit(1)


START_SECONDS: Final = 90.0
"""Longest wait for it, on a busy machine; some 5 s are usual."""

END_SECONDS: Final = 0.5
"""From the request to end to SIGKILL: a node would drain for half a minute, and nothing in it is worth that."""

LOGICAL_CPUS: Final = 1024
"""Most workers at a time. They are nothing but numbers in Ray's books, and comparisons side by side run two loads at
once; whether the host keeps up with them is for the load itself to see."""

OBJECT_STORE_BYTES: Final = 80 << 20
"""The least that Ray takes, and of that as much memory as is used: ticks are small."""

LONGEST_FOLDER: Final = 39
"""Below it Ray makes Unix sockets, whose paths may have 107 bytes: ``/ray/session_2026-01-31_12-59-59_123456_1234567``
and ``/sockets/plasma_store`` are 68 of them."""

_PACKAGES: Final = "packages"

_POLL_SECONDS: Final = 0.05


@dataclass(frozen=True, slots=True)
class Joining:
    """How a cluster is joined."""

    address: str
    environment: Mapping[str, str]
    without: frozenset[str] = frozenset()

    def command(self, command: Sequence[str]) -> list[str]:
        """The same command, run with this environment."""
        unset = [f"--unset={name}" for name in sorted(self.without)]
        return ["env", *unset, *(f"{name}={value}" for name, value in self.environment.items()), *command]


class LocalCluster:
    """A running cluster, made with `LocalCluster.start`; a context manager, so that it ends with its block.

    Attributes:
        joining: How it is joined.
    """

    def __init__(self, process: Process, joining: Joining) -> None:
        self._process = process
        self.joining = joining

    @classmethod
    def start(cls, log: Path) -> LocalCluster:
        """Start a cluster of one node, and wait until it can be joined.

        Raises:
            LoadFailed: It did not start, or there is no folder for it.
            ServerFailed: There can be no more processes.
        """
        folder = short_folder([Path(tempfile.gettempdir()), Path("/tmp"), Path("/var/tmp")])  # noqa: S108 -- its name cannot be guessed
        token = folder / "token"
        supervisor = SupervisorProcess.start([folder], log=log)
        package = Path(pytest_gpuserve.__file__).resolve().parent
        try:
            folder.mkdir(mode=0o700)
            (folder / _PACKAGES).mkdir()
            # Its workers run what runs here, also where that is a checkout.
            (folder / _PACKAGES / package.name).symlink_to(package)
            token.touch(mode=0o600)
            token.write_text(secrets.token_hex(32))
        except OSError as problem:
            supervisor.release()
            raise LoadFailed(
                "there is no place for the files of a Ray cluster",
                found=str(problem),
                remedies=["name another: TMPDIR=DIR"],
            ) from problem
        environment = own_cluster_environment() | {
            TOKEN_FILE: str(token),
            "PYTHONPATH": os.pathsep.join(filter(None, (str(folder / _PACKAGES), os.environ.get("PYTHONPATH")))),
        }
        process = Process.start(Command(tuple(_command(folder)), environment, folder, log), supervisor=supervisor)
        try:
            address = _wait_for_address(process, folder / ADDRESS_FILE)
        except BaseException:
            process.stop(0)
            raise
        return cls(process, Joining(address, {**OWN, TOKEN_FILE: str(token)}, OTHERS))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def process(self) -> Process:
        """Its processes."""
        return self._process

    def has_ended(self) -> bool:
        """Whether it has ended by itself, or one of its processes that it cannot do without has."""
        return self._process.exit_status() is not None

    def close(self) -> None:
        """End it, with all that runs in it, and remove its files.

        Raises:
            ServerFailed: A process survives SIGKILL, or the files cannot be removed.
        """
        self._process.stop(END_SECONDS)


def short_folder(places: Sequence[Path]) -> Path:
    """Name a new folder in the first of these places whose path leaves room for those of Ray's sockets.

    Raises:
        LoadFailed: There is none.
    """
    name = f"gpuserve-ray-{uuid.uuid4().hex[:8]}"
    for place in places:
        folder = place / name
        if os.access(place, os.W_OK) and len(str(folder).encode()) <= LONGEST_FOLDER:
            return folder
    raise LoadFailed(
        "there is no place for the files of a Ray cluster, whose paths have to be short",
        looked=[str(place) for place in places],
        remedies=[f"name one of {LONGEST_FOLDER - len(name) - 1} bytes at most: TMPDIR=/tmp"],
    )


def _command(folder: Path) -> list[str]:
    return module_command("pytest_gpuserve.load.ray.cluster", str(folder), str(LOGICAL_CPUS), str(OBJECT_STORE_BYTES))


def _wait_for_address(process: Process, file: Path) -> str:
    deadline = Deadline.after(START_SECONDS)
    while not deadline.expired():
        with suppress(OSError):
            address = parse_address(file.read_text().strip())
            if address is not None:
                return str(address)
        if process.exit_status() is not None:
            raise LoadFailed(
                "the Ray cluster of this run did not start",
                found=process.describe_exit(),
                log_tail=process.tail(),
            )
        time.sleep(_POLL_SECONDS)
    raise LoadFailed(
        f"the Ray cluster of this run did not start in {format_seconds(deadline.seconds)}",
        log_tail=process.tail(),
    )


MOST_CHARACTERS: Final = 400

_NOT_IMPORTED: Final = "failed to import on the worker"
_AT: Final = re.compile(r"\bip=([^,)\s]+)")
_FILLERS: Final = ("The actor died unexpectedly before finishing this task", "The actor is dead because its")
_ADVICE: Final = " Some common causes include"


def plain(problem: BaseException) -> str:
    """Say in one line why a call to a worker failed; of a traceback the last line says it."""
    lines = str(problem).strip().splitlines()
    if any(line.startswith(("Traceback", "ray::")) for line in lines):
        lines = lines[-1:]
    # Ray names class, actor, process and namespace in lines that begin with a tab.
    text = one_line(" ".join(line for line in lines if not line.startswith("\t")))
    for filler in _FILLERS:
        text = text.removeprefix(filler).lstrip(": .")
    text = text.partition(_ADVICE)[0] or type(problem).__name__
    return text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]}…"


def not_importable(problem: BaseException, version: str) -> str:
    """Say in one line that a node cannot import what a worker is, and what helps; empty if that is not the problem."""
    text = str(problem)
    if _NOT_IMPORTED not in text:
        return ""
    found = _AT.search(text)
    where = f"the node {found[1]}" if found else "a node of the cluster"
    why = one_line(text.strip().splitlines()[-1])
    return (
        f"{where} cannot import pytest-gpuserve ({why[:MOST_CHARACTERS]}); it needs the version that is used here, with"
        f" the Python that Ray runs there: pip install pytest-gpuserve=={version}"
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
