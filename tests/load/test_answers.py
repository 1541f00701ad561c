"""Answers are compared with what their own request expects, and one that was given to another is recognised."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from pytest_gpuserve.load import answers as module
from pytest_gpuserve.load.answers import AnswerCheck, Complaint
from pytest_gpuserve.load.wire import Answers, Tick

if TYPE_CHECKING:
    import pytest


def tick(*answers: Answers, requests: int | None = None) -> Tick:
    """A tick in which these answers came; more requests where some were not passed on."""
    count = sum(answer.count for answer in answers)
    return Tick(0, 0, 1, requests=count if requests is None else requests, answers=list(answers))


class Calls:
    """An expectation that counts how often each body was asked about."""

    def __init__(self, right: bytes) -> None:
        self.right = right
        self.bodies: Counter[bytes] = Counter()

    def __call__(self, body: bytes) -> bool:
        """Say whether it is the right one."""
        self.bodies[body] += 1
        return body == self.right


def test_right_answers_are_counted_and_nothing_is_said() -> None:
    """Of each payload its own answer is right."""
    check = AnswerCheck([b"one", b"two"])
    assert check.check(tick(Answers(0, b"one", 5, 0), Answers(1, b"two", 4, 1))) == ()
    assert (check.answers, check.checked, check.wrong, check.mixed_up) == (9, 9, 0, 0)


def test_a_wrong_answer_is_told_with_its_request() -> None:
    """How often it came, the first request that it came to, that request's payload, and what was expected."""
    check = AnswerCheck([b"one", b"two"])
    (complaint,) = check.check(tick(Answers(0, b"one", 5, 0), Answers(1, b"2", 3, 7)))
    assert complaint == Complaint(3, 7, 1, "expected b'two', got b'2'")
    assert str(complaint) == "request 7 (payload 1): expected b'two', got b'2'"
    assert (check.answers, check.checked, check.wrong, check.mixed_up) == (8, 8, 3, 0)


def test_complaints_come_in_the_order_of_the_requests() -> None:
    """The first is that of the first request, whatever the order in which the engine reports."""
    check = AnswerCheck([b"one"])
    found = check.check(tick(Answers(0, b"x", 1, 9), Answers(0, b"y", 1, 3), Answers(0, b"z", 1, 6)))
    assert [complaint.number for complaint in found] == [3, 6, 9]


def test_mixed_up_answers_are_recognised() -> None:
    """An answer that is wrong for its own payload and right for another one went to the wrong request."""
    check = AnswerCheck([b"zero", b"one", b"two", lambda body: body.startswith(b"three")])
    first, second = check.check(tick(Answers(1, b"three!", 2, 10), Answers(3, b"one", 1, 11)))
    assert first == Complaint(
        2, 10, 1, "the answer to payload 3, not to payload 1: answers are mixed up", mixed_up=True
    )
    assert second == Complaint(
        1, 11, 3, "the answer to payload 1, not to payload 3: answers are mixed up", mixed_up=True
    )
    assert (check.wrong, check.mixed_up) == (3, 3)


def test_of_payloads_that_expect_the_same_none_is_mixed_up() -> None:
    """Equal bytes and one function shared by all are one expectation: its wrong answer is only wrong."""
    calls = Calls(b"right")
    check = AnswerCheck([calls, b"alike", calls, bytes(bytearray(b"alike")), calls])
    (first, second) = check.check(tick(Answers(0, b"wrong", 1, 0), Answers(3, b"x", 1, 1)))
    assert not first.mixed_up
    assert not second.mixed_up
    # Of the shared ones the first that it could belong to is named.
    (mixed,) = check.check(tick(Answers(4, b"alike", 1, 2)))
    assert mixed.text == "the answer to payload 1, not to payload 4: answers are mixed up"


def test_an_answer_right_for_its_own_payload_is_right_whoever_else_would_take_it() -> None:
    """Expectations may overlap; only a wrong answer is looked for elsewhere."""
    check = AnswerCheck([bool, b"two"])
    assert check.check(tick(Answers(0, b"two", 1, 0))) == ()


