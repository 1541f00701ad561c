"""How long a start is measured."""

from __future__ import annotations

import pytest

from pytest_gpuserve.experiment.shape import WINDOW_SECONDS, LoadShape, windows_wanted
from pytest_gpuserve.load.schedule import Closed
from pytest_gpuserve.load.validity import LATENCIES_LONG
from pytest_gpuserve.measure.steady import truncate
from tests.support.builders import window

SHAPE = LoadShape(Closed(8), seconds=4.0)


def test_littles_law_is_asked_of_what_is_left() -> None:
    """Where windows were cut off, the rest has to be long enough for the latencies, not the whole."""
    windows = [window((0.16,) * requests) for requests in (10, 40, *[100] * 6)]
    discard = truncate([each.throughput for each in windows]).discard
    assert discard == 2
    kept_seconds = (windows_wanted(windows, SHAPE) - discard) * WINDOW_SECONDS
    assert kept_seconds == pytest.approx(LATENCIES_LONG * 0.16, abs=WINDOW_SECONDS)
    assert kept_seconds >= LATENCIES_LONG * 0.16


def test_an_unsteady_start_is_doubled_and_then_goes_on_to_its_end() -> None:
    """A start that still changes gets twice its time, and then all that it may have; a steady one is long enough."""
    rising = [window((0.01,) * (100 + 20 * place)) for place in range(2 * SHAPE.windows)]
    assert windows_wanted(rising[: SHAPE.windows], SHAPE) == 2 * SHAPE.windows
    assert windows_wanted(rising, SHAPE) == SHAPE.most_windows > 2 * SHAPE.windows
    assert windows_wanted([window((0.01,) * 100)] * SHAPE.windows, SHAPE) == SHAPE.windows == 8


def test_a_quantile_gets_its_requests() -> None:
    """So many windows more as the requests that are missing take at the rate of those that are there."""
    shape = LoadShape(Closed(8), seconds=4.0, requests_wanted=105)
    assert windows_wanted([window((0.01,) * 10)] * 8, shape) == 11
