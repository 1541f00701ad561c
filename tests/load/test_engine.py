"""Real engines against a real server: exact counts, an end with their owner, and no silence about trouble."""

from __future__ import annotations

import hashlib
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import msgspec
import psutil
import pytest

from pytest_gpuserve.errors import LoadFailed, UsageProblem
from pytest_gpuserve.load import driver as driver_module
from pytest_gpuserve.load.driver import EngineProcess, Engines
from pytest_gpuserve.load.engine import pipes
from pytest_gpuserve.load.engine.loop import OWN_FILES, OutputPlaces
from pytest_gpuserve.load.request import NUMBER_PLACE, Request
from pytest_gpuserve.load.schedule import Burst, Closed, Constant, Poisson, Schedule, Steps
from pytest_gpuserve.load.wire import BEAT_NS, Outputs, Plan, Ready, frame, unwritten
from pytest_gpuserve.measure.histogram import Histogram, bucket_of
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


def test_ticks_have_the_cpu_time_of_their_engine(server: Serving) -> None:
    """It is the time that the kernel counts for the process of a busy engine."""
    with Engines(plan(server.port)) as engines:
        process = psutil.Process(engines.pids[0])
        totals = Totals(engines)
        totals.take()
        before = process.cpu_times()
        totals.take_until(lambda totals, _: sum(tick.cpu_ns for tick in totals.ticks[1:]) > 300_000_000, "work")
        after = process.cpu_times()
    told = sum(tick.cpu_ns for tick in totals.ticks[1:]) / 1e9
    assert 0.5 < told / (after.user + after.system - before.user - before.system) < 1.5


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
    assert totals.requests == totals.due == 800
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


# -- their begin, halt and end


def remains() -> set[int]:
    """Return our child processes, zombies included, that are engines or have no command any more."""
    return {
        child.pid
        for child in psutil.Process().children()
        if child.status() == psutil.STATUS_ZOMBIE or "pytest_gpuserve.load.engine" in child.cmdline()
    }


@pytest.fixture(autouse=True)
def nothing_remains() -> Iterator[None]:
    """Fail a test that leaves an engine, or a file that it opened, behind."""
    files = psutil.Process().num_fds()
    yield
    assert remains() == set()
    assert psutil.Process().num_fds() <= files


@pytest.fixture
def no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """No engine can be started: what is refused before is refused all the same."""
    monkeypatch.setattr(sys, "executable", "/nowhere/python")


def not_refused(whole: Plan, processes: int = 1) -> None:
    """An accepted plan reaches the start, which fails for want of an interpreter."""
    with pytest.raises(LoadFailed, match="could not be started") as caught:
        Engines(whole, processes)
    assert "/nowhere/python" in caught.value.found


