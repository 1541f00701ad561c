"""Counters of batches in a file that is mapped into memory: one process writes it, another one reads it at any time.

A tally is a row of unsigned 64-bit numbers in the machine's byte order: `MAGIC`, a sequence number, nanoseconds, items,
executions, and then executions by size, from 1 on. The sequence number is odd while the rest is being changed (a
seqlock), so that a reader sees all of an execution or nothing of it, and a writer waits for nobody and asks the system
for nothing.

Source: H.-J. Boehm, "Can seqlocks get along with programming language memory models?", MSPC 2012.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
import time
from typing import TYPE_CHECKING, Final, NamedTuple, final

if TYPE_CHECKING:
    from pathlib import Path

MAGIC: Final = int.from_bytes(b"gpstal01", "big")
WORD: Final = struct.calcsize("=Q")
SUFFIX: Final = ".tally"

MOST_SIZES: Final = 4096
"""Larger executions are counted without their size."""

_SEQUENCE, _NANOSECONDS, _ITEMS, _EXECUTIONS, _SIZES = range(1, 6)

_TRIES: Final = 200
_PAUSE_SECONDS: Final = 0.0001


class BatchCounts(NamedTuple):
    """What a tally counted so far.

    Args:
        sizes: Executions by number of items, those that happened; executions of more items than the tally has places
            for are missing in it.
    """

    executions: int
    items: int
    nanoseconds: int
    sizes: dict[int, int]


@final
class BatchCounters:
    """Counts, in a new file; threads of one process may share it.

    Args:
        path: Of the file, which is there at once and complete.
        largest: The largest size that is counted by itself.

    Raises:
        OSError: There can be no such file.
    """

    def __init__(self, path: Path, largest: int) -> None:
        self._largest = min(max(largest, 1), MOST_SIZES)
        length = (_SIZES + self._largest) * WORD
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

    def add(self, size: int, nanoseconds: int) -> None:
        """Count an execution of that many items."""
        words = self._words
        # Taken without a system call unless two threads of this process are here at once.
        with self._lock:
            words[_SEQUENCE] += 1
            words[_NANOSECONDS] += nanoseconds
            words[_ITEMS] += size
            words[_EXECUTIONS] += 1
            if 0 < size <= self._largest:
                words[_SIZES - 1 + size] += 1
            words[_SEQUENCE] += 1


def read_tally(path: Path) -> BatchCounts:
    """Read a tally while it is written.

    One whose writer was killed, or is stopped, in the middle of a change is taken as it is: every number in it is
    whole, and the last execution is in some of them.

    Raises:
        ValueError: That is no tally.
        OSError: It cannot be read.
    """
    with path.open("rb") as file:
        length = os.fstat(file.fileno()).st_size
        if length % WORD or length < (_SIZES + 1) * WORD:
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
    sizes = {size: count for size, count in enumerate(words[_SIZES:], start=1) if count}
    return BatchCounts(words[_EXECUTIONS], words[_ITEMS], words[_NANOSECONDS], sizes)
