"""KServe v2, the protocol of Triton: requests by tritonclient, over HTTP and gRPC, and answers as arrays.

`close_to` and `equal_to` compare answers: values of a request's ``expect=``.

tritonclient and numpy are imported only when a request is made, because every pytest run loads the plugin.
"""

from __future__ import annotations

import json
import math
import os
import struct
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias
from urllib.parse import quote

from pytest_gpuserve.errors import UsageProblem, import_extra
from pytest_gpuserve.load.request import Request
from pytest_gpuserve.load.wire import unwritten
from pytest_gpuserve.process.logs import begin_of, excerpt

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pytest_gpuserve.load.request import Expect

Array: TypeAlias = Any
"""A numpy array. Its own name would make type checkers need numpy."""

Tensors: TypeAlias = dict[str, Array]
"""Arrays by the names of inputs or outputs; strings are object arrays of ``bytes``."""

HEADER_LENGTH: Final = "Inference-Header-Content-Length"
RPC: Final = "/inference.GRPCInferenceService/ModelInfer"


extra: Final = partial(import_extra, what="KServe v2")


class Place(NamedTuple):
    """A range of a shared-memory region; size and offset in bytes."""

    region: str
    byte_size: int
    offset: int


@dataclass(frozen=True)
class Inference:
    """An inference, before a protocol is chosen; without ``outputs`` it returns all.

    ``places`` are the tensors' ranges in shared memory, by ``input`` or ``output`` and the name.
    """

    model: str
    inputs: Tensors
    outputs: tuple[str, ...] = ()
    version: str = ""
    request_id: str = ""
    parameters: Mapping[str, bool | int | float | str] = field(default_factory=dict)
    places: Mapping[tuple[str, str], Place] = field(default_factory=dict)


def tensors_of(whose: str, values: Mapping[str, object]) -> Tensors:
    """Make arrays from arrays or nested lists of numbers or strings, by name; ``whose`` is for messages.

    Lists of Python's integers are INT64, of floats FP64, of ``str`` (as UTF-8) or ``bytes`` BYTES. Raises UsageProblem
    for values without a datatype in KServe v2.
    """
    tensors = {}
    for name, given in values.items():
        try:
            tensors[name] = _array(given)
        except (ValueError, TypeError) as problem:
            what = f"{whose} {name!r} is not an array of one of KServe's datatypes"
            raise UsageProblem(what, found=str(problem)) from None
    return tensors


def _array(given: object) -> Array:
    np = extra("numpy")
    array = np.asarray(given)
    if array.dtype.kind in "SUO":
        # From the given value, because numpy's own strings lose zero bytes at their end.
        array = np.array(given, dtype=object, order="C")
        array.flat = [each.encode() if isinstance(each, str) else each for each in array.flat]
        if not all(isinstance(each, bytes) for each in array.flat):
            raise TypeError("strings and others")
    array = array.astype(array.dtype.newbyteorder("="))
    if datatype_of(array) is None:
        raise TypeError(f"it is of {array.dtype}")
    return array


def datatype_of(array: Array) -> str | None:
    """KServe's name for an array's datatype; None if it has none."""
    found: str | None = extra("tritonclient.utils").np_to_triton_dtype(array.dtype)
    return found


def raw_bytes(array: Array) -> bytes:
    """Bytes of an array in a request."""
    if array.dtype.kind == "O":
        array = extra("tritonclient.utils").serialize_byte_tensor(array)
        return bytes(array.item()) if array.size else b""
    return bytes(array.tobytes())


def http_request(inference: Inference, expect: Expect | None = None) -> Request:
    """Make the HTTP request of an inference, with binary inputs and outputs."""
    client = extra("tritonclient.http")
    inputs = [
        client.InferInput(name, list(each.shape), datatype_of(each)).set_data_from_numpy(each)
        for name, each in inference.inputs.items()
    ]
    outputs = [client.InferRequestedOutput(name) for name in inference.outputs]
    for (kind, name), place in inference.places.items():
        entry = next(each for each in {"input": inputs, "output": outputs}[kind] if each.name() == name)
        entry.set_shared_memory(*place)
    # tritonclient has separate arguments for these.
    known = {"sequence_id", "sequence_start", "sequence_end", "priority", "timeout"} & inference.parameters.keys()
    arguments: dict[str, Any] = {key: inference.parameters[key] for key in known}
    others = {key: value for key, value in inference.parameters.items() if key not in known}
    make = client.InferenceServerClient.generate_request_body
    try:
        body, length = make(inputs, outputs, inference.request_id, parameters=others, **arguments)
    except client.InferenceServerException as problem:
        raise UsageProblem(f"an inference of {inference.model} cannot be sent", found=str(problem)) from None
    version = f"/versions/{quote(inference.version, safe='')}" if inference.version else ""
    path = f"/v2/models/{quote(inference.model, safe='')}{version}/infer"
    headers = {"Content-Type": "application/octet-stream", HEADER_LENGTH: str(length or len(body))}
    return Request("POST", path, body, headers, expect)


