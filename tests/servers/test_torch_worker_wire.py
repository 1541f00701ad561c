"""KServe v2 at the torch worker's end, against the client's end of this package and against damage."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_gpuserve.load.kserve import Inference, decode_answer, http_request
from pytest_gpuserve.servers.inside.torch_wire import ITEM_BYTES, BadRequest, Tensor, read_request, write_answer

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


def inputs_from(tensors: list[Tensor]) -> dict[str, Any]:
    """The same tensors as the client's end has them."""
    return {
        each.name: np.frombuffer(each.data, utils.triton_to_np_dtype(each.datatype)).reshape(each.shape)
        for each in tensors
    }


@settings(deadline=None)
@given(tensors(), st.text(max_size=5), st.lists(NAMES, max_size=2, unique=True), st.integers(0, 5))
def test_a_request_is_read_as_it_was_written(
    inputs: list[Tensor], request_id: str, outputs: list[str], blanks: int
) -> None:
    """Whatever the client's end writes is read back exactly, also with blanks behind the JSON and long headers."""
    inference = Inference("m", inputs_from(inputs), tuple(outputs), request_id=request_id)
    request = http_request(inference)
    length = int(request.headers["Inference-Header-Content-Length"])
    asked = read_request(request.body[:length] + b" " * blanks + request.body[length:])
    assert list(asked.inputs) == inputs
    assert (asked.outputs, asked.request_id, asked.rows) == (tuple(outputs), request_id, inputs[0].shape[0])


@settings(deadline=None)
@given(tensors(), st.text(max_size=5))
def test_an_answer_is_read_as_it_was_written(outputs: list[Tensor], request_id: str) -> None:
    """The client's end reads each output with its name, type, shape and elements."""
    body = write_answer("m", outputs, request_id)
    answer = decode_answer(body)
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
SHARED = [{"name": "y", "parameters": {"shared_memory_region": "r"}}]


@pytest.mark.parametrize(
    ("header", "data", "words"),
    [
        ({}, b"", "a request needs a list of at least one input"),
        ({"inputs": []}, b"", "a request needs a list of at least one input"),
        (ONE, b"123", "the inputs announce 4 bytes, 3 follow the JSON"),
        (ONE, b"12345", "the inputs announce 4 bytes, 5 follow the JSON"),
        ({"inputs": [7]}, b"", "an input is not an object: 7"),
        ({"inputs": [described(parameters={}, data=[1])]}, b"", "input 'x' has no binary_data_size: a torch worker"),
        ({"inputs": [described(size=True)]}, b"1", "input 'x' announces True bytes"),
        ({"inputs": [described(-4)]}, b"", "input 'x' announces -4 bytes"),
        ({"inputs": [described(name=None)]}, b"1234", "an input has the name None"),
        ({"inputs": [described(datatype="BYTES")]}, b"1234", "input 'x' has the datatype 'BYTES'; a torch worker"),
        ({"inputs": [described(datatype="FP32")]}, b"1234", "input 'x' of FP32 [1, 4] takes 16 bytes, not 4"),
        ({"inputs": [described(shape=[])]}, b"1234", "input 'x' has the shape []; its first dimension is the batch"),
        ({"inputs": [described(shape=[2, True])]}, b"1234", "input 'x' has the shape [2, True]"),
        ({"inputs": [described(shape=[-1, -4])]}, b"1234", "input 'x' has the shape [-1, -4]"),
        ({"inputs": [described(0, shape=[1 << 70, 0])]}, b"", "input 'x' has the shape [1180591620717411303424, 0]"),
        ({"inputs": [described(0, shape=[0])]}, b"", "the batch is empty"),
        ({"inputs": [described(), described()]}, b"12341234", "two inputs have the same name"),
        ({"inputs": [described(), described(name="y", shape=[2, 2])]}, b"12341234", "for all inputs: 'x' [1, 4], 'y'"),
        ({**ONE, "outputs": ["y"]}, b"1234", "the name of a requested output is missing or repeated"),
        ({**ONE, "outputs": {}}, b"1234", "outputs are not a list"),
        ({**ONE, "outputs": SHARED}, b"1234", "output 'y': a torch worker has no shared memory"),
        ({**ONE, "id": 7}, b"1234", "the request's id is not text: 7"),
    ],
)
def test_what_is_wrong_is_said(header: dict[str, object], data: bytes, words: str) -> None:
    """Each refusal names what is wrong."""
    with pytest.raises(BadRequest) as problem:
        read_request(json.dumps(header).encode() + data)
    assert words in str(problem.value)


@pytest.mark.parametrize("body", [b"", b"GET / HTTP/1.1", b"[1]", b"{", b'{"a":' * 100_000, b"{" + b"\xff" * 10_000])
def test_what_is_no_json_is_refused(body: bytes) -> None:
    """Garbage, depth and length do not end the reader."""
    with pytest.raises(BadRequest, match="not a request of KServe v2"):
        read_request(body)


def test_headers_of_any_length_and_in_utf_8_are_read() -> None:
    """Without a look at the tensors behind them; a client may leave out the escapes of JSON."""
    names = [f"input {number} {'x' * 50}" for number in range(500)]
    body = http_request(Inference("m", {name: np.full((2, 3), 7, "u1") for name in names})).body
    assert [tensor.name for tensor in read_request(body).inputs] == names
    assert all(bytes(tensor.data) == b"\7" * 6 for tensor in read_request(body).inputs)
    header = json.dumps({"inputs": [described(name="größe")]}, ensure_ascii=False).encode()
    assert read_request(header + b"1234").inputs[0].name == "größe"
