"""A worker's own side, without Ray: one real engine, whose reports are kept for who asks."""

from __future__ import annotations

import os
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec
import pytest

from pytest_gpuserve.load.driver import host_process
from pytest_gpuserve.load.ray import worker as worker_module
from pytest_gpuserve.load.ray.placing import NET, PIDS, WorkerLocation, identity
from pytest_gpuserve.load.ray.worker import RayWorker, WorkerReport
from pytest_gpuserve.load.schedule import Closed
from pytest_gpuserve.load.wire import Again, Endpoint
from tests.fakes.children.toolkit import eventually
from tests.fakes.http_server import Serving, plan, serving
from tests.fakes.load_processes import ENGINE, below

if TYPE_CHECKING:
    from collections.abc import Iterator

    import psutil

    from pytest_gpuserve.load.wire import HostProcess, Plan, Tick

SECOND = 1_000_000_000

FOLLOWED_SECONDS = 30.0


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    """Give a server."""
    with serving() as running:
        yield running


def engines() -> list[psutil.Process]:
    """Engines that are ours, and alive."""
    return below(os.getpid(), ENGINE)


@contextmanager
def started(load: Plan, part: int = 0, parts: int = 1) -> Iterator[RayWorker]:
    """Give a worker that can begin, and end its engine, as the death of its own process does."""
    worker = RayWorker()
    before = set(threading.enumerate())
    try:
        assert worker.start(msgspec.msgpack.encode(load), part, parts, 5) == ""
        (following,) = set(threading.enumerate()) - before
        yield worker
    finally:
        engine = worker._engine
        assert engine is not None
        for process in engines():
            process.kill()
        # Who waits for an order hears of its death with the next one.
        worker._orders.put(Again(0))
        following.join(FOLLOWED_SECONDS)
        assert not following.is_alive()
        engine.close()
        assert not engines()


def news_of(worker: RayWorker) -> WorkerReport:
    """Ask a worker."""
    return msgspec.msgpack.decode(worker.poll(), type=WorkerReport)


def begin(worker: RayWorker) -> int:
    """Have it begin soon; returns when."""
    at_ns = worker.clock() + SECOND // 20
    assert worker.begin(at_ns) < at_ns
    return at_ns


def until_last(worker: RayWorker) -> list[Tick]:
    """Take its ticks up to the last one."""
    ticks: list[Tick] = []
    while not ticks or not ticks[-1].last:
        news = news_of(worker)
        assert not news.problem
        ticks += news.ticks
    return ticks


def test_a_worker_reports_all_that_its_engine_does(server: Serving) -> None:
    """From the begin that it was told to the end, no tick twice or missing, and the asking is an exchange of clocks."""
    with started(plan(server.port, requests=200)) as worker:
        (engine,) = engines()
        assert location_of(worker) == WorkerLocation(identity(PIDS), [known(os.getpid()), known(engine.pid)])
        before_ns = time.perf_counter_ns()
        at_ns = begin(worker)
        ticks = until_last(worker)
        news = news_of(worker)
        after_ns = time.perf_counter_ns()
    assert [tick.number for tick in ticks] == list(range(len(ticks)))
    assert sum(tick.requests for tick in ticks) == 200
    assert ticks[0].begin_ns >= at_ns
    # Of a tick that had to be cut only the last part says it.
    assert max(tick.host_cores for tick in ticks) == len(os.sched_getaffinity(0))
    assert before_ns < news.received_ns < news.answered_ns < after_ns


def reporting(worker: RayWorker) -> list[Tick]:
    """Wait for a report."""
    while not (ticks := news_of(worker).ticks):
        pass
    return ticks


