"""A real LitServe whose app does not know of the test: the counts equal those of its model; and how they are read."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import AsyncIterator, Callable, MutableMapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pytest_gpuserve.errors import ServerFailed
from pytest_gpuserve.measure.counters import Counters, ServerSetting, counted_between
from pytest_gpuserve.measure.window import COMPUTE, SERVER
from pytest_gpuserve.process.ready import Ask
from pytest_gpuserve.servers.app import App
from pytest_gpuserve.servers.base import Argument, Site
from pytest_gpuserve.servers.inside.litserve_app import (
    ANSWERS,
    EXECUTIONS,
    FACTS,
    READY_PATH,
    AnswerCounter,
    count_predictions,
    is_counted,
    open_tally,
)
from pytest_gpuserve.servers.inside.tally import Tally, read_tally, write_facts
from pytest_gpuserve.servers.instance import Instance
from pytest_gpuserve.servers.litserve import LitServe
from tests.fakes.doubling.doubling import SECONDS_A_BATCH
from tests.servers.deployments import Project, all_answered, answered, counted, listening, owner_killed

pytest.importorskip("litserve")

DIE, FAIL = b'{"input": 666}', b'{"input": 13}'
"""Numbers that end a worker, and that it cannot double."""

START_SECONDS = 60

JSON = {"Content-Type": "application/json"}
ASK = Ask("POST", "/predict", b'{"input": 111}', JSON)


def project_in(folder: Path) -> Project:
    """A project in an empty folder."""
    return Project(folder, "litserve_app.py", LitServe, ASK)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A project of its own."""
    return project_in(tmp_path)


def kill_worker(instance: Instance) -> None:
    """Make a worker end itself; LitServe never answers that request."""
    with suppress(OSError):
        answered(instance, replace(ASK, body=DIE), seconds=1)


def test_two_workers_that_batch(project: Project) -> None:
    """Two workers are counted together, also after a restart; the app's port, address and client file are ignored."""
    with project.running(
        max_batch_size=4, batch_timeout=0.02, workers=2, choose_size=3, restart_workers=True
    ) as instance:
        before = counted(instance, 1)
        assert all_answered(instance, ASK, users=6, each=10) == {(200, b'{"output":222,"input":111}')}
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
        assert answered(instance, replace(ASK, body=FAIL))[0] == 500
        assert counted(instance, 61) == found
        kill_worker(instance)
        all_answered(instance, ASK, users=2, each=3)
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
        all_answered(instance, ASK, users=4, each=5)
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


def test_nothing_is_left_when_its_owner_is_killed(project: Project) -> None:
    """No process, folder, socket of LitServe's queues or shared memory is left."""
    pids = owner_killed("tests.servers.test_litserve", project.folder, workers=2, fast_queue=True)
    assert len(pids) >= 5


# -- what is read, without a server

API = {
    "max_batch_size": 8,
    "batch_timeout": 0.01,
    "workers": 2,
    "stream": False,
    "loop": "BatchedLoop",
    "counted": True,
}


class Batches:
    """The part of an API that LitServe calls before it predicts."""

    def batch(self, inputs: list[str], context: object = None) -> list[str]:
        """Add the context, if there is one."""
        return [*inputs, *([f"{context}"] if context else [])]


class Later(Batches):
    """An API whose ``predict`` is a coroutine."""

    async def predict(self, x: list[str]) -> list[str]:
        """Return it."""
        return x


class LaterStreams(Batches):
    """An API whose ``predict`` is an asynchronous stream."""

    async def predict(self, x: list[str]) -> AsyncIterator[str]:
        """Give away one after the other."""
        for each in x:
            yield each


@pytest.fixture
def count(tmp_path: Path) -> Callable[[Batches], tuple[Any, Callable[[], dict[int, int]]]]:
    """Count a model; it, and a function that tells the number of executions of each size."""

    def counted(model: Batches) -> tuple[Any, Callable[[], dict[int, int]]]:
        count_predictions(model, Tally(tmp_path / "a.tally", 8))
        return model, lambda: read_tally(tmp_path / "a.tally").sizes

    return counted


def test_coroutines_and_asynchronous_streams_are_counted(count: Callable[[Batches], Any]) -> None:
    """A counted ``predict`` stays a coroutine or stream; a stream counts at its end, and an abandoned one does not."""
    model, sizes = count(Later())
    assert inspect.iscoroutinefunction(model.predict)
    assert (asyncio.run(model.predict(["a"])), sizes()) == (["a"], {1: 1})
    model, sizes = count(LaterStreams())
    assert inspect.isasyncgenfunction(model.predict)

    async def begin() -> str:
        stream = model.predict(["a", "b"])
        first: str = await anext(stream)
        await stream.aclose()
        return first

    async def take_all() -> list[str]:
        return [each async for each in model.predict(["a", "b"])]

    assert (asyncio.run(begin()), sizes()) == ("a", {})
    assert (asyncio.run(take_all()), sizes()) == (["a", "b"], {1: 1})


