"""The pytest side of the engine: starts it, reads its ticks, ends it."""

from __future__ import annotations

import os
import selectors
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import msgspec

from pytest_gpuserve.errors import LoadFailed
from pytest_gpuserve.load.wire import LENGTH, MAX_TICK_BYTES, Plan, Tick, frame

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

SILENCE_SECONDS: Final = 20.0
"""An engine that reports nothing for so long (its ticks are 0.1 s) is stuck, or the machine is."""

END_SECONDS: Final = 5.0


class Engine:
    """A running engine process; a context manager, so that it ends with its block.

    Args:
        plan: The load.

    Raises:
        LoadFailed: The process could not be started.
    """

    def __init__(self, plan: Plan) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 -- closed in __exit__, with the process that writes to it
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "pytest_gpuserve.load.engine"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                # Its own group: Ctrl-C is ours to translate, it would cut the engine off in mid-report.
                start_new_session=True,
                env=_environment(),
            )
        except OSError as problem:
            self._log.close()
            raise LoadFailed("the load engine could not be started", found=str(problem)) from problem
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._buffer = bytearray()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._process.stdout, selectors.EVENT_READ)
        try:
            self._process.stdin.write(frame(plan))
            self._process.stdin.flush()
        except BrokenPipeError:
            # It died at once; the first read says so, with its log.
            pass

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def next_tick(self) -> Tick:
        """Return the next report, waiting for it.

        Raises:
            LoadFailed: The engine died, fell silent or talks nonsense.
        """
        deadline = time.monotonic() + SILENCE_SECONDS
        while True:
            tick = self._parse()
            if tick is not None:
                return tick
            if not self._selector.select(max(0.0, deadline - time.monotonic())):
                raise LoadFailed(f"the load engine reported nothing for {SILENCE_SECONDS:.0f} s", log_tail=self._tail())
            assert self._process.stdout is not None
            data = os.read(self._process.stdout.fileno(), 1 << 16)
            if not data:
                status = self._process.wait()
                raise LoadFailed("the load engine died", found=f"exit status {status}", log_tail=self._tail())
            self._buffer += data

    def close(self) -> None:
        """End the process; it ends by itself when its input is closed."""
        if self._log.closed:
            return
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._selector.close()
        # Its output is closed too: an engine that is just writing must not wait for a reader.
        self._process.stdout.close()
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def _parse(self) -> Tick | None:
        if len(self._buffer) < LENGTH.size:
            return None
        (length,) = LENGTH.unpack_from(self._buffer)
        if length > MAX_TICK_BYTES:
            raise LoadFailed(
                "the load engine sent a garbled report", found=repr(bytes(self._buffer[:80])), log_tail=self._tail()
            )
        end = LENGTH.size + length
        if len(self._buffer) < end:
            return None
        data = bytes(self._buffer[LENGTH.size : end])
        del self._buffer[:end]
        try:
            return msgspec.msgpack.decode(data, type=Tick)
        except msgspec.DecodeError as problem:
            raise LoadFailed(
                "the load engine sent a garbled report", found=str(problem), log_tail=self._tail()
            ) from problem

    def _tail(self) -> str:
        self._log.seek(0)
        return self._log.read().decode(errors="replace")[-2000:]


def _environment() -> dict[str, str]:
    # A bare checkout is on sys.path but not installed: the engine must find the package just as we did.
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # noqa: PTH100, PTH120 -- no symlinks resolved, as the import was
    path = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{path}" if path else root}
