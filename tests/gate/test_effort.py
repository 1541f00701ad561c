"""Efforts: every tolerance that a marker may set has another one that is possible, and what each finds, counted.

The page ``docs/how-to/effort.md`` has the table of ``python -m tests.docs.effort``.
"""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuserve.gate.effort import Effort
from pytest_gpuserve.gate.metric import METRICS, Metric
from pytest_gpuserve.gate.sequential import BLOCKS
from pytest_gpuserve.gate.verdict import Verdict
from tests.fakes.noise_model import QUIET
from tests.gate.test_power import WINDOWS_OF_A_BLOCK, of_each_noise, share, with_early_end, with_history
from tests.support.counting import chance, short_and_long

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.fakes.noise_model import Noise
    from tests.gate.test_power import Comparison, End

LOG: Final = logging.getLogger(__name__)

THROUGHPUT, P99 = METRICS["throughput"], METRICS["latency.p99"]

START_WINDOWS: Final = 6
"""What it takes to start both servers, in windows."""


def ends(pairs: Sequence[Comparison], effort: Effort, slower: float, *, before: Sequence[End] = ()) -> list[End]:
    """How comparisons of a throughput at the default tolerance end where the candidate's is lower by a fraction.

    Args:
        pairs: Of identical builds.
        effort: Of the run.
        slower: The fraction.
        before: How they ended in a run before it, whose rounds it goes on with.
    """
    growth = THROUGHPUT.growth(effort.tolerance(THROUGHPUT, THROUGHPUT.default_tolerance))
    after = [end.windows for end in before] or [0] * len(pairs)
    return [
        with_early_end(pair.slowed(-math.log1p(-slower)), growth, START_WINDOWS, after=windows)
        for pair, windows in zip(pairs, after, strict=True)
    ]


def regressed(found: Sequence[End]) -> float:
    """The share that is REGRESSED."""
    return share([end.verdict is Verdict.REGRESSED for end in found])


def passed(found: Sequence[End]) -> float:
    """The share that passes."""
    return share([end.verdict.passes for end in found])


@pytest.mark.parametrize(
    ("metric", "stated", "scaled"),
    [
        (THROUGHPUT, 0.05, (0.1, 0.05, 0.02)),
        (P99, 0.2, (0.4, 0.2, 0.08)),
        (P99, 1.0, (2.0, 1.0, 0.4)),
        (THROUGHPUT, 0.3, (0.6, 0.3, 0.12)),
        (THROUGHPUT, 0.6, (0.8, 0.6, 0.24)),
        (THROUGHPUT, 0.99, (0.995, 0.99, 0.396)),
    ],
)
def test_a_tolerance_is_twice_or_two_fifths_of_what_is_stated(
    metric: Metric, stated: float, scaled: tuple[float, ...]
) -> None:
    """Twelve digits; what may not fall to nothing keeps half of what the test leaves of it."""
    assert tuple(effort.tolerance(metric, stated) for effort in Effort) == scaled


@given(st.sampled_from(sorted(METRICS)), st.floats(1e-6, 0.999999), st.floats(1e-6, 0.999999))
def test_every_tolerance_stays_possible_and_in_order(name: str, one: float, other: float) -> None:
    """No verdict is impossible at it, push never asks for more than merge and nightly never for less."""
    metric = METRICS[name]
    for stated in (one, other):
        push, merge, nightly = (effort.tolerance(metric, stated) for effort in Effort)
        assert nightly <= merge <= push
        assert metric.growth(push) > 0
        assert metric.growth(nightly) > 0
    less, more = sorted((one, other))
    for effort in Effort:
        assert effort.tolerance(metric, less) <= effort.tolerance(metric, more)


def test_an_impossible_tolerance_is_refused() -> None:
    """It is not made possible by a smaller factor."""
    with pytest.raises(ValueError, match="must be below 1"):
        Effort.NIGHTLY.tolerance(THROUGHPUT, 1.5)


@short_and_long(200, 5_000)
@of_each_noise()
def test_a_push_takes_one_start_and_finds_what_is_much_slower(noise: Noise, count: int) -> None:
    """With three stored sessions 99 of 100 identical builds pass in the first start, on a noisy machine 92.

    Of builds that are 20 % slower 99 of 100 are REGRESSED.
    """
    pairs = with_history(noise, count, sessions=3, past=0)
    one_start = START_WINDOWS + BLOCKS * WINDOWS_OF_A_BLOCK
    quick = share([end.verdict.passes and end.windows <= one_start for end in ends(pairs, Effort.PUSH, 0.0)])
    found = regressed(ends(pairs, Effort.PUSH, 0.20))
    LOG.info("in one start %.4f, found %.4f", quick, found)
    least = 0.92 if noise.name == "noisy" else 0.99
    assert quick >= least - chance(least, count)
    assert found >= 0.99 - chance(0.99, count)


@short_and_long(300, 10_000)
def test_a_nightly_run_finds_little_on_a_quiet_machine(count: int) -> None:
    """Of builds that are 3 % slower 98 of 100 are REGRESSED, of identical ones 1 of 300 at most."""
    pairs = with_history(QUIET, count, sessions=3, past=0)
    wrong, found = (regressed(ends(pairs, Effort.NIGHTLY, slower)) for slower in (0.0, 0.03))
    LOG.info("wrong %.4f, found %.4f", wrong, found)
    assert wrong <= 1 / 300 + chance(1 / 300, count)
    assert found >= 0.98 - chance(0.98, count)


@short_and_long(200, 5_000)
@of_each_noise()
def test_a_merge_after_a_push_errs_no_more(noise: Noise, count: int) -> None:
    """It judges the push's rounds at its own tolerance, from the look on at which the push was decided.

    Looks that were not taken lose their share of the level: at the edge of the tolerance at most 5 of 100 pass, of
    identical builds 1 of 300 is REGRESSED.
    """
    pairs = with_history(noise, count, sessions=3, past=0)
    same, edge = (ends(pairs, Effort.MERGE, slower, before=ends(pairs, Effort.PUSH, slower)) for slower in (0.0, 0.05))
    LOG.info("wrong %.4f, passed %.4f at the edge", regressed(same), passed(edge))
    assert regressed(same) <= 1 / 300 + chance(1 / 300, count)
    assert passed(edge) <= 0.05 + chance(0.05, count)
