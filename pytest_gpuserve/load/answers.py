"""Compares answers with the expected ones, and recognises answers to the wrong request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from pytest_gpuserve.load.request import Expect, check_answer
from pytest_gpuserve.verdict.reason import Reason, ReasonKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pytest_gpuserve.load.tick import Tick

REMEMBERED_ANSWERS: Final = 4096
"""Number of distinct answers whose check is remembered, so that repeated answers cost nothing."""

REMEMBERED_BYTES: Final = 1 << 24
"""Most bytes of their bodies, together."""


@dataclass(frozen=True, slots=True)
class Complaint:
    """A wrong answer.

    Args:
        count: Number of occurrences.
        number: The load's first request with this answer.
        index: The payload of that request.
        text: Description of the fault, in one line.
        mixed_up: Whether it is the answer to another payload.
    """

    count: int
    number: int
    index: int
    text: str
    mixed_up: bool = False

    def __str__(self) -> str:
        return f"request {self.number} (payload {self.index}): {self.text}"


class _Finding(NamedTuple):
    """Fault of an answer, and the payload that it would be right for, if any."""

    text: str
    belongs_to: int | None


class AnswerCheck:
    """Checks the answers of one load.

    Args:
        expects: Expected answer of each payload. Payloads with the same expectation cannot be mixed up. A function is
            also called with the wrong answers to other payloads, which it should refuse.
        wants_all: Whether every answer must be compared.

    Attributes:
        answers: Number of good answers.
        checked: Number of compared ones; the rest were not passed on by the engine, or have no expectation.
        unchecked: Number of answers that the engine did not pass on.
        wrong: Number of wrong answers.
        mixed_up: Number of wrong answers that are right for another payload.
    """

    def __init__(self, expects: Iterable[Expect | None], *, wants_all: bool = False) -> None:
        self._expects = tuple(expects)
        self.wants_all = wants_all
        self._first_alike = _first_alike(self._expects)
        self._known: dict[tuple[int, bytes], _Finding | None] = {}
        self._known_bytes = 0
        self.answers = 0
        self.checked = 0
        self.unchecked = 0
        self.wrong = 0
        self.mixed_up = 0

    @property
    def expects_something(self) -> bool:
        """Whether any payload has an expected answer."""
        return any(expect is not None for expect in self._expects)

    def check(self, tick: Tick) -> tuple[Complaint, ...]:
        """Return the faults of a tick's answers, in the order of the requests; each distinct one once."""
        self.answers += tick.requests
        self.unchecked += tick.unchecked
        complaints = []
        for answer in tick.answers:
            if self._expects[answer.index] is None:
                continue
            self.checked += answer.count
            finding = self._finding(answer.index, answer.body)
            if finding is None:
                continue
            mixed_up = finding.belongs_to is not None
            self.wrong += answer.count
            self.mixed_up += answer.count if mixed_up else 0
            text = (
                f"the answer to payload {finding.belongs_to}, not to payload {answer.index}: answers are mixed up"
                if mixed_up
                else finding.text
            )
            complaints.append(Complaint(answer.count, answer.number, answer.index, text, mixed_up))
        return tuple(sorted(complaints, key=lambda complaint: complaint.number))

    def _finding(self, index: int, body: bytes) -> _Finding | None:
        alike = self._first_alike[index]
        key = (alike, body)
        if key not in self._known:
            if len(self._known) >= REMEMBERED_ANSWERS or self._known_bytes + len(body) > REMEMBERED_BYTES:
                self._known.clear()
                self._known_bytes = 0
            self._known[key] = self._examined(alike, body)
            self._known_bytes += len(body)
        return self._known[key]

    def _examined(self, alike: int, body: bytes) -> _Finding | None:
        text = check_answer(self._expects[alike], body)
        return None if text is None else _Finding(text, self._belongs_to(alike, body))

    def _belongs_to(self, alike: int, body: bytes) -> int | None:
        for index, first in enumerate(self._first_alike):
            # Each different expectation once; payloads without one are not recognised.
            expect = self._expects[index] if index == first != alike else None
            if expect is not None and check_answer(expect, body) is None:
                return index
        return None


def answer_reasons(check: AnswerCheck, complaints: Sequence[Complaint]) -> list[Reason]:
    """Return reasons why a load's answers make it invalid."""
    if check.wrong:
        mixed_up = f", {check.mixed_up} of them right for another request" if check.mixed_up else ""
        return [
            Reason(
                ReasonKind.WRONG_ANSWERS,
                f"wrong answers: {check.wrong} of {check.checked} checked{mixed_up}; the first: {complaints[0]}",
            )
        ]
    missed = check.unchecked if check.wants_all else check.answers if not check.checked else 0
    if check.expects_something and missed:
        return [
            Reason(
                ReasonKind.ANSWERS_UNCHECKED,
                f"{missed} of {check.answers} answers could not be checked: they exceed the size or number that the"
                " engine passes on",
            )
        ]
    return []


def _first_alike(expects: Sequence[Expect | None]) -> tuple[int, ...]:
    """For each payload the first one with the same expectation: equal bytes, or the same function."""
    firsts: dict[object, int] = {}
    return tuple(
        firsts.setdefault(expect if isinstance(expect, bytes) else id(expect), index)
        for index, expect in enumerate(expects)
    )
