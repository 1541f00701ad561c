"""Where a share is the wanted one, and what each point has to do with that."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuserve.measure.capacity import SharePoint, crossing

WANTED = st.sampled_from([0.5, 0.1, 0.05, 0.01])


def curve(steps: list[float], *, slope: float, place: float, wanted: float, weight: float = 1e7) -> list[SharePoint]:
    """Points of a logistic curve, in steps of its slope around where it is the wanted share."""
    height = math.log(wanted / (1 - wanted))
    return [SharePoint(place + step / slope, 1 / (1 + math.exp(-(height + step))), weight) for step in steps]


@given(slope=st.floats(3, 200), place=st.floats(-1, 1), wanted=WANTED)
def test_the_regression_finds_what_it_was_made_of(slope: float, place: float, wanted: float) -> None:
    """Of points on a logistic curve it finds where that crosses, but for the one request that is added to all."""
    found = crossing(curve([-2.0, -0.5, 1.0, 2.0], slope=slope, place=place, wanted=wanted), wanted)
    assert found is not None
    assert found.x == pytest.approx(place, abs=0.01 / slope + 1e-6)


@given(
    points=st.lists(
        st.builds(SharePoint, st.floats(0, 12), st.floats(0, 1), st.floats(0, 1e6)), min_size=1, max_size=12
    ),
    wanted=WANTED,
)
def test_the_regression_is_a_number_or_nothing(points: list[SharePoint], wanted: float) -> None:
    """Whatever the points are, each has an influence; shares that fall with the rate cross nowhere."""
    found = crossing(points, wanted)
    if found is not None:
        assert not math.isnan(found.x)
        assert len(found.influences) == len(points)
        assert not any(map(math.isnan, found.influences))
    assert crossing([SharePoint(0.0, 0.2, 1000.0), SharePoint(0.2, 0.001, 1000.0)], 0.01) is None


@pytest.mark.parametrize("moved", range(5))
def test_an_influence_is_what_a_point_moves(moved: int) -> None:
    """A point that is left out takes about its influence with it; more slow requests move the crossing down."""
    points = curve([-2.0, -0.2, 0.0, 0.1, 0.2, 1.5], slope=10.0, place=5.0, wanted=0.05, weight=2000.0)
    points[moved] = points[moved]._replace(share=1.3 * points[moved].share)
    whole, rest = crossing(points, 0.05), crossing(points[:moved] + points[moved + 1 :], 0.05)
    assert whole is not None
    assert rest is not None
    influence = whole.influences[moved]
    assert influence < 0
    assert 0.4 < influence / (whole.x - rest.x) < 1.2
