"""Engines on many nodes are one load to their owner; what one of them cannot do ends it, with its name."""

from __future__ import annotations

import os
import queue
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import psutil
import pytest

from pytest_gpuserve.errors import LoadFailed, UsageProblem
from pytest_gpuserve.load import ray as on_ray
from pytest_gpuserve.load import ray_worker
from pytest_gpuserve.load.__main__ import run_load
from pytest_gpuserve.load.driver import EngineProcess, Engines
from pytest_gpuserve.load.ray import Coordinator, RayEngine, check_engine
from pytest_gpuserve.load.ray_worker import RayWorker, network_of, own_network
from pytest_gpuserve.load.schedule import Closed, Constant, Poisson, Schedule
from pytest_gpuserve.load.tick import shares
from pytest_gpuserve.load.wire import Again, Begin, Endpoint, Order, Ready, Report
from pytest_gpuserve.measure.window import Window
from pytest_gpuserve.process.ports import free_port
from tests.fakes.children.toolkit import alive, eventually, segments_of
from tests.fakes.http_server import Serving, Totals, plan, serving
from tests.fakes.ray_nodes import RayNodes, folder_of_ray, ray_nodes
from tests.servers.deployments import command_lines, descendants, running

pytest.importorskip("ray")

OPTION = "--load-engine"


class Handle:
    """A worker's handle as Ray gives one: ``handle.method.remote(...)`` is under way at once, in another thread."""

    def __init__(self, worker: RayWorker) -> None:
        self.worker = worker
        self._pool = ThreadPoolExecutor(1)

    def __getattr__(self, method: str) -> SimpleNamespace:
        """A method that is called from afar."""
        return SimpleNamespace(remote=lambda *given: self._pool.submit(getattr(self.worker, method), *given))


class Nodes:
    """Replacement of Ray's library: workers run in this process, and their engines are real."""

    def __init__(self) -> None:
        self.handles: list[Handle] = []

    def remote(self, **_: object) -> Callable[[type[RayWorker]], SimpleNamespace]:
        """Make an actor of a class."""

        def made(kind: type[RayWorker]) -> Handle:
            self.handles.append(Handle(kind()))
            return self.handles[-1]

        return lambda kind: SimpleNamespace(remote=lambda: made(kind))

    def wait(self, calls: Sequence[Future[object]], *, num_returns: int, timeout: float) -> tuple[object, list[Any]]:
        """Wait for calls."""
        futures.wait(calls[:num_returns], timeout)
        return [], [call for call in calls if not call.done()]

    def get(self, call: Future[object]) -> object:
        """Result of a call; an exception is the cause of another one."""
        if call.exception() is not None:
            problem = RuntimeError("of Ray")
            problem.cause = call.exception()  # type: ignore[attr-defined]  # as Ray's
            raise problem
        return call.result()

    def cluster_resources(self) -> dict[str, float]:
        """Resources of the cluster."""
        return {"CPU": 2.0}

    def close(self) -> None:
        """End the engines, as a node does with its actors."""
        for handle in self.handles:
            if hasattr(handle.worker, "_engine"):
                handle.worker._engine.close()


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Nodes]:
    """Nodes on which workers find a place."""
    address = SimpleNamespace(util=SimpleNamespace(get_node_ip_address=lambda: "10.0.0.1"))
    monkeypatch.setitem(sys.modules, "ray", address)
    running = Nodes()
    yield running
    running.close()


def reports_of(nodes: Nodes, port: int, orders: Sequence[Order], *, parts: int = 3, **fields: Any) -> list[Report]:  # noqa: ANN401 -- of a plan
    """Reports of a coordinator for a load, and for later orders of its owner."""
    told: list[Report] = []
    coming: queue.SimpleQueue[Order | None] = queue.SimpleQueue()
    waiting: list[Order | None] = [*orders, None]

    def write(report: Report) -> None:
        told.append(report)
        if isinstance(report, Ready) or (isinstance(report, Window) and report.last):
            coming.put(waiting.pop(0))

    load = msgspec.structs.replace(plan(port, **fields), parts=parts)
    with pytest.raises(EOFError):
        Coordinator(nodes, load, coming, write).run()
    return told


@pytest.mark.parametrize("schedule", [Poisson(400), Constant(400)])
def test_workers_send_the_schedule_of_one_engine(nodes: Nodes, schedule: Schedule) -> None:
    """Each request once, by exactly one of three workers; ticks come whole and say which worker did what; then anew."""
    with serving() as server:
        orders: list[Order] = [Begin(0), Again(5), Begin(0)]
        told = reports_of(nodes, server.port, orders, schedule=schedule, requests=100)
        assert server.seen("/ok").requests == 200
    assert [isinstance(report, Ready) for report in told].count(True) == 2
    ticks = [report for report in told if isinstance(report, Window)]
    assert [tick.last for tick in ticks].count(True) == 2
    assert sum(tick.requests for tick in ticks) == 200
    sent = {name: worker.sent for name, worker in shares(ticks).items()}
    assert sent == {"10.0.0.1/worker-0": 68, "10.0.0.1/worker-1": 66, "10.0.0.1/worker-2": 66}


