"""Samples GPUs into a file, ten times a second, in a process of its own.

`pytest_gpuserve.device.telemetry` runs it as ``python -m pytest_gpuserve.device.sampler FOLDER OWNER [UUID...]`` and
ends it with SIGTERM. The folder has a named pipe for the servers' processes (`ORDERS`, a JSON list of pids a line), and
a file for samples (`SAMPLES`, one JSON record a line). So neither process ever waits for the other, and the session
reads the file between two windows.

This module does not import pytest or any code of the measurement.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import msgspec
import psutil
import pynvml

from pytest_gpuserve.device.gpu import initialised
from pytest_gpuserve.device.gpu_probe import GpuProbe
from pytest_gpuserve.device.sample import (
    SAMPLES_A_SECOND,
    SLOW_EVERY,
    GpuSample,
    TelemetrySample,
    Unknown,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpuserve.device.sample import SamplerRecord

ORDERS: Final = "orders"

SAMPLES: Final = "samples.jsonl"

PERIOD_NS: Final = 1_000_000_000 // SAMPLES_A_SECOND


class Sampler:
    """Samples all GPUs in turn and writes the samples to a file in a folder."""

    def __init__(self, folder: Path, owner: int, uuids: Sequence[str]) -> None:
        # Also opened for writing, so that it does not end when the session closes it.
        self._orders = os.open(folder / ORDERS, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self._unread = b""
        self._out = os.open(folder / SAMPLES, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._encode = msgspec.json.Encoder().encode
        self._owner = owner
        self._servers: list[int] = []
        self._uuids = tuple(uuids)
        self._slow_due = 0
        self._gpus = self._opened()

    def sample(self, number: int) -> None:
        """Take the sample of this number, which counts from 0 by the time."""
        began_ns = time.perf_counter_ns()
        slow = number >= self._slow_due
        if slow:
            self._slow_due = number + SLOW_EVERY
        gpus = self._read_gpus(slow=slow)
        self._write(TelemetrySample(began_ns, gpus))

    def run(self) -> NoReturn:
        """Sample for ever, at fixed points in time; missed points are skipped."""
        number, origin_ns = 0, time.perf_counter_ns()
        while True:
            self.sample(number)
            late_ns = time.perf_counter_ns() - origin_ns
            number = max(number + 1, -(-late_ns // PERIOD_NS))
            self._rest(origin_ns + number * PERIOD_NS)

    def close(self) -> None:
        """Close the file."""
        os.close(self._out)
        os.close(self._orders)

    def _opened(self) -> list[GpuProbe] | None:
        if not self._uuids:
            return None
        try:
            nvml = initialised()
        except pynvml.NVMLError as error:
            self._write(Unknown("", "NVML", str(error)))
            return None
        return [GpuProbe(nvml, uuid, tell=self._write, is_ours=self._is_ours) for uuid in self._uuids]

    def _is_ours(self, pid: int) -> bool:
        """Whether a process belongs to the session: the session, its servers, or their descendants."""
        roots = {self._owner, *self._servers}
        try:
            return pid in roots or any(parent.pid in roots for parent in psutil.Process(pid).parents())
        except psutil.Error:
            return False

    def _read_gpus(self, *, slow: bool) -> tuple[GpuSample, ...]:
        if self._gpus is None:
            return tuple(map(GpuSample, self._uuids))
        return tuple(gpu.read(slow=slow) for gpu in self._gpus)

    def _rest(self, until_ns: int) -> None:
        """Wait until a moment, and read orders meanwhile."""
        while (left_ns := until_ns - time.perf_counter_ns()) > 0:
            ready, _, _ = select.select([self._orders], [], [], left_ns / 1e9)
            if ready:
                *lines, self._unread = (self._unread + os.read(self._orders, 1 << 16)).split(b"\n")
                # Each order replaces the previous one.
                if lines:
                    self._servers = msgspec.json.decode(lines[-1], type=list[int])

    def _write(self, record: SamplerRecord) -> None:
        # In one write, so that a killed sampler leaves a whole line or none.
        os.write(self._out, self._encode(record) + b"\n")


def main() -> None:
    """Sample until SIGTERM."""

    def end(*_: Any) -> NoReturn:  # noqa: ANN401 -- a frame, of no interest
        sys.exit(0)

    signal.signal(signal.SIGTERM, end)
    sampler = Sampler(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
    try:
        sampler.run()
    finally:
        sampler.close()


if __name__ == "__main__":
    main()
