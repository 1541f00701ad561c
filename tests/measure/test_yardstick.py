"""Whether a machine is as fast as it was: what counts as alike, and that nothing unknown does."""

from __future__ import annotations

import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuserve.measure.yardstick import LIMIT, Yardstick, is_as_fast, speed_changes, speed_ratio

RATES = st.floats(min_value=1e-3, max_value=1e9)
READINGS = st.lists(st.fixed_dictionaries({"interpreter": RATES, "memory": RATES}), min_size=1, max_size=6)


def readings(count: int, *, speed: float = 1.0, sd: float = 0.0, seed: str = "") -> Yardstick:
    """So many readings of a machine, with so much scatter."""
    random = Random(seed)
    return Yardstick.of(
        [
            {kind: 1000.0 * speed * math.exp(random.gauss(0.0, sd)) for kind in ("interpreter", "arithmetic", "memory")}
            for _ in range(count)
        ]
    )


@given(READINGS)
def test_a_machine_is_what_it_is(rates: list[dict[str, float]]) -> None:
    """Against itself the ratio is 1, and of two the one is the inverse of the other."""
    then, now = Yardstick.of(rates), Yardstick.of(rates[::-1])
    assert speed_ratio(then, now) == pytest.approx(1.0)
    other = Yardstick.of([{kind: rate * 1.9 for kind, rate in each.items()} for each in rates])
    assert speed_ratio(then, other) == pytest.approx(1.9)
    assert speed_ratio(other, then) == pytest.approx(1 / 1.9)


def test_nothing_unknown_is_alike() -> None:
    """Neither no readings, nor work of which one side knows more; one kind that is slower makes another machine."""
    known, none = readings(2), Yardstick()
    assert is_as_fast(known, known)
    more = Yardstick({**known.rates, "matrix multiply": (5.0, 5.0)})
    for then, now in ((none, known), (known, none), (none, none), (known, more), (more, known)):
        assert not is_as_fast(then, now)
    assert speed_ratio(none, known) is None
    # Nobody knows which of them a workload follows.
    slower = Yardstick({**known.rates, "memory": tuple(0.9 * rate for rate in known.rates["memory"])})
    assert not is_as_fast(known, slower)
    assert speed_ratio(known, slower) == pytest.approx(0.9)


@pytest.mark.parametrize(
    ("speed", "sd", "least", "most"),
    [
        # A quiet machine is known, and one that is 6 % slower never taken for it, however it scatters.
        (1.0, 0.002, 0.99, 1.0),
        (1.0, 0.01, 0.5, 1.0),
        (1.06, 0.002, 0.0, 0.0),
        (1.06, 0.01, 0.0, 0.02),
        (0.94, 0.03, 0.0, 0.02),
        (1.5, 0.05, 0.0, 0.0),
    ],
)
def test_how_often_machines_are_taken_for_alike(speed: float, sd: float, least: float, most: float) -> None:
    """Counted over 300 pairs of two sessions with two readings each."""
    alike = sum(
        is_as_fast(readings(2, sd=sd, seed=f"then {number}"), readings(2, speed=speed, sd=sd, seed=f"now {number}"))
        for number in range(300)
    )
    assert least <= alike / 300 <= most


def test_scatter_is_never_believed_to_be_none() -> None:
    """Two readings that agree by chance leave as much open as those of any machine do."""
    (change, *_) = speed_changes(readings(2), readings(2, speed=1.04))
    assert change.is_near
    assert not change.is_within
    assert abs(math.log(change.ratio)) < LIMIT


@pytest.mark.parametrize(
    ("rates", "steady"),
    [((1000.0, 1020.0), True), ((1000.0, 1100.0), False), ((1000.0,), False), ((1000.0, 1001.0, 700.0), False)],
)
def test_a_steady_machine_has_alike_readings(rates: tuple[float, ...], steady: bool) -> None:  # noqa: FBT001 -- a case
    """Of each kind of work, and of more than one reading: a single one tells of no time."""
    assert Yardstick({"memory": rates, "interpreter": (5.0,) * len(rates)}).is_steady is steady
    assert not Yardstick().is_steady


def test_work_that_one_reading_lacks_is_left_out() -> None:
    """A card that was read once and then not any more has no rate of its own."""
    found = Yardstick.of([{"memory": 1.0, "matrix multiply": 2.0}, {"memory": 3.0}])
    assert found.rates == {"memory": (1.0, 3.0)}
    assert Yardstick.pooled([found, Yardstick({"memory": (5.0,), "x": (1.0,)})]).rates == {"memory": (1.0, 3.0, 5.0)}
    assert Yardstick.pooled([]).rates == {}
