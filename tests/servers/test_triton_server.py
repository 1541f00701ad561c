"""A real Triton with an ensemble: what it counts, loads and serves, where it listens, and what is left of it."""

from __future__ import annotations

import json
import os
import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from pytest_gpuserve.answers import Refused
from pytest_gpuserve.errors import ServerFailed, UsageProblem
from pytest_gpuserve.experiment.handle import ServerHandle, Target
from pytest_gpuserve.load.kserve import equal_to
from pytest_gpuserve.load.schedule import Burst, Schedule, Steps
from pytest_gpuserve.load.shared_memory import FOLDER, PREFIX
from pytest_gpuserve.measure.counters import Counters, ServerSetting, counted_between
from pytest_gpuserve.process.ready import Ask
from pytest_gpuserve.servers import triton as adapter
from pytest_gpuserve.servers.base import Site
from pytest_gpuserve.servers.instance import Instance
from pytest_gpuserve.servers.remote import RemoteServer, reached
from pytest_gpuserve.servers.triton import Triton
from pytest_gpuserve.servers.triton_api import query_triton, read_configs
from pytest_gpuserve.servers.triton_install import find_triton
from tests.fakes.children.toolkit import eventually
from tests.plugin.conftest import is_busy
from tests.servers.deployments import Starts, answered, counted, listening, loaded, running, triton_python, write_model
from tests.support.builders import said

np = pytest.importorskip("numpy")
pytest.importorskip("tritonclient.http")
pytest.importorskip("grpc")


START_SECONDS = 60.0

BAD = -1.0
"""A number with which the whole execution fails."""

CORE = '''
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Passes on numbers that are not negative."""

    def execute(self, requests):
        """Answer with what came."""
        inputs = [pb_utils.get_input_tensor_by_name(request, "X").as_numpy() for request in requests]
        if any((x < 0).any() for x in inputs):
            raise ValueError("negative")
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", x)]) for x in inputs]
'''

ECHO = '''
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Echo and sum."""

    def execute(self, requests):
        """Answer each request of a batch by itself."""
        responses = []
        for request in requests:
            wanted = request.requested_output_names()
            x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            tensors = {"Y": x, "SUM": x.sum(axis=1, keepdims=True)}
            if "SAID" in wanted:
                tensors["SAID"] = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy()
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor(name, tensors[name]) for name in wanted]))
        return responses
'''

ECHO_CONFIG = """
name: "echo"
backend: "python"
max_batch_size: 8
input { name: "X" data_type: TYPE_FP32 dims: [-1] }
input { name: "TEXT" data_type: TYPE_STRING dims: [-1] optional: true }
output { name: "Y" data_type: TYPE_FP32 dims: [-1] }
output { name: "SUM" data_type: TYPE_FP32 dims: [1] }
output { name: "SAID" data_type: TYPE_STRING dims: [-1] }
dynamic_batching { max_queue_delay_microseconds: 100 }
instance_group { kind: KIND_CPU count: 1 }
"""
"""Takes X and, where it is asked for, TEXT; returns them, and SUM, the sum of each row of X."""

TENSORS = """
input { name: "X" data_type: TYPE_FP32 dims: [-1] }
output { name: "Y" data_type: TYPE_FP32 dims: [-1] }
"""
CORE_CONFIG = f"""
name: "core" backend: "python" max_batch_size: 8 {TENSORS}
dynamic_batching {{ preferred_batch_size: [4, 8] max_queue_delay_microseconds: 3000 }}
instance_group {{ kind: KIND_CPU count: 2 }}
"""
PRE_CONFIG = f"""
name: "pre" backend: "python" max_batch_size: 8 {TENSORS}
instance_group {{ kind: KIND_CPU count: 1 }}
"""
CHAIN_CONFIG = """
name: "chain" platform: "ensemble" max_batch_size: 8
input { name: "IN" data_type: TYPE_FP32 dims: [-1] }
output { name: "OUT" data_type: TYPE_FP32 dims: [-1] }
ensemble_scheduling {
  step {
    model_name: "pre" model_version: -1
    input_map { key: "X" value: "IN" } output_map { key: "Y" value: "middle" }
  }
  step {
    model_name: "core" model_version: -1
    input_map { key: "X" value: "middle" } output_map { key: "Y" value: "OUT" }
  }
}
"""


