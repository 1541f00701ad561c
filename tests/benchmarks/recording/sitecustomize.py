"""Every Python process imports this first, where its folder is named by ``PYTHONPATH``.

A load engine then writes each latency that it notes to a file of its own, whoever started it: what its histograms say
can be held against what it really saw.
"""

from __future__ import annotations

import os
import sys
from array import array
from pathlib import Path

FOLDER_VARIABLE = "GPUSERVE_BENCH_RAW"
ENGINE = "pytest_gpuserve.load.engine"

if ENGINE in sys.orig_argv and FOLDER_VARIABLE in os.environ:
    from pytest_gpuserve.load.engine import tick_counters

    class Recorded(tick_counters.DurationRecorder):
        """Writes down what is noted, in nanoseconds as 8 bytes each."""

        def __init__(self) -> None:
            super().__init__()
            # Not buffered: an engine that is killed has written what it has reported.
            self._file = (Path(os.environ[FOLDER_VARIABLE]) / f"{os.getpid()}.ns").open("ab", buffering=0)

        def settle(self) -> None:
            """See ``DurationRecorder``."""
            array("q", self._noted).tofile(self._file)
            super().settle()

    class RecordingCounters(tick_counters.TickCounters):
        """Counters whose latencies are written down."""

        def _reset(self) -> None:
            if not isinstance(self.latency, Recorded):
                self.latency = Recorded()
            super()._reset()

    tick_counters.TickCounters = RecordingCounters  # type: ignore[misc]  # the engine takes it from there
