"""Reasons of a verdict, and reasons not to believe a measurement, as values.

Programs decide by the kind and its fields. The text is for people: it is written where its numbers are known, and no
program reads it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum


class ReasonKind(str, Enum):
    """Subject of a reason; the page ``reference/reasons.md`` has an anchor for each."""

    # The client.
    CLIENT_SATURATED = "client-saturated"
    CLIENT_LATE = "client-late"
    CLIENT_HELD_UP = "client-held-up"
    RATE_NOT_REACHED = "rate-not-reached"
    LOAD_LOST = "load-lost"
    INTERRUPTED = "interrupted"
    # The server.
    SERVER_FAILED = "server-failed"
    REQUEST_ERRORS = "request-errors"
    WRONG_ANSWERS = "wrong-answers"
    ANSWERS_UNCHECKED = "answers-unchecked"
    COUNTERS_WENT_BACK = "counters-went-back"
    COMPILED_UNDER_LOAD = "compiled-under-load"
    OVERLOADED = "overloaded"
    # The measured time.
    NOTHING_MEASURED = "nothing-measured"
    STUCK_REQUESTS = "stuck-requests"
    NO_STEADY_STATE = "no-steady-state"
    TOO_SHORT = "too-short"
    TOO_FEW_REQUESTS = "too-few-requests"
    NOT_MEASURED = "not-measured"
    # The host and the GPUs.
    HOST_SHARED = "host-shared"
    THROTTLED = "throttled"
    FOREIGN_PROCESS = "foreign-process"
    GPU_UNUSED = "gpu-unused"
    GPU_UNKNOWN = "gpu-unknown"
    GPU_ERROR = "gpu-error"
    MEMORY_NOT_GIVEN_BACK = "memory-not-given-back"
    # The evidence.
    WITHIN_TOLERANCE = "within-tolerance"
    UNDECIDED = "undecided"
    ONE_START = "one-start"
    NOT_LOOKED_AT = "not-looked-at"
    LOOKED_BEFORE = "looked-before"
    LAST_LOOK = "last-look"
    BUDGET_SPENT = "budget-spent"
    KEPT = "kept"
    # The reference of the comparison.
    NO_ENTRY = "no-entry"
    NOT_COMPARABLE = "not-comparable"
    UNLIKE_WORK = "unlike-work"
    UNLIKE_ANSWERS = "unlike-answers"
    WORK_UNKNOWN = "work-unknown"
    NOT_SCREENED = "not-screened"
    STORED_ALONE = "stored-alone"
    SIDE_BY_SIDE = "side-by-side"
    NOT_SIDE_BY_SIDE = "not-side-by-side"
    COMMIT_UNKNOWN = "commit-unknown"
    NOT_COMMITTED = "not-committed"
    OUTSIDE_GIT = "outside-git"
    SHARED_CHANGES = "shared-changes"
    RECORDING = "recording"
    NEEDS_REASON = "needs-reason"
    REMARK = "remark"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, slots=True)
class Reason:
    """One reason.

    Args:
        kind: Its subject.
        text: The same with its numbers, for people; usually one line.
        about: Which of several subjects of the kind: a GPU, an error of a GPU, a server, or the baseline file whose
            entry cannot be compared. Empty for the candidate. Two reasons of one kind about one subject are the same
            problem, with any numbers.
        seconds: The budget that was too small; None for other kinds.
    """

    kind: ReasonKind
    text: str
    about: str = ""
    seconds: float | None = None

    def __str__(self) -> str:
        return self.text

    def of(self, whose: str) -> Reason:
        """This reason, attributed to one of several: ``the base: ...``."""
        return replace(self, text=f"{whose}: {self.text}", about=f"{whose} {self.about}".strip())

    def with_text(self, text: str) -> Reason:
        """This reason in other words."""
        return replace(self, text=text)
