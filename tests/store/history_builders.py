"""Small rounds, pairs and sequences for the tests of what is remembered of them."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from hypothesis import strategies as st

from pytest_gpuserve.measure.counters import Counters, ServerSetting, StageTime
from pytest_gpuserve.measure.histogram import LARGEST_BUCKET, Histogram
from pytest_gpuserve.measure.rounds import ABBA, ArmResult, Block, Round
from pytest_gpuserve.measure.streams import Streams
from pytest_gpuserve.measure.window import CardUse, Client, Window
from pytest_gpuserve.store.sequence import KeptMetric, KeptSequence, SequenceKey, Subject
from pytest_gpuserve.verdict.verdict import Verdict
from tests.support.builders import window

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
CARDS = st.builds(CardUse, *[SECONDS | st.just(0.0) | st.none()] * 4).filter(lambda cards: cards != CardUse())

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
        cards=draw(CARDS | st.none()),
        streams=draw(st.none() | streams(latency)),
        good=good,
        unjudged=latency.total - (good or 0) if draw(st.booleans()) else 0,
        tallies=draw(st.dictionaries(st.sampled_from(["prompt_tokens", "preemptions"]), st.integers(0, 10**15 - 1))),
    )


TODAY = "2025-01-02T03:04:05+00:00"

SUBJECT = Subject(
    nodeid="test_y.py::test_a[1]",
    label="burst",
    host="host-a",
    device="cpu",
    workload={"server": "mosec", "concurrency": "50"},
)


def days_later(days: float, moment: str = TODAY) -> str:
    """A moment so many days after another."""
    return (datetime.fromisoformat(moment) + timedelta(days=days)).isoformat(timespec="seconds")


def pair(candidate: str = "c" * 64, subject: Subject = SUBJECT) -> SequenceKey:
    """A pair of builds."""
    return SequenceKey(subject, base="b" * 64 + " python 3.11.7", candidate=candidate, software={"mosec": "0.9.5"})


def small_round(at: str = TODAY) -> Round:
    """A round of one block, which is quickly read."""
    part = Counters(20, 5, {"4": 5}, {"compute": StageTime(0.5, 5)}, requests=20)
    side = ArmResult(
        (1.5,),
        Client(sending_seconds=0.25, receiving_seconds=0.0),
        batch_sizes={"4": 10},
        answers=20,
        answers_checked=20,
        cold_start_parts={"import": 1.25},
        settings={"batch": ServerSetting("32", None), "delay": ServerSetting(None, "10")},
        counters=replace(part, parts={"model": part}),
    )
    return Round((Block(ABBA, (window((0.01, 0.02)),) * 4),), "base", {"base": side, "candidate": side}, at)


def small_sequence(*differences: tuple[float, ...], rounds: int = 1) -> KeptSequence:
    """A sequence of one metric with a decision and one without."""
    metrics = {
        "throughput": KeptMetric(
            0.05,
            (0, 1),
            Verdict.PASS,
            differences or ((0.01, -0.02),),
        ),
        "latency.p99": KeptMetric(0.2, (1,)),
    }
    return KeptSequence((small_round(),) * rounds, metrics, TODAY)


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
