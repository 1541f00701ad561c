"""Tensors: of requests and answers, in shared memory that its owner always removes, and compared with right ones."""

from __future__ import annotations

import contextlib
import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_gpuserve.errors import ServerFailed, UsageProblem
from pytest_gpuserve.load.kserve import (
    Comparator,
    Inference,
    Place,
    close_to,
    datatype_of,
    decode_answer,
    equal_to,
    grpc_message,
    http_request,
    raw_bytes,
    tensors_of,
)
from pytest_gpuserve.load.request import check_answer
from pytest_gpuserve.load.shared_memory import FOLDER, PREFIX, Layout, share
from pytest_gpuserve.load.wire import unwritten
from tests.fakes.children.toolkit import ROOT, eventually

np = pytest.importorskip("numpy")
service = pytest.importorskip("tritonclient.grpc.service_pb2")
pytest.importorskip("tritonclient.utils.shared_memory")


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


def test_requests_say_the_same_by_both_protocols() -> None:
    """Names are quoted in a path; tensors in shared memory add no bytes; a priority is unsigned, as Triton wants it."""
    places = {("input", "X"): Place("r", 8, 0), ("output", "Y"): Place("r", 8, 64)}
    given: dict[str, Any] = {"version": "2", "request_id": "7", "parameters": {"priority": 1}, "places": places}
    inference = Inference("a/b", tensors_of("input", {"X": [1.5]}), ("Y",), **given)
    request, message = http_request(inference), service.ModelInferRequest.FromString(grpc_message(inference))
    assert (request.method, request.path) == ("POST", "/v2/models/a%2Fb/versions/2/infer")
    header = json.loads(request.body)
    assert (header["id"], header["parameters"]) == ("7", {"priority": 1})
    assert (message.model_name, message.model_version, message.id) == ("a/b", "2", "7")
    assert (message.parameters["priority"].uint64_param, list(message.raw_input_contents)) == (1, [])
    for (kind, _), place in places.items():
        by_http, by_grpc = header[f"{kind}s"][0]["parameters"], getattr(message, f"{kind}s")[0].parameters
        assert (by_http["shared_memory_region"], by_http["shared_memory_byte_size"]) == place[:2]
        assert by_grpc["shared_memory_region"].string_param == place.region
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


# -- shared memory


LAYOUT = Layout((("Y", 20), ("Z", 65)))
PAYLOADS = [Inference("m", tensors_of("input", {"A": x}), ("Y", "Z")) for x in ([1.0], [2.0, 3.0])]
OWNER = """
from tests.load.test_kserve import LAYOUT, PAYLOADS, share
with share(PAYLOADS, LAYOUT, 2, lambda *_: (200, "")):
    print("up", flush=True)
    input()
"""


def ours(pid: int) -> dict[str, Path]:
    """Regions of a process."""
    return {path.name: path for path in FOLDER.glob(f"{PREFIX}{pid}-*")}


def test_every_tensor_has_a_place_of_its_own() -> None:
    """Inputs lie where the requests say; outputs of no two requests in flight overlap."""
    with share(PAYLOADS, LAYOUT, 3, lambda *_: (200, "")) as shared:
        for inference, *others in shared.payloads:
            places = [inference.places["input", "A"]]
            assert {each.places["input", "A"] for each in others} == {*places}
            content = (FOLDER / places[0].region).read_bytes()[places[0].offset :]
            assert content[: places[0].byte_size] == inference.inputs["A"].tobytes()
        outputs = [each.places["output", name] for each in shared.payloads[0] for name in "YZ"]
        taken = {byte for place in outputs for byte in range(place.offset, place.offset + place.byte_size)}
        assert len(taken) == 3 * (20 + 65)
        assert max(taken) < Path(shared.outputs.file).stat().st_size


def test_nothing_is_left_of_a_killed_owner() -> None:
    """Its regions are removed at once."""
    command = [sys.executable, "-c", OWNER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=-3, cwd=ROOT) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"up\n"
        assert len(ours(owner.pid)) == 2
        owner.kill()
    eventually(lambda: not ours(owner.pid), "its regions are gone")


