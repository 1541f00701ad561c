"""Numbers as text."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_gpuserve import ms, s, us
from pytest_gpuserve.units import (
    GiB,
    MiB,
    format_bytes,
    format_change,
    format_fraction,
    format_joules,
    format_rate,
    format_ratio,
    format_seconds,
    format_value,
    format_watts,
)

UNHURRIED = settings(deadline=None)  # a busy machine may stall any example
SCALES = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}


def test_limits_are_written_in_seconds() -> None:
    """``50 * ms`` is 0.05 seconds, whatever the unit it is written in."""
    assert (2 * s, 50 * ms, 7 * us) == pytest.approx((2.0, 0.05, 7e-6))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 s"),
        (4.5, "4.50 s"),
        (0.0123, "12.3 ms"),
        (0.00087, "870 us"),
        (0.9999, "1.00 s"),
        (0.0009999, "1.00 ms"),
        (42e-9, "42 ns"),
        (119.4, "119 s"),
        (125.0, "2 min 5 s"),
        (-130.0, "-2 min 10 s"),
        (-0.0123, "-12.3 ms"),
        (math.nan, "nan"),
        (math.inf, "inf"),
    ],
)
def test_durations_have_three_digits_and_the_unit_that_fits(seconds: float, text: str) -> None:
    """A duration is written in the largest unit in which it is at least one."""
    assert format_seconds(seconds) == text


@UNHURRIED
@given(seconds=st.floats(1e-6, 119.9))
def test_a_written_duration_reads_back_as_what_it_was(seconds: float) -> None:
    """No unit is slipped: number times unit is the duration, to three digits."""
    number, unit = format_seconds(seconds).split()
    assert float(number) * SCALES[unit] == pytest.approx(seconds, rel=0.0051)


@pytest.mark.parametrize(
    ("function", "value", "text"),
    [
        (format_joules, 12.5, "12.5 J"),
        (format_joules, 0.043, "43.0 mJ"),
        (format_joules, 0.9999, "1.00 J"),
        (format_joules, 2.1e-5, "21.0 uJ"),
        (format_joules, 2100.0, "2.10 kJ"),
        (format_joules, 3e-9, "3e-09 J"),
        (format_joules, 0.0, "0 J"),
        (format_joules, math.nan, "nan J"),
        (format_watts, 286.6, "287 W"),
        (format_watts, 1400.0, "1.40 kW"),
        (format_watts, 0.02, "20.0 mW"),
        (format_bytes, 12.0, "12 B"),
        (format_bytes, 1024.0, "1.00 KiB"),
        (format_bytes, 850 * MiB, "850 MiB"),
        (format_bytes, 13.25 * GiB, "13.2 GiB"),
        (format_bytes, 1128e9, "1.03 TiB"),
        (format_bytes, 0.0, "0 B"),
        (format_bytes, math.inf, "inf B"),
        (format_rate, 2147.3, "2147/s"),
        (format_rate, 12.345, "12.3/s"),
        (format_rate, 0.0, "0/s"),
        (format_rate, math.inf, "inf/s"),
        (format_ratio, 18.416, "18.42"),
        (format_fraction, 0.05, "5 %"),
        (format_fraction, 0.0126, "1.3 %"),
        (format_fraction, 0.0, "0 %"),
        (format_fraction, -0.0003, "0.0 %"),
        (format_fraction, math.nan, "nan %"),
        (format_fraction, math.inf, "inf %"),
        (format_change, -0.231, "-23.1 %"),
        (format_change, 0.05, "+5.0 %"),
        (format_change, math.nan, "+nan %"),
    ],
)
def test_rates_ratios_and_shares(function: object, value: float, text: str) -> None:
    """Every other kind of number has one way to be written, the odd ones too."""
    assert callable(function)
    assert function(value) == text


@UNHURRIED
@given(value=st.floats(), unit=st.sampled_from(["s", "1/s", "J", "B", "W", ""]))
def test_no_number_is_too_odd_to_be_shown(value: float, unit: str) -> None:
    """Formatting never raises, so that a report never hides a result behind a traceback."""
    assert all(text.isprintable() for text in (format_value(value, unit), format_fraction(value), format_change(value)))


@UNHURRIED
@given(count=st.floats(1, 1e15))
def test_a_written_size_reads_back_as_what_it_was(count: float) -> None:
    """No power of 1024 is slipped: number times unit is the size, to three digits."""
    number, unit = format_bytes(count).split()
    scale = 1024.0 ** ["B", "KiB", "MiB", "GiB", "TiB"].index(unit)
    assert float(number) * scale == pytest.approx(count, rel=0.0051)


@UNHURRIED
@given(fraction=st.floats(-1e300, 1e300))
def test_shares_stay_short(fraction: float) -> None:
    """A share beyond all sense does not widen a table by hundreds of digits."""
    assert max(len(format_fraction(fraction)), len(format_change(fraction))) <= 13


@pytest.mark.parametrize(
    ("unit", "text"),
    [
        ("s", "50.0 ms"),
        ("1/s", "0.0500/s"),
        ("J", "50.0 mJ"),
        ("W", "50.0 mW"),
        ("B", "0.05 B"),
        ("", "0.05"),
    ],
)
def test_a_value_is_written_in_its_unit(unit: str, text: str) -> None:
    """One number reads as a duration, a rate, an energy, a size or a ratio by its metric's unit."""
    assert format_value(0.05, unit) == text
