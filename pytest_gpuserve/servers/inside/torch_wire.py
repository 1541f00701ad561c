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

MAX_RANK: Final = 64
MAX_DIMENSION: Final = 1 << 62

_SCANNER: Final = json.JSONDecoder()
_FIRST_LOOK_BYTES: Final = 1 << 12
_SHOWN: Final = 80


class BadRequest(ValueError):
    """A request that cannot be answered; its text, of one line, is for the client."""


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


def read_request(body: bytes | bytearray) -> InferenceRequest:
    """Read a request.

    Raises:
        BadRequest: The body is not a request, or needs a feature that a torch worker does not have.
    """
    header, end = _header(body)
    described = header.get("inputs")
    if not isinstance(described, list) or not described:
        raise BadRequest("a request needs a list of at least one input")
    sizes = [_binary_size(each) for each in described]
    # A client may pad its JSON with blanks.
    start = len(body) - sum(sizes)
    if start < end or body[end:start].strip():
        raise BadRequest(f"the inputs announce {sum(sizes)} bytes, {len(body) - end} follow the JSON")
    data = memoryview(body)
    inputs = []
    for each, size in zip(described, sizes, strict=True):
        inputs.append(_input(each, data[start : start + size]))
        start += size
    if len({tensor.name for tensor in inputs}) < len(inputs):
        raise BadRequest("two inputs have the same name")
    if len({tensor.shape[0] for tensor in inputs}) > 1:
        shapes = ", ".join(f"{_shown(tensor.name)} {list(tensor.shape)}" for tensor in inputs)
        raise BadRequest(f"the first dimension is the batch, and must be the same for all inputs: {shapes}")
    request_id = header.get("id", "")
    if not isinstance(request_id, str):
        raise BadRequest(f"the request's id is not text: {_shown(request_id)}")
    return InferenceRequest(tuple(inputs), _outputs(header.get("outputs", [])), request_id)


def write_answer(model: str, outputs: Sequence[Tensor], request_id: str = "") -> bytes:
    """Write the answer with these outputs."""
    header = _answer_header(model, request_id, tuple((each.name, each.datatype, each.shape) for each in outputs))
    return b"".join([header, *(each.data for each in outputs)])


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


def _header(body: bytes | bytearray) -> tuple[dict[str, object], int]:
    """The JSON at the front of a body, and the place of its end."""
    if body[:1] != b"{":
        raise BadRequest(f"not a request of KServe v2: {_shown(body[:_SHOWN])}")
    look = _FIRST_LOOK_BYTES
    while True:
        # In Latin-1 every byte is a character and offsets stay. Tensors behind the JSON are not read.
        text = body[:look].decode("latin-1")
        try:
            header, end = _SCANNER.raw_decode(text)
            if not text[:end].isascii():
                header = json.loads(body[:end].decode())
        except (ValueError, RecursionError) as problem:
            if look < len(body):
                look *= 16
                continue
            raise BadRequest(f"not a request of KServe v2: {_one_line(str(problem))}") from None
        return header, end


def _binary_size(described: object) -> int:
    """Bytes of an input after the JSON."""
    if not isinstance(described, dict):
        raise BadRequest(f"an input is not an object: {_shown(described)}")
    name = described.get("name")
    parameters = described.get("parameters")
    size = parameters.get("binary_data_size") if isinstance(parameters, dict) else None
    if size is None:
        raise BadRequest(
            f"input {_shown(name)} has no binary_data_size: a torch worker takes inputs as bytes after the JSON"
        )
    if type(size) is not int or not 0 <= size < MAX_DIMENSION:
        raise BadRequest(f"input {_shown(name)} announces {_shown(size)} bytes")
    return size


def _input(described: dict[str, object], data: memoryview) -> Tensor:
    name, datatype, shape = (described.get(key) for key in ("name", "datatype", "shape"))
    if not isinstance(name, str) or not name:
        raise BadRequest(f"an input has the name {_shown(name)}")
    if not isinstance(datatype, str) or datatype not in ITEM_BYTES:
        raise BadRequest(
            f"input {_shown(name)} has the datatype {_shown(datatype)}; a torch worker takes {', '.join(ITEM_BYTES)}"
        )
    if (
        not isinstance(shape, list)
        or not 1 <= len(shape) <= MAX_RANK
        or not all(type(size) is int and 0 <= size < MAX_DIMENSION for size in shape)
    ):
        raise BadRequest(f"input {_shown(name)} has the shape {_shown(shape)}; its first dimension is the batch")
    need = math.prod(shape) * ITEM_BYTES[datatype]
    if need != len(data):
        raise BadRequest(f"input {_shown(name)} of {datatype} {shape} takes {need} bytes, not {len(data)}")
    if not shape[0]:
        raise BadRequest(f"input {_shown(name)} has the shape {shape}: the batch is empty")
    return Tensor(name, datatype, tuple(shape), data)


def _outputs(described: object) -> tuple[str, ...]:
    """Names of the requested outputs; shared memory is refused."""
    if not isinstance(described, list):
        raise BadRequest(f"outputs are not a list: {_shown(described)}")
    names = []
    for each in described:
        name = each.get("name") if isinstance(each, dict) else None
        if not isinstance(name, str) or not name or name in names:
            raise BadRequest(f"the name of a requested output is missing or repeated: {_shown(each)}")
        parameters = each.get("parameters", {})
        if isinstance(parameters, dict) and any(str(key).startswith("shared_memory") for key in parameters):
            raise BadRequest(f"output {_shown(name)}: a torch worker has no shared memory")
        names.append(name)
    return tuple(names)


def _shown(value: object) -> str:
    return _one_line(repr(value))


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 4 * _SHOWN else f"{line[: 4 * _SHOWN]}..."
