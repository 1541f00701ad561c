"""The pytest side of the engines: merged ticks, an end without remains, and errors that say what happened."""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec
import psutil
import pytest

from pytest_gpuserve.errors import LoadFailed, UsageProblem
from pytest_gpuserve.load import driver as driver_module
from pytest_gpuserve.load.driver import EngineProcess, Engines
from pytest_gpuserve.load.engine.loop import OWN_FILES
from pytest_gpuserve.load.schedule import Burst, Closed, Poisson, Steps
from pytest_gpuserve.load.source import LocalEngines
from pytest_gpuserve.load.tick import Tick
from pytest_gpuserve.load.wire import Ready, frame
from tests.fakes.http_server import Serving, Totals, plan

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pytest_gpuserve.load.schedule import Schedule
    from pytest_gpuserve.load.wire import Plan


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
    """Its owner does not wait for ever for room in the pipe; the error has the engine's last words, and it is ended."""
    script = tmp_path / "engine"
    script.write_text("#!/bin/sh\nprintf why >&2\nexec sleep 600\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    monkeypatch.setattr(driver_module, "SILENCE_SECONDS", 1.0)
    with pytest.raises(LoadFailed, match="read nothing for 1 s") as caught:
        Engines(plan(1, body=bytes(8 << 20)), source=LocalEngines(end_seconds=0.1))
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
    """Under load they end by themselves, with status 0; also when they report rarely, and when the block raises."""
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
    """Also from an engine that began well, whose reports came in pieces."""
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
