"""Tensors become the requests that Triton's own client makes, and answers become tensors or an error in one line."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.load.kserve import (
    HEADER_LENGTH,
    NUMPY,
    Inference,
    InputTensor,
    OutputRequest,
    RegionSlice,
    decode_http,
    http_request,
    inputs_of,
)
from pytest_gpuserve.load.kserve_grpc import decode_answer, decode_grpc, grpc_message
from pytest_gpuserve.load.shared_memory import ALIGNMENT, Layout

np = pytest.importorskip("numpy")
service = pytest.importorskip("tritonclient.grpc.service_pb2")


SHAPES = st.lists(st.integers(0, 4), max_size=3).map(tuple)
DATATYPES = st.sampled_from([*NUMPY, "BYTES"])
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=8,
)


OUTPUTS = st.fixed_dictionaries(
    {},
    optional={
        "name": st.one_of(st.just("Y"), JSON),
        "datatype": st.one_of(DATATYPES, st.just("BF16"), JSON),
        "shape": st.one_of(SHAPES.map(list), st.lists(st.integers(-1, 2**70), max_size=70), JSON),
        "data": JSON,
        "parameters": st.one_of(st.fixed_dictionaries({"binary_data_size": st.one_of(st.integers(), JSON)}), JSON),
    },
)


@st.composite
def tensors(draw: st.DrawFn) -> dict[str, Any]:
    """Named arrays of any of KServe's datatypes, from any bits."""
    found = {}
    for name in draw(st.lists(st.text(min_size=1, max_size=4), min_size=1, max_size=3, unique=True)):
        shape, datatype = draw(SHAPES), draw(DATATYPES)
        size = math.prod(shape)
        if datatype == "BYTES":
            array = np.empty(size, dtype=object)
            array[:] = draw(st.lists(st.binary(max_size=6), min_size=size, max_size=size))
        else:
            dtype = np.dtype(NUMPY[datatype])
            bits = draw(st.binary(min_size=size * dtype.itemsize, max_size=size * dtype.itemsize))
            array = np.frombuffer(bits, dtype="u1") % 2 == 1 if datatype == "BOOL" else np.frombuffer(bits, dtype)
        found[name] = array.reshape(shape)
    return found


def as_http_answer(inputs: tuple[InputTensor, ...], padding: bytes = b"") -> bytes:
    """An answer whose outputs are these inputs, as a server sends it."""
    outputs = [
        {"name": tensor.name, "datatype": tensor.datatype, "shape": tensor.shape}
        | {"parameters": {"binary_data_size": len(data_of(tensor))}}
        for tensor in inputs
    ]
    header = json.dumps({"model_name": "m", "outputs": outputs}, ensure_ascii=False).encode()
    return header + padding + b"".join(map(data_of, inputs))


def as_grpc_answer(inputs: tuple[InputTensor, ...]) -> bytes:
    """The same as a message."""
    response = service.ModelInferResponse(model_name="m")
    for tensor in inputs:
        response.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        response.raw_output_contents.append(data_of(tensor))
    message: bytes = response.SerializeToString()
    return message


def data_of(tensor: InputTensor) -> bytes:
    """Its bytes."""
    assert isinstance(tensor.data, bytes)
    return tensor.data


@given(tensors(), st.sampled_from("<>"))
def test_tensors_survive_the_way(arrays: dict[str, Any], order: str) -> None:
    """Bit for bit, with shape and datatype, by both protocols, whatever their byte order in memory."""
    sent = {name: array.astype(array.dtype.newbyteorder(order)) for name, array in arrays.items()}
    inputs = inputs_of(sent)
    for got in (
        decode_answer(as_http_answer(inputs)),
        decode_answer(as_http_answer(inputs, b" \n")),
        decode_answer(as_grpc_answer(inputs)),
    ):
        assert list(got) == list(arrays)
        for name, array in arrays.items():
            assert got[name].shape == array.shape
            assert got[name].dtype == array.dtype
            assert got[name].tolist() == array.tolist() or got[name].tobytes() == array.tobytes()


