"""A client process from start to end, with the CPU time of exactly that process and what it started."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


class Endless(AssertionError):
    """A client did not end in time."""


@dataclass(frozen=True)
class Ended:
    """A client that has ended.

    Args:
        status: Exit status, negative for a signal.
        cpu_seconds: User and system time, of the process and of all children that it waited for.
        output: What it wrote to standard output.
        trouble: What it wrote to standard error.
    """

    status: int
    cpu_seconds: float
    output: str
    trouble: str


class Client:
    """A running client; made with `started`."""

    def __init__(self, process: subprocess.Popen[bytes], output: IO[bytes], trouble: IO[bytes]) -> None:
        self._process = process
        self._output = output
        self._trouble = trouble
        self.pid = process.pid

    def running(self, wait_seconds: float) -> bool:
        """Whether it still runs after so long; returns at once when it ends."""
        descriptor = os.pidfd_open(self.pid)
        try:
            poller = select.poll()
            poller.register(descriptor, select.POLLIN)
            return not poller.poll(wait_seconds * 1000)
        finally:
            os.close(descriptor)

    def end(self, within_seconds: float) -> Ended:
        """Wait for its end, and collect it.

        Raises:
            Endless: It did not end in time.
        """
        if self.running(within_seconds):
            raise Endless(f"{self._process.args!r} did not end in {within_seconds} s")
        # Not Popen.wait: only wait4 tells what this one child used.
        _, status, usage = os.wait4(self.pid, 0)
        self._process.returncode = os.waitstatus_to_exitcode(status)
        return Ended(
            self._process.returncode, usage.ru_utime + usage.ru_stime, _read(self._output), _read(self._trouble)
        )


@contextmanager
def started(argv: Sequence[str], *, env: Mapping[str, str] | None = None) -> Iterator[Client]:
    """Run a client for the block; if it still runs then, it is killed with its process group.

    Args:
        argv: Program and arguments.
        env: Variables on top of this process's.
    """
    # A pytest that is killed takes its client with it: some would wait for their server for ever.
    prefix = ["setpriv", "--pdeathsig", "KILL"]
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as trouble:
        process = subprocess.Popen(
            [*prefix, *argv],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=trouble,
            env={**os.environ, **(env or {})},
            start_new_session=True,
        )
        try:
            yield Client(process, output, trouble)
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def run(argv: Sequence[str], *, env: Mapping[str, str] | None = None, within_seconds: float = 120.0) -> Ended:
    """Run a client to its end.

    Raises:
        Endless: It did not end in time.
        AssertionError: It ended with another status than 0.
    """
    with started(argv, env=env) as client:
        ended = client.end(within_seconds)
    assert ended.status == 0, f"{argv!r} ended with {ended.status}:\n{ended.output}\n{ended.trouble}"
    return ended


def _read(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")