@pytest.mark.parametrize("path", ["/ok?ms=1", "/never"])
def test_a_load_begins_anew_while_it_is_under_way_and_before_it_is(
    server: Serving, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """Ready is told once for each order, also on a stuck server; without news a worker answers all the same."""
    monkeypatch.setattr(worker_module, "POLL_SECONDS", 0.05)
    with started(plan(server.port, path)) as worker:
        news = news_of(worker)
        assert (news.ticks, news.ready, news.problem) == ([], False, "")
        begin(worker)
        reporting(worker)
        for seed in (6, 7):
            worker.again(seed)
            while not (news := news_of(worker)).ready:
                assert not news.problem
            assert not news_of(worker).ready
        begin(worker)
        assert reporting(worker)[0].number == 0


def test_the_clock_can_be_asked_for_while_somebody_waits_for_news(
    server: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise its time would be known only to within a wait."""
    monkeypatch.setattr(worker_module, "POLL_SECONDS", 30.0)
    with started(plan(server.port)) as worker:
        waiting = threading.Thread(target=worker.poll)
        waiting.start()
        first_ns = worker.clock()
        assert worker.clock() > first_ns
        assert waiting.is_alive()
        begin(worker)
        waiting.join(30)
        assert not waiting.is_alive()


def test_an_engine_that_dies_is_told_in_one_line(server: Serving) -> None:
    """With its exit status, in the next answer and in all after it."""
    with started(plan(server.port)) as worker:
        begin(worker)
        (engine,) = engines()
        engine.kill()
        while not (news := news_of(worker)).problem:
            pass
        assert news.problem == "the load engine died (exit status -9)"
        assert news_of(worker).problem == news.problem


@pytest.mark.parametrize(("part", "kept", "unchecked"), [(0, 1, 0), (1, 0, 1)])
def test_an_answer_too_large_for_a_worker_s_share_waits_for_its_turn(
    server: Serving, part: int, kept: int, unchecked: int
) -> None:
    """Of ten workers one tells an answer of 8 MB in the first tick, and the others that it was not checked."""
    load = plan(server.port, "/numbered?distinct=9&bytes=8000000", connections=10, requests=10)
    with started(msgspec.structs.replace(load, tick_ns=30 * SECOND), part, 10) as worker:
        begin(worker)
        (tick,) = until_last(worker)
    assert (len(tick.answers), tick.unchecked) == (kept, unchecked)


def test_an_engine_that_cannot_start_says_why(server: Serving) -> None:
    """A host that is unknown, and more users than this node has open files for; nothing is left of either."""
    unknown = msgspec.structs.replace(plan(server.port), endpoint=Endpoint("http", "no-such-host.invalid", 80))
    refused = RayWorker().start(msgspec.msgpack.encode(unknown), 0, 1, 0)
    assert "no-such-host.invalid:80" in refused
    assert "\n" not in refused
    many = msgspec.structs.replace(plan(server.port), schedule=Closed(1 << 30))
    assert "open files" in RayWorker().start(msgspec.msgpack.encode(many), 0, 1, 0)
    assert not engines()


def test_a_load_that_nobody_asks_about_ends(server: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever began it is gone, and its cluster has not noticed."""
    with started(plan(server.port)) as worker:
        begin(worker)
        reporting(worker)
        monkeypatch.setattr(worker_module, "ORPHAN_SECONDS", 0.1)
        eventually(lambda: not engines(), "the engine ends")
        while not (news := news_of(worker)).problem:
            pass
        assert "nobody has asked" in news.problem


def test_a_worker_tells_its_own_process_and_the_files_that_it_sees() -> None:
    """With what tells them from others of the same number or name; before it has an engine, itself alone."""
    assert location_of(RayWorker()) == WorkerLocation(identity(PIDS), [known(os.getpid())])
    assert RayWorker().identities([NET, "/no such file"]) == {NET: identity(NET), "/no such file": ""}


def location_of(worker: RayWorker) -> WorkerLocation:
    """Ask a worker."""
    return msgspec.msgpack.decode(worker.location(), type=WorkerLocation)


def known(pid: int) -> HostProcess:
    """What there is to know of a process that is there."""
    process = host_process(pid)
    assert process is not None
    return process