@given(tensors(), st.sampled_from(["", "id-1"]), st.sampled_from([(), ("A", "B")]))
def test_an_http_request_is_what_tritons_client_sends(
    arrays: dict[str, Any], request_id: str, outputs: tuple[str, ...]
) -> None:
    """Our body differs from that of tritonclient, the reference, only in how JSON is written."""
    client = pytest.importorskip("tritonclient.http")
    ours = http_request(
        Inference(
            "m", inputs_of(arrays), tuple(map(OutputRequest, outputs)), request_id=request_id, parameters={"a": 1}
        )
    )
    theirs = []
    for tensor, array in zip(inputs_of(arrays), arrays.values(), strict=True):
        theirs.append(client.InferInput(tensor.name, list(tensor.shape), tensor.datatype))
        theirs[-1].set_data_from_numpy(array)
    wanted = [client.InferRequestedOutput(name) for name in outputs] or None
    body, length = client.InferenceServerClient.generate_request_body(
        theirs, outputs=wanted, request_id=request_id, parameters={"a": 1}
    )
    begin = int(ours.headers[HEADER_LENGTH])
    assert json.loads(ours.body[:begin]) == json.loads(body[:length])
    assert ours.body[begin:] == (body[length:] if length is not None else b"")


def test_a_request_names_its_model_and_the_places_of_its_tensors() -> None:
    """Names are quoted, so that they cannot leave their place in the path; a tensor in shared memory adds no bytes."""
    request = http_request(Inference("a/b ü", inputs_of({"X": [1]}), version="2"))
    assert (request.method, request.path) == ("POST", "/v2/models/a%2Fb%20%C3%BC/versions/2/infer")
    place = RegionSlice("r", 64, 8)
    request = http_request(Inference("m", (InputTensor("X", "FP32", (2,), place),), (OutputRequest("Y", place),)))
    assert request.path == "/v2/models/m/infer"
    header = json.loads(request.body)
    parameters = {"shared_memory_region": "r", "shared_memory_offset": 64, "shared_memory_byte_size": 8}
    assert header["inputs"][0]["parameters"] == parameters
    assert header["outputs"] == [{"name": "Y", "parameters": parameters}]


@given(tensors())
def test_a_grpc_message_holds_the_tensors_raw(arrays: dict[str, Any]) -> None:
    """The message names each input with its datatype and shape, and has its bytes in the same order."""
    inputs = inputs_of(arrays)
    outputs = (OutputRequest("A"), OutputRequest("B", RegionSlice("r", 64, 8)))
    parameters: dict[str, Any] = {"a": True, "b": 1, "c": "x", "priority": 2, "f": 0.5}
    read = service.ModelInferRequest.FromString(grpc_message(Inference("m", inputs, outputs, "3", "id", parameters)))
    assert (read.model_name, read.model_version, read.id) == ("m", "3", "id")
    assert [(each.name, each.datatype, tuple(each.shape)) for each in read.inputs] == [
        (each.name, each.datatype, each.shape) for each in inputs
    ]
    assert list(read.raw_input_contents) == [tensor.data for tensor in inputs]
    told = read.parameters
    # Triton takes a priority without a sign.
    assert (told["a"].bool_param, told["b"].int64_param, told["priority"].uint64_param) == (True, 1, 2)
    assert (told["c"].string_param, told["f"].double_param) == ("x", 0.5)
    assert [output.name for output in read.outputs] == ["A", "B"]
    told = read.outputs[1].parameters
    assert told["shared_memory_region"].string_param == "r"
    assert told["shared_memory_offset"].int64_param == 64
    assert told["shared_memory_byte_size"].int64_param == 8


