"""KServe v2 bodies in the worker: from requests to named byte ranges, and from outputs to an answer.

JSON comes first, then the tensors' bytes in its order ("binary tensor data" of Triton's documentation). The client's
code is ``load/kserve.py``. This module uses neither numpy nor torch, and its errors are texts for the client.
"""

from __future__ import annotations

import json
import math
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

ITEM_BYTES: Final = {
    "BOOL": 1,
    "UINT8": 1,
    "INT8": 1,
    "INT16": 2,
    "INT32": 4,
    "INT64": 8,
    "FP16": 2,
    "BF16": 2,
    "FP32": 4,
    "FP64": 8,
}
"""KServe's datatypes that torch has, with the bytes of an element."""

HEADER_LENGTH: Final = "Inference-Header-Content-Length"
"""HTTP header with the length of the JSON."""


class BadRequest(ValueError):
    """A request that cannot be answered; its text is for the client."""


class ModelFailed(Exception):
    """The model raised an exception for a request that fits it; the text is for the client."""


class Tensor(NamedTuple):
    """A tensor as it is in a body.

    Args:
        datatype: One of ``ITEM_BYTES``.
        shape: Its shape; of an input the first dimension is the request's batch.
        data: Its elements, little-endian, in row-major order.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: bytes | memoryview


class InferenceRequest(NamedTuple):
    """A request.

    Args:
        inputs: One or more, in the request's order, all with the same first dimension.
        outputs: Names of the requested outputs; empty for all.
        request_id: Returned with the answer; may be empty.
    """

    inputs: tuple[Tensor, ...]
    outputs: tuple[str, ...] = ()
    request_id: str = ""

    @property
    def rows(self) -> int:
        """Number of rows of its batch: one or more."""
        return self.inputs[0].shape[0]


def read_request(body: bytes, json_bytes: int) -> InferenceRequest:
    """Read a request.

    Args:
        body: The whole body.
        json_bytes: Length of the JSON at its front.

    Raises:
        BadRequest: The body is not a request, or needs a feature that a torch worker does not have.
    """
    data, begin, inputs = memoryview(body), json_bytes, []
    try:
        header = json.loads(body[:json_bytes])
        for each in header["inputs"]:
            size = _bytes_of(each["name"], each["datatype"], each["shape"], each["parameters"]["binary_data_size"])
            inputs.append(Tensor(each["name"], each["datatype"], tuple(each["shape"]), data[begin : begin + size]))
            begin += size
        outputs = tuple(_output_name(each["name"], each.get("parameters", {})) for each in header.get("outputs", ()))
        request_id = header.get("id", "")
    except BadRequest:
        raise
    except (AttributeError, LookupError, RecursionError, TypeError, ValueError) as problem:
        raise BadRequest(f"not a request of KServe v2 with tensors as bytes after its JSON: {problem!r}") from None
    if begin != len(body):
        raise BadRequest(f"the inputs announce {begin - json_bytes} bytes, {len(body) - json_bytes} follow the JSON")
    if not isinstance(request_id, str):
        raise BadRequest(f"the request's id is not a text: {request_id!r}")
    if not inputs or len({tensor.name for tensor in inputs}) < len(inputs):
        raise BadRequest("a request needs inputs, each with a name of its own")
    if len({tensor.shape[0] for tensor in inputs}) > 1:
        shapes = ", ".join(f"{tensor.name!r} {list(tensor.shape)}" for tensor in inputs)
        raise BadRequest(f"the first dimension is the batch, and must be the same for all inputs: {shapes}")
    return InferenceRequest(tuple(inputs), outputs, request_id)


def _bytes_of(name: object, datatype: str, shape: list[int], announced: object) -> int:
    """Bytes of an input; raises BadRequest if it is invalid."""
    if not isinstance(name, str) or not name:
        raise BadRequest(f"input {name!r} needs a name")
    if datatype not in ITEM_BYTES:
        raise BadRequest(f"input {name!r} is {datatype!r}; a torch worker takes {', '.join(ITEM_BYTES)}")
    if not all(type(size) is int and size >= 0 for size in shape) or not shape or not shape[0]:
        raise BadRequest(f"input {name!r} has the shape {shape}; its first dimension is the batch, 1 or more")
    need = math.prod(shape) * ITEM_BYTES[datatype]
    if announced != need:
        raise BadRequest(f"input {name!r} of {datatype} {shape} takes {need} bytes, not {announced!r}")
    return need


def _output_name(name: object, parameters: dict[str, object]) -> str:
    """Name of a requested output; raises BadRequest if it is invalid, or the output should go to shared memory."""
    if not isinstance(name, str):
        raise BadRequest(f"the name of a requested output is not a text: {name!r}")
    if any(key.startswith("shared_memory") for key in parameters):
        raise BadRequest(f"output {name!r}: a torch worker has no shared memory")
    return name


def write_answer(model: str, outputs: Sequence[Tensor], request_id: str = "") -> tuple[int, bytes]:
    """Write the answer with these outputs; return the length of its JSON, and the whole body."""
    header = _answer_header(model, request_id, tuple((each.name, each.datatype, each.shape) for each in outputs))
    return len(header), b"".join([header, *(each.data for each in outputs)])


@lru_cache(maxsize=256)
def _answer_header(model: str, request_id: str, described: tuple[tuple[str, str, tuple[int, ...]], ...]) -> bytes:
    """The JSON of an answer, cached because most answers of a model have the same one."""
    header: dict[str, object] = {"model_name": model}
    if request_id:
        header["id"] = request_id
    header["outputs"] = [
        {
            "name": name,
            "datatype": datatype,
            "shape": shape,
            "parameters": {"binary_data_size": math.prod(shape) * ITEM_BYTES[datatype]},
        }
        for name, datatype, shape in described
    ]
    return json.dumps(header, separators=(",", ":")).encode()
