"""Loads from real Ray clusters: one of our own, several nodes, nodes that come, go and differ, and other networks."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuserve.errors import LoadFailed
from pytest_gpuserve.load.driver import Engines
from pytest_gpuserve.load.ray.address import parse_address
from pytest_gpuserve.load.ray.cluster import OWN, LocalCluster
from pytest_gpuserve.load.ray.source import RayEngine
from pytest_gpuserve.load.request import Request
from pytest_gpuserve.load.run import run_load
from pytest_gpuserve.load.schedule import Closed, Constant
from pytest_gpuserve.load.wire import Endpoint, Plan
from tests.fakes.children.toolkit import alive, eventually, segments_of_nobody
from tests.fakes.http_server import Serving, Totals, serving
from tests.fakes.ray_nodes import folder_of_ray, ray_nodes
from tests.fakes.threads import in_a_thread

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_gpuserve.load.schedule import Schedule
    from pytest_gpuserve.load.source import EngineSource
    from tests.fakes.ray_nodes import RayNodes

pytest.importorskip("ray")

OPTION = "--load-engine"
ROOT = Path(__file__).parents[2]
COMMAND_SECONDS = 150.0
LOOPBACK = {"127.0.0.1", "::1", "::ffff:127.0.0.1"}


@pytest.fixture
def server() -> Iterator[Serving]:
    """A server of its own for each test."""
    with serving() as running:
        yield running


def load_of(host: str, port: int, schedule: Schedule, *, seconds: float = 2.0) -> Plan:
    """A load of the server there."""
    request = Request("GET", "/ok").to_bytes(host, port)
    return Plan(
        endpoint=Endpoint("http", host, port),
        payloads=((request,),),
        schedule=schedule,
        tick_ns=100_000_000,
        timeout_ns=10_000_000_000,
        nanoseconds=round(seconds * 1e9),
        keep_answers="none",
    )


def on(nodes: RayNodes, folder: Path) -> EngineSource:
    """Where workers on these nodes come from, looked at as a run does."""
    address = parse_address(nodes.address)
    assert address is not None
    engine = RayEngine(address, OPTION)
    engine.check()
    return engine.source(folder / "log")


# -- a cluster of our own


@pytest.mark.slow
def test_a_cluster_of_our_own_is_for_this_host_and_user_alone(tmp_path: Path) -> None:
    """All of it listens on the loopback alone, who does not know its secret is not let in, and it ends as a whole."""
    with LocalCluster.start(tmp_path / "log") as cluster:
        tree = cluster.process.tree()
        assert {host for host, _ in cluster.process.listening_addresses()} <= LOOPBACK
        joined = "import ray, sys; ray.init(address=sys.argv[1], log_to_driver=False); print(len(ray.nodes()))"
        command = [sys.executable, "-c", joined, cluster.joining.address]

        def join(argv: Sequence[str], environment: dict[str, str] | None) -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                argv, env=environment, capture_output=True, text=True, timeout=90, check=False, cwd="/"
            )

        known = join(cluster.joining.command(command), None)
        assert known.stdout.strip() == "1", known.stderr
        unknown = join(command, {**os.environ, **OWN, "RAY_AUTH_MODE": "disabled"})
        assert unknown.returncode != 0
        assert "Failed to connect" in unknown.stderr
    assert not [process for process in tree if alive(process.pid)]


OWNER = """
import sys, time
from pathlib import Path
from pytest_gpuserve.load.ray.cluster import LocalCluster
with LocalCluster.start(Path(sys.argv[1])) as cluster:
    print(*(process.pid for process in cluster.process.tree()), flush=True)
    time.sleep(600)