def grpc_message(inference: Inference) -> bytes:
    """Serialise the ``ModelInferRequest`` of an inference, with raw inputs."""
    request = extra("tritonclient.grpc.service_pb2").ModelInferRequest(
        model_name=inference.model, model_version=inference.version, id=inference.request_id
    )
    for key, value in inference.parameters.items():
        kind = {bool: "bool", str: "string", float: "double"}.get(type(value), "int64")
        # The one parameter that Triton wants as an unsigned number.
        setattr(request.parameters[key], f"{'uint64' if key == 'priority' else kind}_param", value)
    for name, array in inference.inputs.items():
        request.inputs.add(name=name, datatype=datatype_of(array), shape=array.shape)
        if ("input", name) not in inference.places:
            request.raw_input_contents.append(raw_bytes(array))
    for name in inference.outputs:
        request.outputs.add(name=name)
    for (kind, name), place in inference.places.items():
        entry = next(each for each in getattr(request, f"{kind}s") if each.name == name)
        entry.parameters["shared_memory_region"].string_param = place.region
        entry.parameters["shared_memory_byte_size"].int64_param = place.byte_size
        entry.parameters["shared_memory_offset"].int64_param = place.offset
    message: bytes = request.SerializeToString()
    return message


def decode_answer(body: bytes, places: Mapping[str, bytes] | None = None) -> Tensors:
    """Read the tensors of an answer of either protocol: JSON begins with a brace, and no message does.

    ``places`` has the server's outputs in shared memory, by name; None if answers carry their data. Raises ValueError
    with one line if the answer is invalid, or is the server's error.
    """
    to_dtype = extra("tritonclient.utils").triton_to_np_dtype
    try:
        result, outputs, carries = _read_http(body) if body[:1] == b"{" else _read_grpc(body)
        wrong = [each for each in outputs if to_dtype(each[1]) is None or min(each[2], default=0) < 0]
        found = f"outputs that KServe v2 lacks: {wrong}"
        if places is not None and carries:
            found = "an output came in the answer, not through shared memory"
        elif not wrong:
            read = result.as_numpy if places is None else partial(_left, places, {each[0]: each for each in outputs})
            return tensors_of("output", {name: read(name) for name, *_ in outputs})
    except Exception as problem:  # noqa: BLE001 -- whatever reading something else comes to
        found = str(problem) if type(problem) is ValueError else f"not an answer of KServe v2: {problem!r}"
    raise ValueError(one_line(found))


def _read_http(body: bytes) -> tuple[Any, list[tuple[str, str, list[int]]], bool]:
    """Result of tritonclient, its outputs' names, datatypes and shapes, and whether it has data."""
    # The end of the JSON is unknown. It is scanned as Latin-1, where every byte is a character, and read as UTF-8.
    _, end = json.JSONDecoder().raw_decode(body.decode("latin-1"))
    header = json.loads(body[:end])
    if "error" in header:
        raise ValueError(f"the server's error: {header['error']}")
    outputs = header.get("outputs")
    if not outputs:
        raise ValueError(f"an answer without outputs: {header}")
    sizes = [each.get("parameters", {}).get("binary_data_size") or 0 for each in outputs]
    # A server may pad its JSON with blanks.
    start = len(body) - sum(sizes)
    if start < end or body[end:start].strip() or min(sizes, default=0) < 0:
        raise ValueError(f"the outputs announce {sum(sizes)} bytes, {len(body) - end} follow")
    result = extra("tritonclient.http").InferResult.from_response_body(body, header_length=start)
    told = [(each["name"], each["datatype"], each["shape"]) for each in outputs]
    return result, told, start < len(body) or any("data" in each for each in outputs)


def _read_grpc(body: bytes) -> tuple[Any, list[tuple[str, str, list[int]]], bool]:
    try:
        response = extra("tritonclient.grpc.service_pb2").ModelInferResponse.FromString(body)
    except extra("google.protobuf.message").DecodeError:
        raise ValueError(f"not an answer of KServe v2: {begin_of(body)!r}") from None
    told = [(each.name, each.datatype, list(each.shape)) for each in response.outputs]
    if not told:
        raise ValueError(f"an answer without outputs: {begin_of(body)!r}")
    # For an output in shared memory Triton sends an empty one, or none.
    return extra("tritonclient.grpc").InferResult(response), told, any(response.raw_output_contents)


