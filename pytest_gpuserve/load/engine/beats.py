"""When an engine did not run though a core was free for it: it, or the machine below it, was stopped.

That shows in no lag: an answer that came meanwhile counts as come when the engine sees it. So it looks at the clock at
regular beats, and those that come late tell for how long it did not run.

What it waited for a core is left out. Where others on the host had the core, the share of theirs tells
(`device.cpu`); where the server had it, as on a host of which it uses every core, that is how this server is on
this host, for whichever build of it.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Final

from pytest_gpuserve.load.wire import BEAT_NS

ON_TIME_NS: Final = 1_000_000
"""A beat is late beyond this: timers are some 0.1 ms late on any host, and another's turn on a core may be as short."""

_NEVER_NS: Final = 2**63 - 1


class Beats:
    """Beats, one each ``BEAT_NS``, of which the late ones are noted.

    Attributes:
        next_ns: When the next one is due.
        late: Of those that were late when they were due, and by how much, in ns; the oldest first.
    """

    def __init__(self) -> None:
        # A load may be halted before it begins.
        self.next_ns = _NEVER_NS
        self.late: list[tuple[int, int]] = []
        self._busy_ns = 0

    def begin(self, now_ns: int, busy_ns: int) -> None:
        """Begin now; ``busy_ns`` is the time that the process has worked, or waited for a core."""
        self.next_ns, self._busy_ns = now_ns + BEAT_NS, busy_ns

    def look(self, now_ns: int, busy_ns: int) -> None:
        """Note the beats that were due and did not come, and begin anew; nothing where none was due.

        What the engine worked or waited for a core since the last beat is no lateness.
        """
        if now_ns < self.next_ns:
            return
        late_ns = now_ns - self.next_ns - (busy_ns - self._busy_ns)
        self.late += [(now_ns - by_ns, by_ns) for by_ns in range(late_ns, ON_TIME_NS, -BEAT_NS)]
        self.begin(now_ns, busy_ns)

    def take(self) -> list[tuple[int, int]]:
        """Hand out those that were late."""
        late, self.late = self.late, []
        return late


class BusyClock:
    """How long this process has worked, or waited for a core that something else had.

    Source: the kernel's Documentation/scheduler/sched-stats.rst, on ``/proc/PID/schedstat``; where there is none, only
    what it has worked is known.
    """

    def __init__(self) -> None:
        self._descriptor = -1
        with suppress(OSError):
            self._descriptor = os.open("/proc/self/schedstat", os.O_RDONLY | os.O_CLOEXEC)

    def read_ns(self, cpu_ns: int) -> int:
        """Add to its CPU time what it has waited for a core."""
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
