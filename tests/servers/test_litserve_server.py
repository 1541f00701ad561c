"""A real LitServe whose app does not know of the test: the counts equal those of its model."""

from __future__ import annotations

import http.client
import json
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from pytest_gpuserve.errors import ServerFailed
from pytest_gpuserve.measure.counters import counted_between
from pytest_gpuserve.measure.window import COMPUTE, SERVER
from pytest_gpuserve.process.ready import Ask
from pytest_gpuserve.servers.app import App
from pytest_gpuserve.servers.inside.litserve_app import is_counted
from pytest_gpuserve.servers.litserve import LitServe
from tests.fakes.doubling.doubling import COUNTS_VARIABLE, SECONDS_A_BATCH
from tests.servers.deployments import Starts, counted
from tests.servers.processes import listening, owner_killed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpuserve.measure.counters import Counters
    from pytest_gpuserve.servers.base import Argument
    from pytest_gpuserve.servers.instance import Instance

pytest.importorskip("litserve")

FAKE = Path(__file__).parents[1] / "fakes" / "doubling"
FAKE_APP = "litserve_app.py"
DIE, FAIL = 666, 13
"""Numbers that end a worker, and that it cannot double."""

START_SECONDS = 60

JSON = {"Content-Type": "application/json"}
ASK = Ask("POST", "/predict", b'{"input": 111}', JSON)


@dataclass(frozen=True)
class Project:
    """An app, the module beside it, and the file in which its workers count."""

    folder: Path

    @contextmanager
    def running(self, **arguments: Argument) -> Iterator[Instance]:
        """Start it."""
        env = {COUNTS_VARIABLE: str(self.folder / "counts")}
        app = App("litserve_server", self.folder / FAKE_APP, FAKE_APP, arguments, environment=env)
        kind = LitServe(app)
        with Starts(self.folder / "log", START_SECONDS).start(kind, ASK) as instance:
            yield instance

    def own_counts(self) -> list[tuple[int, str]]:
        """The executed batches, each with its worker, by the model itself."""
        lines = (line.split() for line in (self.folder / "counts").read_text().splitlines())
        return [(int(size), pid) for size, _, pid in lines]

    def check(self, found: Counters) -> None:
        """The adapter's counts are the model's."""
        own = [size for size, _ in self.own_counts()]
        assert (found.items, found.batches) == (sum(own), len(own))
        assert found.batch_sizes == {str(size): own.count(size) for size in sorted(set(own))}
        assert found.stages[COMPUTE].count == len(own)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A project of its own."""
    for name in (FAKE_APP, "doubling.py"):
        shutil.copy(FAKE / name, tmp_path)
    return Project(tmp_path)


def post(instance: Instance, number: int, timeout: float = START_SECONDS) -> tuple[int, bytes]:
    """Send a number."""
    with closing(http.client.HTTPConnection("127.0.0.1", instance.site.port, timeout=timeout)) as connection:
        connection.request("POST", "/predict", json.dumps({"input": number}), JSON)
        with connection.getresponse() as answer:
            return answer.status, answer.read()


def kill_worker(instance: Instance) -> None:
    """Make a worker end itself; LitServe never answers that request."""
    with suppress(OSError):
        post(instance, DIE, timeout=1)


def load(instance: Instance, users: int, each: int) -> set[tuple[int, bytes]]:
    """Send many at a time; returns the different answers."""
    with ThreadPoolExecutor(users) as pool:
        return set(pool.map(lambda _: post(instance, 111), range(users * each)))


def test_two_workers_that_batch(project: Project) -> None:
    """Two workers are counted together, also after a restart; the app's port, address and client file are ignored."""
    with project.running(
        max_batch_size=4, batch_timeout=0.02, workers=2, choose_size=3, restart_workers=True
    ) as instance:
        before = counted(instance, 1)
        assert load(instance, 6, 10) == {(200, b'{"output":222,"input":111}')}
        found = counted(instance, 61)
        project.check(found)
        assert (found.requests, found.items) == (61, 61)
        assert found.batches < 61
        assert max(map(int, found.batch_sizes)) <= 3
        assert counted_between(before, found).items == 60
        assert found.stages[SERVER].count == 61
        assert found.stages[SERVER].mean > found.stages[COMPUTE].mean > SECONDS_A_BATCH
        assert len({worker for _, worker in project.own_counts()}) == 2
        settings = instance.settings
        assert (settings["max_batch_size"].used, settings["max_batch_size"].asked) == ("3", "4")
        assert not settings["batch_timeout"].differs
        assert settings["workers"].used == "2"
        assert instance.process is not None
        assert listening(instance.process.tree()) == {("127.0.0.1", instance.site.port)}
        assert post(instance, FAIL)[0] == 500
        assert counted(instance, 61) == found
        kill_worker(instance)
        load(instance, 2, 3)
        after = counted(instance, 67)
        project.check(after)
        assert counted_between(found, after).items == 6
    assert not (project.folder / "client.py").exists()
    assert not instance.site.folder.exists()
    assert "200 OK" not in (project.folder / "log").read_text()


@pytest.mark.parametrize(
    ("arguments", "items"),
    [
        ({"kind": "digits", "max_batch_size": 4, "fast_queue": True}, 21),
        # Continuous batching: an item is a sequence in a step, and each number has three digits.
        pytest.param({"kind": "steps"}, 63, marks=pytest.mark.slow),
    ],
)
def test_streams_and_steps_are_counted(project: Project, arguments: dict[str, Argument], items: int) -> None:
    """A real LitServe's streams and continuous batches are counted."""
    with project.running(**arguments) as instance:
        load(instance, 4, 5)
        found = counted(instance, 21)
        project.check(found)
        assert (found.requests, found.items) == (21, items)


def test_a_loop_of_ones_own_is_not_counted() -> None:
    """A user's own loop has no known batches; LitServe's loops and classes derived from them are counted."""
    from litserve.loops import LitLoop
    from litserve.loops.simple_loops import BatchedLoop

    own = [type("Own", (base,), {"__module__": "app"}) for base in (LitLoop, BatchedLoop)]
    assert [is_counted(SimpleNamespace(loop=kind())) for kind in own] == [False, True]


def test_an_app_that_cannot_start_says_why(project: Project) -> None:
    """A worker that cannot be set up ends the start long before the deadline; LitServe waits for the other for ever."""
    began = time.monotonic()
    with (
        pytest.raises(ServerFailed, match="ended before it was ready") as caught,
        project.running(bad_setup=True, workers=2),
    ):
        pass
    assert "RuntimeError: One or more workers failed to start" in caught.value.log_tail
    assert time.monotonic() - began < START_SECONDS / 2


@pytest.mark.slow
def test_a_server_that_lost_a_worker_dies(project: Project) -> None:
    """LitServe ends itself after the loss of a worker, which is seen."""
    with project.running() as instance:
        kill_worker(instance)
        assert instance.death(grace_seconds=START_SECONDS) is not None


def test_nothing_is_left_when_its_owner_is_killed(project: Project) -> None:
    """No process, folder, socket of LitServe's queues or shared memory is left."""
    pids = owner_killed("tests.servers.test_litserve_server", project.folder, workers=2, fast_queue=True)
    assert len(pids) >= 5
