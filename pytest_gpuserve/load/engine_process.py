"""A process that takes part in a load, as its owner sees it: told its share, asked for its reports, ended."""

from __future__ import annotations

import fcntl
import os
import select
import selectors
import subprocess
import tempfile
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import msgspec

from pytest_gpuserve.errors import LoadFailed
from pytest_gpuserve.load import beside
from pytest_gpuserve.load.wire import LENGTH, MAX_MESSAGE_BYTES, Order, Plan, Ready, Report, Tick, frame

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from typing_extensions import Self

SILENCE_SECONDS: Final = 20.0
"""An engine that reports nothing for so long (its ticks are 0.1 s) is stuck, or the machine is."""

TAIL_CHARACTERS: Final = 8000
"""Of an engine's log: a traceback through the loop with its marks is some 3000."""

PIPE_BYTES: Final = 1 << 20


class EngineProcess:
    """One engine process; a context manager, so that it ends with its block.

    Args:
        command: What is run.
        end_seconds: How long it may take to end by itself, when its input is closed.

    Raises:
        LoadFailed: It could not be started.
    """

    def __init__(self, command: Sequence[str], end_seconds: float) -> None:
        self._end_seconds = end_seconds
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 -- closed in close, with the process that writes to it
        try:
            self._process = subprocess.Popen(
                list(command),
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                # Its own group: Ctrl-C is ours to translate, it would cut the engine off in mid-report.
                start_new_session=True,
            )
        except OSError as problem:
            self._log.close()
            raise LoadFailed("the load engine could not be started", found=str(problem)) from problem
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdin.fileno(), False)
        # The kernel may allow less.
        with suppress(OSError):
            fcntl.fcntl(self._process.stdin, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self._buffer = bytearray()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._process.stdout, selectors.EVENT_READ)
        self.pid = self._process.pid
        self.ended = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def tell(self, message: Plan | Order) -> None:
        """Send a message.

        Raises:
            LoadFailed: It does not read it.
        """
        assert self._process.stdin is not None
        stdin = self._process.stdin.fileno()
        room = select.poll()
        room.register(stdin, select.POLLOUT)
        rest = memoryview(frame(message))
        # If it died at once, the next report says so, with its log.
        with suppress(BrokenPipeError):
            while rest:
                if not room.poll(SILENCE_SECONDS * 1000):
                    raise LoadFailed(f"the load engine read nothing for {SILENCE_SECONDS:.0f} s", log_tail=self._tail())
                rest = rest[os.write(stdin, rest) :]

    def wait_ready(self, seconds: float) -> None:
        """Wait until it has read its plan.

        Args:
            seconds: How long that may take.

        Raises:
            LoadFailed: It died, or fell silent.
        """
        report = self._next(seconds)
        if not isinstance(report, Ready):
            raise self._garbled("a tick before it was ready")
        beside.hear(self.pid, report.processes)

    def wait_ready_again(self, seconds: float) -> None:
        """Throw away the ticks that it wrote before it heard that it should begin anew.

        Args:
            seconds: How long it may be silent meanwhile.

        Raises:
            LoadFailed: It died, or fell silent.
        """
        while not isinstance(report := self._next(seconds), Ready):
            pass
        beside.hear(self.pid, report.processes)
        self.ended = False

    def next_tick(self) -> Tick:
        """Return its next tick.

        Raises:
            LoadFailed: It died, fell silent or talks nonsense.
        """
        tick = self._next(SILENCE_SECONDS)
        if not isinstance(tick, Tick):
            raise self._garbled("ready twice")
        self.ended = tick.last
        return tick

    def close(self) -> None:
        """End the process; it ends by itself when its input is closed."""
        if self._log.closed:
            return
        beside.forget(self.pid)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._selector.close()
        # Its output is closed too: an engine that is just writing must not wait for a reader.
        self._process.stdout.close()
        self._process.stdin.close()
        try:
            self._process.wait(self._end_seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def _next(self, seconds: float) -> Report:
        deadline = time.monotonic() + seconds
        while True:
            report = self._parse()
            if report is not None:
                return report
            if not self._selector.select(max(0.0, deadline - time.monotonic())):
                raise LoadFailed(f"the load engine reported nothing for {seconds:.0f} s", log_tail=self._tail())
            assert self._process.stdout is not None
            data = os.read(self._process.stdout.fileno(), 1 << 16)
            if not data:
                status = self._process.wait()
                raise LoadFailed("the load engine died", found=f"exit status {status}", log_tail=self._tail())
            self._buffer += data

    def _parse(self) -> Report | None:
        if len(self._buffer) < LENGTH.size:
            return None
        (length,) = LENGTH.unpack_from(self._buffer)
        if length > MAX_MESSAGE_BYTES:
            raise self._garbled(repr(bytes(self._buffer[:80])))
        end = LENGTH.size + length
        if len(self._buffer) < end:
            return None
        data = bytes(self._buffer[LENGTH.size : end])
        del self._buffer[:end]
        try:
            # mypy does not take a union for a type.
            return msgspec.msgpack.decode(data, type=Report)  # type: ignore[no-any-return]
        except msgspec.DecodeError as problem:
            raise self._garbled(str(problem)) from problem

    def _garbled(self, found: str) -> LoadFailed:
        return LoadFailed("the load engine sent a garbled report", found=found, log_tail=self._tail())

    def _tail(self) -> str:
        self._log.seek(0)
        return self._log.read().decode(errors="replace")[-TAIL_CHARACTERS:]
