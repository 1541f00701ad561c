"""Real engines against a real server: exact counts, an end with their owner, and no silence about trouble."""

from __future__ import annotations

import hashlib
import os
import resource
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import msgspec
import psutil
import pytest

from pytest_gpuserve.errors import LoadFailed
from pytest_gpuserve.load.driver import Engines
from pytest_gpuserve.load.engine import pipes
from pytest_gpuserve.load.engine.loop import OutputPlaces
from pytest_gpuserve.load.request import Request
from pytest_gpuserve.load.schedule import Closed, Constant, Schedule
from pytest_gpuserve.load.wire import BEAT_NS, Outputs, unwritten
from pytest_gpuserve.measure.histogram import Histogram, bucket_of, seconds_of
from tests.fakes.children.toolkit import ROOT, alive, eventually
from tests.fakes.http_server import SAFETY_SECONDS, Serving, Totals, plan


def above(durations: Histogram, seconds: float) -> int:
    """Return how many are surely longer."""
    return sum(count for bucket, count in durations.counts.items() if bucket > bucket_of(round(seconds * 1e9)))


@pytest.mark.parametrize(("schedule", "shuffled"), [(Closed(6), True), (Constant(2000.0), False)])
def test_processes_share_a_load_without_loss_or_double(server: Serving, schedule: Schedule, *, shuffled: bool) -> None:
    """Of 60 requests with 60 bodies over three processes the server answers each body once, with its own number."""
    bodies = [b"body %d" % index for index in range(60)]
    expected = [hashlib.sha256(body).hexdigest().encode() for body in bodies]
    whole = msgspec.structs.replace(
        plan(server.port, schedule=schedule, requests=60),
        payloads=tuple((Request("POST", "/digest", body).to_bytes(f"127.0.0.1:{server.port}"),) for body in bodies),
        keep_answers="all",
        shuffled=shuffled,
        seed=3,
    )
    with Engines(whole, 3) as engines:
        totals = Totals(engines).take_to_end()
    assert (totals.requests, totals.sent, totals.errors, totals.in_flight) == (60, 60, {}, 0)
    answers = sorted((answer for tick in totals.ticks for answer in tick.answers), key=lambda answer: answer.index)
    assert [(answer.index, answer.count, answer.body) for answer in answers] == [
        (index, 1, body) for index, body in enumerate(expected)
    ]
    numbers = [answer.number for answer in answers]
    assert sorted(numbers) == list(range(60))
    assert (numbers == list(range(60))) is not shuffled


def test_a_stopped_engine_is_late_and_says_so(server: Serving) -> None:
    """Lag and latency cover all due requests, one tick covers the pause, and each missed beat is reported."""
    rate, late_seconds, still_ns = 400.0, 0.2, 600_000_000
    whole = plan(server.port, schedule=Constant(rate), seconds=2.0)
    with Engines(whole) as engines:
        totals = Totals(engines).take_until(lambda totals, _: totals.requests > 10, "a load")
        (pid,) = engines.pids
        os.kill(pid, signal.SIGSTOP)
        eventually(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED, "it stands still")
        begin = time.perf_counter()
        time.sleep(still_ns / 1e9)
        end = time.perf_counter()
        os.kill(pid, signal.SIGCONT)
        totals.take_to_end()
    expected = int(rate * (end - begin - late_seconds)) - 1
    assert sum(above(tick.lag, late_seconds) for tick in totals.ticks) >= expected
    assert sum(above(tick.latency, late_seconds) for tick in totals.ticks) >= expected
    # However slow the server is: what a request was late is in its latency, and not in its service time.
    lag, latency, service = (
        sum(seconds_of(bucket) * count for tick in totals.ticks for bucket, count in getattr(tick, name).counts.items())
        for name in ("lag", "latency", "service")
    )
    assert latency - service >= 0.95 * lag - 0.002 * latency
    assert totals.requests == totals.due == 800
    assert any(
        tick.begin_ns > end * 1e9 and tick.end_ns - totals.ticks[0].begin_ns < (tick.number + 2) * whole.tick_ns
        for tick in totals.ticks
    )
    assert any(tick.begin_ns <= begin * 1e9 and tick.end_ns >= end * 1e9 for tick in totals.ticks)
    missed = still_ns / BEAT_NS - 1
    assert sum(tick.late_beats for tick in totals.ticks) >= missed
    assert sum(tick.late_beats_ns for tick in totals.ticks) >= still_ns * (missed - 1) / 2.5


def test_a_place_is_blank_once_it_was_taken_or_given_up(tmp_path: Path) -> None:
    """Bytes for one request are gone for the next one; other places keep theirs."""
    file = tmp_path / "outputs"
    file.write_bytes(b"old." * 3)
    places = OutputPlaces(Outputs(str(file), 4))
    assert file.read_bytes() == unwritten(12)
    with file.open("r+b") as server:
        server.write(b"aaaabbbbcccc")
    assert places.take(0) == b"aaaa"
    places.take(1)
    assert [places.take(place) for place in range(3)] == [unwritten(4), unwritten(4), b"cccc"]


@pytest.mark.parametrize(("content", "reason"), [(None, "No such file"), (b"", "empty")])
def test_shared_memory_that_cannot_be_read_is_told_as_such(tmp_path: Path, content: bytes | None, reason: str) -> None:
    """The error has the file and the reason, and is not trouble with the server."""
    file = tmp_path / "outputs"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(LoadFailed) as caught:
        Engines(msgspec.structs.replace(plan(1, connections=1), outputs=Outputs(str(file), 4)))
    log = caught.value.log_tail
    assert [text in log for text in (str(file), reason, "127.0.0.1", "Traceback")] == [True, True, False, False]


