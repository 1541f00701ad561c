"""A point in monotonic time, as a limit."""

from __future__ import annotations

import time
from dataclasses import dataclass


@dataclass(frozen=True)
class Deadline:
    """A point in monotonic time, made with `Deadline.after`.

    Args:
        seconds: Its original allowance.
        end: The point by ``time.monotonic()``.
    """

    seconds: float
    end: float

    @classmethod
    def after(cls, seconds: float) -> Deadline:
        """Make the deadline this many seconds from now."""
        return cls(seconds, time.monotonic() + seconds)

    def remaining(self) -> float:
        """Seconds left; 0 after it."""
        return max(0.0, self.end - time.monotonic())

    def allowed(self) -> float:
        """Seconds that one more step may take.

        Raises:
            TimeoutError: The deadline has passed.
        """
        remaining = self.remaining()
        if not remaining:
            raise TimeoutError
        return remaining

    def expired(self) -> bool:
        """Whether it has passed."""
        return self.remaining() == 0
