"""Answers of another length are another work: told where it is shown, and never for chance."""

from __future__ import annotations

import random

import pytest

from pytest_gpuserve.gate.reason import ReasonKind
from pytest_gpuserve.measure.streams import Streams, unlike_work
from tests.support.builders import histogram, streamed, window


def answers(*lengths: int) -> Streams:
    """A window of answers with so many tokens."""
    times = histogram([0.01] * len(lengths))
    return Streams(times, with_usage=len(lengths), usage_tokens=sum(lengths))


def of_a_load(mean: float, source: random.Random, windows: int = 12) -> list[Streams]:
    """Windows of eighty answers, which end at random."""
    return [answers(*(1 + round(source.expovariate(1 / mean)) for _ in range(80))) for _ in range(windows)]


@pytest.mark.parametrize(("tokens", "is_unlike"), [(100, False), (101, False), (102, True), (64, True)])
def test_answers_of_one_length_may_differ_by_a_hundredth(tokens: int, *, is_unlike: bool) -> None:
    """Beyond that it is told, with both numbers; of too few windows, or without all tokens, nothing is known."""
    then = [answers(100, 100), None, *[answers(100)] * 3]
    now = [answers(tokens, tokens), *[answers(tokens)] * 3]
    reason = unlike_work(then, now)
    assert unlike_work(then, now[:3]) is None
    assert (reason is not None) is is_unlike
    if reason is not None:
        assert reason.kind is ReasonKind.UNLIKE_WORK
        assert f"has {tokens} tokens, and 100" in reason.text
    assert unlike_work(then, [streamed(window(), tokens=tokens, usage=False).streams]) is None
    assert unlike_work(then, [None]) is None


def test_lengths_that_vary_are_no_other_work() -> None:
    """Of answers that end at random one load in 250 at most is told; of those that are 40 % longer nearly all are."""
    source = random.Random(7)
    for windows in (4, 12):
        pairs = [(of_a_load(100, source, windows), of_a_load(100, source, windows)) for _ in range(500)]
        assert sum(unlike_work(*pair) is not None for pair in pairs) <= 2
    assert sum(unlike_work(then, of_a_load(140, source)) is not None for then, _ in pairs[:100]) >= 95
