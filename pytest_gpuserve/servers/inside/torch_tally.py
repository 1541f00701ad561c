"""What a torch worker counts, in a file that its tests read without asking it for anything.

A table of 64-bit numbers that the worker has mapped into its memory: to count costs no system call and wakes nobody.
The first number is raised before and after every change, so that it is odd while one is under way (a seqlock): who
reads finds it even, and the same again behind the rest.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from pytest_gpuserve.errors import ServerFailed

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

MOST_SIZES: Final = 1024
"""Distinct batch sizes that are told apart."""

_HEAD: Final = struct.Struct(f"<{1 + len(FIELDS)}Q")
_SIZE: Final = struct.Struct("<QQ")
_BYTES: Final = _HEAD.size + (MOST_SIZES + 1) * _SIZE.size

_READ_SECONDS: Final = 2.0


class WorkerCounts(NamedTuple):
    """What a tally held at one moment; the fields are those of `FIELDS`.

    Args:
        sizes: Executions by their rows; under 0 those of sizes beyond `MOST_SIZES` different ones.
    """

    values: dict[str, int]
    sizes: dict[int, int]


class WorkerCounters:
    """The worker's end; its methods may be called from any thread."""

    def __init__(self, path: Path) -> None:
        with path.open("xb+") as file:
            file.truncate(_BYTES)
            self._map = mmap.mmap(file.fileno(), _BYTES)
        self._lock = threading.Lock()
        self._change = 0
        self._values = dict.fromkeys(FIELDS, 0)
        self._places: dict[int, int] = {}
        self._counts: list[int] = []

    def arrived(self) -> None:
        """A request is in the queue."""
        self._add(arrived=1)

    def failed(self, requests: int) -> None:
        """Requests were answered with an error, whether they ever were in the queue or not."""
        self._add(failed=requests)

    def taken(self, requests: int) -> None:
        """Requests are no longer in the queue."""
        self._add(taken=requests)

    def executed(self, rows: int, waits_ns: Sequence[int], compute_ns: int, compiled: tuple[int, int, int]) -> None:
        """A batch was executed.

        Args:
            waits_ns: How long each of its requests waited in the queue.
            compute_ns: How long it took, with copies to and from the device.
            compiled: Frames and graphs that dynamo has compiled so far, and breaks between graphs. More frames than
                before make it an execution that compiled.
        """
        with self._lock:
            place = self._places.setdefault(rows, min(len(self._places), MOST_SIZES))
            if place == len(self._counts):
                self._counts.append(0)
            self._counts[place] += 1
            values = self._values
            values["queue_ns"] += sum(waits_ns)
            values["executed"] += len(waits_ns)
            values["compute_ns"] += compute_ns
            values["executions"] += 1
            values["items"] += rows
            if compiled[0] > values["frames"]:
                values["compiling_ns"] += compute_ns
                values["compiling"] += 1
            values["frames"], values["graphs"], values["breaks"] = compiled
            self._write(_SIZE.pack(rows if place < MOST_SIZES else 0, self._counts[place]), place)

    def answered(self, latency_ns: int) -> None:
        """A request is answered well, so long after its arrival."""
        self._add(answered=1, server_ns=latency_ns)

    def _add(self, **changes: int) -> None:
        with self._lock:
            for name, change in changes.items():
                self._values[name] += change
            self._write(b"", 0)

    def _write(self, size: bytes, place: int) -> None:
        self._change += 2
        struct.pack_into("<Q", self._map, 0, self._change - 1)
        if size:
            begin = _HEAD.size + place * _SIZE.size
            self._map[begin : begin + len(size)] = size
        _HEAD.pack_into(self._map, 0, self._change - 1, *self._values.values())
        struct.pack_into("<Q", self._map, 0, self._change)


def read_tally(path: Path) -> WorkerCounts:
    """Read a tally.

    Raises:
        ServerFailed: There is none, or it makes no sense.
    """
    end = time.monotonic() + _READ_SECONDS
    try:
        with path.open("rb", buffering=0) as file:
            while True:
                before, table, after = (os.pread(file.fileno(), size, 0) for size in (8, _BYTES, 8))
                if len(table) != _BYTES:
                    raise ServerFailed(
                        "the torch worker's counters make no sense", found=f"{len(table)} bytes", looked=[str(path)]
                    )
                if before == after and not before[0] & 1:
                    return _reading(table)
                if time.monotonic() > end:
                    raise ServerFailed("the torch worker's counters never stand still", looked=[str(path)])
    except OSError as problem:
        raise ServerFailed(
            "the torch worker has no counters", found=f"{type(problem).__name__}: {problem}", looked=[str(path)]
        ) from problem


def _reading(table: bytes) -> WorkerCounts:
    values = dict(zip(FIELDS, _HEAD.unpack_from(table)[1:], strict=True))
    sizes = {rows: count for rows, count in _SIZE.iter_unpack(table[_HEAD.size :]) if count}
    if sum(sizes.values()) != values["executions"]:
        raise ServerFailed(
            "the torch worker's counters make no sense",
            found=f"{values['executions']} executions, {sum(sizes.values())} by their batch sizes",
        )
    return WorkerCounts(values, sizes)
