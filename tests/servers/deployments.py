"""Deployments of any kind, described, started and loaded without a session of pytest; processes; a server of pages."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast

import psutil
import pytest

from pytest_gpuserve.errors import ServerFailed
from pytest_gpuserve.experiment.handle import ServerHandle, Target
from pytest_gpuserve.experiment.loaded import LoadedServer
from pytest_gpuserve.experiment.sampling import measure_start
from pytest_gpuserve.experiment.shape import LoadShape
from pytest_gpuserve.experiment.telemetry import TelemetryMonitor
from pytest_gpuserve.load.request import Request
from pytest_gpuserve.load.schedule import Closed, Schedule
from pytest_gpuserve.measure.counters import Counters
from pytest_gpuserve.measure.window import COMPUTE, Start
from pytest_gpuserve.plugin.server_factory import ServerFactory
from pytest_gpuserve.process.ready import Ask
from pytest_gpuserve.servers.app import App
from pytest_gpuserve.servers.base import Argument, ServerKind, Site
from pytest_gpuserve.servers.instance import Instance, started
from pytest_gpuserve.servers.metric_names import MetricNames
from pytest_gpuserve.servers.remote import reached
from pytest_gpuserve.servers.triton_install import find_triton
from pytest_gpuserve.verdict.reason import Reason
from tests.fakes.children.toolkit import eventually, segments_of
from tests.fakes.doubling.doubling import COUNTS_VARIABLE

REPOSITORY = Path(__file__).parents[2]

COUNTERS = MetricNames(items="items", batches="batches", requests="requests")
"""Counters of ``model_server.py``."""

FACTORY = ServerFactory(lambda seconds: partial(cast("Any", reached), timeout_seconds=seconds), str)
"""Describes servers without a session of pytest, and reaches remote ones."""

UNTYPED: Any = FACTORY
"""The same for arguments that a type checker would refuse."""

PYTHON_VARIABLE = "GPUSERVE_TRITON_PYTHON"
"""Names the interpreter that has nvidia-pytriton, where it is not the one that runs the tests."""


@dataclass
class Starts:
    """Starts deployments, and remembers the instances.

    Args:
        log: File of their output.
        timeout_seconds: Time for a start.
        instances: The started ones.
    """

    log: Path
    timeout_seconds: float = 60.0
    instances: list[Instance] = field(default_factory=list)

    @contextmanager
    def start(self, kind: ServerKind, ask: Ask, beside: Callable[[], None] | None = None) -> Iterator[Instance]:
        """Start a deployment, as a ``Starter``."""
        with started(
            kind, ask, environment={}, log=self.log, start_timeout_seconds=self.timeout_seconds, beside=beside
        ) as instance:
            self.instances.append(instance)
            yield instance

    def handle(self, kind: ServerKind) -> ServerHandle:
        """A handle of a deployment of this kind."""
        return ServerHandle(kind, self.start)


def loaded(
    target: Target, *, users: int = 4, seconds: float = 2.0, schedule: Schedule | None = None
) -> tuple[Start, list[Reason], Instance]:
    """Start a target, load it with a closed loop (or a schedule that ends by itself), and end it.

    Returns:
        The measurement, its problems, and the loaded instance.
    """
    shape = LoadShape(Closed(users), seconds=seconds, warmup_seconds=0.5)
    if schedule is not None:
        shape = LoadShape(schedule, warmup_seconds=0.5)
    with target.started() as instance:
        load = LoadedServer(instance, target, shape)
        start = measure_start(load, TelemetryMonitor())
    return start, load.problems, instance


def counted(instance: Instance, requests: int | None = None) -> Counters:
    """Counters of a server at so many requests: some servers count an answer after they sent it."""
    found: list[Counters] = []

    def all_counted() -> bool:
        counters = instance.counters()
        assert counters is not None
        found.append(counters)
        return requests is None or counters.requests == requests

    eventually(all_counted, f"{requests} requests are counted")
    return found[-1]


def answered(instance: Instance, asked: Ask | Request, seconds: float = 60.0) -> tuple[int, bytes]:
    """Status and body of the answer."""
    with closing(HTTPConnection(instance.site.host, instance.site.port, timeout=seconds)) as connection:
        connection.request(asked.method, asked.path, asked.body, dict(asked.headers))
        with connection.getresponse() as answer:
            return answer.status, answer.read()


def all_answered(instance: Instance, asked: Ask | Request, *, users: int, each: int) -> set[tuple[int, bytes]]:
    """The different answers to so many at a time."""
    with ThreadPoolExecutor(users) as pool:
        return set(pool.map(lambda _: answered(instance, asked), range(users * each)))


def write_model(repository: Path, config: str, files: Mapping[str, str] | None = None, *, version: int = 1) -> None:
    """Write a model into a repository, in a folder of the name that its configuration gives it."""
    named = re.search(r'name: "(\w+)"', config)
    assert named is not None
    folder = repository / named[1] / str(version)
    folder.mkdir(parents=True, exist_ok=True)
    (folder.parent / "config.pbtxt").write_text(config)
    for name, text in (files or {}).items():
        (folder / name).write_text(text)


def triton_python() -> str:
    """The interpreter whose Triton is tested; skip the test if none works."""
    python = os.environ.get(PYTHON_VARIABLE, sys.executable)
    try:
        find_triton(python)
    except ServerFailed as problem:
        pytest.skip(f"{problem}\nor name another interpreter by {PYTHON_VARIABLE}")
    return python


@dataclass(frozen=True)
class Project:
    """A copy of a doubling app, and the file in which its model counts.

    Args:
        folder: Its folder.
        app: Name of its file.
        kind: Makes its kind of server.
        ask: A request that is answered.
    """

    folder: Path
    app: str
    kind: Callable[[App], ServerKind]
    ask: Ask

    def __post_init__(self) -> None:
        for name in (self.app, "doubling.py"):
            shutil.copy(REPOSITORY / "tests" / "fakes" / "doubling" / name, self.folder)

    @contextmanager
    def running(self, **arguments: Argument) -> Iterator[Instance]:
        """Start it."""
        env = {COUNTS_VARIABLE: str(self.folder / "counts")}
        fixture = self.app.replace("_app.py", "_server")
        app = App(fixture, self.folder / self.app, self.app, arguments, environment=env)
        with Starts(self.folder / "log", 90.0).start(self.kind(app), self.ask) as instance:
            yield instance

    def own_counts(self) -> list[tuple[int, str]]:
        """The executed batches, each with its process, by the model itself."""
        lines = (line.split() for line in (self.folder / "counts").read_text().splitlines())
        return [(int(size), pid) for size, _, pid in lines]

    def check(self, found: Counters) -> None:
        """The adapter's counts are the model's."""
        own = [size for size, _ in self.own_counts()]
        assert (found.items, found.batches) == (sum(own), len(own))
        assert found.batch_sizes == {str(size): own.count(size) for size in sorted(set(own))}
        assert found.stages[COMPUTE].count == len(own)


# -- processes

GONE_SECONDS = 20.0


def descendants(pid: int) -> list[psutil.Process]:
    """All processes below one."""
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def listening(processes: Iterable[psutil.Process], kind: str = "tcp") -> set[tuple[str, int]]:
    """Addresses and ports at which processes listen."""
    found = set()
    for process in processes:
        with suppress(psutil.Error):
            connections = [each for each in process.net_connections(kind) if each.status == psutil.CONN_LISTEN]
            found |= {(each.laddr.ip.removeprefix("::ffff:"), each.laddr.port) for each in connections}
    return found


def running(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Processes that are neither gone nor only waiting to be collected."""
    found = []
    for process in processes:
        with suppress(psutil.Error):
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def command_lines(processes: Iterable[psutil.Process]) -> str:
    """Command lines of processes."""
    lines = []
    for process in processes:
        with suppress(psutil.Error):
            lines.append(" ".join(process.cmdline()))
    return "\n".join(lines)


