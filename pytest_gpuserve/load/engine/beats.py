"""Detects that an engine was paused although a core was free: the engine, or its machine, was stopped.

Lags do not show that, because an answer that comes during a pause counts as come at its end. So the engine reads the
clock at regular beats, and late beats tell the length of a pause.

The wait for a core is left out. If other processes of the host had the core, their CPU share tells (`device.host`). If
the server had it, as on a host whose cores it all uses, that belongs to this server on this host, in every build.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Final

from pytest_gpuserve.load.wire import BEAT_NS

ON_TIME_NS: Final = 1_000_000
"""Tolerated delay of a beat: timers are some 0.1 ms late on any host, and another process' time slice may be as
short."""

_NEVER_NS: Final = 2**63 - 1


class Beats:
    """Looks at the clock every ``BEAT_NS`` and notes the beats that come late.

    Attributes:
        next_ns: Time of the next beat.
    """

    def __init__(self) -> None:
        # A load may be halted before it begins.
        self.next_ns = _NEVER_NS
        self._late = (0, 0)
        self._busy_ns = 0

    def begin(self, now_ns: int, busy_ns: int) -> None:
        """Begin now; ``busy_ns`` is the process' time of work and of waits for a core."""
        self.next_ns, self._busy_ns = now_ns + BEAT_NS, busy_ns

    def look(self, now_ns: int, busy_ns: int) -> None:
        """Note the missed beats, and begin anew; does nothing if no beat was due.

        The engine's work and waits for a core since the last beat are subtracted from the delay.
        """
        if now_ns < self.next_ns:
            return
        late_ns = now_ns - self.next_ns - (busy_ns - self._busy_ns)
        delays_ns = range(late_ns, ON_TIME_NS, -BEAT_NS)
        count, sum_ns = self._late
        self._late = count + len(delays_ns), sum_ns + sum(delays_ns)
        self.begin(now_ns, busy_ns)

    def take(self) -> tuple[int, int]:
        """Return the number of late beats and the sum of their delays in ns, and forget them."""
        late, self._late = self._late, (0, 0)
        return late


class BusyClock:
    """Time that this process has worked, or waited for a core that was taken.

    Source: the kernel's Documentation/scheduler/sched-stats.rst, on ``/proc/PID/schedstat``. Without that file, waits
    are unknown.
    """

    def __init__(self) -> None:
        self._descriptor = -1
        with suppress(OSError):
            self._descriptor = os.open("/proc/self/schedstat", os.O_RDONLY | os.O_CLOEXEC)

    def read_ns(self, cpu_ns: int) -> int:
        """Add waits for a core to its CPU time."""
        if self._descriptor < 0:
            return cpu_ns
        try:
            return cpu_ns + int(os.pread(self._descriptor, 100, 0).split()[1])
        except (OSError, ValueError, IndexError):
            return cpu_ns

    def close(self) -> None:
        """Close the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
