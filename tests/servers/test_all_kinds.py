"""Every kind of server, described as by a user, gives the same answers and honest counters under one load."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_gpuserve.experiment.handle import Target
from pytest_gpuserve.measure.window import COMPUTE, SERVER
from pytest_gpuserve.plugin.server_factory import ServerFactory
from pytest_gpuserve.servers.metric_names import MetricNames
from pytest_gpuserve.testing import check_server_kind
from tests.fakes.doubling.doubling import COUNTS_VARIABLE, MOST_AT_ONCE, SECONDS_A_BATCH
from tests.plugin.conftest import REPOSITORY
from tests.servers.deployments import Starts, triton_python

Env = dict[str, str]


HERE = REPOSITORY / "tests" / "fakes" / "doubling"


def mosec(make: ServerFactory, env: Env) -> Target:
    """A request to mosec."""
    return make.mosec(HERE / "mosec_app.py", env=env).post("/inference", body=b"21", expect=b"42")


def litserve(make: ServerFactory, env: Env) -> Target:
    """A request to LitServe."""
    return make.litserve(HERE / "litserve_app.py", env=env).post(
        "/predict",
        body=json.dumps({"input": 21}),
        headers={"Content-Type": "application/json"},
        expect=lambda body: json.loads(body) == {"output": 42, "input": 21},
    )


def one() -> Any:  # noqa: ANN401 -- an array
    """The number that is doubled."""
    import numpy as np

    return np.array([[21]], dtype=np.float32)


def pytriton(make: ServerFactory, env: Env) -> Target:
    """A request to pytriton, through shared memory."""
    triton_python()
    handle = make.pytriton(HERE / "pytriton_app.py", model="doubling", env=env)
    return handle.infer({"x": one()}, expect={"y": 2 * one()}, shared_memory={"y": 4})


def triton(make: ServerFactory, env: Env) -> Target:
    """A request to Triton."""
    handle = make.triton(HERE / "models", env=env, python=triton_python())
    return handle.infer({"x": one()}, expect={"y": 2 * one()})


def torch(make: ServerFactory, env: Env) -> Target:
    """A request to a torch worker."""
    handle = make.torch_worker(f"{HERE}/torch_model.py:Doubling", max_batch_size=8, max_wait_ms=2.0, env=env)
    return handle.infer({"x": one()}, expect={"output": 2 * one()})


def command(make: ServerFactory, env: Env) -> Target:
    """A request to mosec, started as a command whose metrics are named."""
    options = ("--address=127.0.0.1", "--port={port}", "--path={folder}/mosec", "--namespace=mosec_service")
    names = MetricNames(batch_size="mosec_service_batch_size", requests="mosec_service_throughput")
    handle = make.command(["{python}", "mosec_app.py", *options], cwd=HERE, counters=names, env=env)
    return handle.post("/inference", body=b"21", expect=b"42")


KINDS: dict[str, Callable[[ServerFactory, Env], Target]] = {
    each.__name__: each for each in (mosec, litserve, pytriton, triton, torch, command)
}
NEEDS = {"mosec": "mosec", "litserve": "litserve", "torch": "torch", "command": "mosec"}
"""Libraries; whether there is a Triton is asked by a function of its own."""


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_of_server(kind: str, tmp_path: Path) -> None:
    """Each kind passes `check_server_kind` and batches, within the limit that it reports unless it is a command."""
    if kind in NEEDS:
        pytest.importorskip(NEEDS[kind])
    counts = tmp_path / "counts"
    env = {COUNTS_VARIABLE: str(counts), "DOUBLING_FOLDER": str(HERE), "PYTHONPATH": str(HERE)}
    factory = ServerFactory(lambda seconds: Starts(tmp_path / "log", seconds).start, str)
    start = check_server_kind(KINDS[kind](factory, env), counts)
    limits = [setting.used for name, setting in start.settings.items() if name.endswith("max_batch_size")]
    assert limits == ([] if kind == "command" else [str(MOST_AT_ONCE)]), start.settings
    assert bool(start.settings) == (kind != "command")
    counted = start.total.counters
    assert counted is not None
    assert counted.requests is not None
    assert 0 < max(map(float, counted.batch_sizes)) <= MOST_AT_ONCE
    assert counted.items / counted.batches > 1
    if kind != "command":
        # mosec counts a batch as it begins, and times it at its end.
        assert counted.stages[COMPUTE].count == pytest.approx(counted.batches, abs=4)
        assert counted.stages[COMPUTE].mean > SECONDS_A_BATCH
        assert counted.stages[SERVER].mean > counted.stages[COMPUTE].mean


FIXTURES = """
def test_fixtures(
    mosec_server, litserve_server, pytriton_server, triton_server, torch_worker, command_server, remote_server
):
    handles = (
        mosec_server("app.py"),
        litserve_server("app.py"),
        pytriton_server("app.py", model="m"),
        triton_server("models"),
        torch_worker("app.py:build"),
        command_server(["{python}", "app.py", "{port}"]),
        remote_server("http://127.0.0.1:1"),
    )
    kinds = [type(handle.kind).__name__ for handle in handles]
    assert kinds == ["Mosec", "LitServe", "PyTriton", "Triton", "TorchWorker", "CommandServer", "RemoteServer"]
"""


def test_each_fixture_describes_its_kind(tmp_path: Path) -> None:
    """Each server fixture of a user's session describes its own kind."""
    (tmp_path / "test_fixtures.py").write_text(FIXTURES)
    (tmp_path / "app.py").write_text("def build(): ...\n")
    (tmp_path / "models" / "m" / "1").mkdir(parents=True)
    (tmp_path / "models" / "m" / "config.pbtxt").write_text('backend: "onnxruntime"')
    command = [sys.executable, "-m", "pytest", "-p", "pytest_gpuserve.plugin", "--rootdir=."]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
