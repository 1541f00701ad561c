"""A real LitServe whose app knows nothing of being tested: its counts are those that its model keeps itself."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from pytest_gpuserve.errors import ServerFailed
from pytest_gpuserve.measure.counters import counted_between
from pytest_gpuserve.measure.window import COMPUTE, SERVER
from pytest_gpuserve.servers.app import App
from pytest_gpuserve.servers.base import Argument, Ask
from pytest_gpuserve.servers.instance import started
from pytest_gpuserve.servers.litserve import LitServe

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpuserve.measure.counters import Counters
    from pytest_gpuserve.servers.instance import Instance

pytest.importorskip("litserve")

FAKE = Path(__file__).parents[1] / "fakes" / "litserve_app.py"
START_SECONDS = 60
SETTLE_SECONDS = 10
JSON = {"Content-Type": "application/json"}
ASK = Ask("POST", "/predict", b'{"text": "fox"}', JSON)


@dataclass(frozen=True)
class Project:
    """An app, the module beside it, and the folder in which its workers count for themselves."""

    folder: Path

    def kind(self, **arguments: Argument) -> LitServe:
        """The server."""
        given = {"count_in": str(self.folder / "count"), **arguments}
        return LitServe(App("litserve_server", self.folder / "app.py", "app.py", given))

    @contextmanager
    def running(self, **arguments: Argument) -> Iterator[Instance]:
        """Start it."""
        log = self.folder / "log"
        with started(self.kind(**arguments), ASK, environment={}, log=log, start_timeout_seconds=START_SECONDS) as one:
            yield one

    def own_counts(self) -> list[list[int]]:
        """The batches that each worker says it executed."""
        files = sorted((self.folder / "count").iterdir())
        return [[int(line) for line in file.read_text().split()] for file in files]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A project of its own."""
    shutil.copy(FAKE, tmp_path / "app.py")
    (tmp_path / "litserve_words.py").write_text("def upper(text):\n    return text.upper()\n")
    (tmp_path / "count").mkdir()
    return Project(tmp_path)


def post(
    instance: Instance, text: str, path: str = "/predict", timeout_seconds: float = START_SECONDS
) -> tuple[int, bytes]:
    """Send one text."""
    url = f"http://127.0.0.1:{instance.site.port}{path}"
    try:
        request = urllib.request.Request(url, json.dumps({"text": text}).encode(), JSON)
        with urllib.request.urlopen(request, timeout=timeout_seconds) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, refused.read()


def kill_worker(instance: Instance) -> None:
    """Have a worker end itself; LitServe never answers that request."""
    with suppress(OSError):
        post(instance, "die", timeout_seconds=1)


