"""The torch worker as a kind of server: what it refuses, how it is started, what is told of it."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_gpuserve.builds.relocation import Relocation
from pytest_gpuserve.errors import ServerFailed, UsageProblem
from pytest_gpuserve.measure.counters import ServerSetting, differences
from pytest_gpuserve.servers.app import App
from pytest_gpuserve.servers.base import Site
from pytest_gpuserve.servers.inside.tally import MOST_SIZES, Tally
from pytest_gpuserve.servers.inside.torch_worker import COUNTED, FACTS_FILE, TALLY_FILE
from pytest_gpuserve.servers.torch_worker import TorchWorker


@pytest.fixture
def app(tmp_path: Path) -> App:
    """An app whose file is not run here."""
    file = tmp_path / "model.py"
    file.write_text("")
    return App("torch_worker", file, "suites/model.py")


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """A site with a folder of its own."""
    folder = tmp_path / "site"
    folder.mkdir()
    return Site(folder, {"http": 8000})


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"compile": "False"}, "torch_worker(compile=...) is True or False, not 'False'"),
        ({"compile": 1}, "torch_worker(compile=...) is True or False, not 1"),
        ({"compile": True, "workers": 2}, "torch.compile is not safe in several threads"),
        ({"compile_backend": "eager"}, "compile_backend without compile"),
        ({"compile_mode": "default"}, "compile_mode without compile"),
        ({"workers": 0}, "torch_worker(workers=...) must be a whole number of at least 1, not 0"),
        ({"workers": True}, "torch_worker(workers=...) must be a whole number"),
        ({"max_batch_size": 0}, "torch_worker(max_batch_size=...)"),
        ({"max_wait_ms": -1.0}, "torch_worker(max_wait_ms=...)"),
        ({"max_wait_ms": float("nan")}, "torch_worker(max_wait_ms=...)"),
        ({"seed": -1}, "torch_worker(seed=...)"),
        ({"device": "gpu"}, "torch_worker(device=...) is 'cpu', 'cuda' or 'cuda:N', not 'gpu'"),
        ({"callable": "build()"}, "'build()' is not the name of a callable"),
        ({"weights": Path("nowhere.pth")}, "the weights nowhere.pth do not exist"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_starts(app: App, arguments: dict[str, Any], words: str) -> None:
    """Each wrong argument is named, as is a compile switch that is not a truth value."""
    with pytest.raises(UsageProblem) as problem:
        TorchWorker(app, **{"callable": "build", **arguments})
    assert words in str(problem.value)
    with pytest.raises(UsageProblem, match="no command line"):
        TorchWorker(dataclasses.replace(app, extra=("--hidden=3",)), "build")


def test_workloads_differ_in_what_matters(app: App, tmp_path: Path) -> None:
    """A workload has all arguments that change the measured work, but no GPU's number and no weights' folder."""
    first, second = tmp_path / "a" / "w.pth", tmp_path / "b" / "w.pth"
    for each in (first, second):
        each.parent.mkdir()
        each.touch()

    def workload(app: App = app, name: str = "build", **arguments: Any) -> str:  # noqa: ANN401 -- a worker's
        return json.dumps(dict(TorchWorker(app, name, **arguments).workload()))

    texts = [
        workload(),
        workload(name="other"),
        workload(weights=first),
        workload(compile=True),
        workload(compile=True, compile_backend="eager"),
        workload(compile=True, compile_mode="max-autotune"),
        workload(device="cuda:0"),
        workload(workers=2),
        workload(max_batch_size=2),
        workload(max_wait_ms=2.0),
        workload(seed=1),
        workload(dataclasses.replace(app, arguments={"scale": False})),
        workload(dataclasses.replace(app, arguments={"scale": None})),
    ]
    assert len(set(texts)) == len(texts)
    assert all(str(tmp_path) not in text for text in texts)
    assert workload(device="cuda:1") == workload(device="cuda:0")
    assert workload(weights=second) == workload(weights=first)
    assert TorchWorker(app, "build", weights=second).information()["weights_bytes"] == "0"


def test_the_same_worker_of_another_checkout(app: App, tmp_path: Path) -> None:
    """File, arguments and weights that git tracks move."""
    here, there = tmp_path / "here", tmp_path / "there"
    for top in (here, there):
        top.mkdir()
        (top / "model.py").touch()
        (top / "w.pth").touch()
    app = dataclasses.replace(app, file=here / "model.py", arguments={"data": str(here / "w.pth")})
    kind = TorchWorker(app, "build", weights=here / "w.pth")
    moved = kind.relocated(Relocation(here, there))
    assert (moved.app.file, moved.weights) == (there / "model.py", there / "w.pth")
    assert moved.app.arguments == {"data": str(there / "w.pth")}


@pytest.mark.parametrize(
    ("asked", "frames", "executions", "told"),
    [
        (True, 0, 1, ["compile: asked for True, the server uses False"]),
        (False, 1, 1, ["compile: asked for False, the server uses True"]),
        (True, 2, 1, []),
        (False, 0, 1, []),
        (True, 0, 0, []),
    ],
)
def test_whether_it_is_compiled_is_counted_not_believed(
    app: App, site: Site, frames: int, executions: int, told: list[str], *, asked: bool
) -> None:
    """Dynamo's count stands beside the requested setting, and a difference shows; before an execution it is open."""
    (site.folder / FACTS_FILE).write_text('{"cold_start": {"import torch": 1.5}, "settings": {"torch": "2.9"}}')
    tally = Tally(site.folder / TALLY_FILE, MOST_SIZES, COUNTED)
    for _ in range(executions):
        tally.add(1, executions=1, items=1, frames=frames)
    kind = TorchWorker(app, "build", compile=asked)
    found = kind.read_settings(site)
    assert differences(found) == told
    assert (found["compile"].used is None) == (not executions)
    assert (found["device"], found["torch"]) == (ServerSetting("cpu", "cpu"), ServerSetting("2.9"))
    assert kind.read_cold_start(site) == {"import torch": 1.5}


def test_facts_that_make_no_sense_are_refused(app: App, site: Site) -> None:
    """A worker that does not tell how it started is an error, not a worker without parts."""
    for text in (None, "", "[]", '{"settings": {}}', '{"settings": {"a": 1}, "cold_start": {}}', "\udcff"):
        if text is not None:
            (site.folder / FACTS_FILE).write_text(text, errors="surrogateescape")
        with pytest.raises(ServerFailed, match="did not report its setup"):
            TorchWorker(app, "build").read_cold_start(site)


def test_an_interpreter_without_anything_gets_as_far_as_torch(app: App, site: Site) -> None:
    """The process needs the standard library and torch, and says so where torch is missing."""
    launch = TorchWorker(app, "build").launch(site)
    argv = [sys.executable, "-S", *launch.argv[1:]]
    environment = {"PYTHONPATH": launch.environment["PYTHONPATH"].split(os.pathsep)[0]}
    ended = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == 1
    assert ended.stdout == ""
    last = ended.stderr.splitlines()[-1]
    assert last == "torch_worker: the model did not start: ModuleNotFoundError: No module named 'torch'"
