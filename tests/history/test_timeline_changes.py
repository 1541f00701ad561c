"""Change points: how often a flat history has one, how often a real one is found, and what is said without them."""

from __future__ import annotations

import json
import math
import random
import sys
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_gpuserve.gate.metric import METRICS
from pytest_gpuserve.history.__main__ import BLOCKS, PLAIN, chart, main
from pytest_gpuserve.history.lines import FEWEST_POINTS, SHORTEST, changes_of, noise_sd
from tests.support.baseline_repository import TEST

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.baseline_repository import BaselineRepository

needs_library = pytest.mark.skipif(
    "not __import__('importlib.util').util.find_spec('ruptures')", reason="change points need the library ruptures"
)

SD = METRICS["throughput"].sd_floor


def normal(rng: random.Random) -> float:
    """Noise of sd 1."""
    return rng.gauss(0, 1)


def heavy(rng: random.Random) -> float:
    """Noise of Student's t with four degrees of freedom, as sessions on a shared machine have it."""
    return rng.gauss(0, 1) / math.sqrt(rng.gammavariate(2, 0.5))


def series(rng: random.Random, noise: Callable[[random.Random], float], sd: float, levels: list[float]) -> list[float]:
    """Values about levels, in order."""
    return [level * math.exp(sd * noise(rng)) for level in levels]


@needs_library
@pytest.mark.parametrize("noise", [normal, heavy])
@pytest.mark.parametrize("sd", [0.01, 0.03])
@pytest.mark.parametrize("points", [FEWEST_POINTS, 20, 60])
def test_a_flat_history_seldom_has_a_change(noise: Callable[[random.Random], float], sd: float, points: int) -> None:
    """Counted on seeded series: hardly one flat line in a hundred is said to have changed, however noisy it is."""
    rng = random.Random(8)
    runs = 300
    alarms = sum(bool(changes_of(series(rng, noise, sd, [1000.0] * points), smallest_sd=SD)) for _ in range(runs))
    # What was measured with many more series, and three standard errors of so few.
    assert alarms / runs <= 0.012 + 3 * math.sqrt(0.012 * 0.988 / runs)


@needs_library
@pytest.mark.parametrize(("points", "begins"), [(12, 9), (20, 10), (40, 30), (40, 10)])
def test_a_lasting_change_is_found_where_it_is(points: int, begins: int) -> None:
    """A change of five times the noise is found in nearly every line, within one point of where it is."""
    rng = random.Random(9)
    levels = [1000.0] * begins + [900.0] * (points - begins)
    found = [changes_of(series(rng, normal, 0.02, levels), smallest_sd=SD) for _ in range(200)]
    right = [one for one in found if len(one) == 1 and abs(one[0].point - begins) <= 1]
    assert len(right) / len(found) >= 0.9
    assert sum(one[0].fraction for one in right) / len(right) == pytest.approx(-0.1, abs=0.01)


@needs_library
def test_a_level_lasts_and_differs() -> None:
    """A line that falls and recovers has two changes; an odd value is none, nor is a step below any believed spread."""
    levels = [1000.0] * 12 + [800.0] * 12 + [1000.0] * 12
    first, second = changes_of(series(random.Random(10), normal, 0.01, levels), smallest_sd=SD)
    assert (first.point, second.point) == (12, 24)
    assert first.fraction < 0 < second.fraction
    assert first.after == second.before
    odd = [1000.0, 1003, 998, 1001, 999, 700, 1002, 1000, 997, 1001, 1000, 999]
    assert changes_of(odd, smallest_sd=SD) == ()
    small = [1000.0] * 10 + [1001.0] * 10
    assert changes_of(small, smallest_sd=SD) == ()
    assert len(changes_of(small, smallest_sd=1e-6)) == 1


@needs_library
@settings(max_examples=60)
@given(st.lists(st.floats(1e-9, 1e12), max_size=40), st.floats(0.001, 0.1))
def test_changes_are_sound(values: list[float], smallest: float) -> None:
    """Whatever the values, changes rise, lie within, and leave levels of at least so many points."""
    found = changes_of(values, smallest_sd=smallest)
    places = [0, *(change.point for change in found), len(values)]
    assert len(values) >= FEWEST_POINTS or not found
    assert all(end - begin >= SHORTEST for begin, end in pairwise(places)) or not found
    assert all(change.before > 0 and change.after > 0 for change in found)


