"""The coordinator as a process: to its owner it is an engine, and it ends with a plain reason or without remains."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from pytest_gpuserve.errors import LoadFailed
from pytest_gpuserve.load.driver import Engines
from pytest_gpuserve.load.ray.cluster import Joining
from pytest_gpuserve.load.ray.source import RaySource
from pytest_gpuserve.load.run import run_load
from pytest_gpuserve.load.schedule import Constant
from pytest_gpuserve.load.wire import frame
from tests.fakes.children.toolkit import ROOT, alive, eventually
from tests.fakes.http_server import Serving, Totals, plan, serving
from tests.fakes.load_processes import ENGINE, below

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import psutil

    from pytest_gpuserve.load.source import EngineSource

STUB = str(ROOT / "tests" / "fakes" / "ray_stub")

END_SECONDS = 30.0


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    """Give a server."""
    with serving() as running:
        yield running


def stub(**environment: str) -> EngineSource:
    """Workers on a cluster that Ray's library only pretends."""
    joining = Joining("10.9.9.9:6379", {"PYTHONPATH": STUB, **environment})
    return RaySource("stub", is_here=True, join=lambda: joining)


@contextmanager
def owner_of_engine(program: str, *, quiet: bool = False) -> Iterator[tuple[subprocess.Popen[str], int, int]]:
    """Run a process that owns an engine; yields it, the engine's pid and that of a fork of the owner (or 0).

    Args:
        program: Prints these two pids in a line.
        quiet: Whether what it writes to its standard error is not shown.
    """
    argv = [sys.executable, "-c", program]
    errors = subprocess.DEVNULL if quiet else None
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        engine, copy = map(int, process.stdout.readline().split())
        try:
            yield process, engine, copy
        finally:
            process.kill()
            if copy:
                os.kill(copy, signal.SIGKILL)


def last_line(failure: LoadFailed) -> str:
    """What the log ends with."""
    return failure.log_tail.strip().splitlines()[-1]


def test_an_owner_has_one_engine_of_three_workers(server: Serving) -> None:
    """Load after load; what Ray prints meanwhile is no report, and an owner that reads none for a while misses none."""
    load = plan(server.port, schedule=Constant(600), requests=120)
    with Engines(load, 3, stub()) as engines:
        coordinator, *beside = engines.pids
        for seed in (2, 3):
            time.sleep(0.3)
            totals = Totals(engines).take_to_end()
            assert totals.requests == 120
            assert [tick.number for tick in totals.ticks] == list(range(len(totals.ticks)))
            assert list(totals.ticks[0].workers) == [f"10.9.9.9/worker-{part}" for part in range(3)]
            engines.halt(seed=seed)
            engines.begin()
        workers = below(coordinator, ENGINE)
        assert len(workers) == 3
        assert sorted(beside) == sorted(process.pid for process in workers)
    eventually(lambda: not any(alive(process.pid) for process in workers), "the engines end")


def test_a_worker_that_is_lost_in_mid_load_is_the_reason_why_it_is_invalid(server: Serving) -> None:
    """By its name, once, and not as the end of the coordinator; what was measured is kept."""
    killed: list[psutil.Process] = []

    def kill(*_: object) -> None:
        if not killed:
            killed.extend(below(os.getpid(), ENGINE)[:1])
            killed[0].kill()

    outcome = run_load(plan(server.port), processes=2, source=stub(), on_tick=kill)
    assert outcome.totals.nanoseconds > 0
    told = outcome.reasons[0].text
    assert re.fullmatch(r"lost in mid-load: 10\.9\.9\.9/worker-[01]: the load engine died \(exit status -9\)", told)


CLUSTER = "the Ray cluster at 10.9.9.9:6379"


@pytest.mark.parametrize(
    ("fails", "told"),
    [
        ("refuse", f"{CLUSTER} could not be joined: nobody is there"),
        ("put", f"{CLUSTER} does not take the load: put cannot be"),
        ("place", f"{CLUSTER} takes no worker: place cannot be"),
        # Though it was looked at before.
        ("", "a load on Ray needs Ray's library: No module named 'ray'; pip install 'pytest-gpuserve[ray]'"),
    ],
)
def test_what_keeps_us_from_a_cluster_is_told_in_one_line(tmp_path: Path, fails: str, told: str) -> None:
    """As the last one, without a traceback; what was printed before is not the reason."""
    (tmp_path / "ray.py").write_text("raise ModuleNotFoundError(\"No module named 'ray'\")")
    with pytest.raises(LoadFailed) as caught:
        Engines(plan(1), 2, stub(STUB_RAY=fails) if fails else stub(PYTHONPATH=str(tmp_path)))
    assert last_line(caught.value) == told
    assert "Traceback" not in caught.value.log_tail


@pytest.mark.parametrize("told", [False, True])
def test_it_ends_with_its_input(tmp_path: Path, *, told: bool) -> None:
    """Before there is a plan, and while Ray's library waits where nothing reaches it."""
    command = stub(STUB_RAY="hang", STUB_RAY_FILE=str(tmp_path / "waits")).launches(1)[0].command
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            assert process.stdin is not None
            if told:
                process.stdin.write(frame(plan(1)))
                process.stdin.flush()
                eventually((tmp_path / "waits").exists, "the library waits")
            process.stdin.close()
            assert process.wait(END_SECONDS) == 0
        finally:
            process.kill()


def test_it_ends_with_its_owner(server: Serving) -> None:
    """Killed, while a fork of it holds the pipes open."""
    program = f"""
import os, sys, time
import msgspec
from pytest_gpuserve.load.driver import EngineProcess
from tests.fakes.http_server import plan
from tests.load.ray.test_process import stub
engine = EngineProcess(stub().launches(2)[0].command, 5)
engine.tell(msgspec.structs.replace(plan({server.port}), parts=2))
engine.wait_ready(60)
copy = os.fork()
if copy == 0:
    time.sleep(600)
print(engine.pid, copy, flush=True)
os.kill(os.getpid(), 9)
"""
    with owner_of_engine(program) as (_, coordinator, _):
        eventually(lambda: not alive(coordinator), "the coordinator ends")
