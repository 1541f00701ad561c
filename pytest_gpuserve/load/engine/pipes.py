"""Pipes between an engine and its owner: one for plans and orders, one for reports."""

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
"""Most bytes of unread reports; beyond it, the owner counts as dead."""

OWNER_SECONDS: Final = 0.1
"""Interval in which an engine that waits for its owner checks that the owner exists."""


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
        """Write now, or as soon as the pipe has room.

        Raises:
            BrokenPipeError: The reader is gone.
            ReportsUnread: The reader is so slow that memory would run out.
        """
        if self._pending_bytes > MOST_PENDING_BYTES:
            raise ReportsUnread(f"{self._pending_bytes} bytes of reports were not read: their reader is too slow")
        idle = not self._pending
        self._pending.append(memoryview(data))
        self._pending_bytes += len(data)
        if idle and not self._write():
            self._reactor.watch(STDOUT, self._writable, WRITABLE)

    def flush(self, owner: int) -> None:
        """Write the rest, and wait for the reader while it exists."""
        # A fork of a killed owner may keep the other end open, and never read.
        while not self._write() and os.getppid() == owner:
            select.select([], [STDOUT], [], OWNER_SECONDS)

    def _writable(self, _mask: int) -> None:
        if self._write():
            self._reactor.forget(STDOUT)

    def _write(self) -> bool:
        """Write as much as fits; return whether that was all."""
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
    """Wait for the owner's plan.

    Raises:
        EOFError: Standard input ended, or the owner has ended.
    """
    return msgspec.msgpack.decode(_read_message(owner), type=Plan)


def read_order(owner: int) -> Order:
    """Wait for the owner's next order.

    Raises:
        EOFError: Standard input ended, or the owner has ended.
    """
    # mypy does not take a union for a type.
    return msgspec.msgpack.decode(_read_message(owner), type=Order)  # type: ignore[no-any-return]


def _read_message(owner: int) -> bytearray:
    (length,) = LENGTH.unpack(read_exactly(LENGTH.size, owner))
    return read_exactly(length, owner)


def read_exactly(count: int, owner: int) -> bytearray:
    """Read a number of bytes from standard input without reading ahead, so that the reactor sees its end.

    Raises:
        EOFError: Standard input ended, or its writer has ended.
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
