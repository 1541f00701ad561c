"""The claims of a run: Holm's thresholds in the order of time, for planned comparisons and for others."""

from __future__ import annotations

import pytest

from pytest_gpuserve.comparison.holm import HolmCorrection
from pytest_gpuserve.gate.sequential import ALPHA
from pytest_gpuserve.gate.verdict import Verdict

A, B, C = ("a", "throughput"), ("b", "throughput"), ("c", "throughput")


@pytest.mark.parametrize(("planned", "first", "second"), [(0, 1, None), (1, 1, None), (32, 32, 31)])
def test_a_claim_has_to_be_surer_the_more_is_planned(planned: int, first: int, second: int | None) -> None:
    """A single comparison keeps the whole level, of 32 each upheld claim leaves more to the next."""
    claims = HolmCorrection(planned)
    assert not claims.uphold(A, 1.001 * ALPHA / first)
    assert claims.uphold(A, ALPHA / first)
    if second is not None:
        assert not claims.uphold(B, 1.001 * ALPHA / second)
        assert claims.uphold(B, ALPHA / second)


def test_a_claim_counts_once_and_only_where_it_is_upheld() -> None:
    """Refused it makes nothing easier, and may be asked again at a later look; upheld it stays, at any p-value."""
    claims = HolmCorrection(4)
    assert not any(claims.uphold(A, ALPHA / 3) for _ in range(5))
    assert not claims.uphold(B, ALPHA / 3)
    assert claims.uphold(A, ALPHA / 4)
    assert all(claims.uphold(A, 1.0) for _ in range(5))
    assert not claims.uphold(B, ALPHA / 2)
    assert claims.uphold(B, ALPHA / 3)


def test_better_and_worse_are_families_of_their_own() -> None:
    """A claim of one direction makes none of the other easier."""
    claims = HolmCorrection(10)
    assert not claims.uphold(A, ALPHA / 5, Verdict.IMPROVED)
    assert claims.uphold(A, ALPHA / 10, Verdict.IMPROVED)
    assert not claims.uphold(A, 0.9, Verdict.REGRESSED)
    assert claims.uphold(B, ALPHA / 9, Verdict.IMPROVED)
    assert not claims.uphold(B, ALPHA / 9, Verdict.REGRESSED)


def test_what_is_counted_beyond_the_plan_makes_claims_harder() -> None:
    """A test that loads several servers compares more than its code shows; each of these counts once."""
    claims = HolmCorrection(2)
    for comparison in (A, B, A):
        claims.count(comparison)
    assert claims.planned == 2
    claims.count(C)
    assert claims.planned == 3
    assert not claims.uphold(A, ALPHA / 2)
    assert not claims.uphold(("d", "throughput"), ALPHA / 3)
    assert claims.planned == 4


def test_a_copy_of_the_claims_goes_on_by_itself() -> None:
    """What is counted and upheld there changes nothing here, and what was upheld here is upheld there."""
    claims = HolmCorrection(2)
    assert claims.uphold(("a",), ALPHA / 2)
    copied = claims.copy()
    assert copied.uphold(("a",), 1.0)
    for name in "bcd":
        copied.uphold((name,), 0.0)
    assert (claims.planned, copied.planned) == (2, 4)
    assert not claims.uphold(("b",), 1.0)