@pytest.mark.parametrize(
    ("values", "datatype", "data"),
    [
        (["grün", b"\x00\x00"], "BYTES", b"\x05\0\0\0gr\xc3\xbcn\x02\0\0\0\0\0"),
        ("x", "BYTES", b"\x01\0\0\0x"),
        ([1, 2], "INT64", (1).to_bytes(8, "little") + (2).to_bytes(8, "little")),
        ([[True], [False]], "BOOL", b"\x01\x00"),
        ([0.5], "FP64", b"\0\0\0\0\0\0\xe0\x3f"),
        (np.arange(6, dtype=np.int8).reshape(2, 3).T[::-1], "INT8", bytes([2, 5, 1, 4, 0, 3])),
    ],
)
def test_values_have_a_datatype_and_an_order(values: object, datatype: str, data: bytes) -> None:
    """Python's go as their widest datatype, strings as UTF-8 with all their zero bytes, arrays as they are seen."""
    (tensor,) = inputs_of({"X": values})
    assert (tensor.datatype, tensor.shape, tensor.data) == (datatype, np.shape(values), data)


@pytest.mark.parametrize(
    "values",
    [
        [[1, 2], [3]],
        [1j],
        [["a", "b"], ["c"]],
        ["a", 1],
        [None],
        [2**70],
        object(),
        np.array(["2020-01-01"], dtype="datetime64[D]"),
        np.zeros(1, dtype=np.longdouble),
    ],
)
def test_values_without_a_datatype_are_refused(values: object) -> None:
    """What KServe v2 cannot carry is the user's mistake, by the name of the input."""
    with pytest.raises(UsageProblem, match="input 'X'"):
        inputs_of({"X": values})


@pytest.mark.parametrize(
    "arguments",
    [
        {"model": ""},
        {"inputs": ()},
        {"inputs": inputs_of({"X": [1]}) * 2},
        {"outputs": (OutputRequest("Y"), OutputRequest("Y"))},
        {"request_id": None},
        {"parameters": {"binary_data_output": False}},
        {"parameters": {"a": math.nan}},
        {"parameters": {"a": [1]}},
        {"parameters": {"a": 2**63}},
    ],
)
def test_an_inference_that_cannot_be_sent_is_refused(arguments: dict[str, Any]) -> None:
    """Before anything is sent, with what is wrong."""
    with pytest.raises(UsageProblem):
        Inference(**{"model": "m", "inputs": inputs_of({"X": [1]}), **arguments})


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """Noise, JSON of another form, or an answer that is cut or changed at any byte."""
    kind = draw(st.sampled_from(["noise", "form", "damage"]))
    noise = draw(st.binary(max_size=64))
    if kind == "noise":
        return draw(st.sampled_from([b"", b'{"outputs":['])) + noise
    if kind == "form":
        output = draw(OUTPUTS)
        return json.dumps({"outputs": draw(st.sampled_from([[output], [output, output], output]))}).encode() + noise
    answer = draw(st.sampled_from([as_http_answer, as_grpc_answer]))(inputs_of(draw(tensors())))
    at = draw(st.integers(0, len(answer) - 1))
    return answer[:at] + noise[:3] + answer[at + draw(st.integers(0, 4)) :]


