"""KServe v2 at the torch worker's end, against the client's end of this package and against damage."""

from __future__ import annotations

import json
import math
import re
import resource
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.client import HTTPConnection
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_gpuserve.load.kserve import Inference, decode_answer, http_request
from pytest_gpuserve.servers.inside.torch_http import (
    HEADER_LENGTH,
    ITEM_BYTES,
    BadRequest,
    HttpServer,
    ModelFailed,
    Tensor,
    read_request,
    write_answer,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

utils = pytest.importorskip("tritonclient.utils")

NAMES = st.text(min_size=1, max_size=5)


@st.composite
def tensors(draw: st.DrawFn) -> list[Tensor]:
    """Tensors of one batch, of any datatype, some of them without an element."""
    rows = draw(st.integers(1, 3))
    found = []
    for name in draw(st.lists(NAMES, min_size=1, max_size=3, unique=True)):
        datatype = draw(st.sampled_from(sorted(ITEM_BYTES)))
        shape = (rows, *draw(st.lists(st.integers(0, 3), max_size=3)))
        size = math.prod(shape) * ITEM_BYTES[datatype]
        found.append(Tensor(name, datatype, shape, draw(st.binary(min_size=size, max_size=size))))
    return found


@settings(deadline=None)
@given(tensors(), st.text(max_size=5), st.lists(NAMES, max_size=2, unique=True))
def test_a_request_is_read_as_it_was_written(inputs: list[Tensor], request_id: str, outputs: list[str]) -> None:
    """Every request that the client's end writes is read back exactly."""
    arrays = {
        each.name: np.frombuffer(each.data, utils.triton_to_np_dtype(each.datatype)).reshape(each.shape)
        for each in inputs
    }
    request = http_request(Inference("m", arrays, tuple(outputs), request_id=request_id))
    asked = read_request(request.body, int(request.headers[HEADER_LENGTH]))
    assert list(asked.inputs) == inputs
    assert (asked.outputs, asked.request_id, asked.rows) == (tuple(outputs), request_id, inputs[0].shape[0])


@settings(deadline=None)
@given(tensors(), st.text(max_size=5))
def test_an_answer_is_read_as_it_was_written(outputs: list[Tensor], request_id: str) -> None:
    """The client's end reads each output with its name, type, shape and elements; the JSON has the told length."""
    told, *data = write_answer("m", outputs, request_id)
    assert json.loads(bytes(told))["model_name"] == "m"
    answer = decode_answer(b"".join([told, *data]))
    assert list(answer) == [output.name for output in outputs]
    for output in outputs:
        array = answer[output.name]
        assert array.shape == output.shape
        assert array.tobytes() == output.data


def described(size: object = 4, **changes: object) -> dict[str, object]:
    """An input of 4 bytes, changed."""
    whole = {"name": "x", "shape": [1, 4], "datatype": "UINT8", "parameters": {"binary_data_size": size}}
    return {**whole, **changes}


ONE = {"inputs": [described()]}
NO_REQUEST = "not a request of KServe v2"


@pytest.mark.parametrize(
    ("header", "data", "words"),
    [
        ({}, b"", f"{NO_REQUEST} with tensors as bytes after its JSON: KeyError('inputs')"),
        ({"inputs": []}, b"", "a request needs inputs"),
        ([1], b"", NO_REQUEST),
        (ONE, b"123", "the inputs announce 4 bytes, 3 follow the JSON"),
        (ONE, b"12345", "the inputs announce 4 bytes, 5 follow the JSON"),
        ({"inputs": [7]}, b"", NO_REQUEST),
        ({"inputs": [described(parameters={}, data=[1])]}, b"", "KeyError('binary_data_size')"),
        ({"inputs": [described(-4)]}, b"", "input 'x' of UINT8 [1, 4] takes 4 bytes, not -4"),
        ({"inputs": [described(name=None)]}, b"1234", "input None needs a name"),
        ({"inputs": [described(datatype="BYTES")]}, b"1234", "input 'x' is 'BYTES'; a torch worker takes BOOL"),
        ({"inputs": [described(datatype=[])]}, b"1234", NO_REQUEST),
        ({"inputs": [described(datatype="FP32")]}, b"1234", "input 'x' of FP32 [1, 4] takes 16 bytes, not 4"),
        ({"inputs": [described(shape=[])]}, b"1234", "input 'x' has the shape []; its first dimension is the batch"),
        ({"inputs": [described(shape=7)]}, b"1234", NO_REQUEST),
        ({"inputs": [described(shape=[2, True])]}, b"1234", "input 'x' has the shape [2, True]"),
        ({"inputs": [described(shape=[-1, -4])]}, b"1234", "input 'x' has the shape [-1, -4]"),
        ({"inputs": [described(0, shape=[0])]}, b"", "its first dimension is the batch, 1 or more"),
        ({"inputs": [described(), described()]}, b"12341234", "each with a name of its own"),
        ({"inputs": [described(), described(name="y", shape=[2, 2])]}, b"12341234", "for all inputs: 'x' [1, 4], 'y'"),
        ({**ONE, "outputs": ["y"]}, b"1234", NO_REQUEST),
        ({**ONE, "outputs": [{"name": []}]}, b"1234", "the name of a requested output is not a text: []"),
        (
            {**ONE, "outputs": [{"name": "y", "parameters": {"shared_memory_region": "r"}}]},
            b"1234",
            "output 'y': a torch worker has no shared memory",
        ),
        ({**ONE, "id": []}, b"1234", "the request's id is not a text: []"),
    ],
)
def test_what_is_wrong_is_said(header: object, data: bytes, words: str) -> None:
    """Each refusal names its reason."""
    text = json.dumps(header).encode()
    with pytest.raises(BadRequest) as problem:
        read_request(text + data, len(text))
    assert words in str(problem.value)


@pytest.mark.parametrize("body", [b"", b"GET / HTTP/1.1", b"{", b'{"a":' * 100_000, b"{" + b"\xff" * 10_000])
def test_what_is_no_json_is_refused(body: bytes) -> None:
    """Garbage, depth and length do not end the reader."""
    with pytest.raises(BadRequest, match=NO_REQUEST):
        read_request(body, len(body))


# -- HTTP


def answer_of(body: bytes, json_bytes: int) -> list[bytes]:
    """Answer with what was sent; refuse what begins with an X, and fail at a Y or a Z."""
    problem = {b"X": BadRequest("no"), b"Y": ModelFailed("broken"), b"Z": KeyError(1)}.get(body[:1])
    if problem is not None:
        raise problem
    return [body[:json_bytes], body[json_bytes:]]


@pytest.fixture
def port() -> Iterator[int]:
    """Port of a server of the model ``m``."""
    server = HttpServer(("127.0.0.1", 0), "m", answer_of)
    with server.listener, ThreadPoolExecutor(1) as pool:
        serving = pool.submit(server.serve_forever)
        yield int(server.listener.getsockname()[1])
        server.listener.shutdown(socket.SHUT_RDWR)
        assert isinstance(serving.exception(20), OSError)


def exchanged(port: int, sent: bytes) -> bytes:
    """The answers to the bytes of a client that then ends its side."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
        with connection.makefile("rb") as answers:
            return answers.read()


def test_a_connection_is_answered_request_by_request(port: int) -> None:
    """Small and large bodies, refusals, failures and unknown paths are answered one after the other."""
    big, path = bytes(3 << 20), "/v2/models/m/infer"
    with closing(HTTPConnection("127.0.0.1", port, timeout=20)) as connection:
        for method, at, sent, status, body in [
            ("POST", path, b"fox", 200, b"fox"),
            ("POST", path, big, 200, big),
            ("POST", path, b"X", 400, b'{"error": "no"}'),
            ("POST", path, b"Y", 500, b'{"error": "broken"}'),
            ("POST", path, b"Z", 500, b'{"error": "KeyError(1)"}'),
            ("POST", "/v2/models/other/infer", b"fox", 404, None),
            ("GET", "/", b"", 404, None),
            ("POST", path, b"", 200, b""),
        ]:
            connection.request(method, at, sent, {HEADER_LENGTH: "1"})
            answer = connection.getresponse()
            assert answer.status == status
            assert answer.read() == body or body is None
            assert (answer.headers[HEADER_LENGTH] == "1") == (status == 200 and sent != b"")


GET = b"GET / HTTP/1.1\r\n"
POST = b"POST /v2/models/m/infer HTTP/1.1\r\nContent-Length: 3\r\n"


def test_the_body_of_a_get_is_not_a_request(port: int) -> None:
    """A GET with a body is answered once."""
    answers = exchanged(port, GET + b"Content-Length: %d\r\n\r\n" % (len(GET) + 2) + GET + b"\r\n")
    assert answers.count(b"HTTP/1.1 404") == 1


@pytest.mark.parametrize(
    ("sent", "answers"),
    [
        (b"\r\n" + GET + b"\r\n" + GET + b"\r\n", [b"404", b"404"]),
        (GET + b"connection: Close\r\n\r\n" + GET + b"\r\n", [b"404"]),
        (GET.replace(b"1.1", b"1.0") + b"\r\n" + GET + b"\r\n", [b"404"]),
        (POST + b"Expect: 100-continue\r\n\r\nfox", [b"100", b"200"]),
        (POST + b"\r\nfo", []),
        (POST, []),
        (POST.replace(b"3", b"-3") + b"\r\nfox", [b"400"]),
        (b"POST / HTTP/1.1\r\n\r\n", [b"400"]),
        (b"POST / HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n", [b"400"]),
        (b"GET /\r\n\r\n", [b"400"]),
        (GET + b"no header\r\n\r\n", [b"400"]),
        (b"\x16\x03\x01\x02\x00\x01", [b"400"]),
    ],
)
def test_how_clients_of_http_may_speak(port: int, sent: bytes, answers: list[bytes]) -> None:
    """Connections are kept or closed as their clients say; a request whose end is unknown is the last one."""
    found = exchanged(port, sent)
    assert re.findall(rb"HTTP/1.1 (\d+)", found) == answers


def test_too_many_open_files_end_it() -> None:
    """Without a descriptor for a client, which would wait for ever, the error ends the worker."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    server = HttpServer(("127.0.0.1", 0), "m", answer_of)
    with server.listener, socket.socket() as late:
        late.connect(server.listener.getsockname())
        resource.setrlimit(resource.RLIMIT_NOFILE, (late.fileno() + 1, hard))
        try:
            with pytest.raises(OSError, match="Too many open files"):
                server.serve_forever()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_limit_of_threads_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a thread for a client, which would wait for ever, the error ends the worker."""

    def refuse(*, args: tuple[socket.socket], **_: object) -> None:
        args[0].close()
        raise RuntimeError("can't start new thread")

    server = HttpServer(("127.0.0.1", 0), "m", answer_of)
    monkeypatch.setattr(threading, "Thread", refuse)
    client = socket.create_connection(server.listener.getsockname())
    with server.listener, client, pytest.raises(RuntimeError, match="can't start new thread"):
        server.serve_forever()
