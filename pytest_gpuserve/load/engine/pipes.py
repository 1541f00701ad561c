"""The pipes between an engine and its owner: plans and orders come in by one, reports go out by the other."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
from collections import deque
from typing import TYPE_CHECKING, Final

import msgspec

from pytest_gpuserve.load.engine.reactor import WRITABLE
from pytest_gpuserve.load.wire import LENGTH, Order, Plan

if TYPE_CHECKING:
    from pytest_gpuserve.load.engine.reactor import Reactor

STDIN: Final = 0
STDOUT: Final = 1

PIPE_BYTES: Final = 1 << 20

MOST_PENDING_BYTES: Final = 1 << 27
"""Reports that nobody reads; beyond, the owner is as good as dead."""

OWNER_SECONDS: Final = 0.1
"""How often an engine that waits for its owner, to read or to write, looks whether the owner is still there."""


class ReportsUnread(Exception):
    """The owner no longer reads reports."""


class ReportWriter:
    """Writes reports without ever making the load wait for their reader."""

    def __init__(self, reactor: Reactor) -> None:
        self._reactor = reactor
        self._pending: deque[memoryview] = deque()
        self._pending_bytes = 0
        os.set_blocking(STDOUT, False)
        # F_SETPIPE_SZ; the kernel may allow less.
        with contextlib.suppress(OSError):
            fcntl.fcntl(STDOUT, fcntl.F_SETPIPE_SZ, PIPE_BYTES)

    def put(self, data: bytes) -> None:
        """Write, now or as soon as there is room.

        Raises:
            BrokenPipeError: Nobody will read it.
            ReportsUnread: Nobody has read for so long that memory would run out.
        """
        if self._pending_bytes > MOST_PENDING_BYTES:
            raise ReportsUnread(f"{self._pending_bytes} bytes of reports were not read: their reader is too slow")
        idle = not self._pending
        self._pending.append(memoryview(data))
        self._pending_bytes += len(data)
        if idle and not self._write():
            self._reactor.watch(STDOUT, self._writable, WRITABLE)

    def flush(self, owner: int) -> None:
        """Write all that is left, waiting for the reader as long as it is there."""
        # A fork of a killed owner may keep the other end open, and never read.
        while not self._write() and os.getppid() == owner:
            select.select([], [STDOUT], [], OWNER_SECONDS)

    def _writable(self, _mask: int) -> None:
        if self._write():
            self._reactor.forget(STDOUT)

    def _write(self) -> bool:
        """Write what fits; whether all did."""
        while self._pending:
            data = self._pending[0]
            try:
                count = os.write(STDOUT, data)
            except BlockingIOError:
                return False
            self._pending_bytes -= count
            if count == len(data):
                self._pending.popleft()
            else:
                self._pending[0] = data[count:]
        return True


def read_plan(owner: int) -> Plan:
    """Wait for the load that the owner wants.

    Raises:
        EOFError: Standard input ended, or the owner has.
    """
    return msgspec.msgpack.decode(_read_message(owner), type=Plan)


def read_order(owner: int) -> Order:
    """Wait for what the owner wants next.

    Raises:
        EOFError: Standard input ended, or the owner has.
    """
    # mypy does not take a union for a type.
    return msgspec.msgpack.decode(_read_message(owner), type=Order)  # type: ignore[no-any-return]


def _read_message(owner: int) -> bytearray:
    (length,) = LENGTH.unpack(read_exactly(LENGTH.size, owner))
    return read_exactly(length, owner)


def read_exactly(count: int, owner: int) -> bytearray:
    """Read so many bytes of standard input without reading ahead, so that its end is seen by the reactor.

    Raises:
        EOFError: It ended, or who should write to it has.
    """
    data = bytearray(count)
    missing = memoryview(data)
    while missing:
        if not select.select([STDIN], [], [], OWNER_SECONDS)[0]:
            # A fork of a killed owner may keep the other end open.
            if os.getppid() != owner:
                raise EOFError("the process that started this one is gone")
            continue
        size = os.readv(STDIN, [missing])
        if not size:
            raise EOFError("standard input ended early")
        missing = missing[size:]
    return data
