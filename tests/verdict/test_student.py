"""Tails of Student's t and Fisher's F."""

from __future__ import annotations

import math

import pytest

from pytest_gpuserve.verdict.student import f_upper_tail, t_quantile, t_upper_tail


@pytest.mark.parametrize(
    ("t", "df", "tail"),
    [
        (-3, 7.3, 0.9905097244884332),
        (0, 3, 0.5),
        (1.96, 150, 0.025924492967958006),
        (2.8, 3, 0.03392645024207038),
        (6.5, 7.3, 0.00013978429988117081),
        (25, 20, 7.343137411726216e-17),
        (25, 150, 1.1678447637979233e-55),
    ],
)
def test_t_tails_agree_with_an_independent_implementation(t: float, df: float, tail: float) -> None:
    """Tails of t, down to 1e-55, have the reference values to eleven digits."""
    assert t_upper_tail(t, df) == pytest.approx(tail, rel=1e-11, abs=0)


@pytest.mark.parametrize(
    ("f", "df1", "df2", "tail"),
    [
        (0.5, 7, 25.5, 0.8256885040208707),
        (1, 4, 10, 0.45155504934168467),
        (2.2, 7, 25.5, 0.06852332661357677),
        (20, 2, 3.4, 0.013175940312638875),
        (20, 7, 25.5, 7.197128151104159e-09),
    ],
)
def test_f_tails_agree_with_an_independent_implementation(f: float, df1: float, df2: float, tail: float) -> None:
    """Tails of F have the reference values to eleven digits."""
    assert f_upper_tail(f, df1, df2) == pytest.approx(tail, rel=1e-11, abs=0)


@pytest.mark.parametrize("df", [0.5, 3.0, 1e5])
def test_far_out_there_is_no_overflow(df: float) -> None:
    """The largest floats and infinity have tails between 0 and 1 that order as they must."""
    assert t_upper_tail(math.inf, df) == 0
    assert t_upper_tail(-math.inf, df) == 1
    assert 0 <= t_upper_tail(1e308, df) < 1e-150
    assert t_upper_tail(-1e308, df) == 1
    assert t_upper_tail(1e-308, df) == pytest.approx(0.5)


def test_extremes_are_certain() -> None:
    """F of 0 and of infinity have the tails 1 and 0; a tiny share with nearly no freedom gives infinity."""
    assert [f_upper_tail(f, 2, 3) for f in (0, 1e-300, math.inf)] == [1, 1, 0]
    assert 0 < f_upper_tail(1e100, 2, 3) < 1e-100
    assert t_quantile(1e-100, 0.1) == math.inf
    assert t_quantile(0.5, 3) == 0
    assert t_quantile(0.9, 3) == pytest.approx(-t_quantile(0.1, 3))


def test_nan_and_impossible_arguments_are_errors() -> None:
    """NaN never gives a probability, and a distribution needs degrees of freedom."""
    for df in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="degrees of freedom"):
            t_upper_tail(1, df)
        with pytest.raises(ValueError, match="degrees of freedom"):
            t_quantile(0.1, df)
        with pytest.raises(ValueError, match="degrees of freedom"):
            f_upper_tail(1, df, 1)
    with pytest.raises(ValueError, match="NaN"):
        t_upper_tail(math.nan, 3)
    for f in (math.nan, -1.0):
        with pytest.raises(ValueError, match="mean squares"):
            f_upper_tail(f, 2, 3)
    for share in (0.0, 1.0, math.nan):
        with pytest.raises(ValueError, match="share"):
            t_quantile(share, 3)