@pytest.mark.parametrize(
    ("states", "status"),
    [({"0": "ready", "1": "ready"}, 200), ({"0": "ready", "1": "starting"}, 503), ({"0": "error"}, 503), ({}, 503)],
)
def test_it_is_ready_when_all_workers_are(tmp_path: Path, states: dict[str, str], status: int) -> None:
    """The server is ready when all workers are; LitServe itself answers after the first."""
    sent: list[MutableMapping[str, Any]] = []

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    middleware: Any = AnswerCounter(cast("Any", None), folder=tmp_path, paths={}, states=lambda: states)
    asyncio.run(middleware({"type": "http", "path": READY_PATH}, None, send))
    assert sent[0]["status"] == status


def say(folder: Path, **apis: object) -> None:
    """Write what a server reports of its setup."""
    facts = {"version": "0.2.19", "server": {"devices": "cpu"}}
    write_facts(folder / FACTS, {**facts, "apis": {f"/{name}": api for name, api in apis.items()}})


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """A start of a server that has reported its setup."""
    (tmp_path / "litserve").mkdir()
    say(tmp_path / "litserve", predict=API)
    return Site(tmp_path, {"http": 1})


def kind(tmp_path: Path, **arguments: Argument) -> LitServe:
    """A server of an app that is not started."""
    app = tmp_path / "app.py"
    app.touch()
    return LitServe(App("litserve_server", app, "app.py", arguments))


def worker(site: Site, path: str = "/predict", *sizes: int, most: int = 8) -> None:
    """A worker that executed batches of these sizes in a microsecond each."""
    about = {"max_batch_size": most, "batch_timeout": 0.01}
    tally = open_tally(site.folder / "litserve", EXECUTIONS, path, most, **about)
    for size in sizes:
        tally.executed(size, 1000)


def http_process(site: Site, requests: int) -> None:
    """A process that answered so many requests."""
    tally = open_tally(site.folder / "litserve", ANSWERS, "/predict", 1)
    for _ in range(requests):
        tally.executed(1, 5000)


def read(site: Site, tmp_path: Path) -> Counters:
    """The counters, which are there."""
    found = kind(tmp_path).read_counters(site)
    assert found is not None
    return found


def test_each_api_is_a_part(site: Site, tmp_path: Path) -> None:
    """Several APIs are counted each by itself and together."""
    say(site.folder / "litserve", predict=API, other=API)
    worker(site, "/predict", 4)
    worker(site, "/other", 2, 2)
    http_process(site, 4)
    found = read(site, tmp_path)
    assert (found.items, found.batches, found.requests) == (8, 3, 4)
    assert {name: part.items for name, part in found.parts.items()} == {"/predict": 4, "/other": 4}


def test_what_does_not_count_is_not_counted(site: Site, tmp_path: Path) -> None:
    """A missing counter is an error; a user's own loop has no counters."""
    http_process(site, 1)
    with pytest.raises(ServerFailed, match="its workers do not count"):
        read(site, tmp_path)
    worker(site, "/predict", 1)
    (tally,) = (site.folder / "litserve").glob(f"{EXECUTIONS}*.tally")
    tally.write_bytes(b"damaged")
    with pytest.raises(ServerFailed, match="counts make no sense"):
        read(site, tmp_path)
    say(site.folder / "litserve", predict={**API, "counted": False})
    assert kind(tmp_path).read_counters(site) is None
    with pytest.raises(ServerFailed, match="did not report its setup"):
        kind(tmp_path).read_settings(Site(tmp_path / "elsewhere"))


def test_settings_are_those_of_the_workers(site: Site, tmp_path: Path) -> None:
    """Equal values are equal in any form; two workers that differ show."""
    worker(site)
    found = kind(tmp_path, max_batch_size="16", batch_timeout=1e-2).read_settings(site)
    assert found["max_batch_size"] == ServerSetting("8", "16")
    assert found["batch_timeout"] == ServerSetting("0.01", "0.01")
    assert not found["batch_timeout"].differs
    assert (found["litserve"], found["stream"]) == (ServerSetting("0.2.19"), ServerSetting("no"))
    worker(site, most=4)
    assert kind(tmp_path).read_settings(site)["max_batch_size"].used == "4, 8"
