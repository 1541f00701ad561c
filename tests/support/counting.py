"""Tests over many cases: a table, or rates that are counted over simulated runs, and what chance makes of a count."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Mapping


def cases(names: str, table: Mapping[str, tuple[object, ...]]) -> pytest.MarkDecorator:
    """Run a test with each row of a table, under its name."""
    return pytest.mark.parametrize(names, table.values(), ids=table)


def short_and_long(short: int, long: int) -> pytest.MarkDecorator:
    """Run a test with a number of runs that takes a second, and by name with one that takes a minute."""
    return pytest.mark.parametrize(
        "count", [pytest.param(short, id="short"), pytest.param(long, id="long", marks=pytest.mark.slow)]
    )


def chance(rate: float, count: int) -> float:
    """Twice the standard error of a rate that was counted."""
    return 2 * math.sqrt(rate * (1 - rate) / count)
