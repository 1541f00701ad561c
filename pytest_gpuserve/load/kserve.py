"""KServe v2, the protocol of Triton: tensors to requests, each made once, and answers back to tensors.

HTTP with the binary tensor extension is here, gRPC in ``kserve_grpc``, arrays in ``kserve_arrays``; both protocols
take an ``Inference``. Sources: the "Open Inference Protocol" of KServe, and the extensions "binary tensor data" and
"shared memory" of Triton's documentation. numpy is imported when a tensor is made, not before: every pytest run of an
environment loads the plugin.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import quote

from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.load.request import Request
from pytest_gpuserve.process.logs import begin_of, excerpt

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pytest_gpuserve.load.request import Expect

_SHOWN: Final = 320

Array: TypeAlias = Any
"""A numpy array. Not by its own name, which type checkers alone would need numpy for."""


Tensors: TypeAlias = dict[str, Array]
"""Arrays by the names of the outputs."""


NUMPY: Final = {
    "BOOL": "?",
    "INT8": "<i1",
    "INT16": "<i2",
    "INT32": "<i4",
    "INT64": "<i8",
    "UINT8": "<u1",
    "UINT16": "<u2",
    "UINT32": "<u4",
    "UINT64": "<u8",
    "FP16": "<f2",
    "FP32": "<f4",
    "FP64": "<f8",
}
"""KServe's datatypes and numpy's. ``BYTES`` is an array of ``bytes`` objects; ``BF16``, which numpy lacks, is read as
float32 and sent from arrays of ``ml_dtypes.bfloat16``."""


LENGTH: Final = struct.Struct("<I")


def extra(module: str) -> Any:  # noqa: ANN401 -- a module, whose names a checker cannot know
    """Import what comes with the extra ``triton``.

    Raises:
        UsageProblem: It is not there, or does not go with what else is installed.
    """
    try:
        return importlib.import_module(module)
    except Exception as problem:
        # tritonclient raises RuntimeError for a missing grpcio, protobuf errors of its own for a wrong version.
        raise UsageProblem(
            f"tensors of KServe v2 need {module.partition('.')[0]}",
            found=f"{type(problem).__name__}: {problem}",
            remedies=["pip install 'pytest-gpuserve[triton]'"],
        ) from problem


def as_array(what: str, values: object) -> Array:
    """Return values as an array of one of KServe's datatypes; strings become an object array of ``bytes``.

    Raises:
        UsageProblem: There is none for them; ``what`` says whose values they are.
    """
    np = extra("numpy")
    try:
        array = np.asarray(values)
        if array.dtype.kind in "SU" and not isinstance(values, np.ndarray):
            # numpy's own strings lose zero bytes at their end.
            array = np.array(values, dtype=object)
    except (ValueError, TypeError) as problem:
        raise UsageProblem(f"{what} is no array: its rows differ in length", found=str(problem)) from problem
    if array.dtype.kind not in "SUO":
        datatype_of(what, array)
        return array
    strings = np.empty(array.shape, dtype=object)
    strings.reshape(-1)[:] = [_string(what, item) for item in array.reshape(-1).tolist()]
    return strings


def described(name: object, datatype: object, shape: object, before: Tensors) -> tuple[str, str, tuple[int, ...]]:
    """Check how an answer describes an output, against those before it too.

    Raises:
        ValueError: It is no description of a tensor.
    """
    if not isinstance(name, str) or name in before:
        raise ValueError(f"an output named {one_line(repr(name))}{' twice' if isinstance(name, str) else ''}")
    if not isinstance(datatype, str) or datatype not in {*NUMPY, "BYTES", "BF16"}:
        raise ValueError(f"output {shown(name)} has the datatype {one_line(repr(datatype))}, which KServe v2 lacks")
    if not isinstance(shape, list) or not all(type(size) is int and size >= 0 for size in shape):
        raise ValueError(f"output {shown(name)} has the shape {one_line(repr(shape))}")
    return name, datatype, tuple(shape)


def from_raw(name: str, datatype: str, shape: tuple[int, ...], raw: bytes) -> Array:
    """Read a tensor from exactly its bytes.

    Raises:
        ValueError: There are fewer or more.
    """
    need = _byte_size(name, datatype, shape, raw)
    if need != len(raw):
        raise ValueError(f"output {shown(name)} of {datatype} {list(shape)} takes {need} bytes, not {len(raw)}")
    np = extra("numpy")
    if datatype == "BYTES":
        array = np.empty(math.prod(shape), dtype=object)
        array[:] = list(_strings(raw))
    elif datatype == "BF16":
        # The upper half of a float32.
        array = (np.frombuffer(raw, dtype="<u2").astype("<u4") << 16).view("<f4")
    elif datatype == "BOOL":
        array = np.frombuffer(raw, dtype="u1") != 0
    else:
        array = np.frombuffer(raw, dtype=NUMPY[datatype])
    return _shaped(name, array, shape)


def from_values(name: str, datatype: str, shape: tuple[int, ...], values: object) -> Array:
    """Read a tensor from a list of its values, nested or flat.

    Raises:
        ValueError: There are fewer or more, or one is not of the datatype.
    """
    np = extra("numpy")
    flat = list(_flat(values))
    if len(flat) != math.prod(shape):
        raise ValueError(f"output {shown(name)} of shape {list(shape)} has {len(flat)} values")
    wrong = next((value for value in flat if not _is_of(datatype, value)), None)
    if wrong is not None or None in flat:
        raise ValueError(f"output {shown(name)} of {datatype} has the value {one_line(repr(wrong))}")
    if datatype == "BYTES":
        array = np.empty(len(flat), dtype=object)
        array[:] = [value.encode() if isinstance(value, str) else value for value in flat]
    else:
        with np.errstate(all="ignore"):
            array = _numbers(np, name, flat, NUMPY.get(datatype, "<f4"))
    return _shaped(name, array, shape)


def from_place(name: str, datatype: str, shape: tuple[int, ...], place: bytes) -> bytes:
    """Return the bytes of a tensor, which stand at the beginning of its place in shared memory.

    Raises:
        ValueError: It does not fit into it.
    """
    need = _byte_size(name, datatype, shape, place)
    if need > len(place):
        raise ValueError(f"output {shown(name)} of {datatype} {list(shape)} takes {need} bytes; it has {len(place)}")
    return place[:need]


def shown(name: str) -> str:
    """Quote a name for a message of one line."""
    return one_line(repr(name))


def one_line(text: str) -> str:
    """Make a line of bounded length of any text; of a longer one the begin, without this process's secrets."""
    return " ".join((text if len(text) <= _SHOWN else excerpt(text, os.environ, most=_SHOWN)).split())


