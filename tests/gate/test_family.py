"""Claims of a whole suite, in the order in which its tests end."""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_gpuserve.gate.family import Family
from tests.support.holm import holm

if TYPE_CHECKING:
    from collections.abc import Sequence

UNHURRIED = settings(deadline=None)  # a busy machine may stall any example
P_VALUES = st.lists(st.one_of(st.floats(0, 1), st.floats(0, 0.02)), min_size=1, max_size=40)
ALPHAS = st.floats(0.001, 0.3)


def ask(
    family: Family, p_values: Sequence[float], upheld: frozenset[int] = frozenset()
) -> tuple[Family, frozenset[int]]:
    """Ask each claim that is not upheld once, in its order."""
    for place, p in enumerate(p_values):
        if place not in upheld and family.upholds(p):
            family, upheld = family.with_claim(), upheld | {place}
    return family, upheld


def holms(p_values: Sequence[float], alpha: float) -> set[int]:
    """What the step-down upholds of claims in a row."""
    return set(map(int, holm({str(place): p for place, p in enumerate(p_values)}, alpha)))


def test_the_bar_falls_with_each_upheld_claim() -> None:
    """Of four, the first needs alpha / 4, the last alpha, and further ones no less than a single one would."""
    family = Family(4)
    thresholds = []
    for _ in range(5):
        thresholds.append(family.threshold)
        family = family.with_claim()
    assert thresholds == pytest.approx([0.0125, 0.05 / 3, 0.025, 0.05, 0.05])
    assert (family.planned, family.upheld) == (5, 5)
    assert Family(1).upholds(0.05)
    assert not Family(1).upholds(0.0501)


@pytest.mark.parametrize(
    ("planned", "upheld", "alpha"),
    [(0, 0, 0.05), (2, 3, 0.05), (2, -1, 0.05), (2, 0, 0.0), (2, 0, 0.5), (2, 0, math.nan)],
)
def test_an_impossible_family_is_an_error(planned: int, upheld: int, alpha: float) -> None:
    """Mistakes of the caller."""
    with pytest.raises(ValueError, match=r"family|upheld|alpha"):
        Family(planned, upheld, alpha)


@UNHURRIED
@given(p_values=P_VALUES, alpha=ALPHAS, seed=st.integers(0, 2**32))
def test_it_upholds_what_bonferroni_does_and_nothing_that_holm_does_not(
    p_values: list[float], alpha: float, seed: int
) -> None:
    """In whatever order the claims come; and Holm's set exactly once the rest is asked again until nothing changes."""
    random.Random(seed).shuffle(p_values)
    family = Family(len(p_values), alpha=alpha)
    family, upheld = ask(family, p_values)
    bonferroni = {place for place, p in enumerate(p_values) if p <= alpha / len(p_values)}
    assert bonferroni <= upheld <= holms(p_values, alpha)
    for _ in p_values:
        family, upheld = ask(family, p_values, upheld)
    assert upheld == holms(p_values, alpha)


@pytest.mark.parametrize("regressions", [0, 8, 24])
def test_the_chance_of_any_wrong_claim_stays_below_alpha(regressions: int) -> None:
    """Of 3000 runs with 32 exact nulls among real regressions in mixed order, at most .05 claim a null.

    Within two standard errors; and the more regressions are upheld before, the more of alpha is made use of.
    """
    chance, runs, nulls = random.Random(11), 3000, 32
    wrong = missed_by_bonferroni = 0
    for _ in range(runs):
        claims = [(chance.random(), True) for _ in range(nulls)]
        claims += [(min(1.0, chance.expovariate(300)), False) for _ in range(regressions)]
        chance.shuffle(claims)
        _, upheld = ask(Family(len(claims)), [p for p, _ in claims])
        wrong += any(claims[place][1] for place in upheld)
        missed_by_bonferroni += sum(claims[place][0] > 0.05 / len(claims) for place in upheld)
    assert wrong / runs <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / runs)
    assert (missed_by_bonferroni > 0) is (regressions > 0)


def test_asking_again_later_does_not_add_wrong_claims() -> None:
    """A null that was not upheld and is asked again after every upheld regression still claims at most .05 of runs."""
    chance, runs = random.Random(12), 3000
    wrong = 0
    for _ in range(runs):
        p_values = [chance.random() for _ in range(32)] + [0.0] * 8
        family, upheld = ask(Family(40), p_values)
        for _ in range(3):
            family, upheld = ask(family, p_values, upheld)
        wrong += min(upheld) < 32
    assert wrong / runs <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / runs)
    assert wrong / runs > 0.03
