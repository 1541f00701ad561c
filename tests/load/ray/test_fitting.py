"""Answers of many workers fit into one message, and large ones are checked all the same."""

from __future__ import annotations

from typing import Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuserve.load.engine.tick_counters import DISTINCT_ANSWER_BYTES, LARGEST_ANSWER_BYTES
from pytest_gpuserve.load.ray.placing import MOST_BYTES, fitted
from pytest_gpuserve.load.wire import MAX_MESSAGE_BYTES, AnswerCount, Plan, Tick
from tests.fakes.http_server import plan


def of_part(part: int, parts: int, keep_answers: Literal["all", "some", "none"] = "some") -> Plan:
    """The plan of a worker."""
    return msgspec.structs.replace(plan(1), part=part, parts=parts, keep_answers=keep_answers)


def tick(number: int, *sizes: int) -> Tick:
    """A tick with answers of so many bytes, the first of which came once, the second twice, and so on."""
    answers = [AnswerCount(0, bytes(size), count, 0) for count, size in enumerate(sizes, 1)]
    return Tick(number, 0, 1, requests=sum(answer.count for answer in answers) + 3, answers=answers, unchecked=3)


def size(told: Tick) -> int:
    """Bytes of its answers."""
    return sum(len(answer.body) for answer in told.answers)


@pytest.mark.parametrize("parts", [2, 8, 256])
def test_the_largest_answers_of_all_workers_fit_into_a_message(parts: int) -> None:
    """One of the largest size, and small ones, in every tick; each worker's large ones are told when it is its turn."""
    full = tick(0, LARGEST_ANSWER_BYTES, *[DISTINCT_ANSWER_BYTES // 64] * 64)
    for number in (0, 1, parts - 1, parts):
        told = [fitted(msgspec.structs.replace(full, number=number), of_part(part, parts)) for part in range(parts)]
        assert sum(map(size, told)) <= MOST_BYTES + size(full) < 0.7 * MAX_MESSAGE_BYTES
        told = [fitted(tick(number, LARGEST_ANSWER_BYTES), of_part(part, parts)) for part in range(parts)]
        assert parts == 2 or [part for part, each in enumerate(told) if each.answers] == [number % parts]


@given(st.integers(0, 9), st.lists(st.integers(0, 3 * MOST_BYTES // 64), max_size=6))
def test_no_answer_is_lost(number: int, sizes: list[int]) -> None:
    """Each is told, or counted as unchecked; what fits is told, whatever comes before it."""
    asked = tick(number, *sizes)
    told = fitted(asked, of_part(3, 64))
    assert sum(answer.count for answer in told.answers) + told.unchecked == told.requests == asked.requests
    left_out = [answer for answer in asked.answers if answer not in told.answers]
    if number != 3:
        assert all(size(told) + len(answer.body) > MOST_BYTES // 64 for answer in left_out)
    else:
        assert not left_out


@pytest.mark.parametrize("keep_answers", ["all", "none"])
def test_where_all_are_to_be_checked_none_is_left_out(keep_answers: Literal["all", "none"]) -> None:
    """That they do not fit is an error then, and not fewer checks."""
    full = tick(1, LARGEST_ANSWER_BYTES, LARGEST_ANSWER_BYTES)
    assert fitted(full, of_part(0, 8, keep_answers)) is full
