"""Workers on a real Ray cluster load as one engine of this host does, and whatever is killed, nothing is left."""

from __future__ import annotations

import hashlib
import os
import re
import socket
import subprocess
import sys
from collections import Counter
from contextlib import contextmanager
from functools import wraps
from importlib.util import find_spec
from statistics import fmean
from typing import TYPE_CHECKING

import msgspec
import pytest

from pytest_gpuserve.errors import LoadFailed
from pytest_gpuserve.load.driver import Engines
from pytest_gpuserve.load.ray.cluster import QUIET, Joining
from pytest_gpuserve.load.ray.source import RaySource
from pytest_gpuserve.load.run import run_load
from pytest_gpuserve.load.schedule import Constant, Poisson, Trace
from pytest_gpuserve.load.source import LOCAL
from pytest_gpuserve.process.ports import free_port
from tests.fakes.children.toolkit import eventually
from tests.fakes.http_server import Serving, Totals, plan, serving
from tests.fakes.load_processes import ACTOR, COORDINATOR, ENGINE, below
from tests.fakes.ray_nodes import ray_nodes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import psutil
    from typing_extensions import ParamSpec

    from pytest_gpuserve.load.schedule import Schedule
    from pytest_gpuserve.load.source import EngineSource
    from pytest_gpuserve.load.totals import Totals as Measured
    from tests.fakes.ray_nodes import RayNodes

    P = ParamSpec("P")

pytestmark = pytest.mark.skipif(find_spec("ray") is None, reason="needs ray")

MS = 1_000_000

NODE = "127.0.0.2"
"""On this host; for 127.0.0.1 Ray would put the address by which others see it."""


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    """Give a server."""
    with serving() as running:
        yield running


@pytest.fixture(scope="module")
def nodes() -> Iterator[RayNodes]:
    """Give a cluster of one node."""
    with ray_nodes(8, host=NODE) as running:
        yield running


def on(address: str) -> EngineSource:
    """Workers on the cluster there."""
    return RaySource("ray", is_here=True, join=lambda: Joining(address, QUIET))


@pytest.fixture
def source(nodes: RayNodes) -> Iterator[EngineSource]:
    """Workers on the cluster; nothing of them is left after a test."""
    before = of_a_load(nodes)
    yield on(nodes.address)
    eventually(lambda: of_a_load(nodes) <= before, "no worker is left")


def of_a_load(nodes: RayNodes) -> set[psutil.Process]:
    """Engines and actors below the cluster, and coordinators below us, that are alive."""
    return {*below(nodes.pid, ENGINE, ACTOR), *below(os.getpid(), COORDINATOR)}


LATE = "heard of the begin too late"


def told_in_time(test: Callable[P, None]) -> Callable[P, None]:
    """Run a test again, three times at most, where the machine was so busy that a worker heard of its begin too late.

    That is refused before anything is measured, as `tests/load/ray/test_coordinator.py` proves.
    """

    @wraps(test)
    def again(*args: P.args, **kwargs: P.kwargs) -> None:
        for _ in range(2):
            try:
                return test(*args, **kwargs)
            except LoadFailed as problem:
                if LATE not in problem.log_tail:
                    raise
        return test(*args, **kwargs)

    return again


# -- the same load


@pytest.mark.slow
def test_a_closed_loop_comes_to_the_same(server: Serving, source: EngineSource) -> None:
    """Users wait for answers of 5 ms: throughput and mean latency are those of local engines, measured in ABBA."""
    load = plan(server.port, "/ok?ms=5", connections=4, seconds=1.5)
    sides: dict[EngineSource, list[Measured]] = {LOCAL: [], source: []}
    for engines in (LOCAL, source, source, LOCAL):
        sides[engines].append(run_load(load, processes=2, source=engines, warmup_ns=300 * MS).totals)
    rates = [fmean(each.requests / each.seconds for each in side) for side in sides.values()]
    latencies = [fmean(each.latency.mean or 0.0 for each in side) for side in sides.values()]
    assert rates[1] / rates[0] == pytest.approx(1, abs=0.2)
    assert latencies[1] / latencies[0] == pytest.approx(1, abs=0.25)


@pytest.mark.parametrize(
    "schedule",
    [
        pytest.param(Poisson(400), id="drawn"),
        pytest.param(Trace(tuple((at / 400, 199 - at) for at in range(200))), id="recorded", marks=pytest.mark.slow),
    ],
)
@told_in_time
def test_workers_send_the_schedule_of_one_engine(server: Serving, schedule: Schedule, source: EngineSource) -> None:
    """Each of its requests once, by exactly one of three workers; and their ticks tell which worker did what."""
    bodies = [b"%d" % number for number in range(200)]
    payloads = tuple(plan(server.port, "/digest", body=body).payloads[0] for body in bodies)
    load = msgspec.structs.replace(
        plan(server.port, schedule=schedule, requests=200), payloads=payloads, keep_answers="all"
    )
    before = server.seen("/digest").requests
    with Engines(load, 3, source) as engines:
        totals = Totals(engines).take_to_end()
    assert server.seen("/digest").requests - before == totals.requests == 200
    assert totals.answers == Counter({hashlib.sha256(body).hexdigest().encode(): 1 for body in bodies})
    shares: Counter[str] = Counter()
    for tick in totals.ticks:
        shares.update({name: part.sent for name, part in tick.workers.items()})
    assert shares == {"127.0.0.2/worker-0": 67, "127.0.0.2/worker-1": 67, "127.0.0.2/worker-2": 66}


@pytest.mark.slow
@pytest.mark.skipif(find_spec("grpc") is None, reason="Ray's client needs grpcio")
def test_rays_client_carries_the_same_load(server: Serving, nodes: RayNodes) -> None:
    """Through ``ray://`` from a host that is no node, with all that an engine is told in between."""
    with client_server(nodes) as address:
        with Engines(plan(server.port, schedule=Constant(300), requests=150), 2, on(address)) as engines:
            assert Totals(engines).take_to_end().requests == 150
            engines.halt(seed=4)
            engines.begin()
            assert Totals(engines).take_to_end().requests == 150
        eventually(lambda: not of_a_load(nodes), "no worker is left")


@contextmanager
def client_server(nodes: RayNodes) -> Iterator[str]:
    """Run the server of Ray's client for a cluster; yields the address that a client is given."""
    port = free_port()
    module = [sys.executable, "-m", "ray.util.client.server", "--host=127.0.0.1", "--mode=legacy"]
    process = subprocess.Popen(
        [*module, f"--port={port}", f"--address={nodes.address}"],
        env={**os.environ, **QUIET, "RAY_AUTH_MODE": "disabled"},
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


# -- who is killed


@told_in_time
def test_a_killed_worker_ends_the_load_by_name(server: Serving, source: EngineSource, nodes: RayNodes) -> None:
    """The last line of the log says in plain words which was lost; engines and actors on this host were told."""
    with Engines(plan(server.port), 2, source) as engines:
        engines.next_tick()
        # That what they use is not taken for somebody else's.
        assert set(engines.pids[1:]) == {process.pid for process in below(nodes.pid, ENGINE, ACTOR)}
        below(nodes.pid, ACTOR)[0].kill()
        with pytest.raises(LoadFailed) as caught:
            Totals(engines).take_until(lambda *_: False, "its death")
    last_line = caught.value.log_tail.strip().splitlines()[-1]
    assert re.match(r"127\.0\.0\.2/worker-\d was lost in mid-load: ", last_line)
    assert "Traceback" not in caught.value.log_tail
