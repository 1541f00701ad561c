"""What is about to be measured of a test, for whoever watches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from pytest_gpuserve.gate.verdict import Judgement


@dataclass(frozen=True, slots=True)
class Look:
    """A look that is about to be taken.

    Args:
        unit: What is measured for it.
        number: Which, from 1.
        most: How many there are at most.
        judgement: What the last look said of the metric that is being decided; None before there was one.
        left_seconds: Of the test's budget, before it; None where there is none, as for a recording.
    """

    unit: Literal["session", "round"]
    number: int
    most: int
    judgement: Judgement | None = None
    left_seconds: float | None = None

    def __str__(self) -> str:
        """``round 2 of 8``."""
        return f"{self.unit} {self.number} of {max(self.number, self.most)}"


def unwatched(look: Look) -> None:
    """Where nobody watches."""
