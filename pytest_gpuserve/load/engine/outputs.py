"""Reads answers that a server has left in shared memory."""

from __future__ import annotations

import mmap
import os
from typing import TYPE_CHECKING

from pytest_gpuserve.load.wire import unwritten

if TYPE_CHECKING:
    from pytest_gpuserve.load.wire import Outputs


class OutputPlaces:
    """The places of all slots, one after the other in a shared-memory file.

    Args:
        outputs: Of the plan.

    Raises:
        OSError: The file cannot be opened, or is empty.
    """

    def __init__(self, outputs: Outputs) -> None:
        self._size = outputs.slot_bytes
        try:
            self._memory = _map(outputs.file)
        except (OSError, ValueError) as problem:
            raise OSError(f"no outputs in shared memory {outputs.file!r}: {problem}") from problem
        # So that a place which the server does not write again is not taken for an answer.
        self._blank = unwritten(self._size)
        for begin in range(0, len(self._memory) - self._size + 1, self._size):
            self._memory[begin : begin + self._size] = self._blank

    def take(self, place: int) -> bytes:
        """Return what a place holds, and blank it."""
        begin = place * self._size
        data = self._memory[begin : begin + self._size]
        self._memory[begin : begin + self._size] = self._blank
        return data

    def blank(self, place: int) -> None:
        """Blank a place whose request failed: what was written for it is no answer to the next one."""
        begin = place * self._size
        self._memory[begin : begin + self._size] = self._blank


def _map(file: str) -> mmap.mmap:
    descriptor = os.open(file, os.O_RDWR | os.O_CLOEXEC)
    try:
        return mmap.mmap(descriptor, 0)
    finally:
        os.close(descriptor)
