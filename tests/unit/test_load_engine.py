"""The engine keeps its promises: so many users, exact counts, an end with its owner, and no silence about trouble."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec
import psutil
import pytest

from pytest_gpuserve.errors import LoadFailed
from pytest_gpuserve.load import driver
from pytest_gpuserve.load.driver import Engine
from pytest_gpuserve.load.tally import DISTINCT_ANSWER_BYTES, DISTINCT_ANSWERS
from pytest_gpuserve.process.ports import free_port
from tests.fakes.children.toolkit import ROOT, alive, eventually
from tests.fakes.http_server import Serving, Totals, plan, serving

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ENDS_SECONDS = 10.0
"""The engine must be gone so soon after its owner: a promise to users."""


@pytest.fixture
def server() -> Iterator[Serving]:
    """Give a server of its own to each test, so that all that it saw is of this test."""
    with serving() as running:
        yield running


def test_the_closed_loop_keeps_every_user_busy_on_one_connection(server: Serving) -> None:
    """The server sees exactly as many connections, and as many requests at once, as there are users."""
    total = 200
    with Engine(plan(server.port, f"/ok?ms=5&total={total}", connections=8)) as engine:
        totals = Totals(engine).take_all(total, 8)
        seen = server.seen("/ok")
    assert (totals.requests, totals.errors) == (total, {})
    assert (seen.requests, seen.connections, seen.most_at_once) == (total + 8, 8, 8)


def test_the_latency_is_that_of_the_server_and_little_more(server: Serving) -> None:
    """Over the same requests the sum of latencies lies above the server's own sum, and not far above."""
    total = 40
    with Engine(plan(server.port, f"/ok?ms=50&total={total}")) as engine:
        totals = Totals(engine).take_all(total, 4)
        seen = server.seen("/ok")
    assert seen.service_ns <= totals.latency_sum_ns <= 3 * seen.service_ns


def test_the_figures_of_a_tick_agree_with_each_other(server: Serving) -> None:
    """Ticks follow each other without gap; buckets, sum, maximum and answers are of the same requests."""
    with Engine(plan(server.port, "/ok?ms=1")) as engine:
        totals = Totals(engine).take_until(lambda totals, _: totals.requests > 100, "requests")
    for last, tick in pairwise(totals.ticks):
        assert last.end_ns == tick.begin_ns < tick.end_ns
    for tick in totals.ticks:
        assert sum(tick.buckets.values()) == tick.requests
        assert sum(answers.count for answers in tick.answers) + tick.unchecked == tick.requests
        assert tick.latency_max_ns <= tick.latency_sum_ns <= tick.latency_max_ns * max(1, tick.requests)
        assert 0 <= tick.in_flight <= 4
    assert sum(tick.cpu_ns for tick in totals.ticks) > 0


def test_distinct_answers_arrive_with_exact_counts(server: Serving) -> None:
    """Each of ten bodies is reported as often as it was sent."""
    with Engine(plan(server.port, "/numbered?distinct=10&total=200")) as engine:
        totals = Totals(engine).take_all(200, 4)
    assert totals.answers == {b"%d" % number: 20 for number in range(10)}
    assert totals.unchecked == 0


@pytest.mark.parametrize("size", [0, 2_000])
def test_a_report_is_bounded_whatever_the_answers_are(server: Serving, size: int) -> None:
    """Bodies that are all different are kept up to the bounds of number and bytes, the rest is counted as unchecked."""
    total = DISTINCT_ANSWERS * 2 if size == 0 else 2 * DISTINCT_ANSWER_BYTES // size
    target = f"/numbered?distinct=1000000&bytes={size}&total={total}"
    # One tick for all of them: its length is far beyond the time that they take.
    slowly = msgspec.structs.replace(plan(server.port, target, connections=16), tick_ns=3_000_000_000)
    with Engine(slowly) as engine:
        totals = Totals(engine).take_all(total, 16)
    assert totals.requests == total == totals.answers.total() + totals.unchecked
    for tick in totals.ticks:
        assert len(tick.answers) <= DISTINCT_ANSWERS
        assert sum(len(answers.body) for answers in tick.answers) <= DISTINCT_ANSWER_BYTES
    assert totals.unchecked > 0


def test_a_closed_engine_is_gone_and_may_be_closed_again(server: Serving) -> None:
    """After close the process has ended by itself, with status 0, while it was under load."""
    engine = Engine(plan(server.port, "/ok"))
    Totals(engine).take_until(lambda totals, _: totals.requests > 0, "load")
    engine.close()
    assert engine._process.returncode == 0
    engine.close()