def _left(places: Mapping[str, bytes], told: Mapping[str, tuple[str, str, list[int]]], name: str) -> Array:
    """Read an output from the begin of its place in shared memory."""
    np, utils = extra("numpy"), extra("tritonclient.utils")
    (_, datatype, shape), place = told[name], places[name]
    count, end = math.prod(shape), 0
    if count and place == unwritten(len(place)):
        raise ValueError(f"output {name!r} was not written to its place in shared memory")
    if datatype != "BYTES":
        return np.frombuffer(place, utils.triton_to_np_dtype(datatype), count).reshape(shape)
    for _ in range(count):
        end += 4 + struct.unpack_from("<I", place, end)[0]
    return utils.deserialize_bytes_tensor(place[:end]).reshape(shape)


def one_line(text: str) -> str:
    """Make a line of bounded length from any text, without this process's secrets."""
    return " ".join(excerpt(text, os.environ, most=320).split())


@dataclass(frozen=True)
class Comparator:
    """Called with an answer's body: True if it is right, AssertionError in one line if it is not.

    `close_to` and `equal_to` make it. It compares only the outputs that it names; those in ``typed`` by datatype too.
    """

    outputs: Mapping[str, Array]
    typed: frozenset[str]
    rtol: float
    atol: float
    decode: Callable[[bytes], Tensors] = decode_answer

    def __call__(self, body: bytes) -> bool:
        """Compare; also raises the errors of ``decode``."""
        tensors = self.decode(body)
        for name, want in self.outputs.items():
            if name not in tensors:
                raise AssertionError(f"output {name!r} is missing; found {', '.join(map(repr, sorted(tensors)))}")
            problem = self._compare(tensors[name], want, typed=name in self.typed)
            if problem:
                raise AssertionError(f"output {name!r}: {problem}")
        return True

    def _compare(self, got: Array, want: Array, *, typed: bool) -> str:
        np = extra("numpy")
        if got.shape != want.shape:
            return f"shape {list(got.shape)}, expected {list(want.shape)}"
        kinds = ["strings" if array.dtype.kind == "O" else str(array.dtype) for array in (got, want)]
        if kinds[0] != kinds[1] and (typed or "strings" in kinds):
            return f"{kinds[0]}, expected {kinds[1]}"
        exact = self.rtol == self.atol == 0 or want.dtype.kind in "Ob"
        with np.errstate(all="ignore"):
            equal = (got == want) | ((got != got) & (want != want))  # noqa: PLR0124 -- NaN alone differs from itself
            right = equal if exact else equal | np.isclose(got, want, self.rtol, self.atol)
            if right.all():
                return ""
            # 64-bit integers are exact in a long double, and their differences do not wrap around.
            one, other = (np.zeros(got.shape) if kinds[0] == "strings" else each.astype("g") for each in (got, want))
            beyond = abs(one - other) - self.atol - self.rtol * abs(other)
            worst = np.unravel_index(int(np.argmax(np.where(right, -1, np.nan_to_num(beyond, nan=np.inf)))), got.shape)
        what = "differ" if exact else f"are beyond the tolerance (rtol {self.rtol:g}, atol {self.atol:g})"
        return (
            f"{int((~right).sum())} of {got.size} {what}, worst at [{', '.join(map(str, worst))}]:"
            f" {got[worst]!s:.50}, expected {want[worst]!s:.50}"
        )


def close_to(expected: Mapping[str, object], *, rtol: float = 1e-5, atol: float = 1e-8) -> Comparator:
    """Compare the answer's tensors with these, by name: ``|got - expected| <= atol + rtol * |expected|``.

    The formula and its defaults are those of ``numpy.isclose``. NaN is close only to NaN, an infinity only to itself;
    strings and truth values must be equal. Shapes must be equal. Datatypes must be equal if an array is given, but not
    for a plain list. Raises UsageProblem if nothing would be compared, or anything would be right.
    """
    for tolerance in (rtol, atol):
        if type(tolerance) not in {int, float} or not 0 <= tolerance < float("inf"):
            raise UsageProblem(
                "close_to(rtol=..., atol=...): each must be a finite number, 0 or more", found=repr(tolerance)
            )
    if not expected:
        raise UsageProblem('name at least one output, as in close_to({"OUTPUT": array})', found=repr(expected))
    typed = frozenset(name for name, values in expected.items() if hasattr(values, "dtype"))
    # This copies the arrays, so that later changes do not affect the test's expectation.
    return Comparator(tensors_of("expected output", expected), typed, rtol, atol)


def equal_to(expected: Mapping[str, object]) -> Comparator:
    """Compare the answer's tensors with these, each element exactly; see `close_to`."""
    return close_to(expected, rtol=0.0, atol=0.0)
