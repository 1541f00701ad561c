"""LitServe's counts: what is put before a model, what counts answers, and what is read of both."""

from __future__ import annotations

import asyncio
import inspect
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pytest_gpuserve.errors import ServerFailed
from pytest_gpuserve.measure.settings import Setting
from pytest_gpuserve.measure.window import COMPUTE, SERVER
from pytest_gpuserve.servers.app import App
from pytest_gpuserve.servers.base import Argument, Site
from pytest_gpuserve.servers.inside.batch_tally import Tally, read_tally
from pytest_gpuserve.servers.inside.litserve_answers import READY_PATH, Answers
from pytest_gpuserve.servers.inside.litserve_files import ANSWERS, EXECUTIONS, FACTS, open_tally, write_json
from pytest_gpuserve.servers.inside.litserve_worker import count_predictions
from pytest_gpuserve.servers.litserve import LitServe

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from pytest_gpuserve.measure.counters import Counters
    from pytest_gpuserve.servers.inside.litserve_answers import Message, Receive, Send

API = {
    "max_batch_size": 8,
    "batch_timeout": 0.01,
    "workers": 2,
    "stream": False,
    "loop": "BatchedLoop",
    "counted": True,
    "spec": None,
}


class Model:
    """What LitServe calls of an API."""

    def batch(self, inputs: list[str], context: object = None) -> list[str]:
        """Add the context, if there is one."""
        return [*inputs, *([f"{context}"] if context else [])]

    def predict(self, x: object) -> object:
        """Return it."""
        if x == ["bad"]:
            raise ValueError("this cannot be read")
        return x


class Streams(Model):
    """The same, as a stream."""

    def predict(self, x: list[str]) -> Iterator[str]:
        """Give away one after the other."""
        yield from x


class Later(Model):
    """The same, as a coroutine."""

    async def predict(self, x: list[str]) -> list[str]:
        """Return it."""
        return x


class LaterStreams(Model):
    """The same, as an asynchronous stream."""

    async def predict(self, x: list[str]) -> AsyncIterator[str]:
        """Give away one after the other."""
        for each in x:
            yield each


@dataclass
class Counted:
    """A model that is counted, and where."""

    model: Any
    path: Path

    @property
    def sizes(self) -> dict[int, int]:
        """The executions so far."""
        reading = read_tally(self.path)
        assert reading.executions == sum(reading.sizes.values())
        return reading.sizes


@pytest.fixture
def count(tmp_path: Path) -> Callable[[Model], Counted]:
    """Count a model."""

    def counted(model: Model) -> Counted:
        path = tmp_path / "a.tally"
        count_predictions(model, Tally(path, 8))
        return Counted(model, path)

    return counted


def test_executions_are_counted_with_their_sizes(count: Callable[[Model], Counted]) -> None:
    """Of what LitServe does not batch, of a batch; one that fails is none, and its exception goes on to LitServe."""
    one = count(Model())
    one.model.predict("abc")
    assert one.sizes == {1: 1}
    assert one.model.predict(one.model.batch(["a", "b", "c"], context="d")) == ["a", "b", "c", "d"]
    with pytest.raises(ValueError, match="cannot be read"):
        one.model.predict(["bad"])
    assert one.sizes == {1: 1, 3: 1}


def test_a_stream_is_one_execution(count: Callable[[Model], Counted]) -> None:
    """It is counted at its end, and its function still looks like a stream's."""
    one = count(Streams())
    assert inspect.isgeneratorfunction(one.model.predict)
    stream = one.model.predict(one.model.batch(["a", "b"]))
    assert (next(stream), one.sizes) == ("a", {})
    assert (list(stream), one.sizes) == (["b"], {2: 1})


def test_a_coroutine_is_counted(count: Callable[[Model], Counted]) -> None:
    """And stays one."""
    one = count(Later())
    assert inspect.iscoroutinefunction(one.model.predict)
    assert (asyncio.run(one.model.predict(["a"])), one.sizes) == (["a"], {1: 1})


def test_asynchronous_streams_are_counted(count: Callable[[Model], Counted]) -> None:
    """An asynchronous stream stays one, and one that is given up is not counted."""
    one = count(LaterStreams())
    assert inspect.isasyncgenfunction(one.model.predict)

    async def take(count: int) -> list[str]:
        stream = one.model.predict(["a", "b"])
        taken = [await anext(stream) for _ in range(count)]
        await stream.aclose()
        return taken

    async def take_all() -> list[str]:
        return [each async for each in one.model.predict(["a", "b"])]

    assert (asyncio.run(take(1)), one.sizes) == (["a"], {})
    assert (asyncio.run(take_all()), one.sizes) == (["a", "b"], {1: 1})


