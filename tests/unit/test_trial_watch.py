"""What shows, while a server is loaded, that not the server alone was measured."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, cast

import pytest

from pytest_gpuserve.load.schedule import Closed
from pytest_gpuserve.load.totals import total
from pytest_gpuserve.load.wire import Latencies, Tick
from pytest_gpuserve.measure.counters import Counters
from pytest_gpuserve.measure.window import COMPILING, COMPUTE, StageTime
from pytest_gpuserve.trial.shape import LoadShape
from pytest_gpuserve.trial.watch import Reading, Watch
from tests.unit.builders import window

if TYPE_CHECKING:
    from pytest_gpuserve.load.answers import AnswerCheck
    from pytest_gpuserve.servers.instance import Instance
    from pytest_gpuserve.trial.handle import Target
    from pytest_gpuserve.trial.watch import Progress

SECOND_NS = 10**9


@dataclass
class Counting:
    """A server that has counted so many requests, and whose counters take a while to be read."""

    requests: int | None = 0
    batches: int = 0
    takes_seconds: float = 0.0
    clock: list[float] = field(default_factory=lambda: [100.0])

    def counters(self) -> Counters:
        """Read them."""
        self.clock[0] += self.takes_seconds
        return Counters(items=self.requests or 0, batches=self.batches, requests=self.requests)

    def death(self) -> None:
        """It lives."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Counting:
    """A server, whose clock is the watch's."""
    there = Counting()
    monkeypatch.setattr("time.monotonic", lambda: there.clock[0])
    return there


def watch_of(server: Counting) -> Watch:
    """A watch that looks after it."""
    return Watch(
        cast("Instance", server),
        cast("Target", None),
        LoadShape(Closed(4)),
        cast("AnswerCheck", None),
        cast("Progress", None),
        lambda: None,
    )


def judged(server: Counting, *, sent: int, counted: int, seconds: int = 4) -> list[str]:
    """What is said of a load in which we sent so many requests while the server counted so many."""
    watch = watch_of(server)
    before = watch.read_counters()
    assert before is not None
    tick = Tick(
        0, 0, seconds * SECOND_NS, requests=sent, latency=Latencies(sum_ns=sent * 10_000_000, max_ns=10_000_000)
    )
    server.clock[0] += seconds
    server.requests = counted
    after = watch.read_counters()
    made = watch.window([tick], watch.counted(before, after))
    assert made is not None
    watch.problems.clear()
    watch.judge(total([tick]), [made], None)
    return [problem for problem in watch.problems if problem.startswith("another client")]


@pytest.mark.parametrize("counted", [0, 900, 1000, 1040])
def test_as_many_as_were_sent_is_nobody_else(server: Counting, counted: int) -> None:
    """A few more than we saw are those under way; fewer are no sign of another client."""
    assert judged(server, sent=1000, counted=counted) == []


@pytest.mark.parametrize("counted", [1100, 5000])
def test_more_than_were_sent_is_somebody_else(server: Counting, counted: int) -> None:
    """A tenth more than we sent in the same time comes from somebody, and both rates are named."""
    (said,) = judged(server, sent=1000, counted=counted)
    assert f"answered {counted / 4:.0f} requests a second, we sent it 250" in said


def test_a_reading_that_took_long_proves_nothing(server: Counting) -> None:
    """What the server answered while its counters were read, on a stalled machine, is nobody else's."""
    server.takes_seconds = 1.0
    assert judged(server, sent=1000, counted=1300) == []


def test_a_server_that_counts_no_requests_accuses_nobody(server: Counting) -> None:
    """What is not counted is not compared."""
    watch = watch_of(server)
    server.requests = None
    assert watch.counted(watch.read_counters(), watch.read_counters()) is not None
    watch.judge(total([Tick(0, 0, SECOND_NS, requests=100)]), [], None)
    assert not [problem for problem in watch.problems if "another client" in problem]


def test_a_reset_is_a_problem_and_no_ratio(server: Counting) -> None:
    """Counters that fell are told by name, and nothing is counted of that window."""
    watch = watch_of(server)
    before = Reading(Counters(items=8, batches=2), 0.0, 0.0)
    assert watch.counted(before, Reading(Counters(items=3, batches=1), 1.0, 0.0)) is None
    (problem,) = watch.problems
    assert "items fell from 8 to 3" in problem


@pytest.mark.parametrize("kept", [True, False])
def test_compiling_in_the_measured_time_is_told(server: Counting, *, kept: bool) -> None:
    """Of the windows that are kept; what a warm-up compiled is as it should be."""
    watch = watch_of(server)
    compiling = replace(window(), stages={COMPILING: StageTime(9.0, 2), COMPUTE: StageTime(9.0, 2)})
    watch.judge(total([Tick(0, 0, SECOND_NS, requests=100)]), [compiling] if kept else [window()], None)
    assert any("in 2 executions" in problem for problem in watch.problems) is kept
