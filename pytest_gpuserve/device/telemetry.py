"""The session's part of the sampler: starts it, sends it the servers' pids, reads its samples, and reports its end.

Samples are in units of `pytest_gpuserve.device.sample`. `pytest_gpuserve.measure.telemetry` interprets them for a
window.
"""

from __future__ import annotations

import os
import sys
import time
from bisect import bisect_left
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import msgspec

from pytest_gpuserve.device.sample import GpuEvent, SamplerRecord, TelemetrySample, Unknown
from pytest_gpuserve.device.sampler import ORDERS, SAMPLES
from pytest_gpuserve.errors import GpuserveError
from pytest_gpuserve.process.child import Command, Process, owned_folder
from pytest_gpuserve.process.deadline import Deadline
from pytest_gpuserve.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path
    from types import TracebackType

    from typing_extensions import Self

COMMAND: Final = (sys.executable, "-m", "pytest_gpuserve.device.sampler")
"""Command of the sampler if the package is installed."""

START_SECONDS: Final = 30.0
"""Longest wait for the first sample, on a machine in trouble: to load a driver takes seconds."""

SILENCE_SECONDS: Final = 5.0
"""Silence after which a sampler is stuck, most likely in the driver."""

END_SECONDS: Final = 2.0

_POLL_SECONDS: Final = 0.02


@dataclass(frozen=True, slots=True)
class SamplerOutput:
    """Samples of a sampler since its begin, by time, without those that were dropped.

    Attributes:
        unknown: Values that are None, each with the reason.
        problem: Reason why samples ended; empty while they come. With a problem, the time after the last sample is
            unknown, and a rule that needs telemetry must not pass.
    """

    samples: tuple[TelemetrySample, ...] = ()
    events: tuple[GpuEvent, ...] = ()
    unknown: tuple[Unknown, ...] = ()
    problem: str = ""


@dataclass
class _Records:
    """The part of the file that was read so far."""

    path: Path
    samples: list[TelemetrySample] = field(default_factory=list)
    events: list[GpuEvent] = field(default_factory=list)
    unknown: list[Unknown] = field(default_factory=list)
    problem: str = ""
    _offset: int = 0

    def read(self) -> None:
        """Read the new lines; an incomplete line is left for later."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._offset)
                whole, _, _ = file.read().rpartition(b"\n")
        except FileNotFoundError:
            return
        if not whole:
            return
        self._offset += len(whole) + 1
        for line in whole.split(b"\n"):
            try:
                self._add(_DECODER.decode(line))
            except msgspec.DecodeError as problem:
                self.problem = f"telemetry unknown: the sampler wrote an unreadable line ({problem})"

    def forget_before(self, at_ns: int) -> None:
        """Drop the samples before a moment, except the last one of them."""
        first = bisect_left(self.samples, at_ns, key=lambda sample: sample.at_ns)
        del self.samples[: max(0, first - 1)]

    def _add(self, record: SamplerRecord) -> None:
        if isinstance(record, TelemetrySample):
            self.samples.append(record)
        elif isinstance(record, GpuEvent):
            self.events.append(record)
        else:
            self.unknown.append(record)


_DECODER: Final = msgspec.json.Decoder(SamplerRecord)


class SamplerProcess:
    """A sampler that runs beside a measurement; a context manager, which ends with its block or this process.

    Its own failures are not raised: they appear in ``seen().problem``.

    Args:
        uuids: UUIDs of the watched GPUs or MIG instances; may be empty.
        log: File for the sampler's output, which has the reason of its death.

    Raises:
        ServerFailed: The sampler could not be started: no more processes, or no temporary files.
    """

    def __init__(self, uuids: Sequence[str], *, log: Path, command: Sequence[str] = COMMAND) -> None:
        self._servers: list[int] = []
        self._began_ns = time.perf_counter_ns()
        with ExitStack() as stack:
            folder, supervisor = stack.enter_context(owned_folder("gpuserve-telemetry-", log=log))
            self._orders = folder / ORDERS
            os.mkfifo(self._orders, 0o600)
            self._records = _Records(folder / SAMPLES)
            # Its folder has no file that could be taken for a module.
            argv = (*command, str(folder), str(os.getpid()), *uuids)
            self._process = stack.enter_context(
                Process.start(Command(argv, dict(os.environ), folder, log), supervisor=supervisor)
            )
            self._wait_for(0, START_SECONDS)
            self._stack = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """Pid of the sampler."""
        return self._process.pid

    def watch(self, servers: Iterable[int]) -> None:
        """Treat these pids and their descendants as the session's own from the next sample on."""
        pids = sorted(servers)
        if pids == self._servers:
            return
        self._servers = pids
        # An ended or stuck sampler does not read; `seen` reports both.
        with suppress(OSError):
            pipe = os.open(self._orders, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                os.write(pipe, msgspec.json.encode(pids) + b"\n")
            finally:
                os.close(pipe)

    def seen(self) -> SamplerOutput:
        """Return all samples so far that were not dropped, and whether more will come."""
        problem = self._look()
        records = self._records
        return SamplerOutput(tuple(records.samples), tuple(records.events), tuple(records.unknown), problem)

    def seen_until(self, at_ns: int, timeout_seconds: float = SILENCE_SECONDS) -> SamplerOutput:
        """Wait for the first sample at or after a moment, and return all samples.

        Args:
            at_ns: Time by ``time.perf_counter_ns``, like ``Tick.end_ns``.
            timeout_seconds: The longest wait; a sample is due within 0.1 s.
        """
        self._wait_for(at_ns, timeout_seconds)
        return self.seen()

    def forget_before(self, at_ns: int) -> None:
        """Drop samples before ``at_ns`` of ``time.perf_counter_ns``, except the last one, for interpolation."""
        self._records.read()
        self._records.forget_before(at_ns)

    def close(self) -> None:
        """End the sampler. Raises `ServerFailed` if it survives SIGKILL, which only a wait for a driver does."""
        self._records.problem = self._look() or "telemetry unknown: the sampler has been ended"
        try:
            self._process.stop(END_SECONDS)
        finally:
            self._stack.close()

    def _wait_for(self, at_ns: int, timeout_seconds: float) -> None:
        deadline = Deadline.after(timeout_seconds)
        while not self._look() and not deadline.expired():
            if self._records.samples and self._records.samples[-1].at_ns >= at_ns:
                return
            time.sleep(_POLL_SECONDS)

    def _look(self) -> str:
        """Read new lines; return the reason why samples ended, or an empty text."""
        self._records.read()
        return self._records.problem or self._trouble()

    def _trouble(self) -> str:
        if self._process.exit_status() is not None:
            # Read its last lines, because it may have died since the last look.
            self._records.read()
            return str(
                GpuserveError(
                    f"telemetry unknown: the sampler has ended ({self._process.describe_exit()})",
                    log_tail=self._process.tail(),
                )
            )
        samples = self._records.samples
        silent_seconds = (time.perf_counter_ns() - (samples[-1].at_ns if samples else self._began_ns)) / 1e9
        if silent_seconds <= (SILENCE_SECONDS if samples else START_SECONDS):
            return ""
        return (
            f"telemetry unknown: the sampler has written nothing for {format_seconds(silent_seconds)}; the sampler"
            " or the driver is stuck: see `dmesg`"
        )