def test_no_room_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the server, or in a /dev/shm as small as containers get it, which has a remedy; nothing is left of either."""
    with (
        pytest.raises(ServerFailed, match="status 500: no room"),
        share(PAYLOADS, LAYOUT, 1, lambda *_: (500, "no room")),
    ):
        pytest.fail("it was refused")
    monkeypatch.setattr(os, "posix_fallocate", lambda *_: (FOLDER / "full").stat())
    with (
        pytest.raises(UsageProblem, match=r"has no room[\s\S]*--shm-size"),
        share(PAYLOADS, LAYOUT, 1, lambda *_: (200, "")),
    ):
        pytest.fail("there was no room")
    assert not ours(os.getpid())


def test_an_answer_is_read_from_its_place() -> None:
    """Numbers, and strings that end before their place does; not what was not written, or came another way."""
    outputs = [{"name": "Y", "datatype": "FP32", "shape": [5]}, {"name": "Z", "datatype": "BYTES", "shape": [2]}]
    answer = json.dumps({"outputs": outputs}).encode()
    place = np.arange(5, dtype="f4").tobytes().ljust(64, b"\0") + b"\2\0\0\0hi\0\0\0\0".ljust(128, b"\0")
    got = LAYOUT.decode(place + answer)
    assert (got["Y"].tolist(), got["Z"].tolist()) == ([0, 1, 2, 3, 4], [b"hi", b""])
    with pytest.raises(ValueError, match="'Y' was not written"):
        LAYOUT.decode(unwritten(192) + answer)
    with pytest.raises(ValueError, match="came in the answer"):
        LAYOUT.decode(place + answer.replace(b"[5]", b'[5], "data": [0, 1, 2, 3, 4]'))
    with pytest.raises(ValueError, match="buffer is smaller"):
        LAYOUT.decode(place + answer.replace(b"[5]", b"[6]"))


# -- comparators


FLOATS = st.floats(width=32)
TOLERANCES = st.floats(0, 10)


def wrong(comparator: Comparator, **tensors: object) -> str:
    """Fault of an answer with these tensors; empty if it is right."""
    arrays = {name: np.asarray(values) for name, values in tensors.items()}
    try:
        assert replace(comparator, decode=lambda _: arrays)(b"")
    except AssertionError as said:
        (line,) = str(said).splitlines()
        return line
    return ""


@given(st.lists(st.tuples(FLOATS, FLOATS), min_size=1, max_size=5), TOLERANCES, TOLERANCES)
def test_close_is_what_numpy_calls_close(pairs: list[tuple[float, float]], rtol: float, atol: float) -> None:
    """The verdict is numpy.isclose's, NaN and infinities included, at any tolerance."""
    got, want = (np.array(column, dtype=np.float64) for column in zip(*pairs, strict=True))
    right = np.isclose(got, want, rtol=rtol, atol=atol, equal_nan=True).all()
    assert (not wrong(close_to({"Y": want}, rtol=rtol, atol=atol), Y=got)) == right


def test_the_worst_element_is_named() -> None:
    """One line has the output, the number of wrong elements, the worst by its own tolerance, and both values."""
    want = np.zeros((2, 3), dtype=np.float32)
    got = want + np.array([[0, 0.5, 0], [0, 4, 1e-9]], dtype=np.float32)
    assert wrong(close_to({"Y": want}, rtol=0.1, atol=0.01), Y=got) == (
        "output 'Y': 2 of 6 are beyond the tolerance (rtol 0.1, atol 0.01), worst at [1, 1]: 4.0, expected 0.0"
    )
    assert wrong(equal_to({"Y": want}), Y=got) == "output 'Y': 3 of 6 differ, worst at [1, 1]: 4.0, expected 0.0"
    # A larger difference at a large value is within. Neighbours among 64-bit integers are told apart.
    assert "1 of 2 are" in wrong(close_to({"Y": [1000.0, 1.0]}, rtol=0.1, atol=0), Y=[1090.0, 2.0])
    assert "1 of 2" in wrong(equal_to({"Y": np.array([2**63 - 1, -(2**63)])}), Y=np.array([2**63 - 2, -(2**63)]))


@pytest.mark.parametrize(
    ("got", "want", "words"),
    [
        ([math.nan], [1.0], "worst at [0]: nan, expected 1.0"),
        ([math.inf], [-math.inf], "worst at [0]: inf, expected -inf"),
        ([1e30, math.nan], [1.0, 1.0], "2 of 2 are beyond the tolerance (rtol 0.1, atol 0.5), worst at [1]: nan"),
        (np.zeros((2, 1)), np.zeros(2), "shape [2, 1], expected [2]"),
        (np.zeros(2, dtype="f4"), np.zeros(2, dtype="f8"), "float32, expected float64"),
        (np.array([b"a"], dtype=object), np.zeros(1), "strings, expected float64"),
        (np.array([b"a", b"bc"], dtype=object), ["a", "b"], "1 of 2 differ, worst at [1]: b'bc', expected b'b'"),
        (np.array([True]), [False], "1 of 1 differ, worst at [0]: True, expected False"),
        (np.float32(3), 4, "worst at []: 3.0, expected 4"),
    ],
)
def test_what_is_not_close_is_wrong(got: object, want: object, words: str) -> None:
    """A value without a distance does not match; there is no broadcast or conversion; strings have no tolerance."""
    assert words in wrong(close_to({"Y": want}, rtol=0.1, atol=0.5), Y=got)
    assert not wrong(close_to({"Y": got}), Y=got)


def test_only_what_was_said_is_compared() -> None:
    """Every named output counts, with its earlier values, and no other; a list has no datatype or byte order."""
    want = np.array([1.5], dtype=">f4")
    comparator = equal_to({"Y": want})
    want[0] = 2
    assert not wrong(comparator, Y=np.array([1.5], dtype=np.float32), Z=[2])
    assert not wrong(equal_to({"Y": [1, 2]}), Y=np.array([1, 2], dtype=np.float32))
    assert wrong(equal_to({"X": [1]}), Y=[1], Z=[2]) == "output 'X' is missing; found 'Y', 'Z'"


def test_an_unreadable_answer_is_no_pass() -> None:
    """It is a wrong answer, in the words of the reader, through the check that the load uses."""
    said = check_answer(equal_to({"Y": [1]}), b'{"error": "out of memory"}')
    assert (said or "").startswith("ValueError: the server's error: out of memory")


@pytest.mark.parametrize("tolerance", [-1.0, math.nan, math.inf, "1", True, None])
def test_a_tolerance_under_which_all_is_right_is_refused(tolerance: Any) -> None:  # noqa: ANN401 -- on purpose
    """A comparator without outputs is refused too."""
    for name in ("rtol", "atol"):
        with pytest.raises(UsageProblem, match="finite number"):
            close_to({"Y": [1]}, **{name: tolerance})
    with pytest.raises(UsageProblem, match="name at least one output"):
        equal_to({})
