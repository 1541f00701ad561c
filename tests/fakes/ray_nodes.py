"""A Ray cluster of several nodes on this machine, for a test: nodes come and go as it says, and end with it.

Run as a program (arguments: HOST, the address that the nodes have) it takes one JSON list a line from its standard
input, ``["add", CPUS]``, ``["add", CPUS, HOST]`` or ``["remove", NUMBER]``, answers each with a line, the cluster's
address, and ends all nodes when its standard input is closed; ``ray_nodes`` does that for a test.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psutil

from pytest_gpuserve.load.ray import TOKEN_FILE

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = Path(__file__).parents[2]

ANSWER_SECONDS: Final = 90.0
"""How long a node may take to come or to go on a busy machine."""

OBJECT_STORE_BYTES: Final = 80 << 20


class RayNodes:
    """The nodes, as their test sees them.

    Args:
        process: Has started them.
    """

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._added = 0
        self.address = ""

    @property
    def pid(self) -> int:
        """The process that has started them, and is above all of theirs."""
        return self._process.pid

    def add(self, cpus: int = 1, host: str = "") -> int:
        """Start a node, the first one as the head; returns its number.

        Args:
            cpus: Logical ones.
            host: Its address, where that is not the one of the head.
        """
        self._say("add", cpus, *([host] if host else []))
        self._added += 1
        return self._added - 1

    def remove(self, number: int) -> None:
        """Kill a node, with all that runs on it."""
        self._say("remove", number)

    def _say(self, *order: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        self._process.stdin.flush()
        assert select.select([self._process.stdout], [], [], ANSWER_SECONDS)[0], f"no answer to {order}"
        line = self._process.stdout.readline()
        assert line, f"the nodes ended instead of {order}"
        self.address = line.decode().strip()


@contextmanager
def ray_nodes(*cpus: int, host: str = "127.0.0.1") -> Iterator[RayNodes]:
    """Run a cluster for a test.

    Args:
        cpus: Of each node; more can be added.
        host: The address of its head, on which it listens.
    """
    # Below it are Unix sockets, whose paths may not be long.
    folder = Path(tempfile.mkdtemp(prefix="nodes-", dir="/tmp"))
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("RAY_")},
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
        "RAY_TMPDIR": str(folder),
        "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_memory_monitor_refresh_ms": "0",
    }
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__)), host],
        env=environment,
        cwd="/",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    nodes = RayNodes(process)
    try:
        for count in cpus:
            nodes.add(count)
        yield nodes
    finally:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        try:
            process.wait(ANSWER_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def folder_of_ray() -> Iterator[Path]:
    """Yield a folder for temporary files with a path so short that a cluster of a run's own takes it: ``TMPDIR``.

    After the block no file and no process of such a cluster may be left.
    """
    folder = Path(tempfile.mkdtemp(prefix="", dir="/tmp"))
    try:
        yield folder
        left = [*map(str, folder.iterdir()), *(_described(process) for process in _below(folder))]
        assert not left, left
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _below(folder: Path) -> Iterator[psutil.Process]:
    """Processes of clusters whose files are there."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get(TOKEN_FILE, "").startswith(f"{folder}/"):
                yield process


def _described(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        return f"{process.pid} ({process.status()}): {' '.join(process.cmdline())}"
    return str(process.pid)


def main(host: str) -> None:
    """Do what is said, until nothing more is."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    from ray.cluster_utils import Cluster

    cluster = Cluster()
    nodes: list[Any] = []
    try:
        for line in sys.stdin:
            order, *arguments = json.loads(line)
            if order == "add":
                cpus, *own_host = arguments
                nodes.append(
                    cluster.add_node(
                        num_cpus=cpus,
                        num_gpus=0,
                        object_store_memory=OBJECT_STORE_BYTES,
                        node_ip_address=(own_host or [host])[0],
                        include_dashboard=False,
                        include_log_monitor=False,
                        no_monitor=True,
                    )
                )
            else:
                cluster.remove_node(nodes[arguments[0]], allow_graceful=False)
            answers.write(f"{cluster.address}\n")
            answers.flush()
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main(sys.argv[1])
