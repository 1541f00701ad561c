"""Answers are compared with what their own request expects, and one that was given to another is recognised."""

from __future__ import annotations

from collections import Counter

import pytest

from pytest_gpuserve.load.answers import AnswerCheck
from pytest_gpuserve.load.tick import AnswerCount, Tick
from pytest_gpuserve.verdict.reason import ReasonKind


def tick(*answers: AnswerCount, requests: int | None = None) -> Tick:
    """A tick with these answers; more requests if some were not passed on."""
    count = sum(answer.count for answer in answers)
    return Tick(0, 0, 1, requests=count if requests is None else requests, answers=list(answers))


def told(check: AnswerCheck) -> str:
    """Text of the one reason."""
    (reason,) = check.reasons()
    return reason.text


class Calls:
    """An expectation that counts its calls for each body."""

    def __init__(self, right: bytes) -> None:
        self.right = right
        self.bodies: Counter[bytes] = Counter()

    def __call__(self, body: bytes) -> bool:
        """Say whether it is the right one."""
        self.bodies[body] += 1
        return body == self.right


def test_a_wrong_answer_is_told_with_its_request() -> None:
    """The report has the count, the first request, the payload and the expectation; kept back answers do not count."""
    check = AnswerCheck([b"one", b"two"])
    right, wrong, first = AnswerCount(0, b"one", 5, 0), AnswerCount(1, b"2", 3, 7), AnswerCount(0, b"1", 1, 3)
    check.check(tick(right, AnswerCount(1, b"two", 4, 1), requests=15))
    assert (check.answers, check.checked, check.wrong, check.mixed_up) == (15, 9, 0, 0)
    check.check(tick(right, wrong, first))
    assert told(check) == "wrong answers: 4 of 18 checked; the first: request 3 (payload 0): expected b'one', got b'1'"
    assert (check.answers, check.checked, check.wrong, check.mixed_up) == (24, 18, 4, 0)


def test_mixed_up_answers_are_recognised() -> None:
    """An answer may be wrong for its own payload and right for another's; without an expectation it is not checked."""
    check = AnswerCheck([None, b"one", b"two", lambda body: body.startswith(b"three")])
    check.check(
        tick(
            AnswerCount(3, b"one", 1, 11),
            AnswerCount(1, b"three!", 2, 10),
            AnswerCount(0, b"x", 4, 1),
            AnswerCount(2, b"x", 1, 12),
        )
    )
    assert (check.answers, check.checked, check.wrong, check.mixed_up) == (8, 4, 4, 3)
    assert told(check) == (
        "wrong answers: 4 of 4 checked, 3 of them right for another request;"
        " the first: request 10 (payload 1): the answer to payload 3: answers are mixed up"
    )
    # Expectations may overlap; only a wrong answer is looked for elsewhere.
    overlapping = AnswerCheck([bool, b"two"])
    overlapping.check(tick(AnswerCount(0, b"two", 1, 0)))
    assert not overlapping.wrong


def test_a_check_that_raises_says_what() -> None:
    """A user's function may raise any error, which is a refusal, also for another's answer."""

    def broken(body: bytes) -> bool:
        raise KeyError("label")

    check = AnswerCheck([b"one", broken])
    check.check(tick(AnswerCount(1, b"1", 1, 1), AnswerCount(0, b"1", 1, 2)))
    assert check.wrong == 2
    assert told(check).endswith("request 1 (payload 1): KeyError: 'label' for answer b'1'")


def test_a_repeated_answer_is_checked_once_for_each_expectation() -> None:
    """An answer is remembered over ticks, and over payloads that share a function or expect equal bytes."""
    right, other = Calls(b"right"), Calls(b"other")
    check = AnswerCheck([right, other, right, b"one", bytes(bytearray(b"one"))])
    for _ in range(3):
        check.check(
            tick(AnswerCount(0, b"right", 1, 0), AnswerCount(2, b"right", 1, 1), AnswerCount(2, b"wrong", 1, 2))
        )
    assert right.bodies == {b"right": 1, b"wrong": 1}
    assert other.bodies == {b"wrong": 1}
    assert (check.answers, check.wrong) == (9, 3)
    check.check(tick(AnswerCount(4, b"right", 1, 3)))
    assert check.mixed_up == 1, "what is right for one expectation is not so for another"


@pytest.mark.parametrize(
    ("expected", "checked", "wants_all", "found"),
    [
        ([b"A", b"B"], 0, False, [ReasonKind.ANSWERS_UNCHECKED]),
        ([b"A", b"B"], 9, False, []),
        ([b"A", b"B"], 9, True, [ReasonKind.ANSWERS_UNCHECKED]),
        ([None, None], 0, False, []),
    ],
)
def test_answers_that_could_not_be_checked_are_not_a_pass(
    expected: list[bytes | None], checked: int, found: list[ReasonKind], *, wants_all: bool
) -> None:
    """With an expectation and no comparison the load fails; some comparisons are enough unless all were requested."""
    check = AnswerCheck(expected, wants_all=wants_all)
    answers = [AnswerCount(0, b"A", checked, 0)] if checked else []
    check.check(Tick(0, 0, 1, requests=10, unchecked=10 - checked, answers=answers))
    reasons = check.reasons()
    assert [reason.kind for reason in reasons] == found
    if found:
        assert f"{10 - checked} of 10 answers could not be checked" in reasons[0].text