def datatype_of(what: str, array: Array) -> str:
    """Return KServe's name for an array's datatype.

    Raises:
        UsageProblem: It has none.
    """
    if array.dtype.kind == "O":
        return "BYTES"
    if array.dtype.name == "bfloat16":
        return "BF16"
    for datatype, code in NUMPY.items():
        if array.dtype.str[1:] == extra("numpy").dtype(code).str[1:]:
            return datatype
    raise UsageProblem(
        f"{what} is of {array.dtype}, which KServe v2 lacks", remedies=[f"convert it to one of {', '.join(NUMPY)}"]
    )


def _string(what: str, item: object) -> bytes:
    if isinstance(item, bytes):
        return item
    if isinstance(item, str):
        return item.encode()
    raise UsageProblem(f"{what} is made of strings or of numbers, not with {item!r} among others")


def _byte_size(name: str, datatype: str, shape: tuple[int, ...], raw: bytes) -> int:
    """Bytes of a tensor; of strings, which say their lengths themselves, as they begin in ``raw``."""
    count = math.prod(shape)
    if datatype == "BF16":
        return 2 * count
    if datatype != "BYTES":
        return count * int(NUMPY[datatype][-1].replace("?", "1"))
    end = 0
    for _ in range(count):
        if end + LENGTH.size > len(raw):
            raise ValueError(f"output {shown(name)} of BYTES {list(shape)} has fewer strings than that")
        end += LENGTH.size + LENGTH.unpack_from(raw, end)[0]
    return end


def _strings(raw: bytes) -> Iterator[bytes]:
    begin = 0
    while begin < len(raw):
        end = begin + LENGTH.size + LENGTH.unpack_from(raw, begin)[0]
        yield raw[begin + LENGTH.size : end]
        begin = end


def _flat(values: object) -> Iterator[object]:
    """All values of nested lists in order, however deep."""
    levels = [iter(values if isinstance(values, list) else [values])]
    while levels:
        for value in levels[-1]:
            if isinstance(value, list):
                levels.append(iter(value))
                break
            yield value
        else:
            levels.pop()


def _is_of(datatype: str, value: object) -> bool:
    if datatype == "BYTES":
        return isinstance(value, (str, bytes))
    if datatype == "BOOL":
        return isinstance(value, bool)
    return isinstance(value, int if "INT" in datatype else (int, float)) and not isinstance(value, bool)


