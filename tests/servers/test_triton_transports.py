"""What is sent to a real Triton is what it understands, by each way, and what it answers is read."""

from __future__ import annotations

import http.client
import os
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuserve.experiment.handle import ServerHandle, Target
from pytest_gpuserve.load.kserve import Inference, decode_http, http_request, inputs_of
from pytest_gpuserve.load.kserve_grpc import RPC, grpc_message
from pytest_gpuserve.load.request import Request, check_answer
from pytest_gpuserve.load.schedule import Burst, Steps
from pytest_gpuserve.load.shared_memory import FOLDER, PREFIX, share
from pytest_gpuserve.load.tensors import close_to, equal_to
from pytest_gpuserve.servers.remote import RemoteServer, reached
from tests.plugin.conftest import is_busy
from tests.servers.deployments import loaded
from tests.servers.triton_server import Triton, running_triton
from tests.support.reasons import said

np = pytest.importorskip("numpy")
grpc = pytest.importorskip("grpc")
pytest.importorskip("tritonclient.grpc")

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpuserve.gate.reason import Reason
    from pytest_gpuserve.load.schedule import Schedule

X = np.array([[1.5, -2.0, 4.0], [0.0, 0.25, 1e6]], dtype=np.float32)
TEXT = [["grün", b"\x00ends\x00"], ["", "x"]]
RIGHT = {"Y": X, "SUM": X.sum(axis=1, keepdims=True), "SAID": TEXT}
PAYLOADS = (X, X * 2, X[:, :2])
PLACES = {"Y": 2 * X.nbytes, "SUM": 8}

by_each_protocol = pytest.mark.parametrize("protocol", ["http", "grpc"])


@pytest.fixture(scope="module")
def triton() -> Iterator[Triton]:
    """A Triton for all tests here."""
    with running_triton() as server:
        yield server


@pytest.fixture
def handle(triton: Triton) -> ServerHandle:
    """It, as a server on this host that somebody else runs."""
    kind = RemoteServer(triton.host, triton.http_port, grpc_port=triton.grpc_port, default_model=triton.model)
    return ServerHandle(kind, partial(reached, timeout_seconds=20))


@pytest.fixture(autouse=True)
def nothing_is_left(triton: Triton) -> Iterator[None]:
    """Fail a test after which the server knows a region, or the host has a file of ours."""
    yield
    assert not list(FOLDER.glob(f"{PREFIX}{os.getpid()}-*"))
    assert send_http(triton, Request("GET", "/v2/systemsharedmemory/status")) == (200, b"[]")


def send_http(server: Triton, request: Request) -> tuple[int, bytes]:
    """Send a request as it is, and return status and body."""
    with closing(http.client.HTTPConnection(server.host, server.http_port, timeout=20)) as connection:
        connection.request(request.method, request.path, request.body, dict(request.headers))
        with connection.getresponse() as response:
            return response.status, response.read()


def send_grpc(server: Triton, message: bytes) -> bytes:
    """Send a message as it is, and return the answer's."""
    with grpc.insecure_channel(f"{server.host}:{server.grpc_port}") as channel:
        answer: bytes = channel.unary_unary(RPC)(message, timeout=20)
        return answer


def trouble(problems: list[Reason]) -> list[Reason]:
    """What a busy machine does not explain."""
    return [problem for problem in problems if not is_busy(problem)]


def test_numbers_and_strings_go_and_come(triton: Triton) -> None:
    """By HTTP and by gRPC, by a version and with an id, and the comparator finds them right, or says what is wrong."""
    tensors = inputs_of({"X": X, "TEXT": TEXT})
    request = http_request(Inference(triton.model, tensors, version="1", request_id="seven"), equal_to(RIGHT))
    status, body = send_http(triton, request)
    assert (status, check_answer(request.expect, body)) == (200, None)
    assert b'"id":"seven"' in body
    assert decode_http(body)["SAID"].tolist() == [["grün".encode(), b"\x00ends\x00"], [b"", b"x"]]
    wrong = check_answer(close_to({"SUM": RIGHT["SUM"] * 1.1}, rtol=0.01), body)
    assert wrong is not None
    assert "output 'SUM': 2 of 2 are beyond the tolerance" in wrong
    inference = Inference(triton.model, tensors, version="1", request_id="seven", parameters={"priority": 1})
    body = send_grpc(triton, grpc_message(inference))
    assert check_answer(equal_to(RIGHT), body) is None
    assert b"seven" in body