def load(instance: Instance, *requests: bytes) -> tuple[list[int], Counters]:
    """Send these one after the other; their statuses, and what the server counted."""
    before = instance.counters()
    assert before is not None
    statuses = [answered(instance, replace(ASK, body=sent))[0] for sent in requests]
    found: list[Counters] = []

    def settled() -> bool:
        # It sends an answer before it has counted it.
        time.sleep(0.05)
        after = instance.counters()
        assert after is not None
        found.append(counted_between(before, after))
        return (found[-1].requests or 0) >= statuses.count(200) and found[-1:] == found[-2:-1]

    eventually(settled, "all requests are counted")
    return statuses, found[-1]


def tree(instance: Instance) -> list[psutil.Process]:
    """All processes of the server."""
    assert instance.process is not None
    return instance.process.tree()


def body(rows: int, value: float = 1.0) -> bytes:
    """A request of so many rows, as JSON."""
    data = [value] * (2 * rows)
    return json.dumps({"inputs": [{"name": "IN", "datatype": "FP32", "shape": [rows, 2], "data": data}]}).encode()


def write_chain(folder: Path) -> Path:
    """A repository with the ensemble ``chain``, the model ``echo``, and one that cannot be loaded."""
    repository = folder / "models"
    write_model(repository, CORE_CONFIG, {"model.py": CORE})
    write_model(repository, PRE_CONFIG, {"model.py": CORE.replace("< 0", "< -9")})
    write_model(repository, CHAIN_CONFIG)
    write_model(repository, ECHO_CONFIG, {"model.py": ECHO})
    write_model(
        repository, f'name: "broken" backend: "python" {TENSORS}', {"model.py": "raise RuntimeError('broken')\n"}
    )
    return repository


ASK = Ask("POST", "/v2/models/chain/infer", body(1), {})


@contextmanager
def served(folder: Path) -> Iterator[Instance]:
    """Run the ensemble, and beside it ``echo``."""
    kind = Triton(write_chain(folder), "models", models=("chain", "echo"), python=triton_python())
    with Starts(folder / "log", START_SECONDS).start(kind, ASK) as instance:
        yield instance


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    """One server for all tests that leave it as it is."""
    with served(tmp_path_factory.mktemp("chain")) as server:
        yield server


def test_each_model_is_a_part_and_failures_are_in_none(chain: Instance) -> None:
    """An ensemble's batches are its requests, and a request that fails counts as an execution alone."""
    _, counted = load(chain, body(3))
    parts = {name: (part.items, part.batches, part.requests) for name, part in counted.parts.items()}
    assert parts == dict.fromkeys(("chain", "core", "pre"), (3, 1, 1))
    assert b"negative" in answered(chain, replace(ASK, body=body(2, value=BAD)))[1]
    statuses, counted = load(chain, body(2, value=BAD), body(1))
    assert statuses == [500, 200]
    assert (counted.items, counted.requests) == (1, 1)
    assert counted.batch_sizes == {"1": 1, "2": 1}


def test_only_the_requested_models_are_loaded_on_the_loopback(chain: Instance) -> None:
    """A broken model beside the ensemble is not loaded, and to count it is an error that names the loaded ones."""
    site, kind = chain.site, chain.kind
    assert listening(tree(chain), "all") == {("127.0.0.1", port) for port in site.ports.values()}
    assert sorted(read_configs(site)) == ["chain", "core", "echo", "pre"]
    assert {"name": "broken"} in query_triton(site, "/v2/repository/index", list[object], method="POST")
    assert isinstance(kind, Triton)
    with pytest.raises(
        ServerFailed, match=r"model='broken' is not one of the loaded models\n  found: chain, core, echo"
    ):
        replace(kind, model="broken").read_settings(site)


def test_a_dead_stub_fails_requests_and_not_the_health(tmp_path: Path) -> None:
    """If its model's processes die, Triton calls itself healthy, so readiness is a request; its end leaves nothing."""
    memory = set(Path("/dev/shm").iterdir())
    with served(tmp_path) as server:
        folder, family = server.site.folder, tree(server)
        mine = {file for file in set(Path("/dev/shm").iterdir()) - memory if file.name.startswith(folder.name)}
        assert mine
        stubs = [process for process in family if "/core/" in " ".join(process.cmdline())]
        assert len(stubs) == 2
        for stub in stubs:
            stub.kill()
        eventually(lambda: answered(server, ASK)[0] == 500, "requests fail")
        assert answered(server, Ask("GET", "/v2/health/ready"))[0] == 200
    assert not running(family)
    assert not folder.exists()
    assert not any(file.exists() for file in mine)


