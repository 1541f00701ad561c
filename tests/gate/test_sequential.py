"""Looks, their levels, one p-value for all of them, and the claims of a whole suite in the order of its tests."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from statistics import NormalDist
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuserve.gate.metric import METRICS, Growth
from pytest_gpuserve.gate.sequential import BLOCKS, LOOKS, Family, LookResult, adjusted_p, first_look, levels
from pytest_gpuserve.gate.verdict import Evidence
from tests.support.holm import holm

if TYPE_CHECKING:
    from collections.abc import Sequence

P = st.floats(0, 1)
P_VALUES = st.lists(P | st.floats(0, 0.02), min_size=1, max_size=40)
SEEN = st.lists(
    st.builds(LookResult, look=st.integers(0, 8), p_regressed=P, p_pass=P, p_improved=P),
    max_size=9,
    unique_by=lambda s: s.look,
)


def seen(look: int, p: float) -> LookResult:
    """A look that found this p-value of REGRESSED."""
    return LookResult(look, p, 0.5, 0.5)


def test_a_p99_is_not_looked_at_after_half_a_round() -> None:
    """Nor a cold start before its second round; every other metric is."""
    late = {name: first_look(metric) for name, metric in METRICS.items() if first_look(metric)}
    second = LOOKS.index((2, BLOCKS))
    tails = {metric.name: 1 for metric in METRICS.values() if metric.quantile == 0.99}
    assert late == {**tails, "cold_start": second}


@pytest.mark.parametrize(
    ("alpha", "per_thousand"),
    [
        (0.05, [12.89, 10.73, 11.14, 10.91, 11.18, 11.11, 12.17, 12.19, 12.49]),
        (0.025, [6.33, 4.75, 5.06, 5.04, 4.96, 5.31, 5.74, 5.31, 6.05]),
        (0.01, [2.64, 1.64, 1.92, 1.90, 1.84, 1.78, 2.00, 1.83, 2.09]),
    ],
)
def test_planned_looks_have_the_published_levels(alpha: float, per_thousand: list[float]) -> None:
    """The levels of three alphas were computed once, and are no function of what is seen."""
    assert [1000 * level for level in levels(alpha)] == pytest.approx(per_thousand)


def test_a_table_is_for_the_planned_looks_alone() -> None:
    """Four looks at .05 have .0125 each, not the first four of nine; no looks, or a senseless alpha, are an error."""
    assert levels(0.05, 4) == (0.0125,) * 4
    assert levels() == levels(0.05, len(LOOKS)) != (0.05 / 9,) * 9
    with pytest.raises(ValueError, match="look"):
        levels(0.05, 0)
    for alpha in (0.0, 0.5, -0.1, math.nan):
        with pytest.raises(ValueError, match="alpha"):
            levels(alpha)


def test_a_look_keeps_the_claims_side_of_a_claim() -> None:
    """What passes is of the plain evidence, what is claimed of the evidence that has to bear it."""
    evidence = Evidence(0.05, 0.01, 12, level=0.01, most_growth=Growth(0.05))
    claim = replace(evidence, standard_error=0.03)
    assert LookResult.of(3, evidence, claim) == LookResult(3, claim.p_regressed, evidence.p_pass, claim.p_improved)


def test_a_look_keeps_probabilities() -> None:
    """A place outside the plan has no level, and damaged history is an error, never a claim."""
    for look in (-1, 9):
        with pytest.raises(ValueError, match="9 looks"):
            seen(look, 0.5)
    for p in (-0.1, 1.1, math.nan):
        for values in ((p, 0.5, 0.5), (0.5, p, 0.5), (0.5, 0.5, p)):
            with pytest.raises(ValueError, match="between 0 and 1"):
                LookResult(0, *values)


@given(looks=SEEN)
def test_a_sequence_is_significant_if_one_of_its_looks_was(looks: list[LookResult]) -> None:
    """A look below its level of .05 makes an adjusted p of at most .05, and so for each alpha with a table.

    What is better is counted as what is worse is.
    """
    for alpha in (0.05, 0.025, 0.01):
        if any(look.p_regressed <= levels(alpha)[look.look] for look in looks):
            assert adjusted_p(looks) <= alpha
    turned = [replace(look, p_regressed=look.p_improved, p_improved=look.p_regressed) for look in looks]
    assert adjusted_p(turned, improved=True) == adjusted_p(looks)


@given(looks=SEEN, more=SEEN)
def test_more_looks_never_take_a_claim_back(looks: list[LookResult], more: list[LookResult]) -> None:
    """The least counts, whatever the order; a re-run that goes on cannot lose what was found."""
    found = adjusted_p(looks)
    assert 0 <= adjusted_p([*looks, *more]) <= found <= 1
    assert adjusted_p(looks[::-1]) == found


def test_the_adjusted_p_is_a_p_value_far_into_its_tail() -> None:
    """Of 10000 sequences of independent rounds without effect, a share of at most alpha has an adjusted p below it.

    Within two standard errors, and 7 % for rounds that are independent: the levels were computed for looks that share
    the luck of a start, which agree more. Levels of .05 that were scaled down to .05 / 32 would be 39 % beyond it.
    """
    chance, normal, count = random.Random(7), NormalDist(), 10_000
    information = [0.5, *range(1, 9)]
    found = []
    for _ in range(count):
        total, before, looks = 0.0, 0.0, []
        for look, now in enumerate(information):
            total += chance.gauss(0, math.sqrt(now - before))
            before = now
            looks.append(seen(look, normal.cdf(-total / math.sqrt(now))))
        found.append(adjusted_p(looks))
    for alpha in (0.2, 0.1, 0.05, 0.025, 0.01, 0.005, 0.05 / 32):
        share = sum(p <= alpha for p in found) / count
        assert share <= 1.07 * alpha + 2 * math.sqrt(alpha / count), alpha


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


def test_an_impossible_family_is_an_error() -> None:
    """Mistakes of the caller."""
    for planned, upheld, alpha in (
        (0, 0, 0.05),
        (2, 3, 0.05),
        (2, -1, 0.05),
        (2, 0, 0.0),
        (2, 0, 0.5),
        (2, 0, math.nan),
    ):
        with pytest.raises(ValueError, match=r"family|upheld|alpha"):
            Family(planned, upheld, alpha)


@given(p_values=P_VALUES, alpha=st.floats(0.001, 0.3), seed=st.integers(0, 2**32))
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
    """Of 1500 runs with 32 exact nulls among real regressions in mixed order, at most .05 claim a null.

    Within two standard errors; and the more regressions are upheld before, the more of alpha is made use of.
    """
    chance, runs, nulls = random.Random(11), 1500, 32
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
    chance, runs = random.Random(12), 1500
    wrong = 0
    for _ in range(runs):
        p_values = [chance.random() for _ in range(32)] + [0.0] * 8
        family, upheld = ask(Family(40), p_values)
        for _ in range(3):
            family, upheld = ask(family, p_values, upheld)
        wrong += min(upheld) < 32
    assert wrong / runs <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / runs)
    assert wrong / runs > 0.03
