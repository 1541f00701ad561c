"""Differing answer lengths and known prompts are unlike work: reported if significant, never by chance."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from pytest_gpuserve.measure.streams import Streams
from pytest_gpuserve.measure.work import unknown_work, unlike_work, unsteady_cache
from pytest_gpuserve.verdict.reason import ReasonKind
from tests.support.builders import cached, histogram, streamed, window

if TYPE_CHECKING:
    from pytest_gpuserve.measure.window import Window


def answers(*lengths: int) -> Streams:
    """A window of answers with so many tokens."""
    times = histogram([0.01] * len(lengths))
    return Streams(times, with_usage=len(lengths), usage_tokens=sum(lengths))


def of_a_load(mean: float, source: random.Random, windows: int = 12) -> list[Streams]:
    """Windows of eighty answers, which end at random."""
    return [answers(*(1 + round(source.expovariate(1 / mean)) for _ in range(80))) for _ in range(windows)]


@pytest.mark.parametrize(("tokens", "is_unlike"), [(100, False), (101, False), (102, True), (64, True)])
def test_answers_of_one_length_may_differ_by_a_hundredth(tokens: int, *, is_unlike: bool) -> None:
    """A larger difference is reported with both numbers; too few windows give no result."""
    then = [answers(100, 100), None, *[answers(100)] * 3]
    now = [answers(tokens, tokens), *[answers(tokens)] * 3]
    reason = unlike_work(then, now)
    assert unlike_work(then, now[:3]) is None
    assert (reason is not None) is is_unlike
    if reason is not None:
        assert reason.kind is ReasonKind.UNLIKE_WORK
        assert f"has {tokens} tokens, and 100" in reason.text
    assert unlike_work(then, [None]) is None


def test_answers_without_usage_are_told() -> None:
    """If neither build reports usage for all answers, those with usage are compared; without any it is unknown."""
    mute = streamed(window(), usage=False).streams
    some = [answers(100), Streams(histogram([0.01] * 3), with_usage=2, usage_tokens=128), None]
    reason = unlike_work([*[answers(100)] * 4, mute], [*[answers(64)] * 3, *some[1:]])
    assert reason is not None
    assert reason.kind is ReasonKind.UNLIKE_WORK
    assert unlike_work([*[answers(100)] * 4, mute], [mute] * 4) is None
    for sides, who in ((([answers(100)], some), "1 of 5 answers reported"), (([mute], [mute]), "answers reported")):
        (reason,) = unknown_work(*sides)
        assert (reason.kind, reason.text.startswith(who)) == (ReasonKind.WORK_UNKNOWN, True)
    assert unknown_work([answers(100), None], [None]) == unknown_work((), ()) == ()


@pytest.mark.parametrize("silent", [1, 4])
def test_usage_that_one_side_alone_lacks_makes_it_unknown_work(silent: int) -> None:
    """It holds for either build and for few answers; without streams it does not apply."""
    told = [answers(100)] * 4
    mixed = [*told[silent:], *[Streams(histogram([0.01] * 3))] * silent]
    for sides, who in (((told, mixed), "what is compared with it"), ((mixed, told), "the reference")):
        reason = unlike_work(*sides)
        assert reason is not None
        assert reason.kind is ReasonKind.WORK_UNKNOWN
        assert f"{3 * silent} of {4 + 2 * silent} answers of {who} reported no usage" in reason.text
    assert unlike_work(mixed, mixed) is unlike_work([None], mixed) is unlike_work([], mixed) is None


def test_lengths_that_vary_are_no_other_work() -> None:
    """For random lengths at most one load in 250 is reported; for 40 % longer answers nearly all are."""
    source = random.Random(7)
    for windows in (4, 12):
        pairs = [(of_a_load(100, source, windows), of_a_load(100, source, windows)) for _ in range(500)]
        assert sum(unlike_work(*pair) is not None for pair in pairs) <= 2
    assert sum(unlike_work(then, of_a_load(140, source)) is not None for then, _ in pairs[:100]) >= 95


@pytest.mark.parametrize(
    ("early", "late", "is_told"),
    [
        (cached(0.1, 0.2, 0.1, 0.2), cached(0.9, 0.8, 0.9, 0.9), True),
        # A server that knows no more than before, or hardly more; too few windows, or requests; one that does not tell.
        (cached(0.5, 0.5, 0.5, 0.5), cached(0.54, 0.54, 0.54, 0.54), False),
        (cached(0.1, 0.9, 0.1, 0.2), cached(0.9, 0.1, 0.9, 0.2), False),
        (cached(0.1, 0.1, 0.1), cached(0.9, 0.9, 0.9), False),
        (cached(0.0, 0.0, 0.0, 0.0, requests=2), cached(1.0, 1.0, 1.0, 1.0, requests=2), False),
        ([window()] * 4, cached(0.9, 0.9, 0.9, 0.9), False),
    ],
)
def test_a_cache_that_learns_prompts_under_load_is_told(
    early: list[Window], late: list[Window], *, is_told: bool
) -> None:
    """The report has both shares, in either order; a constant share of any size is fine."""
    reason = unsteady_cache([early, late])
    assert (reason is not None) is (unsteady_cache([late, early]) is not None) is is_told
    if reason is not None:
        assert reason.kind is ReasonKind.UNLIKE_WORK
        assert "15 % of the prompt tokens" in reason.text
        assert "87.5 %" in reason.text
