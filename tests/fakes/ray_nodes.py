"""A Ray cluster of several nodes on this machine, for a test, of which the last one can be lost.

Run as a program (arguments: the addresses that the nodes have) it writes the cluster's address, kills the last node
when a line comes on its standard input, and ends all nodes when that is closed; ``ray_nodes`` runs it for a test.
"""

from __future__ import annotations

import os
import select
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]

ANSWER_SECONDS: Final = 180.0
"""How long nodes may take to come or to go on a busy machine."""


class RayNodes:
    """The nodes, as their test sees them.

    Args:
        process: Starts them.

    Attributes:
        address: Address of the cluster.
    """

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self.address = self._answer()

    def lose_the_last(self) -> None:
        """Kill the last node, with all that runs on it."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()
        self._answer()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        assert select.select([self._process.stdout], [], [], ANSWER_SECONDS)[0], "no answer of the nodes"
        line = self._process.stdout.readline()
        assert line, "the nodes ended"
        return line.decode().strip()


@contextmanager
def ray_nodes(*hosts: str) -> Iterator[RayNodes]:
    """Run a cluster of nodes with these addresses for a test; the first one is its head."""
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
    command, pipe = [sys.executable, str(Path(__file__)), *hosts], subprocess.PIPE
    try:
        with subprocess.Popen(
            command, env=environment, cwd="/", stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL
        ) as process:
            try:
                yield RayNodes(process)
            finally:
                assert process.stdin is not None
                process.stdin.close()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(ANSWER_SECONDS)
                process.kill()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def folder_of_ray() -> Iterator[Path]:
    """Yield a folder for temporary files with a path so short that a cluster of a run's own takes it: ``TMPDIR``.

    After the block no file of such a cluster may be left.
    """
    folder = Path(tempfile.mkdtemp(prefix="", dir="/tmp"))
    try:
        yield folder
        assert not list(folder.iterdir())
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main(*hosts: str) -> None:
    """Run the nodes."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    from ray.cluster_utils import Cluster

    cluster = Cluster()
    quiet = {"include_dashboard": False, "include_log_monitor": False, "no_monitor": True}
    try:
        for host in hosts:
            last = cluster.add_node(num_cpus=1, num_gpus=0, object_store_memory=80 << 20, node_ip_address=host, **quiet)
        print(cluster.address, file=answers, flush=True)
        for _ in sys.stdin:
            cluster.remove_node(last, allow_graceful=False)
            print("lost", file=answers, flush=True)
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
