"""The end of the warm-up: what is cut off, and what is not steady; rates are counted over seeded series."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuserve.measure.steady import Truncation, mser, truncate
from tests.support.counting import chance

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