@given(st.floats(0.001, 0.5), st.floats(-5, 5))
def test_noise_does_not_see_a_level(sd: float, level: float) -> None:
    """The noise is the same at any level, and a change of it hardly counts among many points."""
    rng = random.Random(1)
    flat = [rng.gauss(0, sd) for _ in range(400)]
    assert noise_sd([level + y for y in flat]) == pytest.approx(noise_sd(flat))
    assert noise_sd(flat) == pytest.approx(sd, rel=0.2)
    stepped = [y + (5 * sd if number >= 200 else 0) for number, y in enumerate(flat)]
    assert noise_sd(stepped) == pytest.approx(noise_sd(flat), rel=0.1)


def test_without_the_library_it_is_said_what_installs_it(
    repository: BaselineRepository, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The extra is named, and how to do without it, however short the history is."""
    repository.record_each(1.0)
    monkeypatch.setitem(sys.modules, "ruptures", None)
    assert main([]) == 2
    told = capsys.readouterr().err
    assert "pip install 'pytest-gpuserve[history]'" in told
    assert "--no-change-points" in told
    assert main(["--no-change-points"]) == 0


@needs_library
@pytest.mark.parametrize(
    ("points", "says", "changes"),
    [
        (1, f"  change points need {FEWEST_POINTS} points", None),
        (FEWEST_POINTS, "  no change of level was found", []),
    ],
)
def test_without_a_change_it_is_said_what_is_known(
    repository: BaselineRepository,
    capsys: pytest.CaptureFixture[str],
    points: int,
    says: str,
    changes: list[object] | None,
) -> None:
    """With few points it is not said that nothing changed; with enough, that none was found is a finding."""
    repository.record_each(*(1.0 + 0.002 * (day % 3) for day in range(points)))
    assert main(["--metric=throughput"]) == 0
    assert says in capsys.readouterr().out.splitlines()
    assert main(["--metric=throughput", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["lines"][0]["changes"] == changes


@needs_library
def test_a_change_is_drawn_with_its_commit(repository: BaselineRepository, capsys: pytest.CaptureFixture[str]) -> None:
    """A regression that stayed is pointed at in the chart, with commit, day, size, and that it is worse."""
    speeds = [1.0, 1.01, 0.99, 1.0, 1.005, 0.995, 1.0, 0.7, 0.705, 0.695, 0.7, 0.7, 0.705, 0.7]
    hashes = repository.record_each(*speeds)
    assert main(["--metric=throughput", "--metric=p50"]) == 0
    p50, throughput = sorted(capsys.readouterr().out.split("\n\n"), key=lambda line: "throughput" in line)
    told = throughput.splitlines()
    assert told[2] == " " * 9 + "^"
    (change,) = [line for line in told if "(worse)" in line]
    assert f"(worse) from {hashes[7][:7]} 2025-01-08 on: 1000/s before, 701/s after" in change
    assert change.startswith("  -29.9 %")
    assert "+42." in p50
    assert "(worse)" in p50
    assert TEST in told[0]


@given(st.lists(st.floats(1e-9, 1e12), min_size=1, max_size=100), st.booleans())
def test_a_chart_has_a_column_a_value(values: list[float], blocks: bool) -> None:  # noqa: FBT001 -- a parameter
    """Whatever the values, each has a sign, the greatest none above it; noise differs by a step in the middle."""
    drawn = chart(values, narrowest=0.1, blocks=blocks)
    signs = BLOCKS if blocks else PLAIN
    assert len(drawn) == len(values)
    assert set(drawn) <= set(signs)
    assert signs.index(drawn[values.index(max(values))]) == max(map(signs.index, drawn))
    assert set(chart([1000.0, 1001.0, 999.0, 1000.5], narrowest=0.1, blocks=True)) <= set(BLOCKS[3:5])