def answered(folder: Path, path: str, status: int, states: dict[str, str] | None = None) -> tuple[int, bytes]:
    """Send a request through the middleware to an app that answers with that status."""
    sent: list[Message] = []

    async def app(scope: Message, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": status})
        await send({"type": "http.response.body", "body": b"its own"})

    async def receive() -> Message:
        return {"type": "http.request"}

    async def send(message: Message) -> None:
        sent.append(message)

    middleware = Answers(app, folder=folder, paths={"/predict": "/predict"}, states=lambda: states or {})
    asyncio.run(middleware({"type": "http", "path": path}, receive, send))
    return sent[0]["status"], sent[1]["body"]


@pytest.mark.parametrize(
    ("path", "status", "counted_requests"),
    [("/predict", 200, 1), ("/predict", 500, 0), ("/predict", 422, 0), ("/health", 200, 0)],
)
def test_good_answers_are_counted(tmp_path: Path, path: str, status: int, counted_requests: int) -> None:
    """Answers of the API with a 2xx status count, others do not; all are passed on."""
    assert answered(tmp_path, path, status) == (status, b"its own")
    (tally,) = tmp_path.glob("answers-*.tally")
    assert read_tally(tally).executions == counted_requests


@pytest.mark.parametrize(
    ("states", "status"),
    [({"0": "ready", "1": "ready"}, 200), ({"0": "ready", "1": "starting"}, 503), ({"0": "error"}, 503), ({}, 503)],
)
def test_it_is_ready_when_all_workers_are(tmp_path: Path, states: dict[str, str], status: int) -> None:
    """LitServe itself answers when the first worker is set up."""
    assert answered(tmp_path, READY_PATH, 404, states)[0] == status


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """A start of a server that has said how it is set up."""
    folder = tmp_path / "litserve"
    folder.mkdir()
    facts = {"import_seconds": 1.5, "version": "0.2.19", "server": {"devices": "cpu"}, "apis": {"/predict": API}}
    write_json(folder / FACTS, facts)
    return Site(tmp_path, {"http": 1})


def kind(tmp_path: Path, **arguments: Argument) -> LitServe:
    """A server of an app that is not started."""
    app = tmp_path / "app.py"
    app.touch()
    return LitServe(App("litserve_server", app, "app.py", arguments))


def worker(site: Site, path: str = "/predict", *sizes: int, seconds: float = 0.5, most: int = 8) -> None:
    """A worker that executed batches of these sizes in a microsecond each."""
    about = {"setup_seconds": seconds, "max_batch_size": most, "batch_timeout": 0.01}
    tally = open_tally(site.folder / "litserve", EXECUTIONS, path, most, **about)
    for size in sizes:
        tally.add(size, 1000)


def http_process(site: Site, requests: int) -> None:
    """A process that answered so many requests."""
    tally = open_tally(site.folder / "litserve", ANSWERS, "/predict", 1)
    for _ in range(requests):
        tally.add(1, 5000)


def read(site: Site, tmp_path: Path) -> Counters:
    """The counters, which are there."""
    found = kind(tmp_path).read_counters(site)
    assert found is not None
    return found


def test_all_workers_are_added_up(site: Site, tmp_path: Path) -> None:
    """Two workers, two HTTP processes, and what a dead one left."""
    worker(site, "/predict", 1, 8)
    worker(site, "/predict", 8, 3)
    worker(site, "/predict", 9)
    http_process(site, 20)
    http_process(site, 9)
    found = read(site, tmp_path)
    assert (found.items, found.batches, found.requests) == (29, 5, 29)
    assert found.batch_sizes == {"1": 1, "3": 1, "8": 2, "inf": 1}
    assert found.stages[COMPUTE].count == 5
    assert found.stages[COMPUTE].seconds == pytest.approx(5e-6)
    assert found.stages[SERVER].mean == pytest.approx(5e-6)
    assert found.parts == {}


def test_each_api_is_a_part(site: Site, tmp_path: Path) -> None:
    """Several APIs are counted each by itself and together."""
    facts = json.loads((site.folder / "litserve" / FACTS).read_text())
    facts["apis"]["/other"] = API
    write_json(site.folder / "litserve" / FACTS, facts)
    worker(site, "/predict", 4)
    worker(site, "/other", 2, 2)
    http_process(site, 4)
    found = read(site, tmp_path)
    assert (found.items, found.batches, found.requests) == (8, 3, 4)
    assert {name: part.items for name, part in found.parts.items()} == {"/predict": 4, "/other": 4}


def test_answers_of_workers_that_do_not_count_are_an_error(site: Site, tmp_path: Path) -> None:
    """A server without its counter is not one that batches nothing."""
    http_process(site, 1)
    with pytest.raises(ServerFailed, match="none of its workers counts"):
        read(site, tmp_path)


def test_a_loop_of_ones_own_is_not_counted(site: Site, tmp_path: Path) -> None:
    """Nobody knows what it calls for a batch."""
    facts = {"apis": {"/predict": {**API, "counted": False}}}
    write_json(site.folder / "litserve" / FACTS, facts)
    assert kind(tmp_path).read_counters(site) is None


@settings(max_examples=40)
@example(about=b"0", tally=b"")
@given(about=st.binary(max_size=60), tally=st.binary(max_size=60))
def test_damaged_counts_are_a_typed_error(about: bytes, tally: bytes) -> None:
    """Whatever stands in the files, the error names the server."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "litserve"
        folder.mkdir()
        write_json(folder / FACTS, {"apis": {"/predict": API}})
        (folder / "executions-1-a.json").write_bytes(about)
        (folder / "executions-1-a.tally").write_bytes(tally)
        with pytest.raises(ServerFailed, match="litserve's counts make no sense"):
            kind(Path(name)).read_counters(Site(Path(name)))


def test_damaged_numbers_are_a_typed_error(site: Site, tmp_path: Path) -> None:
    """A good description does not help a bad tally."""
    worker(site, "/predict", 1)
    (tally,) = (site.folder / "litserve").glob("*.tally")
    tally.write_bytes(b"nonsense")
    with pytest.raises(ServerFailed, match="litserve's counts make no sense"):
        read(site, tmp_path)


def test_settings_are_those_of_the_workers(site: Site, tmp_path: Path) -> None:
    """Equal values are equal however they were written; a worker that started anew shows, and so do two that differ."""
    for _ in range(3):
        worker(site)
    found = kind(tmp_path, max_batch_size="16", batch_timeout=1e-2, workers=2).read_settings(site)
    assert found["max_batch_size"] == Setting("8", "16")
    assert found["batch_timeout"] == Setting("0.01", "0.01")
    assert not found["batch_timeout"].differs
    assert found["workers"] == Setting("2", "2")
    assert found["worker_starts"] == Setting("3")
    assert found["litserve"] == Setting("0.2.19")
    assert found["stream"] == Setting("no")
    worker(site, most=4)
    assert kind(tmp_path).read_settings(site)["max_batch_size"].used == "4, 8"


def test_an_app_that_said_nothing_is_named(tmp_path: Path) -> None:
    """Such as one that runs its server in a process of its own."""
    with pytest.raises(ServerFailed, match="does not say how it was set up"):
        kind(tmp_path).read_settings(Site(tmp_path))


def test_cold_start_names_the_slowest_setup(site: Site, tmp_path: Path) -> None:
    """Imports first, then setup."""
    worker(site, seconds=0.25)
    worker(site, seconds=3.5)
    assert list(kind(tmp_path).read_cold_start(site).items()) == [("import", 1.5), ("setup", 3.5)]


def test_the_app_is_started_with_its_arguments(tmp_path: Path) -> None:
    """Ours come before the app, its own after it; a folder in which LitServe's sockets would not fit is refused."""
    with tempfile.TemporaryDirectory(prefix="t-", dir="/tmp") as folder:
        launch = kind(tmp_path, max_batch_size=4).launch(Site(Path(folder), {"http": 4321}))
        assert launch.argv[-2:] == (str(tmp_path / "app.py"), "--max-batch-size=4")
        assert {"--port=4321", "--host=127.0.0.1"} <= set(launch.argv)
        assert launch.environment["PYTHONPATH"].startswith(folder)
    with pytest.raises(ServerFailed, match="Unix sockets"):
        kind(tmp_path).launch(Site(tmp_path / ("long" * 20), {"http": 1}))
