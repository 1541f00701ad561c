"""Samples a GPU into a file, ten times a second, in a process of its own.

`SamplerProcess` is the session's end: it runs this module with the arguments ``FILE UUID``, and ends it with
SIGTERM. The file has a sample a line, as JSON, so that neither process ever waits for the other.
"""

from __future__ import annotations

import os
import sys
import time
from bisect import bisect_left
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

import msgspec
import pynvml

from pytest_gpuserve.device.gpu import initialised
from pytest_gpuserve.device.gpu_probe import GpuProbe, GpuSample
from pytest_gpuserve.errors import GpuserveError
from pytest_gpuserve.process.child import Command, owned_folder
from pytest_gpuserve.process.command_line import module_command
from pytest_gpuserve.units import Deadline, format_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from typing_extensions import Self

SAMPLE_NS: Final = 100_000_000
"""Time between two samples."""

COMMAND: Final = tuple(module_command("pytest_gpuserve.device.sampler"))
"""Command of the sampler, without its arguments."""

START_SECONDS: Final = 30.0
"""Longest wait for the first sample, on a machine in trouble: to load a driver takes seconds."""

SILENCE_SECONDS: Final = 5.0
"""Silence after which a sampler is stuck, most likely in the driver."""

END_SECONDS: Final = 2.0

_POLL_SECONDS: Final = 0.02

_DECODER: Final = msgspec.json.Decoder(GpuSample)


class SamplerProcess:
    """A sampler that runs beside a measurement; a context manager, which ends with its block or this process.

    Its own failures are not raised: they appear in ``problem``.

    Args:
        uuid: UUID of the GPU or MIG instance.
        log: File for the sampler's output, which has the reason of its death.

    Attributes:
        samples: The samples that were read so far, by time, without those that were dropped.
        problem: Reason why no more samples come; empty while they come. With a problem, the time after the last sample
            is unknown, and a rule that needs telemetry must not pass.

    Raises:
        ServerFailed: The sampler could not be started: no more processes, or no temporary files.
    """

    def __init__(self, uuid: str, *, log: Path, command: Sequence[str] = COMMAND) -> None:
        self.samples: list[GpuSample] = []
        self.problem = ""
        self._unread, self._damage = b"", ""
        self._began_ns = time.perf_counter_ns()
        with ExitStack() as stack:
            folder, self._process = stack.enter_context(owned_folder("gpuserve-telemetry-", log=log))
            file = folder / "samples.jsonl"
            file.touch(0o600)
            self._file = stack.enter_context(file.open("rb"))
            # Its folder has no file that could be taken for a module.
            argv = (*command, str(file), uuid)
            self._process.run(Command(argv, dict(os.environ), folder, log))
            self.wait_until(0, START_SECONDS)
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

    def read(self) -> None:
        """Read the new samples, and whether more will come."""
        if self._file.closed:
            return
        # Asked before its last lines are read.
        has_ended = self._process.exit_status() is not None
        lines, _, self._unread = (self._unread + self._file.read()).rpartition(b"\n")
        try:
            self.samples += _DECODER.decode_lines(lines)
        except msgspec.DecodeError as problem:
            self._damage = f"telemetry unknown: the sampler wrote an unreadable line ({problem})"
        self.problem = self._damage or self._trouble(has_ended=has_ended)

    def wait_until(self, at_ns: int, timeout_seconds: float = SILENCE_SECONDS) -> None:
        """Wait for the first sample at or after a moment, or for a problem.

        Args:
            at_ns: Time by ``time.perf_counter_ns``, like ``Window.end_ns``.
            timeout_seconds: The longest wait; a sample is due within 0.1 s.
        """
        deadline = Deadline.after(timeout_seconds)
        self.read()
        while not self.problem and not deadline.expired():
            if self.samples and self.samples[-1].at_ns >= at_ns:
                return
            time.sleep(_POLL_SECONDS)
            self.read()

    def forget_before(self, at_ns: int) -> None:
        """Drop samples before ``at_ns`` of ``time.perf_counter_ns``, except the last one, for interpolation."""
        first = bisect_left(self.samples, at_ns, key=lambda sample: sample.at_ns)
        del self.samples[: max(0, first - 1)]

    def close(self) -> None:
        """End the sampler. Raises `ServerFailed` if it survives SIGKILL, which only a wait for a driver does."""
        self.read()
        self.problem = self.problem or "telemetry unknown: the sampler has been ended"
        try:
            self._process.stop(END_SECONDS)
        finally:
            self._stack.close()

    def _trouble(self, *, has_ended: bool) -> str:
        if has_ended:
            return str(
                GpuserveError(
                    f"telemetry unknown: the sampler has ended ({self._process.describe_exit()})",
                    log_tail=self._process.tail(),
                )
            )
        latest_ns = self.samples[-1].at_ns if self.samples else self._began_ns
        silent_seconds = (time.perf_counter_ns() - latest_ns) / 1e9
        if silent_seconds <= (SILENCE_SECONDS if self.samples else START_SECONDS):
            return ""
        return (
            f"telemetry unknown: the sampler has written nothing for {format_seconds(silent_seconds)}; the sampler"
            " or the driver is stuck: see `dmesg`"
        )


def sample_for_ever(file: Path, uuid: str) -> NoReturn:
    """Sample at fixed points in time; missed points are skipped."""
    out = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    encode = msgspec.json.Encoder().encode
    probe: GpuProbe | None = None
    number, origin_ns = 0, time.perf_counter_ns()
    while True:
        try:
            probe = probe or GpuProbe(initialised(), uuid)
            sample = probe.read()
        except pynvml.NVMLError:
            # The driver may yet be loaded.
            sample = GpuSample(time.perf_counter_ns())
        # In one write, so that a killed sampler leaves a whole line or none.
        os.write(out, encode(sample) + b"\n")
        late_ns = time.perf_counter_ns() - origin_ns
        number = max(number + 1, -(-late_ns // SAMPLE_NS))
        time.sleep(max(0, origin_ns + number * SAMPLE_NS - time.perf_counter_ns()) / 1e9)


if __name__ == "__main__":
    sample_for_ever(Path(sys.argv[1]), sys.argv[2])