def test_a_model_that_cannot_be_loaded_is_told(tmp_path: Path) -> None:
    """A model that fails at its import fails the start with its own words before the deadline."""
    kind = Triton(write_chain(tmp_path), "models", models=("broken",), python=triton_python())
    began = time.monotonic()
    with (
        pytest.raises(ServerFailed, match="RuntimeError: broken"),
        Starts(tmp_path / "log", START_SECONDS).start(kind, ASK),
    ):
        pytest.fail("it started")
    assert time.monotonic() - began < START_SECONDS


@pytest.mark.parametrize(("missing", "words"), [("code", "Python model file not found"), ("library", "file too short")])
def test_a_model_whose_process_does_not_begin_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str, words: str
) -> None:
    """Triton waits for ever for the process of a model without code, or without its libpython: its log tells it."""
    write_model(tmp_path / "models", ECHO_CONFIG, {"model.py": ECHO})
    install = find_triton(triton_python())
    if missing == "code":
        # Only the latest version counts.
        (tmp_path / "models" / "echo" / "2").mkdir()
        (tmp_path / "models" / "echo" / "2" / "weights").touch()
    else:
        (tmp_path / install.library.name).touch()
        install = replace(install, library=tmp_path / install.library.name)
    monkeypatch.setattr(adapter, "find_triton", lambda _: install)
    kind = Triton(tmp_path / "models", "models")
    with (
        pytest.raises(ServerFailed, match="waits in vain") as problem,
        Starts(tmp_path / "log", START_SECONDS).start(kind, ASK),
    ):
        pytest.fail("it started")
    assert words in problem.value.found
    assert "likely cause" in problem.value.remedies[0]


def test_what_triton_serves_is_served(tmp_path: Path) -> None:
    """Older versions without a file, zeros before a number, empty folders and version policies are served.

    Settings are those of the configuration that ``model_config_name=`` chooses.
    """
    repository = tmp_path / "models"
    write_model(repository, CORE_CONFIG, {"model.py": CORE}, version=10)
    write_model(repository, PRE_CONFIG + "version_policy { specific { versions: [1, 7] } }", {"model.py": CORE})
    write_model(repository, CHAIN_CONFIG)
    for folder in ("core/9", "core/0011", "core/notes", "pre/2", "chain/01"):
        (repository / folder).mkdir()
    (repository / "core" / "configs").mkdir()
    big = CORE_CONFIG.replace("max_batch_size: 8", "max_batch_size: 16").replace("3000", "500")
    (repository / "core" / "configs" / "big.pbtxt").write_text(big)
    kind = Triton(repository, "models", arguments={"model_config_name": "big"}, python=triton_python())
    with Starts(tmp_path / "log", START_SECONDS).start(kind, ASK) as instance:
        settings = dict(instance.settings)
    assert settings.pop("triton").used
    assert settings["core.max_batch_size"] == ServerSetting("16")
    assert settings["core.max_queue_delay_us"] == ServerSetting("500")


def test_a_named_triton_serves_with_its_own_backends(tmp_path: Path) -> None:
    """The program gets ports and repository, but no backends and no libraries; it counts, and leaves no process."""
    install = find_triton(triton_python())
    backends = install.write_backends(Site(tmp_path), searched="")
    variables = install.environment({"PATH": "/usr/bin:/bin"}, install.library.parent)
    given = " ".join(f"{name}={shlex.quote(value)}" for name, value in variables.items())
    program = tmp_path / "tritonserver"
    program.write_text(f'#!/bin/sh\nexec env {given} {install.server} --backend-directory={backends} "$@"\n')
    program.chmod(0o755)
    write_model(tmp_path / "models", ECHO_CONFIG, {"model.py": ECHO})
    kind = Triton(tmp_path / "models", "models", python="/no/python", server=str(program))
    assert kind.information()["program"] == str(program)
    with Starts(tmp_path / "log", START_SECONDS).start(kind, Ask("GET", "/v2", b"", {})) as instance:
        assert counted(instance).items == 0
        assert instance.settings["echo.max_batch_size"].used == "8"
        assert instance.process is not None
        tree = instance.process.tree()
        assert len(tree) > 1
    assert not any(member.is_running() for member in tree)


