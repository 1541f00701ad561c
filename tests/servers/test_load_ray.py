"""Loads from real Ray clusters: one of our own, and several nodes of which one is lost; nothing is left of either."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from pytest_gpuserve.errors import LoadFailed
from pytest_gpuserve.load.__main__ import run_load
from pytest_gpuserve.load.driver import Engines
from pytest_gpuserve.load.ray import RayEngine
from pytest_gpuserve.load.schedule import Closed, Constant
from pytest_gpuserve.load.tick import shares
from pytest_gpuserve.process.ports import free_port
from tests.fakes.children.toolkit import alive, eventually, segments_of
from tests.fakes.http_server import Serving, Totals, plan, serving
from tests.fakes.ray_nodes import folder_of_ray, ray_nodes
from tests.servers.processes import command_lines, descendants, running

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fakes.ray_nodes import RayNodes

pytest.importorskip("ray")

OPTION = "--load-engine"
ENGINE = "pytest_gpuserve.load.engine"
COORDINATOR = "pytest_gpuserve.load.ray"
ACTOR = "ray::RayWorker"
ROOT = Path(__file__).parents[2]
LOOPBACK = {"127.0.0.1", "::1", "::ffff:127.0.0.1"}


@pytest.fixture
def server() -> Iterator[Serving]:
    """A server of its own for each test."""
    with serving() as running:
        yield running


def below(pid: int, *names: str) -> list[psutil.Process]:
    """Live processes below this one in whose command one of the names is, the oldest first."""
    named = [each for each in running(descendants(pid)) if any(name in command_lines([each]) for name in names)]
    return sorted(named, key=psutil.Process.create_time)


def lost(engines: Engines) -> str:
    """The report of a load whose worker is lost."""
    with pytest.raises(LoadFailed) as caught:
        Totals(engines).take_until(lambda *_: False, "its death")
    assert not caught.value.log_tail
    return caught.value.summary


def test_loads_share_a_cluster_of_our_own(server: Serving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Our cluster is on the loopback alone, a killed worker ends its load by name, and nothing is left."""
    load = plan(server.port, schedule=Constant(100), requests=100)
    with folder_of_ray() as folder:
        monkeypatch.setattr(tempfile, "tempdir", str(folder))
        engine = RayEngine("ray", OPTION)
        engine.check()
        try:
            source = engine.source(tmp_path / "log")
            assert run_load(load, processes=2, source=source).totals.requests == 100
            own = engine._own
            assert own is not None
            assert {host for host, _ in own.process.listening_addresses()} <= LOOPBACK
            tree = own.process.tree()
            with Engines(plan(server.port, connections=2), 2, source) as engines:
                engines.next_tick()
                below(os.getpid(), ACTOR)[0].kill()
                assert re.match(r"127\.0\.0\.1/worker-\d was lost: ", lost(engines))
            assert engine._own is own
            eventually(lambda: not below(os.getpid(), ENGINE, ACTOR, COORDINATOR), "no worker is left")
        finally:
            engine.close()
        assert not [process for process in tree if alive(process.pid)]


OWNER = """
import sys, time
from pathlib import Path
from pytest_gpuserve.load.ray import RayEngine
engine = RayEngine("ray", "--load-engine")
engine.source(Path(sys.argv[1])).commands(1)
print(*(process.pid for process in engine._own.process.tree()), flush=True)
time.sleep(600)
"""


@pytest.mark.slow
def test_it_ends_with_who_started_it(tmp_path: Path) -> None:
    """After SIGKILL no process, no folder and no shared memory is left."""
    with folder_of_ray() as folder:
        with subprocess.Popen(
            [sys.executable, "-c", OWNER, str(tmp_path / "log")],
            env={**os.environ, "TMPDIR": str(folder), "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            text=True,
        ) as owner:
            assert owner.stdout is not None
            pids = [int(word) for word in owner.stdout.readline().split()]
            memory = segments_of(map(psutil.Process, pids))
            owner.kill()
        assert len(pids) >= 3
        eventually(lambda: not any(alive(pid) for pid in pids), "no process is left")
        eventually(lambda: not list(folder.iterdir()), "no file is left")
    eventually(lambda: not any(segment.exists() for segment in memory), "no shared memory is left")


@pytest.mark.slow
def test_one_engine_runs_on_each_of_two_nodes_until_one_is_lost(server: Serving) -> None:
    """Nodes run engines, through Ray's client too, and the loss of one in mid-load is told by its name."""
    load = plan(server.port, schedule=Constant(100), requests=100)
    with ray_nodes("127.0.0.2", "127.0.0.3") as nodes:
        engine = RayEngine(nodes.address, OPTION)
        engine.check()
        assert run_load(load, processes=2, source=engine.source(Path(os.devnull))).totals.requests == 100
        with client_server(nodes) as address:
            through = RayEngine(address, OPTION)
            through.check()
            with Engines(load, 2, through.source(Path(os.devnull))) as engines:
                assert Totals(engines).take_to_end().requests == 100
                engines.halt(seed=4)
                engines.begin()
                assert Totals(engines).take_to_end().requests == 100
        with Engines(plan(server.port, schedule=Closed(4)), 2, engine.source(Path(os.devnull))) as engines:
            names = set(shares([engines.next_tick()]))
            assert {name.partition("/")[0] for name in names} == {"127.0.0.2", "127.0.0.3"}
            thread = threading.Thread(target=nodes.lose_the_last)
            thread.start()
            try:
                assert lost(engines).startswith("127.0.0.3/worker-")
            finally:
                thread.join()


@contextmanager
def client_server(nodes: RayNodes) -> Iterator[str]:
    """Run the server of Ray's client for a cluster; yields the address that a client is given."""
    port = free_port()
    module = [sys.executable, "-m", "ray.util.client.server", "--host=127.0.0.1", "--mode=legacy"]
    process = subprocess.Popen(
        [*module, f"--port={port}", f"--address={nodes.address}"],
        env={**os.environ, "RAY_AUTH_MODE": "disabled"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
    )

    def listens() -> bool:
        with socket.socket() as one:
            return one.connect_ex(("127.0.0.1", port)) == 0

    try:
        eventually(listens, "the server listens")
        yield f"ray://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)