def test_modules_of_the_working_folder_are_not_the_engines(
    server: Serving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A project may have a file named as a module of the standard library, or as one of the engine's."""
    for name in ("select", "socket", "runpy", "typing", "msgspec", "pytest_gpuserve"):
        (tmp_path / f"{name}.py").write_text("raise ImportError(f'{__file__} is imported')")
    monkeypatch.chdir(tmp_path)
    with Engines(plan(server.port, requests=3)) as engines:
        assert Totals(engines).take_to_end().requests == 3
        # Whoever looks at the processes of a machine sees whose it is.
        assert "pytest_gpuserve.load.engine" in psutil.Process(engines.pids[0]).cmdline()


def test_engines_that_end_at_different_ticks_are_one_load(server: Serving) -> None:
    """One of two engines has one request of three: after its end the other goes on alone, up to the one last tick."""
    with Engines(plan(server.port, "/ok?ms=200", connections=2, requests=3), 2) as engines:
        totals = Totals(engines).take_to_end()
    assert (totals.requests, totals.sent, totals.errors) == (3, 3, {})
    assert all(before.number < tick.number for before, tick in pairwise(totals.ticks))
    assert [tick.last for tick in totals.ticks] == [False] * (len(totals.ticks) - 1) + [True]
    assert max(tick.under_way for tick in totals.ticks) == 2
    # The one alone is under way for as long as both were together: ten ticks, where the machine has time for all.
    assert sum(tick.under_way == 1 for tick in totals.ticks) >= 3


def test_closed_engines_are_gone_and_may_be_closed_again(server: Serving) -> None:
    """Engines end by themselves with status 0, also when they report rarely, and when the block raises."""
    engines = Engines(plan(server.port), 2)
    processes = [engine._process for engine in engines._engines]
    assert engines.pids == tuple(process.pid for process in processes)
    Totals(engines).take_until(lambda totals, _: totals.requests > 0, "load")
    engines.close()
    assert [process.returncode for process in processes] == [0, 0]
    engines.close()
    rare = Engines(msgspec.structs.replace(plan(server.port), tick_ns=600_000_000_000))
    with pytest.raises(ArithmeticError), rare:
        raise ArithmeticError
    assert rare._engines[0]._process.returncode == 0


def test_engines_that_were_not_told_to_begin_are_ended(server: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan that cannot be sent, or Ctrl-C while engines start, leaves no engine."""
    with pytest.raises(OverflowError):
        Engines(msgspec.structs.replace(plan(server.port), seed=1 << 70), 2)
    assert remains() == set()
    started = []

    def interrupted(engine: EngineProcess, _seconds: float) -> None:
        started.append(engine.pid)
        if len(started) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(EngineProcess, "wait_ready", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Engines(plan(server.port, connections=3), 3)
    assert len(started) == 2
    assert remains() == set()


def test_an_engine_that_is_killed_is_no_short_measurement(server: Serving) -> None:
    """One of two engines killed under load ends in LoadFailed that names the signal, not in a last tick."""
    with Engines(plan(server.port, "/ok?ms=5"), 2) as engines:
        engines.next_tick()
        os.kill(engines.pids[1], signal.SIGKILL)
        with pytest.raises(LoadFailed, match="died") as caught:
            Totals(engines).take_until(lambda *_: False, "its end")
    assert caught.value.found == "exit status -9"


@pytest.mark.parametrize(
    ("told", "words"),
    [
        (b"\xff\xff\xff\xff much", "load(check='some')"),
        (b"\x01\x00\x00\x00\x90", "Expected"),
        (frame(Ready()), "ready twice"),
    ],
)
def test_garbage_instead_of_a_tick_is_refused(told: bytes, words: str) -> None:
    """A report that is too long is told with what makes it shorter."""
    script = f"import sys; sys.stdout.buffer.write({told!r})"
    command = [sys.executable, "-c", script]
    with closing(EngineProcess(command, 5.0)) as engine, pytest.raises(LoadFailed, match="garbled") as caught:
        engine.next_tick()
    assert words in caught.value.found


def test_a_silent_engine_is_given_up(server: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stopped engine ends in LoadFailed after the bound on silence, and is killed when closed."""
    with Engines(plan(server.port, "/ok?ms=5")) as engines:
        engines.next_tick()
        monkeypatch.setattr(driver_module, "SILENCE_SECONDS", 1.0)
        engines._engines[0]._end_seconds = 0.2
        os.kill(engines.pids[0], signal.SIGSTOP)
        with pytest.raises(LoadFailed, match="reported nothing for 1 s"):
            Totals(engines).take_until(lambda *_: False, "its silence")
        process = engines._engines[0]._process
    assert process.returncode == -signal.SIGKILL


@pytest.mark.usefixtures("no_engine")
@pytest.mark.parametrize(
    ("schedule", "processes"),
    [
        (Closed(101), 1),
        (Steps(((3, 1.0), (101, 1.0), (5, 1.0))), 1),
        (Poisson(1.0, max_in_flight=101), 1),
        (Closed(201), 2),
    ],
)
def test_more_users_than_files_are_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, schedule: Schedule, processes: int
) -> None:
    """The refusal precedes any start, with the limit, the need and the command; one user fewer is accepted."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (50, 100 + OWN_FILES))
    with pytest.raises(UsageProblem) as caught:
        Engines(plan(1, schedule=schedule), processes)
    assert str(101 + OWN_FILES) in caught.value.summary
    assert str(100 + OWN_FILES) in caught.value.found
    assert any(f"ulimit -Hn {101 + OWN_FILES}" in remedy for remedy in caught.value.remedies)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (50, 101 + OWN_FILES))
    not_refused(plan(1, schedule=schedule), processes)


@pytest.mark.usefixtures("no_engine")
@pytest.mark.parametrize("schedule", [Closed(2), Steps(((1, 1.0), (2, 1.0))), Burst(50, max_in_flight=2)])
def test_fewer_users_than_processes_are_refused(schedule: Schedule) -> None:
    """A process without a user would never end; an open loop without a ceiling has no users to divide."""
    with pytest.raises(UsageProblem, match="3 processes cannot share 2 connections") as caught:
        Engines(plan(1, schedule=schedule), 3)
    assert caught.value.remedies == ("processes=2 at most",)
    not_refused(plan(1, schedule=schedule), 2)
    not_refused(plan(1, schedule=Poisson(1.0)), 7)


REQUESTS = 60

SLOW_MS = 400


def connections(engines: Engines) -> int:
    """Open TCP connections of all engines."""
    return sum(len(psutil.Process(pid).net_connections("tcp")) for pid in engines.pids)


def test_a_halted_load_has_neither_requests_nor_connections(server: Serving) -> None:
    """With the return of halt what was sent is answered, no engine has a connection, and none opens one.

    Halted and begun anew, before the load begins or after, the engines and their owner keep no file.
    """
    path = f"/digest?ms={SLOW_MS}"
    before = server.seen("/digest")
    with Engines(plan(server.port, path, connections=6), 2) as engines:
        Totals(engines).take_waiting(6)
        assert connections(engines) == 6
        engines.halt(seed=0)
        seen = server.seen("/digest")
        assert connections(engines) == 0
        # Whoever goes on at once would have opened others by now.
        time.sleep(0.2)
        assert connections(engines) == 0
        processes = [psutil.Process(), *map(psutil.Process, engines.pids)]
        files = [process.num_fds() for process in processes]
        for ticks in (0, 1, 0, 1):
            engines.begin()
            for _ in range(ticks):
                engines.next_tick()
            engines.halt(seed=0)
        assert [process.num_fds() for process in processes] == files
    assert seen.requests - before.requests >= 6
    assert seen.service_ns - before.service_ns >= (seen.requests - before.requests) * SLOW_MS * 1e6


def test_a_server_that_does_not_answer_is_not_waited_for(server: Serving) -> None:
    """Halt does not wait for the requests' own time-out of a minute, and the next load begins as any."""
    with Engines(plan(server.port, "/never", connections=2)) as engines:
        Totals(engines).take_waiting(2)
        engines.halt(seed=0)
        assert connections(engines) == 0
        engines.begin()
        Totals(engines).take_waiting(2)


@pytest.mark.parametrize("schedule", [Closed(4), Constant(1000.0)])
def test_a_load_that_has_ended_begins_anew_and_no_two_sends_are_the_same(server: Serving, schedule: Schedule) -> None:
    """Two engines send all of a load again, with a number in each request that no other send has."""
    bodies = (b"all %s one" % NUMBER_PLACE, b"all %s 0000000000 another" % NUMBER_PLACE, b"plain")
    plans = [plan(server.port, "/echo", requests=REQUESTS, schedule=schedule, body=body) for body in bodies]
    load = msgspec.structs.replace(
        plans[0],
        payloads=tuple(each.payloads[0] for each in plans),
        numbers_before_end=tuple(len(body) - 4 if NUMBER_PLACE in body else 0 for body in bodies),
        keep_answers="all",
    )
    with Engines(load, 2) as engines:
        seen = list(Totals(engines).take_to_end().answers.elements())
        engines.halt(seed=1)
        engines.begin()
        again = Totals(engines).take_to_end()
        seen += again.answers.elements()
    assert (again.requests, len(seen)) == (REQUESTS, 2 * REQUESTS)
    numbered = [re.fullmatch(rb"all (\d{10}) (one|0000000000 another)", body) for body in seen if body != b"plain"]
    assert len(numbered) == 2 * REQUESTS * 2 / 3
    assert len({match[1] for match in numbered if match}) == len(numbered)


def test_an_engine_that_fails_while_halted_is_load_failed(server: Serving) -> None:
    """A dead engine fails the next halt or tick."""
    with Engines(plan(server.port), 2) as engines:
        engines.halt(seed=0)
        os.kill(engines.pids[0], signal.SIGKILL)
        with pytest.raises(LoadFailed, match="died"):
            engines.halt(seed=0)
        engines.begin()
        with pytest.raises(LoadFailed, match="died"):
            engines.next_tick()
