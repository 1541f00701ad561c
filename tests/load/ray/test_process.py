"""The coordinator as a process: to its owner it is an engine, and it ends with a plain reason or without remains."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import msgspec
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


def last_line(failure: LoadFailed) -> str:
    """What the log ends with."""
    return failure.log_tail.strip().splitlines()[-1]


def test_an_owner_has_one_engine_of_three_workers(server: Serving) -> None:
    """Load after load; what Ray prints meanwhile is no report, and an owner that reads none for a while misses none."""
    load = plan(server.port, schedule=Constant(600), requests=600)
    with Engines(load, 3, stub()) as engines:
        coordinator, *beside = engines.pids
        for seed in (2, 3):
            time.sleep(1.2)
            totals = Totals(engines).take_to_end()
            assert totals.requests == 600
            assert [tick.number for tick in totals.ticks] == list(range(len(totals.ticks)))
            assert list(totals.ticks[0].workers) == [f"10.9.9.9/worker-{part}" for part in range(3)]
            engines.halt(seed=seed)
            engines.begin()
        workers = below(coordinator, ENGINE)
        assert len(workers) == 3
        assert sorted(beside) == sorted(process.pid for process in workers)
    eventually(lambda: not any(alive(process.pid) for process in workers), "the engines end")


def test_large_answers_of_many_workers_fit_where_some_are_checked(server: Serving) -> None:
    """Ten workers with an answer of 8 MB each in one tick: 80 MB cannot be told, the first one's can.

    Where nothing may be left out the load ends, and says how fewer are checked.
    """
    load = plan(server.port, "/numbered?distinct=1000&bytes=8000000", connections=10, requests=10)
    load = msgspec.structs.replace(load, tick_ns=30_000_000_000)
    with Engines(load, 10, stub()) as engines:
        totals = Totals(engines).take_to_end()
    assert (totals.requests, sum(totals.answers.values()), totals.unchecked) == (10, 1, 9)
    load = msgspec.structs.replace(load, keep_answers="all")
    with Engines(load, 10, stub()) as engines, pytest.raises(LoadFailed) as caught:
        Totals(engines).take_to_end()
    assert last_line(caught.value).endswith("can be told; check fewer of the answers: load(check='some')")


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


def test_a_library_that_is_absent_is_told_with_what_to_install(tmp_path: Path) -> None:
    """As the last line, though it was looked at before."""
    (tmp_path / "ray.py").write_text("raise ModuleNotFoundError(\"No module named 'ray'\")")
    with pytest.raises(LoadFailed) as caught:
        Engines(plan(1), 2, stub(PYTHONPATH=str(tmp_path)))
    assert last_line(caught.value) == (
        "a load on Ray needs Ray's library: No module named 'ray'; pip install 'pytest-gpuserve[ray]'"
    )


@pytest.mark.parametrize(
    ("fails", "told"),
    [
        ("refuse", "could not be joined: nobody is there"),
        ("put", "does not take the load: put cannot be"),
        ("place", "takes no worker: place cannot be"),
    ],
)
def test_a_cluster_that_takes_nothing_is_told_in_one_line(fails: str, told: str) -> None:
    """Neither us, nor the load or a worker; without a traceback, and what was printed before is not the reason."""
    with pytest.raises(LoadFailed) as caught:
        Engines(plan(1), 2, stub(STUB_RAY=fails))
    assert last_line(caught.value) == f"the Ray cluster at 10.9.9.9:6379 {told}"
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
from pytest_gpuserve.load.engine_process import EngineProcess
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
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, cwd=ROOT, text=True) as owner:
        assert owner.stdout is not None
        process, copy = map(int, owner.stdout.readline().split())
    try:
        eventually(lambda: not alive(process), "the coordinator ends")
    finally:
        os.kill(copy, 9)
