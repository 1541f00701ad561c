"""The policy of a test (which verdicts fail, skip or record), and the looks that it is told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from pytest_gpuserve.verdict.verdict import Judgement


@dataclass(frozen=True, slots=True)
class Policy:
    """Which verdicts fail, skip or record.

    Args:
        record_new: Whether loads without a baseline are recorded.
        record_all: Whether loads with one are recorded too.
        record_sessions: Sessions that a recording takes.
        reason: Why a recording may loosen a metric.
        skip_missing: Whether a missing baseline skips.
        skip_inconclusive: Whether a verdict that could not be reached skips.
        budget_seconds: Most measuring time of one test.
        foreign_cores: Cores that others may take while we measure, before a change is theirs rather than the build's.
        stored_only: Whether nothing is measured side by side with the base commit.
        one_at_a_time: Whether two servers of the test do not fit into memory together.
        named: Metrics to which a marker of the test gives a tolerance.
    """

    record_new: bool
    record_all: bool
    record_sessions: int
    reason: str | None
    skip_missing: bool
    skip_inconclusive: bool
    budget_seconds: float
    foreign_cores: float
    stored_only: bool
    one_at_a_time: bool
    named: frozenset[str]


@dataclass(frozen=True, slots=True)
class Look:
    """A look that is about to be taken.

    Args:
        unit: The unit that is measured next.
        number: Which, from 1.
        most: How many there are at most.
        judgement: The last look's judgement of the metric that is being decided; None before the first look.
        left_seconds: Rest of the test's budget before this look; None without a budget, as for a recording.
    """

    unit: Literal["session", "round"]
    number: int
    most: int
    judgement: Judgement | None = None
    left_seconds: float | None = None

    def __str__(self) -> str:
        """``round 2 of 8``."""
        return f"{self.unit} {self.number} of {max(self.number, self.most)}"


def ignore_look(look: Look) -> None:
    """Ignore the look."""


class WaitsForStart(BaseException):
    """A comparison is not decided, and goes on when the servers are started again, for other tests too.

    It ends the test's function, which then runs once more; no ``except Exception`` of the test is meant to stop it.
    """


def waits_for_nobody() -> bool:
    """Where no other test shares the servers, each comparison is decided at once."""
    return False