@settings(max_examples=300)
@given(bodies())
def test_what_is_no_answer_is_tensors_or_an_error_in_one_line(body: bytes) -> None:
    """Whatever came never crashes a reader."""
    shared = Layout((("Y", 8),)).decode
    beside = [(shared, bytes(ALIGNMENT) + body), (shared, b"\xff" * ALIGNMENT + body)]
    for decode, data in [(decode_http, body), (decode_grpc, body), (decode_answer, body), (shared, body), *beside]:
        try:
            assert isinstance(decode(data), dict)
        except ValueError as problem:
            text = str(problem)
            assert (len(text.splitlines()), len(text) < 1500) == (1, True)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "no answer"),
        (b"[1]", "no answer"),
        (b'{"a": ' + b"[" * 100_000, "no answer"),
        (b'{"error": "no such\\nmodel"}', "the server's error: no such model"),
        (b"{}", "without outputs"),
        (b'{"outputs": []}', "without outputs"),
        (b'{"outputs": [{"name":"Y","datatype":"FP32","shape":[3],"parameters":{"binary_data_size":0}}]}', "12 bytes"),
        (b'{"outputs": [{"name":"Y","datatype":"FP8","shape":[1],"data":[1]}]}', "datatype 'FP8'"),
        (b'{"outputs": [{"name":"Y","datatype":"INT8","shape":[1],"data":[128]}]}', "beyond int8"),
        (b'{"outputs": [{"name":"Y","datatype":"INT8","shape":[1],"data":[true]}]}', "value True"),
        (b'{"outputs": [{"name":"Y","datatype":"FP32","shape":[1],"data":[null]}]}', "value None"),
        (b'{"outputs": [{"name":"Y","datatype":"FP32","shape":[2],"data":[1]}]}', "1 values"),
        (b'{"outputs": [{"name":"Y","datatype":"FP32","shape":[1]}]}', "'Y' has no data"),
        (b'{"outputs": [{"name":"Y","datatype":"FP64","shape":[1],"data":[1' + b"0" * 400 + b"]}]}", "beyond float64"),
        (b'{"outputs": [{"parameters":{"binary_data_size":-1}}]}', "announces -1 bytes"),
        (b'{"error": "' + b"long " * 1000 + b'"}', "^.{100,500}…$"),
        (b"long " * 1000, "^no answer.{100,500}…$"),
        (b'{"outputs": [{"name":"Y","datatype":"FP32","shape":[true],"data":[1]}]}', "shape"),
    ],
)
def test_what_is_wrong_is_said(body: bytes, words: str) -> None:
    """Each kind of bad answer has its own words; Triton's empty outputs under status 200 are one of them."""
    with pytest.raises(ValueError, match=words):
        decode_http(body)


