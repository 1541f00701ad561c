"""A real Triton understands each kind of request, and its answers are read."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuserve.answers import Refused
from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.experiment.handle import ServerHandle
from pytest_gpuserve.load.kserve import equal_to
from pytest_gpuserve.load.schedule import Burst, Steps
from pytest_gpuserve.load.shared_memory import FOLDER, PREFIX
from pytest_gpuserve.process.ready import Ask
from pytest_gpuserve.servers.remote import RemoteServer, reached
from pytest_gpuserve.servers.triton import Triton
from pytest_gpuserve.servers.triton_api import query_triton
from tests.plugin.conftest import is_busy
from tests.servers.deployments import Starts, loaded
from tests.servers.triton_server import CONFIG, MODEL, START_SECONDS, triton_python, write_model
from tests.support.reasons import said

np = pytest.importorskip("numpy")
pytest.importorskip("tritonclient.http")
pytest.importorskip("grpc")

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpuserve.experiment.handle import Target
    from pytest_gpuserve.load.schedule import Schedule
    from pytest_gpuserve.servers.base import Site

X = np.array([[1.5, -2.0, 4.0], [0.0, 0.25, 1e6]], dtype=np.float32)
TEXT = [["grün", b"\x00ends\x00"], ["", "x"]]
PLACES = {"Y": 2 * X.nbytes, "SUM": 16}


@pytest.fixture(scope="module")
def triton(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Site of a running Triton for all tests here."""
    python, folder = triton_python(), tmp_path_factory.mktemp("triton")
    write_model(folder / "models", CONFIG, {"model.py": MODEL})
    kind, ready = Triton(folder / "models", "models", python=python), Ask("GET", "/v2/models/echo/ready", b"", {})
    with Starts(folder / "log", START_SECONDS).start(kind, ready) as instance:
        yield instance.site


@pytest.fixture
def handle(triton: Site) -> Iterator[ServerHandle]:
    """That Triton as a remote server; afterwards neither it nor the host has a region of ours."""
    kind = RemoteServer(triton.host, triton.port, grpc_port=triton.ports["grpc"], default_model="echo")
    yield ServerHandle(kind, partial(reached, timeout_seconds=20))
    assert not list(FOLDER.glob(f"{PREFIX}{os.getpid()}-*"))
    assert query_triton(triton, "/v2/systemsharedmemory/status", list[object]) == []


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
