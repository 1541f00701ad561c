"""Whether the server counted more than the load of a probe: another client's requests, or compilations."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpuserve.experiment.another_client import OTHERS_SHARE
from pytest_gpuserve.experiment.shape import TICK_SECONDS
from pytest_gpuserve.gate.reason import Reason, ReasonKind
from pytest_gpuserve.measure.window import COMPILING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpuserve.experiment.another_client import Reading
    from pytest_gpuserve.experiment.watch import Watch
    from pytest_gpuserve.load.wire import Tick


@dataclass
class CountedLoads:
    """Holds what a server counted from rest to rest against what was sent to it in between.

    At rest, because a server that is given too much may not answer for its counters, and because nothing is under way
    then. What cannot be read is a problem of the watch.

    Args:
        watch: Reads the counters.
    """

    watch: Watch
    _before: Reading | None = None
    _sent: int = 0
    _last_end_seconds: float | None = None
    _unseen_seconds: float = 0.0
    _owed: int = 0

    def begin(self) -> None:
        """A load is over, and what comes now counts."""
        self._before = self.watch.read_counters()
        self._owed = 0

    def load(self) -> None:
        """A load begins."""
        self._sent, self._last_end_seconds, self._unseen_seconds = 0, None, 0.0

    def add(self, ticks: Sequence[Tick]) -> None:
        """Add the ticks that came next, measured or thrown away."""
        self._sent += sum(tick.sent for tick in ticks)
        if ticks:
            self._last_end_seconds = ticks[-1].end_ns / 1e9

    def halt(self) -> None:
        """The load is about to be halted: what it has sent since its last tick nobody reports."""
        last = self._last_end_seconds
        self._unseen_seconds = TICK_SECONDS + (0.0 if last is None else max(0.0, time.perf_counter() - last))

    def doubts(self, rate: float) -> tuple[Reason, ...]:
        """Why what was measured of a load that has come to rest may not be what the server does under it alone.

        Args:
            rate: Requests a second that were due in it.
        """
        before, self._before = self._before, self.watch.read_counters()
        counted = self.watch.counted(before, self._before)
        if counted is None:
            return ()
        found = []
        if counted.requests is not None:
            unseen = rate * self._unseen_seconds
            sent = self._sent + unseen
            # What it was not done with when it was hung up on, it may have answered now.
            allowed = 3 + 3 * math.sqrt(unseen) + self._owed
            if counted.requests > sent * (1 + OTHERS_SHARE) + allowed:
                text = (
                    f"another client: the server answered {counted.requests} requests, we sent it {sent:.0f}; make sure"
                    " that nobody else uses it"
                )
                found.append(Reason(ReasonKind.ANOTHER_CLIENT, text))
            self._owed = max(0, self._owed + self._sent - counted.requests)
        if COMPILING in counted.stages:
            text = (
                f"compiled under load: in {counted.stages[COMPILING].count} executions the model was compiled, for"
                " shapes that it had not seen; let it see them before: load.capacity(..., warmup_seconds=...)"
            )
            found.append(Reason(ReasonKind.COMPILED_UNDER_LOAD, text))
        return tuple(found)
