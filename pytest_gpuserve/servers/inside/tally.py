"""Counters in a file that is mapped into memory: one process writes it, another one reads it at any time.

A tally is a row of unsigned 64-bit numbers in the machine's byte order: `MAGIC`, a sequence number, its fields, and
executions by size, from 1 on. The sequence number is odd while the rest is being changed (a seqlock), so that a reader
sees all of a change or nothing of it, and a writer waits for nobody and asks the system for nothing.

Source: H.-J. Boehm, "Can seqlocks get along with programming language memory models?", MSPC 2012.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
import time
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

MAGIC: Final = int.from_bytes(b"gpstal02", "big")
WORD: Final = struct.calcsize("=Q")
SUFFIX: Final = ".tally"

MOST_SIZES: Final = 4096
"""Larger executions are counted without their size."""

EXECUTION_FIELDS: Final = ("executions", "items", "nanoseconds")
"""What `Tally.executed` counts."""

_SEQUENCE, _FIELDS = 1, 2

_TRIES: Final = 200
_PAUSE_SECONDS: Final = 0.0001


class Counted(NamedTuple):
    """What a tally counted so far.

    Args:
        values: By field.
        sizes: Executions by number of items, those that happened; executions of more items than the tally has places
            for are missing in it.
    """

    values: dict[str, int]
    sizes: dict[int, int]


class Tally:
    """Counts, in a new file; threads of one process may share it.

    Args:
        path: Of the file, which is there at once and complete.
        largest: The largest size that is counted by itself.

    Raises:
        OSError: There can be no such file.
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
        """Add to fields, and count an execution of that many items, if any."""
        words, places = self._words, self._places
        # Taken without a system call unless two threads of this process are here at once.
        with self._lock:
            words[_SEQUENCE] += 1
            for name, change in changes.items():
                words[places[name]] += change
            if 0 < size <= self._largest:
                words[self._sizes - 1 + size] += 1
            words[_SEQUENCE] += 1

    def executed(self, size: int, nanoseconds: int) -> None:
        """Count an execution of that many items."""
        self.add(size, executions=1, items=size, nanoseconds=nanoseconds)


def read_tally(path: Path, fields: Sequence[str] = EXECUTION_FIELDS) -> Counted:
    """Read a tally while it is written.

    One whose writer was killed, or is stopped, in the middle of a change is taken as it is: every number in it is
    whole, and the last execution is in some of them.

    Raises:
        ValueError: That is no tally of these fields.
        OSError: It cannot be read.
    """
    first = _FIELDS + len(fields)
    with path.open("rb") as file:
        length = os.fstat(file.fileno()).st_size
        if length % WORD or length < (first + 1) * WORD:
            raise ValueError(f"{path.name} has {length} bytes")
        mapped = mmap.mmap(file.fileno(), length, prot=mmap.PROT_READ)
    with mapped:
        for _ in range(_TRIES):
            # Copied twice in one go each: the same twice, and even, is what nobody wrote to in between.
            seen, again = mapped[:], mapped[:]
            words = struct.unpack(f"={length // WORD}Q", seen)
            if seen == again and words[_SEQUENCE] % 2 == 0:
                break
            time.sleep(_PAUSE_SECONDS)
    if words[0] != MAGIC:
        raise ValueError(f"{path.name} does not begin as a tally")
    values = dict(zip(fields, words[_FIELDS:first], strict=True))
    return Counted(values, {size: count for size, count in enumerate(words[first:], start=1) if count})
