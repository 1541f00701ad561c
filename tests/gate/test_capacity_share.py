"""Whether a share of requests is shown to lie below or above a limit, however they cluster."""

from __future__ import annotations

import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuserve.gate.share import FEWEST_BATCHES, RequestCounts, Share, requests_to_show, share_of

LEVEL = 0.001


def binomial_at_most(count: int, trials: int, chance: float) -> float:
    """Probability of so few successes, as the sum that defines it."""
    return math.fsum(math.comb(trials, k) * chance**k * (1 - chance) ** (trials - k) for k in range(count + 1))


@pytest.mark.parametrize(("count", "trials", "chance"), [(0, 300, 0.01), (3, 200, 0.01), (7, 40, 0.1), (40, 40, 0.5)])
def test_chances_are_those_of_the_binomial_distribution(count: int, trials: int, chance: float) -> None:
    """Of independent requests both tails are the exact ones."""
    share = Share(count / trials, trials)
    assert share.chance_of_so_few(chance) == pytest.approx(binomial_at_most(count, trials, chance), rel=1e-9)
    above = 1.0 if count == 0 else 1 - binomial_at_most(count - 1, trials, chance)
    assert share.chance_of_so_many(chance) == pytest.approx(above, rel=1e-6)


def test_no_request_shows_nothing() -> None:
    """Without requests, or with too few batches, neither side is shown."""
    for share in (share_of([], LEVEL), share_of([RequestCounts(1000, 0, 100)] * (FEWEST_BATCHES - 1), LEVEL)):
        assert share.effective == 0.0
        assert share.chance_of_so_few(0.01) == 1.0
        assert share.chance_of_so_many(0.01) == 1.0


def test_as_many_requests_as_said_show_that_none_is_slow() -> None:
    """The number that is needed is the one from which a share of 0 is shown to be low."""
    needed = requests_to_show(0.01, LEVEL, 12)
    enough, short = (math.ceil(needed / 12 * factor) for factor in (1.01, 0.95))
    assert share_of([RequestCounts(enough, 0, 0)] * 12, LEVEL).chance_of_so_few(0.01) <= LEVEL
    assert share_of([RequestCounts(short, 0, 0)] * 12, LEVEL).chance_of_so_few(0.01) > LEVEL


def test_batches_that_resemble_the_one_before_are_worth_fewer() -> None:
    """The same batches tell less where the slow ones follow each other: of a queue that is long for several of them."""
    slow, quick = RequestCounts(100, 15, 20), RequestCounts(100, 2, 8)
    together = share_of([slow] * 6 + [quick] * 18, LEVEL)
    apart = share_of([slow, quick, quick, quick] * 6, LEVEL)
    assert together.value == apart.value
    assert together.effective < apart.effective / 4


def test_a_lower_limit_tells_of_clusters_before_anything_was_slow() -> None:
    """Where no request is slow yet, but those beyond a lower limit cluster, it is not shown that few are."""
    calm = [RequestCounts(400, 0, 40)] * 12
    bursts = [RequestCounts(400, 0, 160), RequestCounts(400, 0, 0), RequestCounts(400, 0, 0)] * 4
    assert share_of(calm, LEVEL).chance_of_so_few(0.01) <= LEVEL
    assert share_of(bursts, LEVEL).chance_of_so_few(0.01) > LEVEL


@given(
    batches=st.lists(
        st.integers(0, 5000).flatmap(
            lambda n: st.tuples(st.just(n), st.integers(0, n)).flatmap(
                lambda pair: st.tuples(st.just(pair[0]), st.integers(0, pair[1]), st.just(pair[1]))
            )
        ),
        max_size=24,
    ),
    limit=st.floats(0.001, 0.5),
)
def test_both_sides_are_never_shown_at_once(batches: list[tuple[int, int, int]], limit: float) -> None:
    """Whatever was counted, chances are probabilities, and a share is not shown to be both below and above a limit."""
    share = share_of([RequestCounts(*batch) for batch in batches], LEVEL)
    few, many = share.chance_of_so_few(limit), share.chance_of_so_many(limit)
    assert 0.0 <= few <= 1.0
    assert 0.0 <= many <= 1.0
    assert few > LEVEL or many > LEVEL
    assert 0.0 <= share.effective <= sum(requests for requests, _, _ in batches)


def test_what_cannot_be_counted_is_an_error() -> None:
    """More beyond a limit than there are is never taken for a share, nor an error rate that means nothing."""
    for counts in ((10, 11, 0), (10, 0, 11), (10, -1, 0), (-1, -1, -1)):
        with pytest.raises(ValueError, match="beyond"):
            RequestCounts(*counts)
    for level in (0.0, 0.5, math.nan):
        with pytest.raises(ValueError, match="error rate"):
            share_of([], level)


def test_independent_requests_are_wrongly_decided_as_rarely_as_said() -> None:
    """At a true share of the limit itself, either claim is made in at most the level of all cases, by counting."""
    level, wrong = 0.05, [0, 0]
    for seed in range(400):
        random = Random(seed)
        batches = []
        for _ in range(12):
            latencies = [random.random() for _ in range(100)]
            batches.append(RequestCounts(100, sum(u > 0.95 for u in latencies), sum(u > 0.9 for u in latencies)))
        share = share_of(batches, level)
        wrong[0] += share.chance_of_so_few(0.05) <= level
        wrong[1] += share.chance_of_so_many(0.05) <= level
    # 20 are expected of each at most; 33 is three standard deviations above.
    assert max(wrong) <= 33
