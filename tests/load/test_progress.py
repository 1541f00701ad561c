"""The progress line says what is known, whole, within its width."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from pytest_gpuserve.gate.verdict import Verdict
from pytest_gpuserve.load.progress import ANY_WIDTH, NOBODY, Standing, progress_line
from pytest_gpuserve.load.totals import Totals
from pytest_gpuserve.load.wire import Latencies, Tick
from pytest_gpuserve.measure.histogram import bucket_of
from pytest_gpuserve.trial.looks import Look
from tests.support.builders import judgement

LAST = Tick(7, 0, 10**8, requests=215)
"""215 requests in 0.1 s."""

STANDING = Standing("test_a[50]", "round 2 of 8", judgement(Verdict.INCONCLUSIVE), 242.0)


def so_far(requests: int = 5000, errors: int = 0) -> Totals:
    """So many requests of 12.3 ms each."""
    latency = Totals().latency.plus(
        Latencies({bucket_of(12_300_000): requests}, requests * 12_300_000, 12_300_000) if requests else Latencies()
    )
    return Totals(requests=requests, latency=latency, errors={"reset": errors} if errors else {})


def test_all_is_told() -> None:
    """The present rate, the p99 and errors so far, and the time left."""
    assert progress_line(so_far(errors=3), LAST, 8.0, 80) == "2150/s  p99 12.3 ms  3 errors  8 s left"
    assert progress_line(so_far(errors=1), LAST, 8.0, 80) == "2150/s  p99 12.3 ms  1 error  8 s left"
    assert progress_line(so_far(), LAST, None, 80) == "2150/s  p99 12.3 ms"


def test_what_is_not_known_is_not_invented() -> None:
    """A p99 of fewer than 100 requests, and a rate of no time."""
    assert progress_line(so_far(99), LAST, None, 80) == "2150/s  p99 -"
    assert progress_line(so_far(0), Tick(0, 5, 5), None, 80) == "-/s  p99 -"


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(-3.0, "0 s"), (0.0, "0 s"), (0.1, "1 s"), (7.0, "7 s"), (119.5, "2 min"), (125.0, "2 min 5 s")],
)
def test_time_left_is_whole_seconds(seconds: float, shown: str) -> None:
    """Rounded up, so that 0 s means the end, and never negative."""
    assert progress_line(so_far(), LAST, seconds, 80).endswith(f"  {shown} left")


@pytest.mark.parametrize(
    ("width", "line"),
    [
        (39, "2150/s  p99 12.3 ms  3 errors  8 s left"),
        (38, "2150/s  p99 12.3 ms  3 errors"),
        (29, "2150/s  p99 12.3 ms  3 errors"),
        (28, "2150/s  3 errors"),
        (15, "2150/s"),
        (6, "2150/s"),
        (5, ""),
        (0, ""),
    ],
)
def test_a_narrow_line_leaves_out_whole_parts(width: int, line: str) -> None:
    """The time left goes first, then the p99, the errors, and last the rate."""
    assert progress_line(so_far(errors=3), LAST, 8.0, width) == line


def test_the_test_is_told() -> None:
    """Which test, which look, the estimate so far of the metric that is being decided, and what is left to it."""
    assert progress_line(so_far(errors=3), LAST, 8.0, ANY_WIDTH, STANDING) == (
        "test_a[50]  round 2 of 8  throughput -30.1 % (-34.1 % .. -26.2 %)  2150/s  p99 12.3 ms  3 errors  8 s left"
        "  budget: 4 min 2 s left"
    )


def test_what_is_not_known_of_the_test_is_left_out() -> None:
    """Before the first look there is no estimate; a recording has no budget, and a spent one is not negative."""
    first = Standing("test_a", "session 1 of 6", judgement(Verdict.MISSING), -3.0)
    assert progress_line(so_far(), LAST, None, 80, first) == (
        "test_a  session 1 of 6  2150/s  p99 12.3 ms  budget: 0 s left"
    )
    assert progress_line(so_far(), LAST, None, 80, Standing("test_a")) == "test_a  2150/s  p99 12.3 ms"
    assert progress_line(so_far(), LAST, None, 80, NOBODY) == "2150/s  p99 12.3 ms"
    unbounded = Standing(judgement=dataclasses.replace(judgement(), interval=None))
    assert progress_line(so_far(), LAST, None, 80, unbounded) == "throughput -30.1 %  2150/s  p99 12.3 ms"


@pytest.mark.parametrize(
    ("width", "line"),
    [
        (96, "test_a[50]  round 2 of 8  throughput -30.1 % (-34.1 % .. -26.2 %)  2150/s  p99 12.3 ms  3 errors"),
        (95, "round 2 of 8  throughput -30.1 % (-34.1 % .. -26.2 %)  2150/s  p99 12.3 ms  3 errors"),
        (83, "round 2 of 8  throughput -30.1 % (-34.1 % .. -26.2 %)  2150/s  3 errors"),
        (70, "round 2 of 8  throughput -30.1 %  2150/s  3 errors"),
        (49, "throughput -30.1 %  2150/s  3 errors"),
        (30, "2150/s  3 errors"),
        (6, "2150/s"),
        (5, ""),
    ],
)
def test_a_narrow_line_keeps_the_estimate_longest(width: int, line: str) -> None:
    """The times left go first, then the name, the p99, the interval, the look, and the estimate."""
    assert progress_line(so_far(errors=3), LAST, 8.0, width, STANDING) == line


def test_a_wide_name_takes_its_columns() -> None:
    """Signs of two columns count as two."""
    standing = Standing("試" * 10)
    assert "試" in progress_line(so_far(), LAST, None, 41, standing)
    assert progress_line(so_far(), LAST, None, 40, standing) == "2150/s  p99 12.3 ms"


def test_a_look_is_told_as_one_of_so_many() -> None:
    """Also one more than was thought of."""
    assert str(Look("round", 2, 8)) == "round 2 of 8"
    assert str(Look("session", 7, 6)) == "session 7 of 7"


@settings(deadline=None)  # a busy machine may stall any example
@given(
    requests=st.integers(0, 10**12),
    errors=st.integers(0, 10**12),
    left=st.none() | st.floats(-1e9, 1e9),
    width=st.integers(-5, 200),
    standing=st.builds(
        Standing,
        st.text(st.characters(exclude_categories=["C", "Z"])),
        st.sampled_from(["", "round 2 of 8"]),
        st.none() | st.sampled_from([judgement(), judgement(Verdict.MISSING)]),
        st.none() | st.floats(-1e9, 1e9),
    ),
)
def test_the_line_is_one_line_within_its_width(
    requests: int, errors: int, left: float | None, width: int, standing: Standing
) -> None:
    """Whatever the numbers, it holds no line break and is no wider than it may be."""
    line = progress_line(so_far(requests, errors), LAST, left, width, standing)
    assert cell_len(line) <= max(width, 0)
    assert line.isprintable()
