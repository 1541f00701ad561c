"""The cats-and-dogs suite's experiments and ceilings, against what was published."""

from __future__ import annotations

import pytest

from suites.catdog.ceilings import (
    GIGA_MACS,
    PUBLISHED_GIGA_MACS,
    PUBLISHED_TFLOPS,
    ceiling_as_published,
    ceiling_of_timeout,
    ceiling_per_second,
    efficiency,
    peak_tflops,
)
from suites.catdog.experiments import BATCH_SIZES, CONCURRENCIES, EXPERIMENTS, VARIANTS

MODEL = {  # pictures a second by batch size, in the document's order
    "1a": (181.62, 297.16, 295.98, 276.82, 280.78, 280.83),
    "1b": (181.18, 284.97, 293.08, 280.36, 283.41, 280.35),
    "2": (183.52, 289.45, 292.08, 276.93, 280.14, 280.34),
    "3": (161.91, 291.14, 292.65, 278.49, 281.33, 280.38),
    "4": (157.38, 291.67, 292.66, 279.02, 281.80, 281.31),
    "5": (156.51, 290.05, 291.75, 277.99, 281.86, 280.80),
    "6": (157.74, 288.52, 293.95, 279.16, 282.15, 281.18),
}
API = {  # requests a second by concurrency
    "1a": (37.74, 82.58, 80.53, 78.41, 90.05, 90.58),
    "1b": (82.81, 91.88, 90.56, 89.32, 86.09, 85.84),
    "2": (46.17, 100.87, 114.23, 111.32, 117.67, 124.09),
    "3": (41.32, 132.28, 148.67, 160.85, 131.51, 130.53),
    "4": (43.53, 112.87, 121.17, 136.24, 133.77, 137.70),
    "5": (19.28, 90.43, 150.88, 142.15, 126.65, 152.51),
    "6": (19.29, 90.11, 144.32, 130.22, 134.48, 134.46),
}


@pytest.mark.parametrize(("precision", "printed"), [("fp32", 1820.0), ("fp16", 14640.0)])
def test_published_ceilings_are_reproduced(precision: str, printed: float) -> None:
    """The document's formula, multiply-adds for operations, gives its 1820 and 14 640."""
    assert ceiling_as_published(PUBLISHED_TFLOPS[precision], PUBLISHED_GIGA_MACS) == printed


@pytest.mark.parametrize(("precision", "rough", "exact"), [("fp32", 910, 909), ("fp16", 7303, 7296)])
def test_right_ceilings_are_half_of_them(precision: str, rough: int, exact: int) -> None:
    """By operations a T4 does 910 and 7303 pictures a second of 4.45 GMAC, 909 and 7296 of the 4.4548 that it has.

    A part of a GPU, a precision without units and an unknown GPU have no ceiling.
    """
    peak = peak_tflops("Tesla T4", precision)
    assert peak is not None
    assert int(ceiling_per_second(peak, PUBLISHED_GIGA_MACS)) == rough
    assert round(ceiling_per_second(peak, GIGA_MACS)) == exact
    assert peak_tflops("NVIDIA A30", precision, mig_profile="1g.6gb") is None
    assert peak_tflops("Tesla T4", "bf16") is peak_tflops("Tesla T40", precision) is None


def test_model_alone_reaches_a_third_of_the_peak() -> None:
    """293 pictures a second are 32 % of a T4's peak in fp32, not the 16 % that the published ceiling makes of them."""
    best = max(MODEL["1b"])
    assert best / ceiling_per_second(8.1, GIGA_MACS) == pytest.approx(0.322, abs=0.001)
    assert best / ceiling_as_published(8.1, PUBLISHED_GIGA_MACS) == pytest.approx(0.161, abs=0.001)


@pytest.mark.parametrize(
    ("name", "share"),
    [("1a", 0.305), ("1b", 0.313), ("2", 0.425), ("3", 0.550), ("4", 0.471), ("5", 0.523), ("6", 0.491)],
)
def test_published_efficiencies(name: str, share: float) -> None:
    """The best of the server by the best of the model; of what was not measured neither 0 nor 1."""
    assert efficiency(API[name], MODEL[name]) == pytest.approx(share, abs=0.0005)
    with pytest.raises(ValueError, match="empty"):
        efficiency([], MODEL[name])
    with pytest.raises(ValueError, match="empty"):
        efficiency(API[name], [])


def test_published_rates_of_one_user_keep_the_bound_of_the_timeout() -> None:
    """19.28 and 19.29 requests a second with 0.05 s of waiting are below 20, and 46.17 with 0.01 s below 100."""
    for name in ("2", "3", "4", "5", "6"):
        assert API[name][0] <= ceiling_of_timeout(1, EXPERIMENTS[name].as_published.batch_timeout)
    assert ceiling_of_timeout(1, 0.05) == 20
    assert ceiling_of_timeout(8, 0.05) == 160


def test_matrix_has_the_published_points() -> None:
    """Seven runs of six experiments over six concurrencies and batch sizes make 84 points, as many as were printed."""
    assert [experiment.number for experiment in EXPERIMENTS.values()] == [1, 1, 2, 3, 4, 5, 6]
    assert len(EXPERIMENTS) * (len(CONCURRENCIES) + len(BATCH_SIZES)) == 84
    assert CONCURRENCIES == BATCH_SIZES == (1, 8, 32, 64, 128, 256)
    assert [experiment.requests for experiment in EXPERIMENTS.values()] == [128, *[256] * 6]
    assert set(VARIANTS) == {experiment.variant for experiment in EXPERIMENTS.values()}
