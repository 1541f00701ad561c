"""LitServe's counts of predictions and answers, and how they are read."""

from __future__ import annotations

import asyncio
import inspect
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pytest_gpuserve.errors import ServerFailed
from pytest_gpuserve.measure.counters import ServerSetting
from pytest_gpuserve.servers.app import App
from pytest_gpuserve.servers.base import Argument, Site
from pytest_gpuserve.servers.inside.litserve_app import (
    ANSWERS,
    EXECUTIONS,
    FACTS,
    READY_PATH,
    AnswerCounter,
    count_predictions,
    open_tally,
)
from pytest_gpuserve.servers.inside.tally import Tally, read_tally, write_facts
from pytest_gpuserve.servers.litserve import LitServe

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from pytest_gpuserve.measure.counters import Counters
    from pytest_gpuserve.servers.inside.litserve_app import Message

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
    sent: list[Message] = []

    async def send(message: Message) -> None:
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
    say(site.folder / "litserve", predict={**API, "counted": False})
    assert kind(tmp_path).read_counters(site) is None
    with pytest.raises(ServerFailed, match="did not report its setup"):
        kind(tmp_path).read_settings(Site(tmp_path / "elsewhere"))


@settings(max_examples=40)
@example(about=b"0", tally=b"")
@given(about=st.binary(max_size=60), tally=st.binary(max_size=60))
def test_damaged_counts_are_a_typed_error(about: bytes, tally: bytes) -> None:
    """Any other content of the files is refused; a good description does not help a bad tally."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "litserve"
        folder.mkdir()
        say(folder, predict=API)
        worker(Site(Path(name)), "/predict", 1)
        (good,) = folder.glob("*.tally")
        good.write_bytes(tally)
        with pytest.raises(ServerFailed, match="counts make no sense"):
            kind(Path(name)).read_counters(Site(Path(name)))
        good.with_suffix(".json").write_bytes(about)
        with pytest.raises(ServerFailed, match="counts make no sense"):
            kind(Path(name)).read_counters(Site(Path(name)))


def test_settings_are_those_of_the_workers(site: Site, tmp_path: Path) -> None:
    """Equal values are equal in any form; two workers that differ show."""
    worker(site)
    found = kind(tmp_path, max_batch_size="16", batch_timeout=1e-2, workers=2).read_settings(site)
    assert found["max_batch_size"] == ServerSetting("8", "16")
    assert found["batch_timeout"] == ServerSetting("0.01", "0.01")
    assert not found["batch_timeout"].differs
    assert found["workers"] == ServerSetting("2", "2")
    assert found["litserve"] == ServerSetting("0.2.19")
    assert found["stream"] == ServerSetting("no")
    worker(site, most=4)
    assert kind(tmp_path).read_settings(site)["max_batch_size"].used == "4, 8"
