"""Small rounds, pairs and sequences for the tests of what is remembered of them."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from hypothesis import strategies as st

from pytest_gpuserve.measure.counters import StageTime
from pytest_gpuserve.measure.histogram import LARGEST_BUCKET, Histogram
from pytest_gpuserve.measure.streams import Streams
from pytest_gpuserve.measure.window import GpuUse, Window

if TYPE_CHECKING:
    from collections.abc import Callable


COUNT = st.integers(0, 2**53 - 1)
SECONDS = st.floats(1e-6, 1e6).map(lambda value: float(f"{value:.6g}"))
"""To six digits, which are what a file keeps."""

HISTOGRAMS = st.dictionaries(st.integers(0, LARGEST_BUCKET), st.integers(1, 10**9), max_size=5).map(Histogram)
STAGES = st.dictionaries(
    st.sampled_from(["server", "compute", "compute.Größe_1", "compute.a-b.c"]),
    st.builds(StageTime, SECONDS | st.just(0.0), st.integers(1, 10**15 - 1)),
)
GPUS = st.builds(GpuUse, *[SECONDS | st.just(0.0) | st.none()] * 4).filter(lambda gpus: gpus != GpuUse())

NO_ERRORS: Final[st.SearchStrategy[dict[str, int]]] = st.builds(dict)


@st.composite
def streams(draw: st.DrawFn, times: Histogram) -> Streams | None:
    """Those of as many requests; None of nothing at all, which a file does not tell apart."""
    tpot = draw(st.sampled_from([times, Histogram({})]))
    with_usage = draw(st.integers(tpot.total, times.total))
    found = Streams(times, draw(HISTOGRAMS), tpot, draw(st.integers(-100, 2**53 - 1)), with_usage, draw(COUNT))
    return None if found == Streams() else found


@st.composite
def windows(draw: st.DrawFn, errors: st.SearchStrategy[dict[str, int]] = NO_ERRORS) -> Window:
    """Any window that can be written, by default one that a baseline may have."""
    latency = draw(HISTOGRAMS)
    good = draw(st.integers(0, latency.total) | st.none())
    return Window(
        seconds=draw(SECONDS),
        requests=latency.total,
        errors=draw(errors),
        latency=replace(latency, sum_seconds=draw(SECONDS), max_seconds=draw(SECONDS)),
        items=draw(COUNT | st.none()),
        batches=draw(COUNT | st.none()),
        client_cpu_seconds=draw(SECONDS),
        stages=draw(STAGES),
        gpus=draw(GPUS | st.none()),
        streams=draw(st.none() | streams(latency)),
        good=good,
        unjudged=latency.total - (good or 0) if draw(st.booleans()) else 0,
        tallies=draw(st.dictionaries(st.sampled_from(["prompt_tokens", "preemptions"]), st.integers(0, 10**15 - 1))),
    )


def forked(work: Callable[[], object]) -> int:
    """Let a copy of this process do some work, and end; its id."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return pid


def ended(pid: int) -> int:
    """Wait for a copy's end: its exit status, or the negative number of what killed it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