def load(instance: Instance, users: int, each: int) -> set[bytes]:
    """Send many at a time; returns the different answers."""
    answers: set[bytes] = set()

    def use() -> None:
        for _ in range(each):
            status, body = post(instance, "fox")
            assert status == 200
            answers.add(body)

    threads = [threading.Thread(target=use) for _ in range(users)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def counters(instance: Instance, requests: int) -> Counters:
    """The counters, when all answers are counted: that is done just after they are sent."""
    end = time.monotonic() + SETTLE_SECONDS
    while True:
        found = instance.counters()
        assert found is not None
        if found.requests == requests or time.monotonic() > end:
            return found
        time.sleep(0.02)


def check_own_count(project: Project, found: Counters) -> None:
    """The adapter's counts are the model's."""
    own = [size for worker in project.own_counts() for size in worker]
    assert found.items == sum(own)
    assert found.batches == len(own)
    assert found.batch_sizes == {str(size): own.count(size) for size in sorted(set(own))}
    assert found.stages[COMPUTE].count == len(own)


def test_two_workers_that_batch(project: Project) -> None:
    """Batches, answers and times of two workers; the app's own port, address and client file are not heeded."""
    with project.running(max_batch_size=4, batch_timeout=0.02, workers=2, work_ms=5, choose_size=3) as instance:
        before = counters(instance, 1)
        assert load(instance, 6, 10) == {b'{"text":"FOX","was":"fox"}'}
        found = counters(instance, 61)
        check_own_count(project, found)
        assert (found.requests, found.items) == (61, 61)
        assert found.batches < 61
        assert max(map(int, found.batch_sizes)) <= 3
        assert counted_between(before, found).items == 60
        assert found.stages[SERVER].count == 61
        assert found.stages[SERVER].mean > found.stages[COMPUTE].mean > 0.005
        assert len([worker for worker in project.own_counts() if worker]) == 2
        settings = instance.settings
        assert (settings["max_batch_size"].used, settings["max_batch_size"].asked) == ("3", "4")
        assert not settings["batch_timeout"].differs
        assert (settings["workers"].used, settings["worker_starts"].used) == ("2", "2")
        assert list(instance.cold_start_parts) == ["import", "setup"]
        assert instance.process is not None
        sockets = {
            (connection.laddr.ip, connection.laddr.port)
            for member in instance.process.tree()
            for connection in member.net_connections("tcp")
            if connection.status == psutil.CONN_LISTEN
        }
        assert sockets == {("127.0.0.1", instance.site.port)}
        status, _ = post(instance, "fail")
        assert status == 500
        assert counters(instance, 61) == found
    assert not (project.folder / "client.py").exists()
    assert not instance.site.folder.exists()
    assert "200 OK" not in (project.folder / "log").read_text()


@pytest.mark.parametrize(
    ("arguments", "batches"),
    [
        ({"kind": "context", "max_batch_size": 4}, True),
        ({"kind": "stream", "max_batch_size": 4, "fast_queue": True}, True),
        pytest.param({"kind": "plain", "max_batch_size": 1}, False, marks=pytest.mark.slow),
        pytest.param({"kind": "stream", "max_batch_size": 1}, False, marks=pytest.mark.slow),
        pytest.param({"kind": "async", "max_batch_size": 1}, False, marks=pytest.mark.slow),
        pytest.param({"kind": "async-stream", "max_batch_size": 1}, False, marks=pytest.mark.slow),
    ],
)
def test_every_way_to_predict_is_counted(project: Project, arguments: dict[str, Argument], *, batches: bool) -> None:
    """Batched or not, streamed or not, asynchronous or not."""
    with project.running(**arguments) as instance:
        load(instance, 4, 5)
        found = counters(instance, 21)
        check_own_count(project, found)
        assert (found.requests, found.items) == (21, 21)
        assert batches or found.batch_sizes == {"1": 21}


@pytest.mark.slow
def test_continuous_batching_is_counted_by_steps(project: Project) -> None:
    """An item is a sequence in a step: four texts of three letters are twelve."""
    with project.running(kind="steps") as instance:
        load(instance, 3, 1)
        found = counters(instance, 4)
        check_own_count(project, found)
        assert (found.requests, found.items) == (4, 12)


@pytest.mark.slow
def test_two_apis_are_two_parts(project: Project) -> None:
    """Each has its own batches, and what both did is the whole."""
    with project.running(second=True) as instance:
        load(instance, 3, 2)
        assert post(instance, "hen", "/other")[0] == 200
        found = counters(instance, 8)
        check_own_count(project, found)
        assert {name: part.requests for name, part in found.parts.items()} == {"/predict": 7, "/other": 1}


@pytest.mark.slow
def test_a_loop_of_ones_own_is_not_counted(project: Project) -> None:
    """It serves, without counters."""
    with project.running(own_loop=True) as instance:
        assert post(instance, "hen") == (200, b'{"text":"HEN"}')
        assert instance.counters() is None


def test_a_restarted_worker_counts_on(project: Project) -> None:
    """What the dead one counted stays, and that there was another one shows in the settings."""
    with project.running(restart_workers=True) as instance:
        load(instance, 2, 3)
        before = counters(instance, 7)
        kill_worker(instance)
        load(instance, 2, 3)
        found = counters(instance, 13)
        check_own_count(project, found)
        assert counted_between(before, found).items == 6
        assert instance.kind.read_settings(instance.site)["worker_starts"].used == "2"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"exit_at_import": True}, "no weights here"),
        ({"bad_setup": "all", "workers": 2}, "RuntimeError: One or more workers failed to start"),
    ],
)
def test_an_app_that_cannot_start_says_why(project: Project, arguments: dict[str, Argument], said: str) -> None:
    """Long before the deadline, though LitServe itself would wait for its other worker for ever."""
    began = time.monotonic()
    with pytest.raises(ServerFailed, match="ended before it was ready") as caught, project.running(**arguments):
        pass
    assert said in caught.value.log_tail
    assert "runpy" not in caught.value.log_tail
    assert time.monotonic() - began < START_SECONDS / 2


@pytest.mark.slow
def test_a_server_that_lost_a_worker_dies(project: Project) -> None:
    """LitServe ends itself then, which is seen."""
    with project.running() as instance:
        kill_worker(instance)
        assert instance.death(grace_seconds=START_SECONDS) is not None


OWNER = """
import sys, time
from pathlib import Path
from pytest_gpuserve.servers.app import App
from pytest_gpuserve.servers.base import Ask
from pytest_gpuserve.servers.instance import started
from pytest_gpuserve.servers.litserve import LitServe
folder = Path(sys.argv[1])
kind = LitServe(App("litserve_server", folder / "app.py", "app.py", {"workers": 2, "fast_queue": True}))
ask = Ask("POST", "/predict", b'{"text": "fox"}', {"Content-Type": "application/json"})
with started(kind, ask, environment={}, log=folder / "log", start_timeout_seconds=60) as instance:
    print(instance.site.folder, *[member.pid for member in instance.process.tree()], flush=True)
    time.sleep(600)
"""


def test_nothing_is_left_when_its_owner_is_killed(project: Project) -> None:
    """No process, no folder, no socket of LitServe's queues, nothing in shared memory."""
    temporary = set(Path("/tmp").iterdir())
    with subprocess.Popen([sys.executable, "-c", OWNER, str(project.folder)], stdout=subprocess.PIPE) as owner:
        try:
            assert owner.stdout is not None
            folder, *pids = owner.stdout.readline().decode().split()
        finally:
            owner.send_signal(signal.SIGKILL)
    assert len(pids) >= 5
    end = time.monotonic() + SETTLE_SECONDS
    while time.monotonic() < end and (Path(folder).exists() or any(psutil.pid_exists(int(pid)) for pid in pids)):
        time.sleep(0.05)
    assert not Path(folder).exists()
    assert not [pid for pid in pids if psutil.pid_exists(int(pid))]
    assert not [name for name in set(Path("/tmp").iterdir()) - temporary if name.name.startswith(("zmq-", "pymp-"))]