# -- its transports

X = np.array([[1.5, -2.0, 4.0], [0.0, 0.25, 1e6]], dtype=np.float32)
TEXT = [["grün", b"\x00ends\x00"], ["", "x"]]
PLACES = {"Y": 2 * X.nbytes, "SUM": 16}


@pytest.fixture
def handle(chain: Instance) -> Iterator[ServerHandle]:
    """That Triton as a remote server; afterwards neither it nor the host has a region of ours."""
    site = chain.site
    kind = RemoteServer(site.host, site.port, grpc_port=site.ports["grpc"], default_model="echo")
    yield ServerHandle(kind, partial(reached, timeout_seconds=20))
    assert not list(FOLDER.glob(f"{PREFIX}{os.getpid()}-*"))
    assert query_triton(site, "/v2/systemsharedmemory/status", list[object]) == []


def echo(handle: ServerHandle, x: Any = X, **given: Any) -> Target:  # noqa: ANN401 -- arrays; whatever infer takes
    """A request with its right answer."""
    return handle.infer({"X": x}, **{"expect": {"Y": x, "SUM": x.sum(axis=1, keepdims=True)}, **given})


@pytest.mark.parametrize("grpc", [False, True])
def test_numbers_and_strings_go_and_come(handle: ServerHandle, *, grpc: bool) -> None:
    """Requests carry a version, an id and a parameter, and the error of a wrong request is shown."""
    right = equal_to({"Y": X, "SUM": X.sum(axis=1, keepdims=True), "SAID": TEXT})
    given: dict[str, Any] = {"version": "1", "request_id": "seven", "parameters": {"priority": 1}, "grpc": grpc}
    target = handle.infer({"X": X, "TEXT": TEXT}, expect=right, **given)
    with target.started() as running:
        answer = target.ask(running)
        with pytest.raises(Refused, match="unexpected shape for input 'X'"):
            handle.infer({"X": X[0]}, grpc=grpc).ask(running)
    assert answer.tensors["SAID"].tolist() == [["grün".encode(), b"\x00ends\x00"], [b"", b"x"]]
    assert b"seven" in answer.body


@pytest.mark.parametrize(
    ("schedule", "grpc"), [(Steps(((1, 0.2), (4, 0.6))), False), (Burst(80, max_in_flight=6), True)]
)
def test_answers_through_shared_memory_are_right(handle: ServerHandle, schedule: Schedule, *, grpc: bool) -> None:
    """Payloads of several shapes are right while requests are batched; shared memory makes another workload."""
    some = (X, X * 2, X[:1], np.tile(X, 2))
    target = handle.rotate([echo(handle, x, shared_memory=PLACES, grpc=grpc) for x in some])
    start, problems, _ = loaded(target, schedule=schedule)
    assert all(map(is_busy, problems)), problems
    assert start.total.requests >= 20
    assert echo(handle, shared_memory=PLACES).fingerprint()["tensors"] == "system shared memory"
    wrong = echo(handle, shared_memory=PLACES, expect={"Y": X + 1})
    _, problems, _ = loaded(wrong, schedule=Burst(4, max_in_flight=2))
    assert any("output 'Y': 5 of 6" in text for text in said(problems)), problems
    _, problems, _ = loaded(echo(handle, shared_memory={"Y": 4, "SUM": 8}), schedule=Burst(4, max_in_flight=2))
    assert any("(4 bytes) should be at least 24 bytes" in text for text in said(problems)), problems


def test_what_cannot_go_through_shared_memory_is_refused(handle: ServerHandle) -> None:
    """Wrong uses of shared memory are refused before memory is made."""
    wrong: list[dict[str, Any]] = [{"shared_memory": {}}, {"shared_memory": {"Y": "8"}}]
    for given in (*wrong, {"shared_memory": {"Y": 8}, "expect": b"x"}):
        with pytest.raises(UsageProblem, match="shared"):
            echo(handle, **given)
    for other in (echo(handle), echo(handle, shared_memory={"Y": 8})):
        with pytest.raises(UsageProblem, match="with the same outputs"):
            handle.rotate([echo(handle, shared_memory=PLACES), other])
