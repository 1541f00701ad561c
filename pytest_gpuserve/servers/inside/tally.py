"""Files by which a server's process with our code tells its counters and facts to the tests' process.

Counters are in a file that is mapped into memory: one process writes it, another one reads it at any time.

A tally is a row of unsigned 64-bit numbers in the machine's byte order: `MAGIC`, a sequence number, its fields, and
executions by size, from 1 on. The sequence number is odd during a change (a seqlock). So a reader sees all of a change
or none of it, and a writer never waits and makes no system call.

Source: H.-J. Boehm, "Can seqlocks get along with programming language memory models?", MSPC 2012.
"""

from __future__ import annotations

import json
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

MAGIC: Final = int.from_bytes(b"gpstal02", "big")
WORD: Final = struct.calcsize("=Q")
SUFFIX: Final = ".tally"

MOST_SIZES: Final = 4096
"""Largest size with a count of its own; larger executions are counted without their size."""

EXECUTION_FIELDS: Final = ("executions", "items", "nanoseconds")
"""Field that `Tally.executed` counts."""

_SEQUENCE, _FIELDS = 1, 2

_TRIES: Final = 200
_PAUSE_SECONDS: Final = 0.0001


class Counted(NamedTuple):
    """Counts of a tally so far.

    Args:
        values: Counts by field.
        sizes: Executions by number of items, without sizes that never occurred. Executions with more items than the
            tally has places for are missing.
    """

    values: dict[str, int]
    sizes: dict[int, int]

    @property
    def batch_sizes(self) -> dict[str, int]:
        """Executions by size as text, ``inf`` for the missing ones."""
        larger = self.values["executions"] - sum(self.sizes.values())
        known = {str(size): count for size, count in self.sizes.items()}
        return {**known, "inf": larger} if larger > 0 else known


class Tally:
    """Counts in a new file; threads of one process may share it.

    Args:
        path: Path of the file, which is created atomically.
        largest: The largest size with a count of its own.

    Raises:
        OSError: The file cannot be created.
    """

    def __init__(self, path: Path, largest: int, fields: Sequence[str] = EXECUTION_FIELDS) -> None:
        self._places = {name: _FIELDS + number for number, name in enumerate(fields)}
        self._sizes = _FIELDS + len(fields)
        self._largest = min(max(largest, 1), MOST_SIZES)
        length = (self._sizes + self._largest) * WORD
        hidden = path.with_suffix(".new")
        descriptor = os.open(hidden, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(descriptor, length)
            self._words = memoryview(mmap.mmap(descriptor, length)).cast("Q")
        finally:
            os.close(descriptor)
        self._words[0] = MAGIC
        hidden.rename(path)
        self._lock = threading.Lock()

    def add(self, size: int = 0, **changes: int) -> None:
        """Add to fields, and count an execution of this number of items, if any."""
        words, places = self._words, self._places
        # The lock needs no system call unless two threads of this process meet here.
        with self._lock:
            words[_SEQUENCE] += 1
            for name, change in changes.items():
                words[places[name]] += change
            if 0 < size <= self._largest:
                words[self._sizes - 1 + size] += 1
            words[_SEQUENCE] += 1

    def executed(self, size: int, nanoseconds: int) -> None:
        """Count an execution of this number of items."""
        self.add(size, executions=1, items=size, nanoseconds=nanoseconds)


def read_tally(path: Path, fields: Sequence[str] = EXECUTION_FIELDS) -> Counted:
    """Read a tally while it is written.

    If the writer was killed, or is stopped, during a change, the tally is read as it is. Every number in it is
    complete, but only some of them include the last execution.

    Raises:
        ServerFailed: The file cannot be read, or is not a tally of these fields.
    """
    try:
        return _read(path, fields)
    except (ValueError, OSError) as problem:
        raise ServerFailed("the server's own counts make no sense", found=str(problem), looked=[str(path)]) from None


def _read(path: Path, fields: Sequence[str]) -> Counted:
    first = _FIELDS + len(fields)
    with path.open("rb") as file:
        length = os.fstat(file.fileno()).st_size
        if length % WORD or length < (first + 1) * WORD:
            raise ValueError(f"{path.name} has {length} bytes")
        mapped = mmap.mmap(file.fileno(), length, prot=mmap.PROT_READ)
    with mapped:
        for _ in range(_TRIES):
            # Two copies that are equal, with an even sequence number, were not written in between.
            seen, again = mapped[:], mapped[:]
            words = struct.unpack(f"={length // WORD}Q", seen)
            if seen == again and words[_SEQUENCE] % 2 == 0:
                break
            time.sleep(_PAUSE_SECONDS)
    if words[0] != MAGIC:
        raise ValueError(f"{path.name} does not begin as a tally")
    values = dict(zip(fields, words[_FIELDS:first], strict=True))
    return Counted(values, {size: count for size, count in enumerate(words[first:], start=1) if count})


def write_facts(path: Path, value: object) -> None:
    """Write a JSON file atomically, readable only for its owner, because it may hold a token."""
    hidden = path.with_name(f"{path.name}.new")
    descriptor = os.open(hidden, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:  # noqa: PTH123 - of a descriptor
        json.dump(value, file)
    hidden.replace(path)
