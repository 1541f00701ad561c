"""The progress line says what is known, whole, within its width."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from pytest_gpuserve.comparison.context import Look
from pytest_gpuserve.gate.verdict import Verdict
from pytest_gpuserve.load.progress import ANY_WIDTH, NOBODY, ProgressContext, progress_line
from pytest_gpuserve.load.totals import Totals
from pytest_gpuserve.load.wire import Tick
from tests.load.ticks import alike
from tests.support.builders import judgement

LAST = Tick(7, 0, 10**8, requests=215)
"""215 requests in 0.1 s."""

ESTIMATE = "throughput -30.1 % (-34.1 % .. -26.2 %)"

STANDING = ProgressContext("test_a[50]", "round 2 of 8", judgement(Verdict.INCONCLUSIVE), 242.0)


def so_far(requests: int = 5000, errors: int = 0) -> Totals:
    """So many requests of 12.3 ms each."""
    latency = alike(requests, 12_300_000)
    return Totals(requests=requests, latency=latency, errors={"reset": errors} if errors else {})


@pytest.mark.parametrize(
    ("totals", "tick", "seconds", "line"),
    [
        (so_far(errors=3), LAST, 8.0, "2150/s  p99 12.3 ms  3 errors  8 s left"),
        (so_far(errors=1), LAST, 8.0, "2150/s  p99 12.3 ms  1 error  8 s left"),
        (so_far(), LAST, None, "2150/s  p99 12.3 ms"),
        # A p99 of fewer than 100 requests, and a rate of no time, are not known.
        (so_far(99), LAST, None, "2150/s  p99 -"),
        (so_far(0), Tick(0, 5, 5), None, "-/s  p99 -"),
        # Rounded up, so that 0 s means the end, and never negative.
        (so_far(), LAST, -3.0, "2150/s  p99 12.3 ms  0 s left"),
        (so_far(), LAST, 0.0, "2150/s  p99 12.3 ms  0 s left"),
        (so_far(), LAST, 0.1, "2150/s  p99 12.3 ms  1 s left"),
        (so_far(), LAST, 119.5, "2150/s  p99 12.3 ms  2 min left"),
        (so_far(), LAST, 125.0, "2150/s  p99 12.3 ms  2 min 5 s left"),
    ],
)
def test_all_that_is_known_is_told(totals: Totals, tick: Tick, seconds: float | None, line: str) -> None:
    """The present rate, the p99 and errors so far, and the time left."""
    assert progress_line(totals, tick, seconds, 80) == line


@pytest.mark.parametrize(
    ("standing", "line"),
    [
        (ProgressContext("test_a", str(Look("round", 2, 8))), "test_a  round 2 of 8  2150/s  p99 12.3 ms"),
        # One more than was thought of.
        (ProgressContext("test_a", str(Look("session", 7, 6))), "test_a  session 7 of 7  2150/s  p99 12.3 ms"),
        (
            ProgressContext("test_a", "session 1 of 6", judgement(Verdict.MISSING), -3.0),
            "test_a  session 1 of 6  2150/s  p99 12.3 ms  budget: 0 s left",
        ),
        (NOBODY, "2150/s  p99 12.3 ms"),
        (
            ProgressContext(judgement=dataclasses.replace(judgement(), interval=None)),
            "throughput -30.1 %  2150/s  p99 12.3 ms",
        ),
    ],
)
def test_what_is_known_of_the_test_is_told(standing: ProgressContext, line: str) -> None:
    """Before the first look there is no estimate; a recording has no budget, and a spent one is not negative."""
    assert progress_line(so_far(), LAST, None, 80, standing) == line


@pytest.mark.parametrize(
    ("standing", "width", "line"),
    [
        (NOBODY, 39, "2150/s  p99 12.3 ms  3 errors  8 s left"),
        (NOBODY, 38, "2150/s  p99 12.3 ms  3 errors"),
        (NOBODY, 28, "2150/s  3 errors"),
        (NOBODY, 15, "2150/s"),
        (NOBODY, 5, ""),
        (NOBODY, 0, ""),
        (
            STANDING,
            ANY_WIDTH,
            f"test_a[50]  round 2 of 8  {ESTIMATE}  2150/s  p99 12.3 ms  3 errors  8 s left  budget: 4 min 2 s left",
        ),
        (STANDING, 96, f"test_a[50]  round 2 of 8  {ESTIMATE}  2150/s  p99 12.3 ms  3 errors"),
        (STANDING, 95, f"round 2 of 8  {ESTIMATE}  2150/s  p99 12.3 ms  3 errors"),
        (STANDING, 83, f"round 2 of 8  {ESTIMATE}  2150/s  3 errors"),
        (STANDING, 70, "round 2 of 8  throughput -30.1 %  2150/s  3 errors"),
        (STANDING, 49, "throughput -30.1 %  2150/s  3 errors"),
        (STANDING, 30, "2150/s  3 errors"),
        (STANDING, 6, "2150/s"),
        (STANDING, 5, ""),
    ],
)
def test_a_narrow_line_leaves_out_whole_parts(standing: ProgressContext, width: int, line: str) -> None:
    """The times left go first, then the name, the p99, the interval, the look, the estimate, the errors, the rate."""
    assert progress_line(so_far(errors=3), LAST, 8.0, width, standing) == line


@settings(deadline=None)  # a busy machine may stall any example
@given(
    requests=st.integers(0, 10**12),
    errors=st.integers(0, 10**12),
    left=st.none() | st.floats(-1e9, 1e9),
    width=st.integers(-5, 200),
    standing=st.builds(
        ProgressContext,
        st.text(st.characters(exclude_categories=["C", "Z"])),
        st.sampled_from(["", "round 2 of 8"]),
        st.none() | st.sampled_from([judgement(), judgement(Verdict.MISSING)]),
        st.none() | st.floats(-1e9, 1e9),
    ),
)
def test_the_line_is_one_line_within_its_width(
    requests: int, errors: int, left: float | None, width: int, standing: ProgressContext
) -> None:
    """Whatever the numbers, it holds no line break and is no wider than it may be."""
    line = progress_line(so_far(requests, errors), LAST, left, width, standing)
    assert cell_len(line) <= max(width, 0)
    assert line.isprintable()
