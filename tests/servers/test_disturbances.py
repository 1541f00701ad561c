"""What disturbs a real load engine, or its whole machine: it is measured again, and the number stays what it was."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import psutil
import pytest

from pytest_gpuserve.experiment.loaded import LoadedStart
from pytest_gpuserve.experiment.sampling import take_session
from pytest_gpuserve.experiment.shape import LoadShape
from pytest_gpuserve.load.answers import AnswerCheck
from pytest_gpuserve.load.schedule import Closed, Poisson
from pytest_gpuserve.testing import Unseen
from pytest_gpuserve.verdict.reason import ReasonKind
from tests.fakes.http_server import BODY, Serving, serving
from tests.servers.somebody import FACTORY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pytest_gpuserve.experiment.handle import Target
    from pytest_gpuserve.load.schedule import Schedule
    from pytest_gpuserve.load.tick import Tick
    from pytest_gpuserve.measure.window import Session, Start
    from pytest_gpuserve.verdict.reason import Reason

pytestmark = pytest.mark.alone  # how fast a server answers beside others' work is no fact of ours

USERS = 8
CLOSED = Closed(USERS)
SERVICE_SECONDS = 0.04
"""Long enough that a busy machine's other work adds less than a hundredth to it."""

MOST_FOREIGN_CORES = 0.6

OPEN = Poisson(USERS / SERVICE_SECONDS / 1.2)

QUICK_SECONDS = 0.003
STARTS = 3
SECONDS = 2.5
WARMUP_SECONDS = 0.5

AT_TICK = 18
"""In the third window, or about there: after a warm-up of five ticks."""


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    """A server that answers after a sleep, so that the machine's other work hardly slows it down."""
    with serving() as running:
        yield running


class Planted(Unseen):
    """A progress line that does something at a tick, counted over all loads of a test."""

    def __init__(self, what: Callable[[], object], at: int | None = None) -> None:
        self._what = what
        self._at = at
        self._seen = 0

    def show(self, totals: Tick) -> None:
        """Hear of a tick."""
        self._seen += 1
        if self._seen == self._at:
            self._what()


def engines() -> list[int]:
    """The load engines that run."""
    found = []
    for child in psutil.Process().children():
        with suppress(psutil.Error):  # it may just end
            if "pytest_gpuserve.load.engine" in child.cmdline():
                found.append(child.pid)
    return found


def stop(pids: list[int], seconds: float) -> None:
    """Let processes stand still for so long."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(seconds)
    for pid in pids:
        os.kill(pid, signal.SIGCONT)


def stop_with_me(pids: list[int], seconds: float) -> None:
    """Let processes and this one stand still for so long; another one lets them go on."""
    named = " ".join(map(str, (*pids, os.getpid())))
    subprocess.run(["sh", "-c", f"kill -STOP {named}; sleep {seconds}; kill -CONT {named}"], check=True)


@contextmanager
def stopping(seconds: float, every_seconds: float) -> Iterator[None]:
    """Let load engines stand still again and again."""
    ended = threading.Event()

    def stop_on() -> None:
        while not ended.wait(every_seconds - seconds):
            with suppress(ProcessLookupError):
                stop(engines(), seconds)

    with ThreadPoolExecutor() as pool:
        pool.submit(stop_on)
        try:
            yield
        finally:
            ended.set()


def target_of(server: Serving, seconds: float = SERVICE_SECONDS) -> Target:
    """A request to it, which it answers after so long."""
    remote = FACTORY.remote(f"http://127.0.0.1:{server.port}")
    return remote.get(f"/ok?ms={seconds * 1000:g}", expect=BODY)


def undisturbed(server: Serving, what: Callable[[], object], schedule: Schedule = CLOSED) -> Start:
    """Measure a start during which something is done, or another where the machine adds a disturbance of its own.

    Skips the test where others take too much of the machine, or disturb a start during which nothing is done, too.
    """
    target = target_of(server)
    check = AnswerCheck((request.expect for request in target.requests), wants_all=False)
    shape = LoadShape(schedule, seconds=SECONDS, warmup_seconds=WARMUP_SECONDS)

    def measured(what: Callable[[], object]) -> tuple[Start, list[Reason]]:
        with target.started() as instance:
            load = LoadedStart(instance, target, shape, check, Planted(what, AT_TICK))
            start = load.measure()
        if start.foreign_cores > MOST_FOREIGN_CORES:
            pytest.skip(f"the machine is too busy: others took {start.foreign_cores:.2f} cores")
        return start, [*load.problems, *load.disturbances]

    for _ in range(STARTS):
        start, told = measured(what)
        if not told:
            return start
    _, alone = measured(lambda: None)
    if alone:
        pytest.skip(f"the machine is too busy: {alone}")
    pytest.fail(f"{STARTS} starts of {STARTS} were disturbed: {told}")


def assert_right(start: Start) -> None:
    """The rate is that of users who wait for the median latency, and no latency is that of a standstill of 0.3 s.

    Such a standstill in the 2.5 s would lower the rate by 10 %, and make some hundredths of the latencies that long.
    """
    median = start.latency.quantile(0.5)
    assert start.requests / start.seconds == pytest.approx(USERS / median, rel=0.05)
    assert median > 0.95 * SERVICE_SECONDS
    assert start.latency.quantile(0.99) < 4 * median


@pytest.mark.parametrize(
    ("whose", "schedule"), [("engine", CLOSED), ("engine and server", OPEN), ("all", CLOSED), ("all", OPEN)]
)
def test_a_standstill_is_measured_again(
    request: pytest.FixtureRequest, server: Serving, schedule: Schedule, whose: str
) -> None:
    """Of the engine, with its server, with pytest, 0.3 s: its windows are dropped, which is told; the rest is right."""
    if whose == "all" and not hasattr(request.config, "workerinput"):
        pytest.skip("a shell takes its terminal back from a pytest that stands still: run it with -n1")

    def stand_still() -> None:
        # Not with the tick, which a window may begin with.
        time.sleep(0.04)
        if whose == "all":
            stop_with_me([*engines(), server.process.pid], 0.3)
        else:
            stop([*engines(), *([server.process.pid] if whose == "engine and server" else [])], 0.3)

    start = undisturbed(server, stand_still, schedule)
    assert any(text.startswith(("client held up", "client late")) for text in start.rejected)
    assert len(start.windows) + start.discarded >= 2 * SECONDS
    assert start.latency.quantile(0.99) < 4 * start.latency.quantile(0.5)
    if isinstance(schedule, Closed):
        assert_right(start)


def test_an_engine_that_is_stopped_again_and_again_is_invalid(server: Serving) -> None:
    """5 ms of every 50 are a tenth of the time, in window after window, or start after start: that is a verdict."""
    kept: list[Session] = []
    target, shape = target_of(server, QUICK_SECONDS), LoadShape(CLOSED, seconds=2.0, warmup_seconds=0.5)
    with stopping(0.005, 0.05):
        take_session(target, shape, kept.append, Planted(lambda: None))
    (session,) = kept
    (problem,) = session.problems
    assert problem.kind is ReasonKind.CLIENT_HELD_UP