def test_the_time_of_a_tick_is_ours(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node whose clock is an hour ahead begins with the others, and its ticks are where ours are."""
    real = time.perf_counter_ns
    hour_ns = 3600 * 10**9
    monkeypatch.setattr(ray_worker, "time", SimpleNamespace(perf_counter_ns=lambda: real() + hour_ns))
    tell, next_tick = EngineProcess.tell, EngineProcess.next_tick

    def told(engine: EngineProcess, message: Any) -> None:  # noqa: ANN401 -- a plan or an order
        begins = isinstance(message, Begin)
        tell(engine, Begin(message.at_ns - hour_ns) if begins else message)

    def ticked(engine: EngineProcess) -> Window:
        tick = next_tick(engine)
        return msgspec.structs.replace(tick, begin_ns=tick.begin_ns + hour_ns, end_ns=tick.end_ns + hour_ns)

    monkeypatch.setattr(EngineProcess, "tell", told)
    monkeypatch.setattr(EngineProcess, "next_tick", ticked)
    before = real()
    with serving() as server:
        told_ticks = reports_of(nodes, server.port, [Begin(0)], parts=1, schedule=Constant(100), requests=30)
    ticks = [report for report in told_ticks if isinstance(report, Window)]
    assert all(before < tick.begin_ns < tick.end_ns < real() + 10**9 for tick in ticks)
    assert sum(tick.requests for tick in ticks) == 30


def failure(nodes: Nodes, port: int, *orders: Order, parts: int = 1, **fields: Any) -> str:  # noqa: ANN401 -- of a plan
    """Why a load fails."""
    with pytest.raises(LoadFailed) as caught:
        reports_of(nodes, port, orders, parts=parts, **fields)
    return caught.value.summary


def test_a_clock_that_is_not_known_ends_the_load(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that answers slowly each time could begin at any time."""
    monkeypatch.setattr(on_ray, "_MOST_UNSURE_NS", 0)
    found = failure(nodes, 1)
    assert "the clock of 10.0.0.1/worker-0 is known only to within" in found
    assert "end other work on its node" in found


def test_an_engine_that_dies_ends_the_load_by_name(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """With how it ended; so does one that cannot be started, of another version, or on another host."""
    real = EngineProcess.next_tick

    def killed(engine: EngineProcess) -> Window:
        engine._process.kill()
        return real(engine)

    with serving() as server, monkeypatch.context() as patch:
        patch.setattr(EngineProcess, "next_tick", killed)
        found = failure(nodes, server.port, Begin(0), parts=2)
    assert re.match(r"10\.0\.0\.1/worker-\d: the load engine died \(exit status -9\)", found)
    # Nothing is sent there.
    with monkeypatch.context() as patch:
        patch.setattr(ray_worker, "__version__", "0.0.9")
        assert "worker-0: its node 10.0.0.1 has pytest-gpuserve 0.0.9, here" in failure(nodes, 1)
    monkeypatch.setattr(on_ray, "network_of", lambda _: "another host's")
    assert "worker-0: 10.0.0.1 is another host" in failure(nodes, 1)


def test_a_worker_that_says_nothing_is_named(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error comes after a while, with the cluster's resources."""
    monkeypatch.setattr(on_ray, "_SILENCE_SECONDS", 0.01)
    with serving() as server:
        found = failure(nodes, server.port, Begin(0))
    assert "10.0.0.1/worker-0: no answer in 10.0 ms" in found
    assert "the 2 logical CPUs of the Ray cluster" in found


@pytest.mark.parametrize("host", ["127.8.8.8", "::1", "::ffff:127.0.0.1", "0.0.0.0", "localhost", "10.0.0.1"])
def test_a_loopback_server_is_reached_from_its_own_host_alone(host: str) -> None:
    """A worker elsewhere would load a server on its own loopback; a reachable server binds no worker to this host."""
    network = network_of(msgspec.structs.replace(plan(1), endpoint=Endpoint("http", host, 8000)))
    assert network == ("" if host == "10.0.0.1" else own_network())


# -- what makes the loads


@pytest.mark.parametrize("text", ["gpu", "", "head", "head:0", "head:65536", "http://h:1", "ray://h", "a b:1", "h:1/x"])
def test_what_is_no_engine_is_refused(text: str) -> None:
    """With all that could have been meant, which are as typed; what stands before an @ may be a password."""
    for right in ("local", "ray", "head:6379", "ray://10.0.0.1:10001", "[fd00::1]:6379"):
        assert check_engine(right, OPTION) == right
    with pytest.raises(UsageProblem, match="--load-engine is neither"):
        check_engine(text, OPTION)
    with pytest.raises(UsageProblem) as caught:
        check_engine(f"me:hunter2@{text}", OPTION)
    assert "hunter2" not in str(caught.value)


def test_an_old_ray_has_no_cluster_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Versions before 2.52 accept every client."""
    monkeypatch.setattr("importlib.util.find_spec", lambda _: SimpleNamespace(origin="ray"))
    for version, refused in (("2.51.9", True), ("2.52.0", False), ("3.0", False)):
        monkeypatch.setattr("importlib.metadata.version", lambda _, found=version: found)
        if refused:
            with pytest.raises(UsageProblem, match=r"needs at least ray 2\.52"):
                RayEngine("ray", OPTION).check()
        else:
            RayEngine("ray", OPTION).check()


# -- real clusters

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
