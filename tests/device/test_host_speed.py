"""A reading of the host: fixed work, and what may be compared."""

from __future__ import annotations

import math
import sys

import pytest

from pytest_gpuserve.device.host_speed import read_speed
from pytest_gpuserve.device.rules import speed_text


def test_a_reading_is_the_log_of_seconds() -> None:
    """The fixed work takes between some microseconds and a second on any working machine."""
    found = read_speed()
    assert found is not None
    assert math.log(1e-5) < found < 0


def test_a_host_that_cannot_be_measured_has_no_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Never a reading that happens to be alike."""
    for program in ("/no/such/python", "/bin/false", "/bin/true"):
        monkeypatch.setattr(sys, "executable", program)
        assert read_speed() is None


@pytest.mark.parametrize(
    ("then", "now", "words"),
    [
        (-3.5, -3.5, ""),
        (-3.5, -3.46, ""),
        (-3.5, -3.4, "10.5 % slower"),
        (-3.5, -3.6, "10.5 % faster"),
        (None, -3.5, "unknown"),
        (-3.5, None, "could not be measured"),
    ],
)
def test_only_a_host_that_is_known_to_be_as_fast_is_alike(then: float | None, now: float | None, words: str) -> None:
    """Readings within 5 % are alike; an unknown one is not."""
    text = speed_text(then, now)
    assert words in text
    assert bool(text) is bool(words)
