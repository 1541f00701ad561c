"""Engines on many nodes are one load to their owner; what one of them cannot do ends it, with its name."""

from __future__ import annotations

import queue
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from pytest_gpuserve.errors import LoadFailed, UsageProblem
from pytest_gpuserve.load import ray as on_ray
from pytest_gpuserve.load import ray_worker
from pytest_gpuserve.load.driver import EngineProcess
from pytest_gpuserve.load.ray import Coordinator, RayEngine, check_engine
from pytest_gpuserve.load.ray_worker import RayWorker, network_of, own_network
from pytest_gpuserve.load.schedule import Constant, Poisson, Schedule
from pytest_gpuserve.load.tick import Tick, shares
from pytest_gpuserve.load.wire import Again, Begin, Endpoint, Order, Ready, Report
from tests.fakes.http_server import plan, serving

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
        if isinstance(report, Ready) or (isinstance(report, Tick) and report.last):
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
    ticks = [report for report in told if isinstance(report, Tick)]
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

    def ticked(engine: EngineProcess) -> Tick:
        tick = next_tick(engine)
        return msgspec.structs.replace(tick, begin_ns=tick.begin_ns + hour_ns, end_ns=tick.end_ns + hour_ns)

    monkeypatch.setattr(EngineProcess, "tell", told)
    monkeypatch.setattr(EngineProcess, "next_tick", ticked)
    before = real()
    with serving() as server:
        told_ticks = reports_of(nodes, server.port, [Begin(0)], parts=1, schedule=Constant(100), requests=30)
    ticks = [report for report in told_ticks if isinstance(report, Tick)]
    assert all(before < tick.begin_ns < tick.end_ns < real() + 10**9 for tick in ticks)
    assert sum(tick.requests for tick in ticks) == 30


def failure(nodes: Nodes, port: int, *orders: Order, parts: int = 1, **fields: Any) -> str:  # noqa: ANN401 -- of a plan
    """Why a load fails."""
    with pytest.raises(LoadFailed) as caught:
        reports_of(nodes, port, orders, parts=parts, **fields)
    return caught.value.summary


def test_an_engine_that_dies_ends_the_load_by_name(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """With how it ended; so does one that cannot be started, of another version, or on another host."""
    real = EngineProcess.next_tick

    def killed(engine: EngineProcess) -> Tick:
        engine._process.kill()
        return real(engine)

    with serving() as server, monkeypatch.context() as patch:
        patch.setattr(EngineProcess, "next_tick", killed)
        found = failure(nodes, server.port, Begin(0), parts=2)
        assert re.match(r"10\.0\.0\.1/worker-\d: the load engine died \(exit status -9\)", found)
    with serving() as server, monkeypatch.context() as patch:
        patch.setattr(ray_worker, "__version__", "0.0.9")
        assert "worker-0: its node 10.0.0.1 has pytest-gpuserve 0.0.9, here" in failure(nodes, server.port)
    with serving() as server, monkeypatch.context() as patch:
        patch.setattr(on_ray, "network_of", lambda _: "another host's")
        assert "worker-0: 10.0.0.1 is another host" in failure(nodes, server.port)


def test_a_worker_that_says_nothing_or_finds_no_place_is_named(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error comes after a while, with the cluster's resources."""
    monkeypatch.setattr(on_ray, "_SILENCE_SECONDS", 0.01)
    with serving() as server:
        found = failure(nodes, server.port, Begin(0))
    assert "10.0.0.1/worker-0: no answer in 10.0 ms" in found
    assert "the 2 logical CPUs of the Ray cluster" in found


# -- what a worker has to share with us


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1", "0.0.0.0", "localhost"])
def test_a_loopback_server_is_reached_from_its_own_host_alone(host: str) -> None:
    """A worker elsewhere would load a server on its own loopback."""
    assert network_of(msgspec.structs.replace(plan(1), endpoint=Endpoint("http", host, 8000))) == own_network()


def test_a_reachable_server_binds_no_worker_to_this_host() -> None:
    """A node elsewhere loads the same server."""
    far = Endpoint("http", "10.0.0.1", 8000)
    assert network_of(msgspec.structs.replace(plan(1), endpoint=far)) == ""


# -- what makes the loads


@pytest.mark.parametrize("text", ["local", "ray", "head:6379", "ray://10.0.0.1:10001", "[fd00::1]:6379"])
def test_an_engine_is_a_name_or_an_address(text: str) -> None:
    """As it was typed."""
    assert check_engine(text, OPTION) == text


@pytest.mark.parametrize("text", ["gpu", "", "head", "head:0", "head:65536", "http://h:1", "ray://h", "a b:1", "h:1/x"])
def test_what_is_no_engine_is_refused(text: str) -> None:
    """With all that could have been meant; what stands before an @ may be a password."""
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
