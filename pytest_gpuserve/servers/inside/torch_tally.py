"""What a torch worker counts, in a tally that its tests read without asking it for anything."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.errors import ServerFailed
from pytest_gpuserve.servers.inside.tally import MOST_SIZES, Counted, Tally, read_tally

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

FIELDS: Final = (
    "arrived",
    "taken",
    "answered",
    "failed",
    "server_ns",
    "queue_ns",
    "compute_ns",
    "executions",
    "executed",
    "items",
    "compiling_ns",
    "compiling",
    "frames",
    "graphs",
    "breaks",
)
"""Requests that were put into the queue, that were taken out of it, answered well, and answered with an error; sums of
the stages' times; what was executed: executions, the requests and the rows in them; how many executions compiled
something; what dynamo compiled."""


class WorkerCounters:
    """The worker's end; its methods may be called from any thread."""

    def __init__(self, path: Path) -> None:
        self._tally = Tally(path, MOST_SIZES, FIELDS)
        self._lock = threading.Lock()
        self._compiled = (0, 0, 0)

    def arrived(self) -> None:
        """A request is in the queue."""
        self._tally.add(arrived=1)

    def failed(self, requests: int) -> None:
        """Requests were answered with an error, whether they ever were in the queue or not."""
        self._tally.add(failed=requests)

    def taken(self, requests: int) -> None:
        """Requests are no longer in the queue."""
        self._tally.add(taken=requests)

    def executed(
        self,
        rows: int,
        waits_ns: Sequence[int],
        compute_ns: int,
        compiled: tuple[int, int, int],
        *,
        recording: bool = False,
    ) -> None:
        """A batch was executed.

        Args:
            waits_ns: How long each of its requests waited in the queue.
            compute_ns: How long it took, with copies to and from the device.
            compiled: Frames and graphs that dynamo has compiled so far, and breaks between graphs. More frames than
                before make it an execution that compiled.
            recording: Whether it came before the first that replays a CUDA graph: then it compiled, too.
        """
        with self._lock:
            frames, graphs, breaks = (now - before for now, before in zip(compiled, self._compiled, strict=True))
            self._compiled = compiled
            self._tally.add(
                rows,
                queue_ns=sum(waits_ns),
                executed=len(waits_ns),
                compute_ns=compute_ns,
                executions=1,
                items=rows,
                compiling_ns=compute_ns if frames > 0 or recording else 0,
                compiling=int(frames > 0 or recording),
                frames=frames,
                graphs=graphs,
                breaks=breaks,
            )

    def answered(self, latency_ns: int) -> None:
        """A request is answered well, so long after its arrival."""
        self._tally.add(answered=1, server_ns=latency_ns)


def read_counters(path: Path) -> Counted:
    """Read what a worker has counted.

    Raises:
        ServerFailed: There is nothing, or it makes no sense.
    """
    try:
        counted = read_tally(path, FIELDS)
    except (ValueError, OSError) as problem:
        raise ServerFailed(
            "the torch worker's counters make no sense",
            found=f"{type(problem).__name__}: {problem}",
            looked=[str(path)],
        ) from problem
    known = sum(counted.sizes.values())
    if known > counted.values["executions"]:
        found = f"{counted.values['executions']} executions, {known} by their batch sizes"
        raise ServerFailed("the torch worker's counters make no sense", found=found, looked=[str(path)])
    return counted
