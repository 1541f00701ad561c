"""The node of a Ray cluster of our own: ``python -m pytest_gpuserve.load.ray.head FOLDER CPUS OBJECT_STORE_BYTES``.

Writes the cluster's address into the file `ADDRESS_FILE` of the folder when it can be joined, and waits to be ended,
with all of its processes, by its keeper; where one of these ends by itself, it says which, and ends. `ray start` would
do the same, with three more processes that nobody needs (Ray's client, its log monitor, its autoscaler), which together
use as much CPU time as all others.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Final

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


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