@pytest.mark.parametrize("before", range(280, 330, 2))
def test_what_is_said_of_a_long_error_shows_no_secret(monkeypatch: pytest.MonkeyPatch, before: int) -> None:
    """Wherever its end falls, nor the half of one."""
    monkeypatch.setenv("HF_TOKEN", "hf_abcdefghijkl")
    with pytest.raises(ValueError, match="the server's error: ") as caught:
        decode_http(b'{"error": "%s"}' % (b"x " * (before // 2) + b"hf_abcdefghijkl" + b" x" * 100))
    assert "hf_" not in str(caught.value)


@pytest.mark.parametrize("datatype", [*NUMPY, "BYTES"])
def test_values_in_json_and_in_messages_are_read(datatype: str) -> None:
    """Servers without the binary extension send lists of values, flat or nested, or typed contents."""
    special: dict[str, list[Any]] = {"BOOL": [True, False], "BYTES": ["ü", ""]}
    values = special.get(datatype, [0, 1])
    right = [value.encode() if isinstance(value, str) else value for value in values]
    for data in (values, [[values[0]], [values[1]]]):
        body = {"outputs": [{"name": "Y", "datatype": datatype, "shape": [2, 1], "data": data}]}
        assert decode_http(json.dumps(body).encode())["Y"].tolist() == [[value] for value in right]
    if datatype == "FP16":
        return
    response = service.ModelInferResponse()
    output = response.outputs.add(name="Y", datatype=datatype, shape=[2])
    kinds = {"INT": "int", "UINT": "uint", "FP32": "fp32", "FP64": "fp64", "INT64": "int64", "UINT64": "uint64"}
    kind = kinds.get(datatype) or kinds.get(datatype.rstrip("0123468"), datatype.lower())
    getattr(output.contents, f"{kind}_contents").extend(right)
    got = decode_grpc(response.SerializeToString())["Y"]
    assert got.tolist() == right
    assert got.dtype == np.dtype(NUMPY.get(datatype, object))


def test_values_that_arrays_have_otherwise_are_read() -> None:
    """BF16 is the upper half of a float32; every byte but zero is true; beyond its datatype a number is infinite."""
    raw = np.array([1.5, -2.0], dtype="<f4").tobytes()
    for tensor, values in (
        (InputTensor("Y", "BF16", (2,), raw[2:4] + raw[6:8]), [1.5, -2.0]),
        (InputTensor("Y", "BOOL", (3,), b"\0\2\xff"), [False, True, True]),
    ):
        for body in (as_http_answer((tensor,)), as_grpc_answer((tensor,))):
            assert decode_answer(body)["Y"].tolist() == values
    body = b'{"outputs": [{"name":"Y","datatype":"FP16","shape":[1],"data":[1e10]}]}'
    assert decode_http(body)["Y"].tolist() == [math.inf]


def test_a_missing_library_is_named_with_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without tritonclient a message, and without numpy any tensor, is the user's problem, with its remedy."""
    inference = Inference("m", inputs_of({"X": [1]}))
    monkeypatch.setitem(sys.modules, "tritonclient.grpc.service_pb2", None)
    with pytest.raises(UsageProblem, match=r"need tritonclient\n(.*\n)*.*pip install 'pytest-gpuserve\[triton\]'"):
        grpc_message(inference)
    monkeypatch.setitem(sys.modules, "numpy", None)
    with pytest.raises(UsageProblem, match="need numpy"):
        inputs_of({"X": [1]})


def test_nothing_heavy_is_imported_with_the_modules() -> None:
    """Every pytest run loads the plugin: numpy, tritonclient and grpc wait until a tensor is made."""
    code = (
        "import sys\n"
        "import pytest_gpuserve.load.tensors, pytest_gpuserve.load.shared_memory\n"
        "print(sorted({'numpy', 'tritonclient', 'grpc', 'google.protobuf'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ([InputTensor("Y", "FP32", (1,), b"\0" * 8)], r"FP32 \[1\] takes 4 bytes, not 8"),
        ([InputTensor("Y", "BYTES", (1,), b"\1\0")], "fewer strings"),
        ([InputTensor("Y", "BYTES", (1,), b"\2\0\0\0x")], r"BYTES \[1\] takes 6 bytes, not 5"),
        ([InputTensor("Y", "BYTES", (1,), b"\0" * 8)], r"BYTES \[1\] takes 4 bytes, not 8"),
        ([InputTensor("Y", "BYTES", (10**18,), b"")], "fewer strings"),
        ([InputTensor("Y", "INT8", (-1, -1), b"x")], r"has the shape \[-1, -1\]"),
        ([InputTensor("Y", "INT8", (1,) * 100, b"x")], "shape that no array can have"),
        ([InputTensor("Y", "INT8", (1,), b"x")] * 2, "'Y' twice"),
    ],
)
def test_data_that_does_not_fit_its_shape_is_an_error(tensors: list[InputTensor], words: str) -> None:
    """Neither too few bytes nor too many make a tensor, nor is one hidden by another, by either protocol."""
    for body in (as_http_answer(tuple(tensors)), as_grpc_answer(tuple(tensors))):
        with pytest.raises(ValueError, match=words):
            decode_answer(body)


def test_answers_with_more_or_less_than_they_announce_are_errors() -> None:
    """Of bytes or of tensors; an empty message is a valid one of protobuf."""
    body = as_http_answer(inputs_of({"Y": [1]}))
    for wrong in (body + b"x", body[:-1]):
        with pytest.raises(ValueError, match="announce 8 bytes"):
            decode_http(wrong)
    with pytest.raises(ValueError, match="without outputs"):
        decode_grpc(b"")
    response = service.ModelInferResponse.FromString(as_grpc_answer(inputs_of({"Y": [1], "Z": [2]})))
    del response.raw_output_contents[1]
    with pytest.raises(ValueError, match="2 outputs, but 1 raw tensors"):
        decode_grpc(response.SerializeToString())
