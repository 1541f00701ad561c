"""KServe v2 over gRPC: the message of a request, serialised once, and the tensors of an answer.

The messages' classes are tritonclient's, imported when the first message is made or read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pytest_gpuserve.load.kserve import (
    Inference,
    RegionSlice,
    decode_http,
    described,
    extra,
    from_raw,
    from_values,
    one_line,
)
from pytest_gpuserve.process.logs import begin_of

if TYPE_CHECKING:
    from pytest_gpuserve.load.kserve import Tensors

RPC: Final = "/inference.GRPCInferenceService/ModelInfer"

_CONTENTS: Final = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
"""Where a message has the values of a tensor that is not raw. FP16 and BF16 are always raw."""


def grpc_message(inference: Inference) -> bytes:
    """Serialise the ``ModelInferRequest`` of an inference, with raw inputs.

    Raises:
        UsageProblem: tritonclient is not there.
    """
    request = _messages().ModelInferRequest(
        model_name=inference.model, model_version=inference.version, id=inference.request_id
    )
    for key, value in inference.parameters.items():
        _set(request.parameters[key], key, value)
    for tensor in inference.inputs:
        entry = request.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        if isinstance(tensor.data, bytes):
            request.raw_input_contents.append(tensor.data)
        else:
            _point(entry, tensor.data)
    for output in inference.outputs:
        entry = request.outputs.add(name=output.name)
        if output.place is not None:
            _point(entry, output.place)
    message: bytes = request.SerializeToString()
    return message


def grpc_response(body: bytes) -> Any:  # noqa: ANN401 -- a generated class
    """Read a ``ModelInferResponse``, which names one output at least.

    Raises:
        ValueError: It is not such an answer; the text is one line.
    """
    try:
        response = _messages().ModelInferResponse.FromString(body)
    except extra("google.protobuf.message").DecodeError:
        raise ValueError(f"no answer of KServe v2: {one_line(repr(begin_of(body)))}") from None
    if not response.outputs:
        raise ValueError(f"an answer without outputs: {one_line(repr(begin_of(body)))}")
    return response


def decode_grpc(body: bytes) -> Tensors:
    """Read the tensors of a ``ModelInferResponse``.

    Raises:
        ValueError: It is not such an answer; the text is one line.
    """
    response = grpc_response(body)
    outputs, raws = response.outputs, response.raw_output_contents
    if raws and len(raws) != len(outputs):
        raise ValueError(f"{len(outputs)} outputs, but {len(raws)} raw tensors")
    tensors: Tensors = {}
    for number, output in enumerate(outputs):
        name, datatype, shape = described(output.name, output.datatype, list(output.shape), tensors)
        if raws:
            tensors[name] = from_raw(name, datatype, shape, raws[number])
        else:
            values = getattr(output.contents, _CONTENTS[datatype]) if datatype in _CONTENTS else ()
            tensors[name] = from_values(name, datatype, shape, list(values))
    return tensors


def decode_answer(body: bytes) -> Tensors:
    """Read the tensors of an answer of either protocol: JSON begins with a brace, and no message does.

    Raises:
        ValueError: It is neither; the text is one line.
    """
    return decode_http(body) if body[:1] == b"{" else decode_grpc(body)


def _messages() -> Any:  # noqa: ANN401 -- a module of generated classes
    return extra("tritonclient.grpc.service_pb2")


def _set(parameter: Any, key: str, value: bool | float | str) -> None:  # noqa: ANN401, FBT001 -- a generated class; a value
    if isinstance(value, bool):
        parameter.bool_param = value
    elif isinstance(value, str):
        parameter.string_param = value
    elif isinstance(value, float):
        parameter.double_param = value
    elif key == "priority":
        # The one parameter that Triton wants without a sign.
        parameter.uint64_param = value
    else:
        parameter.int64_param = value


def _point(entry: Any, place: RegionSlice) -> None:  # noqa: ANN401 -- a generated class
    entry.parameters["shared_memory_region"].string_param = place.region
    entry.parameters["shared_memory_offset"].int64_param = place.offset
    entry.parameters["shared_memory_byte_size"].int64_param = place.byte_size
