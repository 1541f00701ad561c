"""Number of begins of a load, from the times of its windows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_gpuserve.experiment.observed import Observed
from pytest_gpuserve.measure.window import Session, Start
from tests.support.builders import window

SECOND = 10**9


@pytest.mark.parametrize(
    ("begins_ns", "loads"),
    [
        ([], 0),
        ([0, SECOND, 2 * SECOND], 1),
        # A tick's end is told to the nanosecond, that of several engines as their mean.
        ([0, SECOND + 1, 2 * SECOND - 1], 1),
        # The next turn of a load by turns, at once and after the other one's.
        ([0, SECOND + 10**7, 2 * SECOND + 10**7], 2),
        ([0, 3 * SECOND, 6 * SECOND], 3),
        # Windows whose times were not kept are loads of their own: as many as there may be.
        ([None, None], 2),
    ],
)
def test_a_load_is_counted_each_time_that_it_is_begun(begins_ns: list[int | None], loads: int) -> None:
    """A start without a gap counts once, else once for each stretch; summed over all starts."""
    windows = [
        window() if begin is None else replace(window(), begin_ns=begin, end_ns=begin + SECOND) for begin in begins_ns
    ]
    start = Start(tuple(windows), None)
    assert Observed([Session((start,), ""), Session((start, start), "")]).loads == 3 * loads
