"""KServe v2, the protocol of Triton: tensors to requests, each made once, and answers back to tensors.

HTTP with the binary tensor extension is here, gRPC in ``kserve_grpc``, arrays in ``kserve_arrays``; both protocols
take an ``Inference``. Sources: the "Open Inference Protocol" of KServe, and the extensions "binary tensor data" and
"shared memory" of Triton's documentation. numpy is imported when a tensor is made, not before: every pytest run of an
environment loads the plugin.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.load.kserve_arrays import (
    LENGTH,
    NUMPY,
    as_array,
    datatype_of,
    described,
    from_raw,
    from_values,
    one_line,
    shown,
)
from pytest_gpuserve.load.request import Request
from pytest_gpuserve.process.logs import begin_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_gpuserve.load.kserve_arrays import Tensors
    from pytest_gpuserve.load.request import Expect


HEADER_LENGTH: Final = "Inference-Header-Content-Length"


_SCANNER: Final = json.JSONDecoder()
_OURS: Final = "binary_data_output"


@dataclass(frozen=True, slots=True)
class Place:
    """A stretch of a shared-memory region that the server knows by name; offset and size in bytes."""

    region: str
    offset: int
    byte_size: int


@dataclass(frozen=True, slots=True)
class Input:
    """An input tensor as it is sent: its bytes in row-major order, or where they lie."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: bytes | Place


@dataclass(frozen=True, slots=True)
class Output:
    """An output that is asked for; with a place, the server leaves it there instead of sending it."""

    name: str
    place: Place | None = None


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
    inputs: tuple[Input, ...]
    outputs: tuple[Output, ...] = ()
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


def inputs_of(tensors: Mapping[str, object]) -> tuple[Input, ...]:
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


def _input(name: str, values: object) -> Input:
    what = f"input {name!r}"
    array = as_array(what, values)
    datatype = datatype_of(what, array)
    if datatype == "BYTES":
        items = array.reshape(-1).tolist()
        data = b"".join(part for item in items for part in (LENGTH.pack(len(item)), item))
    else:
        code = NUMPY.get(datatype)
        data = (array.astype(code, copy=False) if code else array).tobytes()
    return Input(name, datatype, tuple(array.shape), data)


def _http_input(tensor: Input) -> dict[str, object]:
    place = tensor.data
    parameters = {"binary_data_size": len(place)} if isinstance(place, bytes) else _http_place(place)
    return {"name": tensor.name, "shape": tensor.shape, "datatype": tensor.datatype, "parameters": parameters}


def _http_output(output: Output) -> dict[str, object]:
    parameters = {"binary_data": True} if output.place is None else _http_place(output.place)
    return {"name": output.name, "parameters": parameters}


def _http_place(place: Place) -> dict[str, object]:
    return {
        "shared_memory_region": place.region,
        "shared_memory_offset": place.offset,
        "shared_memory_byte_size": place.byte_size,
    }