def _numbers(np: Any, name: str, flat: Sequence[Any], code: str) -> Array:  # noqa: ANN401 -- numpy, a module
    dtype = np.dtype(code)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        wrong = next((value for value in flat if not limits.min <= value <= limits.max), None)
        if wrong is not None:
            raise ValueError(f"output {shown(name)} has the value {one_line(str(wrong))}, beyond {dtype}")
    try:
        return np.array(flat, dtype=dtype)
    except OverflowError:
        raise ValueError(f"output {shown(name)} has a value beyond {dtype}") from None


def _shaped(name: str, array: Array, shape: tuple[int, ...]) -> Array:
    try:
        return array.reshape(shape)
    except (ValueError, OverflowError) as problem:
        raise ValueError(f"output {shown(name)} has a shape that no array can have: {one_line(str(problem))}") from None


HEADER_LENGTH: Final = "Inference-Header-Content-Length"


_SCANNER: Final = json.JSONDecoder()
_OURS: Final = "binary_data_output"


@dataclass(frozen=True, slots=True)
class RegionSlice:
    """A stretch of a shared-memory region that the server knows by name; offset and size in bytes."""

    region: str
    offset: int
    byte_size: int


@dataclass(frozen=True, slots=True)
class InputTensor:
    """An input tensor as it is sent: its bytes in row-major order, or where they lie."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: bytes | RegionSlice


@dataclass(frozen=True, slots=True)
class OutputRequest:
    """An output that is asked for; with a place, the server leaves it there instead of sending it."""

    name: str
    place: RegionSlice | None = None


@dataclass(frozen=True, slots=True)
class Inference:
    """One inference, before a protocol is chosen.

    Args:
        model: The model's name.
        inputs: One at least; ``inputs_of`` makes them from arrays.
        outputs: Which outputs to return; empty for all.
        version: Empty leaves it to the server.
        request_id: Comes back with the answer; empty for none.
        parameters: Of the request, such as ``{"sequence_id": 7}``.

    Raises:
        UsageProblem: A part cannot stand in such a request.
    """

    model: str
    inputs: tuple[InputTensor, ...]
    outputs: tuple[OutputRequest, ...] = ()
    version: str = ""
    request_id: str = ""
    parameters: Mapping[str, bool | int | float | str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("model", "version", "request_id"):
            if not isinstance(getattr(self, name), str):
                raise UsageProblem(f"{name}= of an inference is a text, not {getattr(self, name)!r}")
        if not self.model:
            raise UsageProblem("model= of an inference is a name, and not empty")
        if not self.inputs:
            raise UsageProblem(f"an inference of {self.model} has one input at least")
        _check_names("input", [tensor.name for tensor in self.inputs])
        _check_names("output", [output.name for output in self.outputs])
        for key, value in self.parameters.items():
            _check_parameter(key, value)


def inputs_of(tensors: Mapping[str, object]) -> tuple[InputTensor, ...]:
    """Serialise named arrays, or nested lists of numbers or strings, as inputs.

    Lists of Python's integers are INT64, of floats FP64, of ``str`` (as UTF-8) or ``bytes`` BYTES.

    Raises:
        UsageProblem: A value has no datatype in KServe v2.
    """
    return tuple(_input(name, values) for name, values in tensors.items())


def http_request(inference: Inference, expect: Expect | None = None) -> Request:
    """Make the HTTP request of an inference, with binary inputs, which asks for binary outputs."""
    header: dict[str, object] = {}
    if inference.request_id:
        header["id"] = inference.request_id
    header["inputs"] = [_http_input(tensor) for tensor in inference.inputs]
    parameters = dict(inference.parameters)
    if inference.outputs:
        header["outputs"] = [_http_output(output) for output in inference.outputs]
    else:
        parameters[_OURS] = True
    if parameters:
        header["parameters"] = parameters
    text = json.dumps(header, separators=(",", ":"), allow_nan=False).encode("ascii")
    version = f"/versions/{quote(inference.version, safe='')}" if inference.version else ""
    return Request(
        "POST",
        f"/v2/models/{quote(inference.model, safe='')}{version}/infer",
        b"".join([text, *(tensor.data for tensor in inference.inputs if isinstance(tensor.data, bytes))]),
        {"Content-Type": "application/octet-stream", HEADER_LENGTH: str(len(text))},
        expect,
    )


def decode_http(body: bytes) -> Tensors:
    """Read the tensors of an HTTP answer.

    Raises:
        ValueError: It is not such an answer, or the server's error; the text is one line.
    """
    header, end = http_header(body)
    outputs = header["outputs"]
    sizes = [binary_size(output) for output in outputs]
    # A server may pad its JSON with blanks.
    start = len(body) - sum(size or 0 for size in sizes)
    if start < end or body[end:start].strip():
        raise ValueError(f"the outputs announce {len(body) - start} bytes, {len(body) - end} follow")
    tensors: Tensors = {}
    for output, size in zip(outputs, sizes, strict=True):
        name, datatype, shape = described(output.get("name"), output.get("datatype"), output.get("shape"), tensors)
        if size is not None:
            tensors[name] = from_raw(name, datatype, shape, body[start : start + size])
            start += size
        elif "data" in output:
            tensors[name] = from_values(name, datatype, shape, output["data"])
        else:
            raise ValueError(f"output {shown(name)} has no data")
    return tensors


def http_header(body: bytes) -> tuple[dict[str, Any], int]:
    """Read the JSON that an HTTP answer begins with, which names one output at least, and where it ends.

    The answer's own header that says where its JSON ends is not needed: JSON ends where it ends.

    Raises:
        ValueError: It is not such an answer, or the server's error; the text is one line.
    """
    if body[:1] != b"{":
        raise ValueError(f"no answer of KServe v2: {one_line(repr(begin_of(body)))}")
    try:
        # Scanned as Latin-1, where every byte is a character and offsets are the same; read as UTF-8.
        _, end = _SCANNER.raw_decode(body.decode("latin-1"))
        header: dict[str, Any] = json.loads(body[:end].decode())
    except (ValueError, RecursionError) as problem:
        raise ValueError(f"no answer of KServe v2: {one_line(str(problem))}") from None
    if "error" in header:
        raise ValueError(f"the server's error: {one_line(str(header['error']))}")
    outputs = header.get("outputs")
    if not isinstance(outputs, list) or not outputs:
        raise ValueError(f"an answer without outputs: {one_line(str(header))}")
    return header, end


def binary_size(output: object) -> int | None:
    """Return the bytes that an output of an answer has after the JSON, None if it has none there.

    Raises:
        ValueError: It is no output, or announces something else than a size.
    """
    if not isinstance(output, dict):
        raise ValueError(f"an output is no object: {one_line(repr(output))}")  # noqa: TRY004 -- a bad answer
    parameters = output.get("parameters")
    size = parameters.get("binary_data_size") if isinstance(parameters, dict) else None
    if size is not None and (type(size) is not int or size < 0):
        raise ValueError(f"an output announces {one_line(repr(size))} bytes")
    return size


def _check_names(kind: str, names: Sequence[object]) -> None:
    for name in names:
        if not isinstance(name, str) or not name or names.count(name) > 1:
            raise UsageProblem(f"each {kind} of an inference has a name of its own, unlike {name!r}")


def _check_parameter(key: str, value: object) -> None:
    what = f"parameter {key!r} of an inference"
    if key == _OURS:
        raise UsageProblem(f"{what} is set by the load engine", remedies=["leave it out of parameters={...}"])
    if not isinstance(value, (bool, int, float, str)) or (isinstance(value, float) and not math.isfinite(value)):
        raise UsageProblem(f"{what} is a truth value, a finite number or a text, not {value!r}")
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise UsageProblem(f"{what} is a number of 64 bits with a sign, not {value}")


def _input(name: str, values: object) -> InputTensor:
    what = f"input {name!r}"
    array = as_array(what, values)
    datatype = datatype_of(what, array)
    if datatype == "BYTES":
        items = array.reshape(-1).tolist()
        data = b"".join(part for item in items for part in (LENGTH.pack(len(item)), item))
    else:
        code = NUMPY.get(datatype)
        data = (array.astype(code, copy=False) if code else array).tobytes()
    return InputTensor(name, datatype, tuple(array.shape), data)


def _http_input(tensor: InputTensor) -> dict[str, object]:
    place = tensor.data
    parameters = {"binary_data_size": len(place)} if isinstance(place, bytes) else _http_place(place)
    return {"name": tensor.name, "shape": tensor.shape, "datatype": tensor.datatype, "parameters": parameters}


def _http_output(output: OutputRequest) -> dict[str, object]:
    parameters = {"binary_data": True} if output.place is None else _http_place(output.place)
    return {"name": output.name, "parameters": parameters}


def _http_place(place: RegionSlice) -> dict[str, object]:
    return {
        "shared_memory_region": place.region,
        "shared_memory_offset": place.offset,
        "shared_memory_byte_size": place.byte_size,
    }
