"""The pytest side of the engines: merged ticks, loads anew, an end without remains, and errors with their cause."""

from __future__ import annotations

import os
import re
import resource
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import msgspec
import psutil
import pytest

from pytest_gpuserve.errors import LoadFailed, UsageProblem
from pytest_gpuserve.load import driver as driver_module
from pytest_gpuserve.load.driver import LOCAL, EngineProcess, Engines
from pytest_gpuserve.load.engine.loop import OWN_FILES
from pytest_gpuserve.load.request import NUMBER_PLACE
from pytest_gpuserve.load.schedule import Burst, Closed, Constant, Poisson, Schedule, Steps
from pytest_gpuserve.load.tick import Tick
from pytest_gpuserve.load.wire import Plan, Ready, frame
from tests.fakes.http_server import Serving, Totals, plan


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
def fake_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Start this script as an engine: it writes the files ``says-0``, ``says-1`` ... one for each order."""
    script = tmp_path / "engine"
    script.write_text(
        f"""#!{sys.executable} -IS
import pathlib, sys
sys.stderr.write("why\\n")
sys.stderr.flush()
for part in sorted(pathlib.Path({str(tmp_path)!r}).glob("says-*")):
    sys.stdin.buffer.read(int.from_bytes(sys.stdin.buffer.read(4), "little"))
    sys.stdout.buffer.write(part.read_bytes())
    sys.stdout.buffer.flush()
sys.stdin.buffer.read()
"""
    )
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    return tmp_path


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


def test_an_engine_that_reads_nothing_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that reads nothing is ended after the bound on silence; the error has its last words."""
    script = tmp_path / "engine"
    script.write_text("#!/bin/sh\nprintf why >&2\nexec sleep 600\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    monkeypatch.setattr(driver_module, "SILENCE_SECONDS", 1.0)
    with pytest.raises(LoadFailed, match="read nothing for 1 s") as caught:
        Engines(plan(1, body=bytes(8 << 20)), source=replace(LOCAL, end_seconds=0.1))
    assert caught.value.log_tail == "why"


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
    before = time.perf_counter_ns()
    engines = Engines(plan(server.port), 2)
    processes = [engine._process for engine in engines._engines]
    assert engines.pids == tuple(process.pid for process in processes)
    tick = engines.next_tick()
    assert before < tick.begin_ns < tick.end_ns < time.perf_counter_ns()
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


@pytest.mark.parametrize("said", [b"\xff\xff\xff\xff much", b"\x01\x00\x00\x00\x90", frame(Ready())])
def test_garbage_instead_of_a_tick_is_refused(fake_engine: Path, said: bytes) -> None:
    """Garbage is refused, also from an engine that began well, whose reports came in pieces."""
    ticks = [Tick(number, number, number + 1, requests=7 + number) for number in range(3)]
    sent = b"".join(frame(tick) for tick in ticks)
    (fake_engine / "says-0").write_bytes(frame(Ready()) + sent[:-5])
    (fake_engine / "says-1").write_bytes(sent[-5:] + said)
    with Engines(plan(1)) as engines:
        assert [engines.next_tick() for _ in ticks] == ticks
        with pytest.raises(LoadFailed, match="garbled"):
            engines.next_tick()


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


RESTARTS = 12
REQUESTS = 60

SLOW_MS = 400


def connections(engines: Engines) -> int:
    """Open TCP connections of all engines."""
    return sum(len(psutil.Process(pid).net_connections("tcp")) for pid in engines.pids)


def test_a_halted_load_has_neither_requests_nor_connections(server: Serving) -> None:
    """With the return of halt what was sent is answered, no engine has a connection, and none opens one."""
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
        ended = [engine._process for engine in engines._engines]
    assert [process.returncode for process in ended] == [0, 0]
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


def test_restarts_leak_no_files(server: Serving) -> None:
    """Restarts leak no file in an engine or its owner, whether the load before had begun, or sent anything, or not."""
    with Engines(plan(server.port, "/ok?ms=1"), 2) as engines:
        Totals(engines).take_until(lambda totals, _: totals.requests >= 20, "a load")
        engines.halt(seed=0)
        processes = [psutil.Process(), *map(psutil.Process, engines.pids)]
        before = [process.num_fds() for process in processes]
        for _ in range(RESTARTS):
            engines.begin()
            engines.halt(seed=0)
            engines.begin()
            engines.next_tick()
            engines.halt(seed=0)
            engines.halt(seed=1)
        assert [process.num_fds() for process in processes] == before


def test_an_engine_that_fails_while_halted_is_load_failed(server: Serving) -> None:
    """A dead engine fails the next halt or tick; one that does not halt fails after the bound on silence."""
    with Engines(plan(server.port), 2) as engines:
        engines.halt(seed=0)
        os.kill(engines.pids[0], signal.SIGKILL)
        with pytest.raises(LoadFailed, match="died"):
            engines.halt(seed=0)
        engines.begin()
        with pytest.raises(LoadFailed, match="died"):
            engines.next_tick()
    with Engines(plan(server.port, "/ok?ms=5"), source=replace(LOCAL, end_seconds=0.2)) as engines:
        engines.next_tick()
        engines._source = replace(LOCAL, ready_seconds=1.0)
        os.kill(engines.pids[0], signal.SIGSTOP)
        with pytest.raises(LoadFailed, match="reported nothing for 1 s"):
            engines.halt(seed=0)
