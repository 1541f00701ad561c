"""Tensors become requests of Triton's own client, and answers become tensors or an error in one line."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.load.kserve import (
    HEADER_LENGTH,
    Inference,
    Place,
    datatype_of,
    decode_answer,
    grpc_message,
    http_request,
    raw_bytes,
    tensors_of,
)

np = pytest.importorskip("numpy")
service = pytest.importorskip("tritonclient.grpc.service_pb2")

DTYPES = ("?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")
WHOLE = {dtype: np.arange(6).astype(dtype).reshape(2, 3) for dtype in DTYPES}
TENSORS = {**WHOLE, "empty": np.zeros((0, 2)), "scalar": np.float32(3), "text": np.array([["grün", b"\0x\0"]], object)}


def as_answers(tensors: dict[str, Any]) -> tuple[bytes, bytes]:
    """An answer with these tensors as a server sends it, by HTTP and by gRPC."""
    outputs = [{"name": name, "datatype": datatype_of(each), "shape": each.shape} for name, each in tensors.items()]
    sizes = [{"parameters": {"binary_data_size": len(raw_bytes(each))}} for each in tensors.values()]
    header = json.dumps({"outputs": [{**one, **other} for one, other in zip(outputs, sizes, strict=True)]})
    response = service.ModelInferResponse(raw_output_contents=map(raw_bytes, tensors.values()))
    for output in outputs:
        response.outputs.add(**output)
    return header.encode() + b" \n" + b"".join(map(raw_bytes, tensors.values())), response.SerializeToString()


@pytest.mark.parametrize("order", ["<", ">"])
def test_tensors_survive_the_way(order: str) -> None:
    """Tensors are equal bit for bit, with shape and datatype, by both protocols, for any byte order in memory."""
    sent = {name: each.astype(each.dtype.newbyteorder(order)) for name, each in TENSORS.items()}
    tensors = tensors_of("input", sent)
    for answer in as_answers(tensors):
        got = decode_answer(answer)
        assert {name: (each.dtype, each.tolist()) for name, each in got.items()} == {
            name: (each.dtype, each.tolist()) for name, each in tensors.items()
        }
    assert tensors["text"].tolist() == [["grün".encode(), b"\0x\0"]]


def test_requests_say_what_they_are() -> None:
    """Names are quoted in the path; a tensor in shared memory adds no bytes; parameters go as Triton wants them."""
    tensors = tensors_of("input", {"X": [[1.5]], "T": ["x"]})
    request = http_request(Inference("a/b", tensors, ("Y",), version="2", request_id="7", parameters={"priority": 1}))
    assert (request.method, request.path) == ("POST", "/v2/models/a%2Fb/versions/2/infer")
    length = int(request.headers[HEADER_LENGTH])
    assert request.body[length:] == np.float64(1.5).tobytes() + b"\1\0\0\0x"
    header = json.loads(request.body[:length])
    assert (header["id"], header["parameters"]) == ("7", {"priority": 1})
    places = {("input", "X"): Place("r", 8, 0), ("output", "Y"): Place("r", 8, 64)}
    inference = Inference("m", tensors_of("input", {"X": [1.5]}), ("Y",), parameters={"priority": 1}, places=places)
    body = json.loads(http_request(inference).body)
    message = service.ModelInferRequest.FromString(grpc_message(inference))
    assert not message.raw_input_contents
    assert message.parameters["priority"].uint64_param == 1
    for key, place in places.items():
        by_http = body[f"{key[0]}s"][0]["parameters"]
        assert (by_http["shared_memory_region"], by_http["shared_memory_byte_size"]) == place[:2]
        by_grpc = getattr(message, f"{key[0]}s")[0].parameters
        assert by_grpc["shared_memory_offset"].int64_param == place.offset == by_http.get("shared_memory_offset", 0)


@pytest.mark.parametrize(
    "values", [[[1, 2], [3]], [1j], ["a", 1], [None], [2**70], object(), np.zeros(1, np.longdouble)]
)
def test_values_without_a_datatype_are_refused(values: object) -> None:
    """Values that KServe v2 cannot carry are the user's mistake, with the name of the input."""
    with pytest.raises(UsageProblem, match="input 'X'"):
        tensors_of("input", {"X": values})


def test_values_in_json_are_read() -> None:
    """A server without the binary extension sends lists of values, flat or nested."""
    outputs = [{"name": "Y", "datatype": "BYTES", "shape": [2, 1], "data": ["ü", ""]}]
    outputs.append({"name": "Z", "datatype": "INT8", "shape": [2, 1], "data": [[1], [2]]})
    got = decode_answer(json.dumps({"outputs": outputs}).encode())
    assert (got["Y"].tolist(), got["Z"].tolist()) == ([["ü".encode()], [b""]], [[1], [2]])


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"[1]", "not an answer"),
        (b'{"a": ' + b"[" * 100_000, "not an answer"),
        (b'{"error": "no such\\nmodel"}', "the server's error: no such model"),
        (b"{}", "without outputs"),
        (b"", "without outputs"),
        (b'{"outputs": [{"name":"Y","datatype":"FP8","shape":[1],"data":[1]}]}', "KServe v2 lacks"),
        (b'{"outputs": [{"name":"Y","datatype":"INT8","shape":[-1],"data":[1]}]}', "KServe v2 lacks"),
        (b'{"outputs": [{"name":"Y","datatype":"FP32","shape":[2],"data":[1]}]}', "reshape"),
        (b'{"outputs": [{"name":"Y","datatype":"FP32","shape":[1]}]}', "not an answer of KServe v2: KeyError"),
        (as_answers({"Y": WHOLE["f4"]})[0] + b"x", "announce 24 bytes"),
        (as_answers({"Y": WHOLE["f4"]})[0][:-3], "announce 24 bytes"),
        (as_answers({"Y": TENSORS["text"]})[1][:-3], "not an answer"),
    ],
)
def test_what_is_wrong_is_said(body: bytes, words: str) -> None:
    """Each kind of bad answer has its own words; Triton's empty outputs under status 200 are one of them."""
    with pytest.raises(ValueError, match=words) as caught:
        decode_answer(body)
    assert len(str(caught.value).splitlines()) == 1
    assert len(str(caught.value)) < 400


@settings(deadline=None, max_examples=200)
@given(st.sampled_from(as_answers(tensors_of("input", {"Y": WHOLE["f4"], "T": ["abc"]}))), st.data())
def test_what_is_no_answer_is_tensors_or_an_error(answer: bytes, data: st.DataObject) -> None:
    """An answer that is cut or changed at any byte never crashes a reader."""
    at = data.draw(st.integers(0, len(answer)))
    body = answer[:at] + data.draw(st.binary(max_size=3)) + answer[at + data.draw(st.integers(0, 4)) :]
    for places in (None, {"Y": b"\xff" * 24, "T": b"\xff" * 7}):
        with contextlib.suppress(ValueError):
            assert decode_answer(body, places)


def test_nothing_of_it_is_imported_before_it_is_needed() -> None:
    """A pytest run that needs no tensors imports no package for them."""
    script = (
        "import sys, pytest_gpuserve.experiment.handle; print({'numpy', 'tritonclient', 'gevent'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert done.stdout == "set()\n"