@contextmanager
def owner(port: int, *, fork: bool) -> Iterator[tuple[subprocess.Popen[str], int, int]]:
    """Run a process that owns an engine; yields it, the engine's pid and that of a fork of the owner (or 0)."""
    program = f"""
import os, sys, time
from pytest_gpuserve.load.driver import Engine
from tests.fakes.http_server import plan
engine = Engine(plan({port}, "/ok?ms=5"))
engine.next_tick()
copy = os.fork() if {fork} else 1
if copy == 0:
    time.sleep(600)
print(engine._process.pid, copy if {fork} else 0, flush=True)
while True:
    engine.next_tick()
"""
    argv = [sys.executable, "-c", program]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        engine, copy = map(int, process.stdout.readline().split())
        try:
            yield process, engine, copy
        finally:
            process.kill()
            if copy:
                os.kill(copy, signal.SIGKILL)


@pytest.mark.parametrize("fork", [False, True])
def test_the_engine_ends_when_its_owner_is_killed(server: Serving, *, fork: bool) -> None:
    """After kill -9 of the owner the engine is gone, even where a fork of the owner holds its pipes open."""
    with owner(server.port, fork=fork) as (process, engine, _):
        assert alive(engine)
        process.send_signal(signal.SIGKILL)
        eventually(lambda: not alive(engine), "the engine is gone", ENDS_SECONDS)


@pytest.mark.parametrize("place", ["connection_made", "on_body", "_finish"])
def test_a_crash_inside_the_engine_is_shown_with_its_traceback(
    server: Serving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """An exception that nobody foresaw ends the engine, is not counted as the server's, and is shown."""
    sabotage = f"""
from pytest_gpuserve.load.connection import Connection
def fail(*_):
    raise ArithmeticError("unforeseen")
Connection.{place} = fail
"""
    (tmp_path / "sitecustomize.py").write_text(sabotage)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    with Engine(plan(server.port, "/ok")) as engine, pytest.raises(LoadFailed, match="died") as caught:
        Totals(engine).take_until(lambda *_: False, "its end")
    assert caught.value.found == "exit status 70"
    assert "Traceback" in caught.value.log_tail
    assert "ArithmeticError: unforeseen" in caught.value.log_tail


def test_an_engine_that_is_killed_is_no_short_measurement(server: Serving) -> None:
    """An engine killed under load ends in LoadFailed that names the signal, not in a last tick."""
    with Engine(plan(server.port, "/ok?ms=5")) as engine:
        engine.next_tick()
        os.kill(engine._process.pid, signal.SIGKILL)
        with pytest.raises(LoadFailed, match="died") as caught:
            Totals(engine).take_until(lambda *_: False, "its end")
    assert caught.value.found == "exit status -9"


def test_a_silent_engine_is_given_up(server: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stopped engine ends in LoadFailed after the bound on silence, and is killed when closed."""
    with Engine(plan(server.port, "/ok?ms=5")) as engine:
        engine.next_tick()
        monkeypatch.setattr(driver, "SILENCE_SECONDS", 1.0)
        monkeypatch.setattr(driver, "END_SECONDS", 0.2)
        os.kill(engine._process.pid, signal.SIGSTOP)
        with pytest.raises(LoadFailed, match="reported nothing for 1 s"):
            Totals(engine).take_until(lambda *_: False, "its silence")
    assert engine._process.returncode == -signal.SIGKILL


@pytest.mark.parametrize("said", [r"\377\377\377\377 much", r"\003\000\000\000{}\n"])
def test_garbage_on_the_wire_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str) -> None:
    """Neither an absurd length nor a message that is no tick is waited for or taken for a measurement."""
    script = tmp_path / "engine"
    script.write_text(f"#!/bin/sh\necho why >&2\nprintf '{said}'\ncat >/dev/null\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    with Engine(plan(1, "/")) as engine:
        begin = time.monotonic()
        with pytest.raises(LoadFailed, match="garbled") as caught:
            engine.next_tick()
        assert time.monotonic() - begin < driver.SILENCE_SECONDS
    assert caught.value.log_tail == "why\n"


def test_an_engine_that_cannot_be_started_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interpreter that is not there is LoadFailed with the system's reason."""
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(LoadFailed, match="could not be started") as caught:
        Engine(plan(1, "/"))
    assert "/nowhere/python" in caught.value.found


def test_refused_users_leave_nothing_behind() -> None:
    """Hundreds of refused connections do not make the engine, which has no garbage collector, grow."""
    with Engine(plan(free_port(), "/", connections=200)) as engine:
        process = psutil.Process(engine._process.pid)
        totals = Totals(engine).take_until(lambda totals, _: totals.ended > 1000, "refusals")
        before = process.memory_info().rss
        totals.take_until(lambda totals, _: totals.ended > 4000, "more refusals")
        grown = process.memory_info().rss - before
    assert grown < 3000 * 300, f"{grown} bytes for 3000 refusals"
