"""A real Triton is loaded through shared memory: its answers are right, and nothing is left with it or on the host."""

from __future__ import annotations

import http.client
import os
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuserve.load.kserve import decode_http
from pytest_gpuserve.load.kserve_grpc import decode_grpc
from pytest_gpuserve.load.schedule import Burst, Steps
from pytest_gpuserve.load.shared_memory import FOLDER, PREFIX
from pytest_gpuserve.servers.remote import Remote, reached
from pytest_gpuserve.trial.handle import ServerHandle, Target
from tests.plugin.conftest import is_busy
from tests.servers.deployments import loaded
from tests.servers.triton_server import Triton, running_triton

np = pytest.importorskip("numpy")
pytest.importorskip("tritonclient.grpc")

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpuserve.load.schedule import Schedule

X = np.array([[1.5, -2.0, 4.0], [0.0, 0.25, 1e6]], dtype=np.float32)
PLACES = {"Y": 2 * X.nbytes, "SUM": 8}
SHORT = Steps(((1, 0.2), (4, 0.6)))


@pytest.fixture(scope="module")
def triton() -> Iterator[Triton]:
    """A Triton for all tests here."""
    with running_triton() as server:
        yield server


@pytest.fixture
def handle(triton: Triton) -> ServerHandle:
    """It, as a server on this host that somebody else runs."""
    kind = Remote(triton.host, triton.http_port, grpc_port=triton.grpc_port, default_model=triton.model)
    return ServerHandle(kind, partial(reached, timeout_seconds=20))


@pytest.fixture(autouse=True)
def nothing_is_left(triton: Triton) -> Iterator[None]:
    """Fail a test after which the server knows a region, or the host has a file of ours."""
    yield
    assert not list(FOLDER.glob(f"{PREFIX}{os.getpid()}-*"))
    connection = http.client.HTTPConnection(triton.host, triton.http_port, timeout=20)
    try:
        connection.request("GET", "/v2/systemsharedmemory/status")
        assert connection.getresponse().read() == b"[]"
    finally:
        connection.close()


def echo(handle: ServerHandle, x: Any = X, **arguments: Any) -> Target:  # noqa: ANN401 -- arrays; whatever infer takes
    """A request through shared memory, with its right answer."""
    right = {"Y": x, "SUM": x.sum(axis=1, keepdims=True)}
    return handle.infer({"X": x}, **{"expect": right, "shared_memory": PLACES, **arguments})


def trouble(problems: list[str]) -> list[str]:
    """What a busy machine does not explain."""
    return [problem for problem in problems if not is_busy(problem)]


@pytest.mark.parametrize("grpc", [False, True])
@pytest.mark.parametrize("schedule", [SHORT, Burst(80, max_in_flight=6)])
def test_answers_are_right(handle: ServerHandle, schedule: Schedule, *, grpc: bool) -> None:
    """Of several payloads, of several shapes, by turns, while requests are batched."""
    target = handle.rotate([echo(handle, x, grpc=grpc) for x in (X, X * 2, X[:1], np.tile(X, 2))])
    start, problems, _ = loaded(target, schedule=schedule)
    assert not trouble(problems)
    assert start.requests >= 20
    known = (start.client.sending_seconds, start.client.receiving_seconds)
    assert (None in known) is grpc


@pytest.mark.parametrize(("grpc", "decode"), [(False, decode_http), (True, decode_grpc)])
def test_a_function_sees_the_answer_as_it_would_have_come(handle: ServerHandle, decode: Any, *, grpc: bool) -> None:  # noqa: ANN401 -- either
    """With its tensors in it, in the protocol's own form."""
    seen: list[Any] = []

    def check(body: bytes) -> bool:
        seen.append(decode(body)["Y"].tolist())
        return True

    _, problems, _ = loaded(echo(handle, expect=check, grpc=grpc), schedule=Burst(4, max_in_flight=2))
    assert not trouble(problems)
    assert seen
    assert all(values == X.tolist() for values in seen)


@pytest.mark.parametrize("grpc", [False, True])
def test_a_wrong_answer_is_told(handle: ServerHandle, *, grpc: bool) -> None:
    """With the output and the worst element."""
    wrong = echo(handle, expect={"SUM": X.sum(axis=1, keepdims=True) * 2}, grpc=grpc)
    _, problems, _ = loaded(wrong, schedule=Burst(4, max_in_flight=2))
    assert any("wrong answers" in problem and "output 'SUM'" in problem for problem in problems)


def test_a_place_that_is_too_small_is_told(handle: ServerHandle) -> None:
    """In the server's words."""
    _, problems, _ = loaded(echo(handle, shared_memory={"Y": 4, "SUM": 8}), schedule=Burst(4, max_in_flight=2))
    assert any("status 400" in problem or "status 500" in problem for problem in problems), problems
    assert any("should be at least 24 bytes" in problem for problem in problems), problems
