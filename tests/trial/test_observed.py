"""What was seen of a load, beside its metrics."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_gpuserve.measure.window import Session, Start, Window
from pytest_gpuserve.trial.observed import Observed
from tests.support.builders import window

SECOND = 10**9


def windows(*begins_ns: int) -> tuple[Window, ...]:
    """Windows of a second that begin at these times."""
    return tuple(replace(window(), begin_ns=begin, end_ns=begin + SECOND) for begin in begins_ns)


@pytest.mark.parametrize(
    ("begins_ns", "loads"),
    [
        ([], 0),
        ([5 * SECOND], 1),
        ([0, SECOND, 2 * SECOND], 1),
        # A tick's end is told to the nanosecond, that of several engines as their mean.
        ([0, SECOND + 1, 2 * SECOND - 1], 1),
        # The next turn of a load by turns, at once and after the other one's.
        ([0, SECOND + 10**7, 2 * SECOND + 10**7], 2),
        ([0, 3 * SECOND, 6 * SECOND], 3),
    ],
)
def test_a_load_is_counted_each_time_that_it_is_begun(begins_ns: list[int], loads: int) -> None:
    """Once in a start that was measured without a gap, else as often as there was one; over all starts."""
    start = Start(windows(*begins_ns), None)
    assert Observed([Session((start,), ""), Session((start, start), "")]).loads == 3 * loads


def test_windows_whose_times_were_not_kept_are_loads_of_their_own() -> None:
    """As many as there may be, for what is under way at their ends is allowed for."""
    assert Observed([Session((Start((window(), window()), None),), "")]).loads == 2
