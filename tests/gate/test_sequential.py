"""Looks, their levels, and one p-value for all of them."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from statistics import NormalDist

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_gpuserve.gate.metric import METRICS, Growth
from pytest_gpuserve.gate.sequential import BLOCKS, LOOKS, Seen, adjusted_p, first_look, levels
from pytest_gpuserve.gate.verdict import Evidence

UNHURRIED = settings(deadline=None)  # a busy machine may stall any example
P = st.floats(0, 1)
SEEN = st.lists(
    st.builds(Seen, look=st.integers(0, 8), p_regressed=P, p_pass=P, p_improved=P),
    max_size=9,
    unique_by=lambda s: s.look,
)


def seen(look: int, p: float) -> Seen:
    """A look that found this p-value of REGRESSED."""
    return Seen(look, p, 0.5, 0.5)


def test_a_p99_is_not_looked_at_after_half_a_round() -> None:
    """Nor half a search, nor a cold start before its second round; every other metric is."""
    late = {name: first_look(metric) for name, metric in METRICS.items() if first_look(metric)}
    second = LOOKS.index((2, BLOCKS))
    assert late == {"latency.p99": 1, "cold_start": second, "capacity": 1}


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
    assert Seen.of(3, evidence, claim) == Seen(3, claim.p_regressed, evidence.p_pass, claim.p_improved)


def test_a_look_keeps_probabilities() -> None:
    """A place outside the plan has no level, and damaged history is an error, never a claim."""
    for look in (-1, 9):
        with pytest.raises(ValueError, match="9 looks"):
            seen(look, 0.5)
    for p in (-0.1, 1.1, math.nan):
        for values in ((p, 0.5, 0.5), (0.5, p, 0.5), (0.5, 0.5, p)):
            with pytest.raises(ValueError, match="between 0 and 1"):
                Seen(0, *values)


@pytest.mark.parametrize("alpha", [0.05, 0.025, 0.01])
@UNHURRIED
@given(looks=SEEN)
def test_a_sequence_is_significant_if_one_of_its_looks_was(alpha: float, looks: list[Seen]) -> None:
    """A look below its level of .05 makes an adjusted p of at most .05, and so for each alpha with a table."""
    if any(look.p_regressed <= levels(alpha)[look.look] for look in looks):
        assert adjusted_p(looks) <= alpha


@UNHURRIED
@given(looks=SEEN, more=SEEN)
def test_more_looks_never_take_a_claim_back(looks: list[Seen], more: list[Seen]) -> None:
    """The least counts, whatever the order; a re-run that goes on cannot lose what was found."""
    found = adjusted_p(looks)
    assert 0 <= adjusted_p([*looks, *more]) <= found <= 1
    assert adjusted_p(looks[::-1]) == found


def test_the_adjusted_p_is_a_p_value_far_into_its_tail() -> None:
    """Of 20000 sequences of independent rounds without effect, a share of at most alpha has an adjusted p below it.

    Within two standard errors, and 7 % for rounds that are independent: the levels were computed for looks that share
    the luck of a start, which agree more. Levels of .05 that were scaled down to .05 / 32 would be 39 % beyond it.
    """
    chance, normal, count = random.Random(7), NormalDist(), 20_000
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
