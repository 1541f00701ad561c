"""What was asked of a test: what it writes, what a verdict means for it, what it may cost."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Policy:
    """What a verdict means for a test.

    Args:
        record_new: Whether loads without a baseline are recorded.
        record_all: Whether loads with one are recorded too.
        record_sessions: Sessions that a recording takes.
        reason: Why a recording may loosen a metric.
        skip_missing: Whether a missing baseline skips.
        skip_foreign: Whether a baseline that only other hosts recorded skips.
        skip_inconclusive: Whether a verdict that could not be reached skips.
        budget_seconds: Most measuring time of one test.
        foreign_cores: Cores that others may take while we measure, before a change is theirs rather than the build's.
    """

    record_new: bool
    record_all: bool
    record_sessions: int
    reason: str | None
    skip_missing: bool
    skip_foreign: bool
    skip_inconclusive: bool
    budget_seconds: float
    foreign_cores: float
