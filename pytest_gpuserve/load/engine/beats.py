"""When an engine did not run though it had something to do: it was stopped, or its core was somebody else's.

That shows in no lag: an answer that came meanwhile counts as come when the engine sees it. So it looks at the clock at
regular beats, and those that come late tell for how long it did not run.
"""

from __future__ import annotations

from typing import Final

from pytest_gpuserve.load.wire import BEAT_NS

ON_TIME_NS: Final = 1_000_000
"""A beat is late beyond this: timers are some 0.1 ms late on any host, and another's turn on a core may be as short."""


class Beats:
    """Beats, one each ``BEAT_NS``, of which the late ones are noted.

    Attributes:
        next_ns: When the next one is due.
        late: Of those that were late when they were due, and by how much, in ns; the oldest first.
    """

    def __init__(self) -> None:
        self.next_ns = 0
        self.late: list[tuple[int, int]] = []
        self._cpu_ns = 0

    def begin(self, now_ns: int, cpu_ns: int) -> None:
        """Begin now, at this CPU time of the process."""
        self.next_ns, self._cpu_ns = now_ns + BEAT_NS, cpu_ns

    def look(self, now_ns: int, cpu_ns: int) -> None:
        """Note the beats that were due and did not come, and begin anew; nothing where none was due.

        What the engine worked since the last beat is no lateness: who works that long is busy, and not held up.
        """
        if now_ns < self.next_ns:
            return
        late_ns = now_ns - self.next_ns - (cpu_ns - self._cpu_ns)
        self.late += [(now_ns - by_ns, by_ns) for by_ns in range(late_ns, ON_TIME_NS, -BEAT_NS)]
        self.begin(now_ns, cpu_ns)

    def take(self) -> list[tuple[int, int]]:
        """Hand out those that were late."""
        late, self.late = self.late, []
        return late
