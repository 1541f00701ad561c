"""Compares answers with the expected ones, and recognises answers to the wrong request."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final, NamedTuple

from pytest_gpuserve.load.request import Expect, check_answer
from pytest_gpuserve.verdict.reason import Reason, ReasonKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pytest_gpuserve.measure.window import Window

REMEMBERED_ANSWERS: Final = 4096
"""Number of distinct answers whose check is remembered, so that repeated answers cost nothing."""

REMEMBERED_BYTES: Final = 1 << 24
"""Most bytes of their bodies, together."""


class _Fault(NamedTuple):
    """Fault of an answer, in one line, and whether it is the answer to another payload."""

    text: str
    mixed_up: bool


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
        self._known: dict[tuple[int, bytes], _Fault | None] = {}
        self._known_bytes = 0
        self.answers = 0
        self.checked = 0
        self.unchecked = 0
        self.wrong = 0
        self.mixed_up = 0
        self._first = (sys.maxsize, "")

    def check(self, tick: Window) -> None:
        """Compare a tick's answers."""
        self.answers += tick.requests
        self.unchecked += tick.unchecked
        for answer in tick.answers:
            if self._expects[answer.index] is None:
                continue
            self.checked += answer.count
            fault = self._fault(answer.index, answer.body)
            if fault is not None:
                self.wrong += answer.count
                self.mixed_up += answer.count if fault.mixed_up else 0
                told = f"request {answer.number} (payload {answer.index}): {fault.text}"
                self._first = min(self._first, (answer.number, told))

    def reasons(self) -> list[Reason]:
        """Return reasons why the answers make the load invalid."""
        if self.wrong:
            mixed_up = f", {self.mixed_up} of them right for another request" if self.mixed_up else ""
            text = f"wrong answers: {self.wrong} of {self.checked} checked{mixed_up}; the first: {self._first[1]}"
            return [Reason(ReasonKind.WRONG_ANSWERS, text)]
        missed = self.unchecked if self.wants_all else self.answers if not self.checked else 0
        if missed and any(expect is not None for expect in self._expects):
            text = (
                f"{missed} of {self.answers} answers could not be checked: they exceed the size or number that the"
                " engine passes on"
            )
            return [Reason(ReasonKind.ANSWERS_UNCHECKED, text)]
        return []

    def _fault(self, index: int, body: bytes) -> _Fault | None:
        alike = self._first_alike[index]
        key = (alike, body)
        if key not in self._known:
            if len(self._known) >= REMEMBERED_ANSWERS or self._known_bytes + len(body) > REMEMBERED_BYTES:
                self._known.clear()
                self._known_bytes = 0
            self._known[key] = self._examined(alike, body)
            self._known_bytes += len(body)
        return self._known[key]

    def _examined(self, alike: int, body: bytes) -> _Fault | None:
        text = check_answer(self._expects[alike], body)
        if text is None:
            return None
        other = self._belongs_to(alike, body)
        if other is None:
            return _Fault(text, mixed_up=False)
        return _Fault(f"the answer to payload {other}: answers are mixed up", mixed_up=True)

    def _belongs_to(self, alike: int, body: bytes) -> int | None:
        for index, first in enumerate(self._first_alike):
            # Each different expectation once; payloads without one are not recognised.
            expect = self._expects[index] if index == first != alike else None
            if expect is not None and check_answer(expect, body) is None:
                return index
        return None


def _first_alike(expects: Sequence[Expect | None]) -> tuple[int, ...]:
    """For each payload the first one with the same expectation: equal bytes, or the same function."""
    firsts: dict[object, int] = {}
    return tuple(
        firsts.setdefault(expect if isinstance(expect, bytes) else id(expect), index)
        for index, expect in enumerate(expects)
    )
