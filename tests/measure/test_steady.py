"""Unlike windows of a warm-up, and unlike answers and prompts of two builds; rates are counted over series."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuserve.measure.steady import Truncation, mser, truncate
from pytest_gpuserve.measure.window import Streams, Window
from pytest_gpuserve.measure.work import unknown_work, unlike_work, unsteady_cache
from pytest_gpuserve.verdict.reason import ReasonKind
from tests.fakes.simulated import chance
from tests.support.builders import cached, histogram, streamed, window

SERIES = 400
RATES = st.lists(st.floats(1e-3, 1e6), min_size=2, max_size=30)


def noise(count: int, sd: float, rho: float, seed: int) -> list[float]:
    """Autocorrelated noise, as windows of a real machine have it."""
    rng = random.Random(seed)
    value = rng.gauss(0, 1)
    values = []
    for _ in range(count):
        value = rho * value + math.sqrt(1 - rho * rho) * rng.gauss(0, 1)
        values.append(sd * value)
    return values


def unsteady_share(count: int, *, sd: float, rho: float = 0.0, drift: float = 0.0) -> float:
    """Share of many series of 1000 requests a second that are called unsteady."""
    unsteady = 0
    for seed in range(SERIES):
        rates = [1000 * (1 + drift * i / count + e) for i, e in enumerate(noise(count, sd, rho, seed))]
        unsteady += not truncate(rates).steady
    return unsteady / SERIES


@pytest.mark.parametrize(
    ("count", "sd", "rho", "most"),
    [
        *[
            (*series, 0.025)
            for series in ((4, 0.05, 0.0), (8, 0.02, 0.6), (8, 0.2, 0.0), (24, 0.02, 0.6), (24, 0.2, 0.0))
        ],
        # Where neighbouring windows resemble each other most, at most 1 in 15 needs a second, longer look.
        (8, 0.03, 0.8, 0.07),
    ],
)
def test_a_stationary_series_is_hardly_ever_unsteady(count: int, sd: float, rho: float, most: float) -> None:
    """Quiet or noisy, independent or not: at most 1 in 50 series without any trend is called unsteady."""
    assert unsteady_share(count, sd=sd, rho=rho) <= most + chance(most, SERIES)


@pytest.mark.parametrize(("count", "drift"), [(8, 0.3), (8, -0.3), (16, 0.3), (16, -0.3), (24, 0.2)])
def test_a_drifting_series_is_unsteady(count: int, drift: float) -> None:
    """A rate that keeps rising or falling is distinguished from noise in 19 of 20 starts."""
    assert unsteady_share(count, sd=0.01, drift=drift) >= 0.95


def test_a_drift_of_no_consequence_is_none() -> None:
    """On a machine without noise one of 1 % stops no measurement; what rises until the end was not warm."""
    assert truncate([1000 * (1 + 0.01 * i / 8) for i in range(8)]).steady
    assert truncate([100, 200, 300, 400, 500, 600, 700, 800]) == Truncation(discard=4, steady=False)


@pytest.mark.parametrize("ramp", [1, 2, 3])
@pytest.mark.parametrize("depth", [0.3, 0.9])
def test_a_warm_up_is_cut_off(ramp: int, depth: float) -> None:
    """The slow windows of every start are discarded, what is left is steady, and few starts lose much more."""
    found = []
    for seed in range(60):
        slow = [depth * max(0.0, 1 - i / ramp) for i in range(16)]
        found.append(truncate([1000 * (1 - s + e) for s, e in zip(slow, noise(16, 0.01, 0.3, seed), strict=True)]))
    assert all(each.steady and each.discard >= ramp for each in found)
    assert sorted(each.discard for each in found)[30] <= ramp + 2


@given(rates=RATES, exponent=st.integers(-10, 10))
def test_the_unit_does_not_matter(rates: list[float], exponent: int) -> None:
    """The same series in another unit is cut and judged the same, and half of it at least is kept."""
    found = truncate([rate * 2.0**exponent for rate in rates])
    assert found == truncate(rates)
    assert 0 <= found.discard == mser(rates) <= len(rates) // 2


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_never_steady(odd: float) -> None:
    """A window that was not measured is an error, not a steady start, and so are fewer than two."""
    for position in (0, 3, 7):
        rates = [1000.0] * 8
        rates[position] = odd
        with pytest.raises(ValueError, match="NaN or infinity"):
            truncate(rates)
    for few in ([], [1.0]):
        with pytest.raises(ValueError, match="at least two"):
            truncate(few)


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


def test_answers_without_usage_are_compared_by_their_chunks() -> None:
    """A build that sends half of the chunks does not do the same work; one may join a few tokens more than another."""
    whole, joined, half = ([streamed(window(), tokens=tokens, usage=False).streams] * 4 for tokens in (16, 13, 8))
    reason = unlike_work(whole, half)
    assert reason is not None
    assert reason.kind is ReasonKind.UNLIKE_WORK
    assert "has 8 chunks, and 16 in the reference (-50" in reason.text
    assert "include_usage" in reason.text
    assert unlike_work(whole, joined) is unlike_work(joined, whole) is None


@pytest.mark.parametrize("silent", [1, 4])
def test_usage_that_one_side_alone_lacks_makes_it_unknown_work(silent: int) -> None:
    """It holds for either build and for few answers; without streams it does not apply."""
    told = [answers(100)] * 4
    mixed = [*told[silent:], *[Streams(histogram([0.01] * 3))] * silent]
    some, none = f"{3 * silent} of {4 + 2 * silent}", "0 of 4"
    for sides, (then, now) in (((told, mixed), (none, some)), ((mixed, told), (some, none))):
        reason = unlike_work(*sides)
        assert reason is not None
        assert reason.kind is ReasonKind.WORK_UNKNOWN
        assert f"{then} answers of the reference reported no usage, and {now} of the other server" in reason.text
    assert unlike_work(mixed, mixed) is unlike_work([None], mixed) is unlike_work([], mixed) is None


@pytest.mark.parametrize(("told", "is_unknown"), [(90, False), (50, True), (0, True)])
def test_a_build_that_reports_usage_for_fewer_answers_is_unknown_work(told: int, *, is_unknown: bool) -> None:
    """Even where the reference does not report all: a server that cuts answers would be the faster one."""

    def reporting(count: int) -> list[Streams]:
        return [Streams(histogram([0.01] * 100), with_usage=each, usage_tokens=64 * each) for each in [count] * 6]

    for sides in ((reporting(90), reporting(told)), (reporting(told), reporting(90))):
        reason = unlike_work(*sides)
        assert (reason is not None) is is_unknown
        assert reason is None or reason.kind is ReasonKind.WORK_UNKNOWN


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