def test_what_expects_nothing_is_neither_checked_nor_recognised() -> None:
    """A payload without an expectation takes every answer, and none is called its own."""
    check = AnswerCheck([None, b"one"])
    (complaint,) = check.check(tick(Answers(0, b"anything", 4, 0), Answers(1, b"anything", 2, 5)))
    assert complaint == Complaint(2, 5, 1, "expected b'one', got b'anything'")
    assert (check.answers, check.checked, check.wrong) == (6, 2, 2)


def test_answers_that_were_not_passed_on_are_not_checked() -> None:
    """They count as answers, and not as compared."""
    check = AnswerCheck([b"one"])
    check.check(tick(Answers(0, b"one", 2, 0), requests=10))
    check.check(tick(requests=5))
    assert (check.answers, check.checked) == (15, 2)


def test_a_check_that_raises_says_what() -> None:
    """A function of the user's may raise anything; that is its no, also when it is asked about another's answer."""

    def broken(body: bytes) -> bool:
        raise KeyError("label")

    check = AnswerCheck([b"one", broken])
    first, second = check.check(tick(Answers(0, b"1", 1, 0), Answers(1, b"1", 1, 1)))
    assert first.text == "expected b'one', got b'1'"
    assert second.text == "KeyError: 'label' for answer b'1'"


def test_a_repeated_answer_is_checked_once() -> None:
    """The check of the same body for the same expectation is remembered, right or wrong, over ticks and payloads."""
    right, other = Calls(b"right"), Calls(b"other")
    check = AnswerCheck([right, other, right])
    for _ in range(3):
        check.check(tick(Answers(0, b"right", 1, 0), Answers(2, b"right", 1, 1), Answers(2, b"wrong", 1, 2)))
    assert right.bodies == {b"right": 1, b"wrong": 1}
    assert other.bodies == {b"wrong": 1}
    assert (check.answers, check.wrong) == (9, 3)


def test_payloads_that_expect_the_same_share_what_is_remembered() -> None:
    """Whoever it could belong to, each different expectation is asked once: one function, or equal bytes, are one."""
    shared = Calls(b"right")
    check = AnswerCheck([b"one", shared, shared, bytes(bytearray(b"one"))])
    check.check(tick(Answers(0, b"wrong", 1, 0), Answers(3, b"wrong", 1, 1)))
    assert shared.bodies == {b"wrong": 1}
    assert len(check._known) == 1


def test_the_same_body_is_another_answer_to_another_payload() -> None:
    """What is remembered for one expectation is not taken for the verdict of another."""
    check = AnswerCheck([b"one", b"two"])
    assert check.check(tick(Answers(0, b"one", 1, 0))) == ()
    (complaint,) = check.check(tick(Answers(1, b"one", 1, 1)))
    assert complaint.mixed_up


def test_memory_of_checks_is_bounded_in_number() -> None:
    """Answers that all differ are forgotten after 4096, and then checked anew."""
    calls = Calls(b"")
    check = AnswerCheck([calls])
    for number in range(3 * module.REMEMBERED_ANSWERS):
        check.check(tick(Answers(0, b"%d" % number, 1, number)))
        assert len(check._known) <= module.REMEMBERED_ANSWERS
    assert check.wrong == 3 * module.REMEMBERED_ANSWERS
    check.check(tick(Answers(0, b"0", 1, 0)))
    assert calls.bodies[b"0"] == 2


def test_memory_of_checks_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few large answers are as much as many small ones, and one that is larger than all is still checked."""
    monkeypatch.setattr(module, "REMEMBERED_BYTES", 1000)
    check = AnswerCheck([b"right"])
    for number in range(50):
        check.check(tick(Answers(0, bytes([number]) * 300, 1, number)))
        assert sum(len(body) for _, body in check._known) <= 1000
    check.check(tick(Answers(0, bytes(5000), 1, 50)))
    assert check.wrong == 51
    check.check(tick(Answers(0, b"right", 1, 51)))
    assert (check.wrong, check.checked) == (51, 52)
    assert len(check._known) == 1