def test_a_reader_that_pauses_loses_nothing_and_stalls_nothing(server: Serving) -> None:
    """In two seconds without reading the engine goes on, tick by tick, although the pipe has long been full."""
    pause_ns = 2_000_000_000
    whole = plan(server.port, "/numbered?distinct=1000000&bytes=20000&ms=5")
    before = server.seen("/numbered").requests
    with Engines(msgspec.structs.replace(whole, keep_answers="all", nanoseconds=pause_ns)) as engine:
        totals = Totals(engine)
        totals.take()
        time.sleep(pause_ns / 1e9)
        totals.take_to_end()
    assert totals.requests == totals.answers.total() == server.seen("/numbered").requests - before
    assert (totals.unchecked, set(totals.answers.values())) == (0, {1})
    assert all(before.number < tick.number for before, tick in pairwise(totals.ticks))
    assert sum(map(len, totals.answers)) > 2 * pipes.PIPE_BYTES
    assert max(tick.end_ns - tick.begin_ns for tick in totals.ticks) < pause_ns / 2


def test_the_owner_is_told_that_it_read_too_slowly(server: Serving) -> None:
    """An engine that gave up on its reader ends as LoadFailed with that reason, not as a short measurement."""
    # A megabyte a tick: the first body of each is kept.
    whole = msgspec.structs.replace(plan(server.port, "/big"), tick_ns=2_000_000)
    with Engines(whole) as engines:
        totals = Totals(engines)
        (pid,) = engines.pids
        eventually(lambda: not alive(pid), "the engine gives up")
        with pytest.raises(LoadFailed, match="died") as caught:
            totals.take_to_end()
    assert "were not read" in caught.value.log_tail
    assert "Traceback" not in caught.value.log_tail


OWNER = """
import msgspec, os, sys
from dataclasses import replace
from pytest_gpuserve.load.driver import LOCAL, EngineProcess, Engines
from tests.fakes.children.toolkit import stay
from tests.fakes.http_server import plan
port, fork, halted_alone = map(int, sys.argv[1:])
pids, loads = [], []
with Engines(plan(port, "/ok?ms=5"), source=replace(LOCAL, end_seconds=0.5)) as halted:
    halted.next_tick()
    halted.halt(seed=0)
    pids += halted.pids
    if not halted_alone:
        waiting = [EngineProcess(LOCAL.commands(1)[0], 5) for _ in range(2)]
        waiting[1].tell(plan(port))
        waiting[1].wait_ready(20)
        unread = plan(port, "/numbered?distinct=1000000&bytes=100000&ms=20", requests=100)
        plans = [msgspec.structs.replace(each, keep_answers="all") for each in (plan(port, "/ok?ms=5"), unread)]
        loads = [Engines(each) for each in plans]
        for load in loads:
            load.next_tick()
        pids += [engine.pid for engine in waiting] + [pid for load in loads for pid in load.pids]
    copy = os.fork() if fork else 0
    if copy or not fork:
        print(copy, *pids, flush=True)
        while loads:
            loads[0].next_tick()
    stay()
"""


@pytest.mark.parametrize(
    ("how", "fork", "halted_alone"),
    [(signal.SIGKILL, True, False), (signal.SIGKILL, False, False), (signal.SIGINT, True, True)],
)
def test_engines_end_with_their_owner(server: Serving, how: signal.Signals, *, fork: bool, halted_alone: bool) -> None:
    """They end after SIGKILL or Ctrl-C, even if a fork of the owner holds their pipes open.

    Halted, without a plan, not told to begin, under load, and done but for last reports that are unread.
    """
    before = server.seen("/numbered").requests
    argv = [sys.executable, "-c", OWNER, *map(str, (server.port, int(fork), int(halted_alone)))]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT) as owner:
        assert owner.stdout is not None
        copy, *engines = map(int, owner.stdout.readline().split())
        try:
            if not halted_alone:
                eventually(lambda: server.seen("/numbered").requests == before + 100, "its work is done")
            assert len(engines) == (1 if halted_alone else 5)
            assert all(map(alive, engines))
            owner.send_signal(how)
            owner.wait(SAFETY_SECONDS)
            eventually(lambda: not any(map(alive, engines)), "the engines are gone", SAFETY_SECONDS)
            assert alive(copy) == fork
        finally:
            owner.kill()
            if copy:
                os.kill(copy, signal.SIGKILL)


@pytest.mark.parametrize("place", ["loop.Loop.ready", "http1.HttpConnection._take"])
def test_a_crash_inside_the_engine_is_shown_with_its_traceback(
    server: Serving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """An unforeseen exception ends the engine, does not count as the server's error, and is shown."""
    module = place.split(".", maxsplit=1)[0]
    sabotage = f"""
from pytest_gpuserve.load.engine import {module}
def fail(*_, **__):
    raise ArithmeticError("unforeseen")
{place} = fail
"""
    (tmp_path / "sitecustomize.py").write_text(sabotage)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    with Engines(plan(server.port, "/ok")) as engine, pytest.raises(LoadFailed, match="died") as caught:
        Totals(engine).take_until(lambda *_: False, "its end")
    assert caught.value.found == "exit status 1"
    assert "Traceback" in caught.value.log_tail
    assert "ArithmeticError: unforeseen" in caught.value.log_tail


def test_the_engine_may_open_as_many_files_as_the_hard_limit_says(server: Serving) -> None:
    """An engine has the hard limit as its own, for any soft limit of the parent process."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(200, before[1]), before[1]))
    try:
        with Engines(plan(server.port, "/ok?ms=200", connections=300, requests=300)) as engines:
            limits = psutil.Process(engines.pids[0]).rlimit(psutil.RLIMIT_NOFILE)
            totals = Totals(engines).take_to_end()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert limits == (before[1], before[1])
    assert (totals.requests, totals.errors) == (300, {})
