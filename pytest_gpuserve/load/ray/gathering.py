"""Puts together what workers report of the same time, in whatever order it comes."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import msgspec

from pytest_gpuserve.load.merging import together

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpuserve.load.wire import Tick


class Gathering:
    """The ticks of one load.

    Args:
        names: Of the workers, in the order of their parts; no two are the same.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = tuple(names)
        self._waiting: list[deque[Tick]] = [deque() for _ in names]
        self._next = [0] * len(self._names)
        self._last = [False] * len(self._names)

    @property
    def ended(self) -> bool:
        """Whether all have reported their last tick, and all was taken."""
        return all(self._last) and not any(self._waiting)

    def has_ended(self, part: int) -> bool:
        """Whether this worker has reported its last tick."""
        return self._last[part]

    def add(self, part: int, tick: Tick) -> None:
        """Add the tick that a worker reports next.

        Raises:
            ValueError: One before it is missing, or the load had ended for it.
        """
        name = self._names[part]
        if self._last[part]:
            raise ValueError(f"{name} reports after the end")
        if tick.number != self._next[part]:
            raise ValueError(f"{name} reports tick {tick.number} after {self._next[part] - 1}")
        self._next[part] += 1
        self._last[part] = tick.last
        self._waiting[part].append(tick)

    def take(self) -> list[Tick]:
        """Take the ticks that are complete, oldest first: all workers have reported them, or ended before.

        The last of all of them says that the load has ended.
        """
        complete: list[Tick] = []
        while True:
            # One whose load is shorter takes part no more.
            parts = [part for part, waiting in enumerate(self._waiting) if waiting or not self._last[part]]
            if not parts or not all(self._waiting[part] for part in parts):
                return complete
            ticks = {self._names[part]: self._waiting[part].popleft() for part in parts}
            complete.append(msgspec.structs.replace(together(ticks), last=self.ended))