@by_each_protocol
def test_shared_memory(triton: Triton, protocol: str) -> None:
    """Inputs come from shared memory, each slot's outputs are left in its own place, and the answers carry no data."""
    inferences = [Inference(triton.model, inputs_of({"X": x})) for x in PAYLOADS]
    with share(inferences, {"Y": X.nbytes, "SUM": 8}, slots=3, host=triton.host, port=triton.http_port) as shared:
        messages, requests, size = shared.grpc_messages(), shared.http_requests(), shared.outputs.slot_bytes
        answers = []
        for number, slots in enumerate(shared.payloads):
            for slot in range(len(slots)):
                if protocol == "grpc":
                    body = send_grpc(triton, messages[number][slot])
                else:
                    status, body = send_http(triton, requests[number][slot])
                    assert status == 200, body
                place = Path(shared.outputs.file).read_bytes()[slot * size : (slot + 1) * size]
                answers.append((number, place + body))
        # They are looked at when all are sent, so that none is written over.
        for number, answer in answers:
            x = PAYLOADS[number]
            right = equal_to({"Y": x, "SUM": x.sum(axis=1, keepdims=True)}, decode=shared.decode)
            assert check_answer(right, answer) is None
            assert len(answer) < size + 200
        assert len(set(Path(shared.outputs.file).read_bytes())) > 2


def test_a_wrong_shape_shows_the_servers_words(triton: Triton) -> None:
    """What Triton says of a wrong request is shown, by HTTP and by gRPC."""
    inference = Inference(triton.model, inputs_of({"X": X[0]}))
    status, body = send_http(triton, http_request(inference))
    assert status == 400
    with pytest.raises(ValueError, match=r"^the server's error: .*unexpected shape for input 'X'"):
        decode_http(body)
    with pytest.raises(grpc.RpcError, match="unexpected shape for input 'X'"):
        send_grpc(triton, grpc_message(inference))


# -- a load through shared memory


def echo(handle: ServerHandle, protocol: str, x: Any = X, **arguments: Any) -> Target:  # noqa: ANN401 -- as infer takes
    """A request through shared memory, with its right answer."""
    right = {"Y": x, "SUM": x.sum(axis=1, keepdims=True)}
    given = {"expect": right, "shared_memory": PLACES, "grpc": protocol == "grpc", **arguments}
    return handle.infer({"X": x}, **given)


@pytest.mark.parametrize(
    ("schedule", "protocol"), [(Steps(((1, 0.2), (4, 0.6))), "http"), (Burst(80, max_in_flight=6), "grpc")]
)
def test_answers_under_load_are_right(handle: ServerHandle, schedule: Schedule, protocol: str) -> None:
    """Of several payloads, of several shapes, by turns, while requests are batched."""
    target = handle.rotate([echo(handle, protocol, x) for x in (X, X * 2, X[:1], np.tile(X, 2))])
    start, problems, _ = loaded(target, schedule=schedule)
    assert not trouble(problems)
    assert start.requests >= 20
    known = (start.client.sending_seconds, start.client.receiving_seconds)
    assert (None in known) is (protocol == "grpc")


def test_a_place_that_is_too_small_is_told(handle: ServerHandle) -> None:
    """In the server's words: no tensor is cut."""
    target = echo(handle, "http", shared_memory={"Y": 4, "SUM": 8})
    _, problems, _ = loaded(target, schedule=Burst(4, max_in_flight=2))
    assert any("status 400" in text or "status 500" in text for text in said(problems)), problems
    assert any("(4 bytes) should be at least 24 bytes" in text for text in said(problems)), problems