def check_all_end(processes: Iterable[psutil.Process], seconds: float = GONE_SECONDS) -> None:
    """Fail if processes run on after so long."""
    deadline = time.monotonic() + seconds
    while (left := running(processes)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left, command_lines(left)


def owner_killed(test: str, folder: Path, **arguments: object) -> list[int]:
    """Kill a process that runs a test module's ``project_in``, and return the pids of the server's processes.

    Neither they, nor their shared memory, nor anything in their folder for temporary files may be left.
    """
    program = f"""
import sys, time
from pathlib import Path
from {test} import project_in
with project_in(Path(sys.argv[1])).running(**{arguments!r}) as instance:
    print(*[member.pid for member in instance.process.tree()], flush=True)
    time.sleep(600)
"""
    command = [sys.executable, "-c", program, str(folder)]
    # Short enough for Unix sockets in it, and nobody else's.
    with tempfile.TemporaryDirectory(prefix="t-", dir="/tmp") as place:
        environment = {**os.environ, "TMPDIR": place}
        with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=REPOSITORY, env=environment) as owner:
            try:
                assert owner.stdout is not None
                pids = [int(pid) for pid in owner.stdout.readline().split()]
                assert list(Path(place).iterdir())
                family = [psutil.Process(pid) for pid in pids]
                memory = segments_of(family)
            finally:
                owner.send_signal(signal.SIGKILL)
        check_all_end(family)
        eventually(lambda: not any(each.exists() for each in memory), "no shared memory is left")
        eventually(lambda: not list(Path(place).iterdir()), "nothing of its start is left")
    return pids


# -- pages


class Pages(ThreadingHTTPServer):
    """The server; its next page may be set at any time.

    Attributes:
        status: Status of each answer.
        body: Body of each answer.
        close_early: Whether it hangs up instead.
        seconds: Time of each answer.
        location: Target to which each answer redirects.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.status = 200
        self.body = b""
        self.close_early = False
        self.seconds = 0.0
        self.location = ""

    @property
    def port(self) -> int:
        """Port of the server."""
        return self.server_port

    def site(self) -> Site:
        """Site of the server, as its adapter knows it."""
        return Site(Path(), {"http": self.server_port})


class Handler(BaseHTTPRequestHandler):
    """Shows a page."""

    server: Pages

    def do_GET(self) -> None:
        """Answer, or hang up."""
        shown = self.server
        time.sleep(shown.seconds)
        if shown.close_early:
            self.close_connection = True
            return
        self.send_response(shown.status)
        self.send_header("Content-Length", str(len(shown.body)))
        if shown.location:
            self.send_header("Location", shown.location)
        self.end_headers()
        self.wfile.write(shown.body)

    do_POST = do_GET  # noqa: N815 -- the name that http.server looks for

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def pages() -> Iterator[Pages]:
    """Run the server in a thread until the block ends."""
    with Pages() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