"""


def test_it_ends_with_who_started_it(tmp_path: Path) -> None:
    """After SIGKILL no process, no folder and no shared memory is left."""
    memory = segments_of_nobody()
    with folder_of_ray() as folder:
        with subprocess.Popen(
            [sys.executable, "-c", OWNER, str(tmp_path / "log")],
            env={**os.environ, "TMPDIR": str(folder), "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            text=True,
        ) as owner:
            assert owner.stdout is not None
            pids = [int(word) for word in owner.stdout.readline().split()]
            owner.kill()
        assert len(pids) >= 3
        eventually(lambda: not any(alive(pid) for pid in pids), "no process is left")
        eventually(lambda: not list(folder.iterdir()), "no file is left")
    eventually(lambda: not segments_of_nobody() - memory, "no shared memory is left")


@pytest.mark.slow
def test_a_cluster_of_our_own_that_died_is_replaced_by_the_next_load(server: Serving, tmp_path: Path) -> None:
    """One of its processes is killed: it ends, says so in its log, and the load after that has another."""
    log = tmp_path / "log"
    plan = load_of("127.0.0.1", server.port, Constant(100), seconds=1.0)
    with folder_of_ray() as folder, pytest.MonkeyPatch.context() as patch, RayEngine(None, OPTION) as engine:
        patch.setattr(tempfile, "tempdir", str(folder))
        engine.check()
        assert run_load(plan, processes=2, source=engine.source(log)).totals.requests == 100
        cluster = engine._own
        assert cluster is not None
        (gcs,) = [process for process in cluster.process.tree() if process.name().startswith("gcs_server")]
        gcs.kill()
        eventually(cluster.has_ended, "its end")
        assert "the Ray cluster has lost its gcs_server (exit status -9)" in log.read_text()
        assert run_load(plan, processes=2, source=engine.source(log)).totals.requests == 100
        assert engine._own is not cluster


@contextmanager
def command(*argv: str) -> Iterator[subprocess.Popen[str]]:
    """Load by the command, from a cluster of its own, of which nothing is left."""
    with (
        folder_of_ray() as folder,
        subprocess.Popen(
            [sys.executable, "-m", "pytest_gpuserve.load", *argv, "--engine", "ray"],
            env={**os.environ, "TMPDIR": str(folder), "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        yield process


def test_the_command_loads_from_its_own_cluster(server: Serving) -> None:
    """`--engine ray --workers 2` sends all requests from two workers, says so, and leaves nothing."""
    options = "--workers 2 --rate 200 --duration 3 --warmup 1 --json"
    with command(f"http://127.0.0.1:{server.port}/ok", *options.split()) as process:
        out, err = process.communicate(timeout=COMMAND_SECONDS)
    assert process.returncode in {0, 1}, err
    said = json.loads(out)
    assert (said["engine"], said["processes"]) == ("Ray, a cluster of this run on this host", 2)
    # Those of the warm-up are not among them: 200, or fewer where the machine was late.
    assert 0 < said["requests"] < 600
    assert said["errors"] == 0
    assert server.seen("/ok").requests == 600


@pytest.mark.slow
def test_ctrl_c_ends_the_command_and_its_cluster(server: Serving) -> None:
    """With exit status 130, and nothing of Ray is left."""
    with command(f"http://127.0.0.1:{server.port}/ok", "--workers", "1", "--duration", "300") as process:
        eventually(lambda: server.seen("/ok").requests > 0, "the load has begun", seconds=COMMAND_SECONDS)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=COMMAND_SECONDS)
    assert process.returncode == 130, err
    assert "interrupted by Ctrl-C" in out


# -- several nodes


@pytest.mark.slow
def test_nodes_may_come_between_loads_and_go_in_one(server: Serving, tmp_path: Path) -> None:
    """Two workers have no place on a node with one CPU; with a second node they have, one on each.

    When that is lost in mid-load nothing that was measured may be used; the next load goes on without the node.
    """
    with ray_nodes(1) as nodes:
        plan = load_of("127.0.0.1", server.port, Constant(100))
        assert run_load(plan, processes=1, source=on(nodes, tmp_path)).totals.requests == 200
        second = nodes.add(1, host="127.0.0.2")
        both = run_load(plan, processes=2, source=on(nodes, tmp_path))
        assert (both.totals.requests, both.totals.errors) == (200, {})
        with Engines(load_of("127.0.0.1", server.port, Closed(4), seconds=300), 2, on(nodes, tmp_path)) as engines:
            names = set(engines.next_tick().workers)
            assert {name.partition("/")[0] for name in names} == {"127.0.0.1", "127.0.0.2"}
            thread = threading.Thread(target=nodes.remove, args=(second,))
            thread.start()
            try:
                with pytest.raises(LoadFailed) as caught:
                    Totals(engines).take_to_end()
            finally:
                thread.join()
        assert "127.0.0.2/worker-" in caught.value.log_tail.strip().splitlines()[-1]
        assert run_load(plan, processes=1, source=on(nodes, tmp_path)).totals.requests == 200


# -- two networks


NETWORK = "10.213.77"


@contextmanager
def another_network() -> Iterator[str]:
    """Yield the name of a network namespace that has the address .2 of a network in which this host has .1."""
    name, ours, theirs = (f"{part}{os.getpid() % 10_000}" for part in ("gs", "gsa", "gsb"))
    try:
        for arguments in (
            f"netns add {name}",
            f"link add {ours} type veth peer name {theirs} netns {name}",
            f"address add {NETWORK}.1/24 dev {ours}",
            f"link set {ours} up",
            f"-n {name} address add {NETWORK}.2/24 dev {theirs}",
            f"-n {name} link set {theirs} up",
            f"-n {name} link set lo up",
        ):
            subprocess.run(["ip", *arguments.split()], check=True, capture_output=True, timeout=30)
        yield name
    finally:
        for arguments in (f"link delete {ours}", f"netns delete {name}"):
            subprocess.run(["ip", *arguments.split()], check=False, capture_output=True, timeout=30)


class Quiet(BaseHTTPRequestHandler):
    """Answers, and remembers who asked."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    asked: set[str]

    def do_GET(self) -> None:
        """Answer."""
        self.asked.add(self.client_address[0])
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002, ANN401 -- the standard library's signature
        """Say nothing."""


@contextmanager
def answering(host: str) -> Iterator[tuple[int, set[str]]]:
    """Run a server there; yields its port and who has asked it."""
    asked: set[str] = set()
    with in_a_thread(ThreadingHTTPServer((host, 0), type("Answering", (Quiet,), {"asked": asked}))) as listening:
        yield listening.server_address[1], asked


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("ip") is None, reason="network namespaces need root and ip")
def test_a_server_is_loaded_from_another_network(tmp_path: Path) -> None:
    """Workers in one network load a server in the other; one that listens on our loopback they would not find."""
    with another_network() as name, ray_nodes(2, host=f"{NETWORK}.2", within=("ip", "netns", "exec", name)) as nodes:
        source = on(nodes, tmp_path)
        assert not source.is_here
        with answering(f"{NETWORK}.1") as (port, asked):
            outcome = run_load(load_of(f"{NETWORK}.1", port, Constant(50)), processes=2, source=source)
        assert outcome.totals.requests == 100
        assert not outcome.totals.errors
        assert asked == {f"{NETWORK}.2"}
        with answering("127.0.0.1") as (port, asked), pytest.raises(LoadFailed) as caught:
            run_load(load_of("127.0.0.1", port, Constant(50)), processes=2, source=source)
        assert "another host" in caught.value.log_tail
        assert not asked
