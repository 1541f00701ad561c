"""How closely a run looks: one setting that scales the tolerances of all its gates, and the time that they may take.

Time goes with the square of what must be told apart, so a run on each push that is to take minutes looks for less than
one of a night. Numbers that a test writes down (limits, published numbers, ratios of a duel) mean the same at each.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_gpuserve.gate.metric import Metric


class Effort(Enum):
    """Of a run. The value is the word by which it is asked for."""

    PUSH = "push"
    MERGE = "merge"
    NIGHTLY = "nightly"

    def __str__(self) -> str:
        """``effort push (tolerances times 2)``; empty of a merge, which takes tests at their word."""
        return "" if self is Effort.MERGE else f"effort {self.value} (tolerances times {self._tolerance_factor:g})"

    @property
    def budget_factor(self) -> float:
        """How many times the measuring time of a test it wants."""
        return 4.0 if self is Effort.NIGHTLY else 1.0

    def tolerance(self, metric: Metric, stated: float) -> float:
        """The tolerance that a gate is judged at.

        What may not fall to nothing keeps at least half of what the test leaves of it: of a throughput that may fall by
        a third, or less, twice the tolerance is two thirds, and 60 % become 80 %.

        Args:
            metric: What is gated.
            stated: The tolerance that the test states, or the metric's default.

        Raises:
            ValueError: As for `Metric.check_tolerance`, of the stated one.
        """
        metric.check_tolerance(stated)
        most = (1 + stated) / 2 if metric.higher_is_better else float("inf")
        # To twelve digits, so that 5 % become 2 % and no more digits than that.
        return float(f"{min(stated * self._tolerance_factor, most):.12g}")

    @property
    def _tolerance_factor(self) -> float:
        return {Effort.PUSH: 2.0, Effort.MERGE: 1.0, Effort.NIGHTLY: 0.4}[self]
