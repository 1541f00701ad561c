"""A point in monotonic time by which something must be done."""

from __future__ import annotations

import time
from dataclasses import dataclass


@dataclass(frozen=True)
class Deadline:
    """A point in monotonic time, made with `Deadline.after`.

    Args:
        seconds: The allowance that it was made with.
        end: The point itself, as of ``time.monotonic()``.
    """

    seconds: float
    end: float

    @classmethod
    def after(cls, seconds: float) -> Deadline:
        """Make the deadline that lies this many seconds ahead."""
        return cls(seconds, time.monotonic() + seconds)

    def remaining(self) -> float:
        """Seconds left; 0 when it has passed."""
        return max(0.0, self.end - time.monotonic())

    def allowed(self) -> float:
        """Seconds that one more step may take.

        Raises:
            TimeoutError: It has passed.
        """
        remaining = self.remaining()
        if not remaining:
            raise TimeoutError
        return remaining

    def expired(self) -> bool:
        """Say whether it has passed."""
        return self.remaining() == 0
