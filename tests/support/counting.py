"""Rates that are counted over simulated runs: a few runs always, many by name, and what chance makes of a count."""

from __future__ import annotations

import math

import pytest


def short_and_long(short: int, long: int) -> pytest.MarkDecorator:
    """Run a test with a number of runs that takes a second, and by name with one that takes a minute."""
    return pytest.mark.parametrize(
        "count", [pytest.param(short, id="short"), pytest.param(long, id="long", marks=pytest.mark.slow)]
    )


def chance(rate: float, count: int) -> float:
    """Twice the standard error of a rate that was counted."""
    return 2 * math.sqrt(rate * (1 - rate) / count)
