"""A model from a user's file, its weights, and its executions."""

from __future__ import annotations

import ctypes
import importlib.util
import inspect
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import torch

from pytest_gpuserve.errors import ServerFailed
from pytest_gpuserve.servers.inside.torch_http import BadRequest, Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from pytest_gpuserve.servers.inside.torch_http import InferenceRequest


def load_callable(file: Path, name: str) -> Callable[..., Any]:
    """Import a file and return the named callable, also by a dotted name; modules beside the file can be imported.

    Raises:
        ServerFailed: The callable does not exist.
        Exception: The file raised it.
    """
    # A file may have the name of a module that is imported already.
    module_name = file.stem if file.stem.isidentifier() and file.stem not in sys.modules else f"model_{abs(hash(file))}"
    spec = importlib.util.spec_from_file_location(module_name, file)
    if spec is None or spec.loader is None:
        raise ServerFailed(f"torch_worker cannot import {file}", remedies=["name a Python file: file.py:callable"])
    module = importlib.util.module_from_spec(spec)
    # dynamo looks up a function's globals by the name of its module.
    sys.modules[module_name] = module
    spec.loader.exec_module(module)
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        public = sorted(each for each in vars(module) if not each.startswith("_") and callable(getattr(module, each)))
        raise ServerFailed(
            f"torch_worker: {file} has no callable {name}",
            found=", ".join(public) or "no callable at all",
            remedies=["name the callable that returns the model: torch_worker('file.py:callable')"],
        )
    return found  # type: ignore[no-any-return]


def built_model(build: Callable[..., Any], arguments: Mapping[str, object], seed: int) -> Any:  # noqa: ANN401 -- torch's
    """Build a model with its initial weights.

    Raises:
        ServerFailed: The callable did not return a module.
        Exception: The callable raised it.
    """
    torch.manual_seed(seed)
    built = build(**arguments)
    if not isinstance(built, torch.nn.Module):
        raise ServerFailed(
            "torch_worker: the callable did not return a module",
            found=type(built).__name__,
            remedies=["return a torch.nn.Module"],
        )
    return built


def fill(model: Any, weights: Path, device: Any) -> None:  # noqa: ANN401 -- torch's
    """Load a state dict into a model.

    Raises:
        ServerFailed: The file is not a state dict of this model; torch names missing, unknown or differently shaped
            keys.
    """
    try:
        model.load_state_dict(torch.load(weights, weights_only=True, map_location=device), assign=True)
    except Exception as problem:
        # Unpickling errors, zip errors, RuntimeError, TypeError, OSError: each means that the file is not a state dict.
        raise ServerFailed(
            f"torch_worker: {weights} is not a state dict of this model",
            found=f"{type(problem).__name__}: {' '.join(str(problem).split())}",
            remedies=["save it with torch.save(model.state_dict(), FILE) of the same model; no code is unpickled"],
        ) from problem


def parameter_facts(model: Any) -> dict[str, str]:  # noqa: ANN401 -- torch's
    """Facts of the loaded model: number of parameters, and their precisions by share, the largest first."""
    counts: dict[str, int] = {}
    for parameter in model.parameters():
        dtype = str(parameter.dtype).removeprefix("torch.")
        counts[dtype] = counts.get(dtype, 0) + parameter.numel()
    return {
        "precision": ", ".join(sorted(counts, key=lambda dtype: -counts[dtype])) or "no parameters",
        "parameters": str(sum(counts.values())),
    }


DTYPES: Final = {
    "BOOL": torch.bool,
    "UINT8": torch.uint8,
    "INT8": torch.int8,
    "INT16": torch.int16,
    "INT32": torch.int32,
    "INT64": torch.int64,
    "FP16": torch.float16,
    "BF16": torch.bfloat16,
    "FP32": torch.float32,
    "FP64": torch.float64,
}
"""torch's names of KServe's datatypes."""

DATATYPES: Final = {dtype: datatype for datatype, dtype in DTYPES.items()}


class BadOutput(TypeError):
    """The model returned a value that cannot be an answer; the text is for the client."""


class Execution:
    """Executes a model for batches of requests; each executing thread has its own.

    On a CUDA device, inputs are joined in pinned memory, copied on a stream of its own, and all work is awaited. So the
    execution time contains all costs of a request.

    Args:
        module: The model, as it is called.
        names: Parameter names of its ``forward``. If all inputs have such names, they are passed by name, else in the
            order of the request.
        device: Device of the model.
        batching: Whether requests are joined; then each output has a row for each row of the inputs.
    """

    def __init__(self, module: Any, names: frozenset[str], device: Any, *, batching: bool) -> None:  # noqa: ANN401 -- torch's
        self._module = module
        self._names = names
        self._device = device
        self._batching = batching
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def __call__(self, requests: Sequence[InferenceRequest]) -> list[list[Tensor]]:
        """Execute requests that fit together; gradients are disabled in the calling thread.

        Returns:
            All outputs of each request, in the model's order.

        Raises:
            BadOutput: An output cannot be sent, or does not have one row for each row of the inputs.
            Exception: The model raised it.
        """
        rows = [request.rows for request in requests]
        if self._stream is None:
            return self._answers(self._outputs(requests, sum(rows)), rows)
        with torch.cuda.stream(self._stream):
            outputs = self._outputs(requests, sum(rows))
            left = {name: _to_host(output) for name, output in outputs.items()}
            self._stream.synchronize()
            return self._answers(left, rows)

    def check_device(self) -> None:
        """Check after a failure whether the device is still usable, because some of CUDA's errors are permanent.

        Raises:
            Exception: The device's error.
        """
        if self._stream is not None:
            self._stream.synchronize()

    def _outputs(self, requests: Sequence[InferenceRequest], rows: int) -> dict[str, Any]:
        """Run the model; return named outputs, on its device."""
        inputs = {}
        for place, first in enumerate(requests[0].inputs):
            host = _joined([request.inputs[place] for request in requests], rows, pinned=self._stream is not None)
            inputs[first.name] = host if self._stream is None else host.to(self._device, non_blocking=True)
        by_name = self._names.issuperset(inputs)
        if not by_name and len(inputs) > 1:
            # A single input is unambiguous; several in the order of a request may be anything.
            unknown = sorted(inputs.keys() - self._names)
            raise BadRequest(
                f"forward() has no {unknown[0]!r}; it takes {', '.join(sorted(self._names)) or 'no names'}"
            )
        returned = self._module(**inputs) if by_name else self._module(*inputs.values())
        outputs = named(returned)
        for name, output in outputs.items():
            _check(name, output, rows if self._batching else None)
        return outputs

    def _answers(self, outputs: Mapping[str, Any], rows: Sequence[int]) -> list[list[Tensor]]:
        """Split outputs on the host into those of each request."""
        dense = {name: output.contiguous() for name, output in outputs.items()}
        answers = []
        begin = 0
        for count in rows:
            answers.append([self._part(name, output, begin, count) for name, output in dense.items()])
            begin += count
        return answers

    def _part(self, name: str, output: Any, begin: int, rows: int) -> Tensor:  # noqa: ANN401 -- a tensor
        shape = tuple(output.shape)
        size = output.element_size() * output.numel()
        offset = 0
        if self._batching:
            row_bytes = size // shape[0]
            offset, size, shape = begin * row_bytes, rows * row_bytes, (rows, *shape[1:])
        data = ctypes.string_at(output.data_ptr() + offset, size) if size else b""
        return Tensor(name, DATATYPES[output.dtype], shape, data)


def parameter_names(module: Any) -> frozenset[str]:  # noqa: ANN401 -- a module of torch
    """Parameter names of ``forward``."""
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    parameters = inspect.signature(module.forward).parameters
    return frozenset(name for name, parameter in parameters.items() if parameter.kind in kinds)


def named(returned: object) -> dict[str, Any]:
    """Name a model's outputs: ``output``, ``output_0`` and so on for a tuple or list, or by the keys of a mapping.

    Raises:
        BadOutput: The value has another type, or no tensor.
    """
    if isinstance(returned, torch.Tensor):
        return {"output": returned}
    if isinstance(returned, Mapping):
        outputs = {str(name): output for name, output in returned.items()}
    elif isinstance(returned, (tuple, list)):
        outputs = {f"output_{place}": output for place, output in enumerate(returned)}
    else:
        raise BadOutput(
            f"the model returned {type(returned).__name__}; a tensor, or a tuple or dict of them, is needed"
        )
    if not outputs:
        raise BadOutput("the model returned no tensor")
    return outputs


def chosen(outputs: Sequence[Tensor], wanted: Sequence[str]) -> Sequence[Tensor]:
    """The requested outputs, in the request's order; all of them if it names none.

    Raises:
        BadRequest: A requested output does not exist.
    """
    if not wanted:
        return outputs
    known = {tensor.name: tensor for tensor in outputs}
    missing = [name for name in wanted if name not in known]
    if missing:
        raise BadRequest(f"the model has no output {missing[0]!r}; it has {', '.join(known)}")
    return [known[name] for name in wanted]


def _check(name: str, output: object, rows: int | None) -> None:
    if not isinstance(output, torch.Tensor):
        raise BadOutput(f"output {name!r} is a {type(output).__name__}; return tensors only")
    if output.dtype not in DATATYPES or output.layout is not torch.strided:
        raise BadOutput(f"output {name!r} is {output.dtype}, {output.layout}, which cannot be sent")
    if rows is not None and (output.dim() == 0 or output.shape[0] != rows):
        raise BadOutput(
            f"output {name!r} has the shape {list(output.shape)} for a batch of {rows}: with max_batch_size above 1"
            f" each output must have a row for each row of the inputs"
        )


def _joined(parts: Sequence[Tensor], rows: int, *, pinned: bool) -> Any:  # noqa: ANN401 -- a tensor
    """Join an input of several requests, in memory of its own, because a model may change its inputs."""
    first = parts[0]
    shape = (rows, *first.shape[1:])
    dtype = DTYPES[first.datatype]
    size = sum(len(part.data) for part in parts)
    if not size:
        return torch.empty(shape, dtype=dtype)
    # As bytes, because tensors in a body may begin at any address.
    if pinned:
        data = torch.empty(size, dtype=torch.uint8, pin_memory=True)
        begin = 0
        for part in parts:
            end = begin + len(part.data)
            data[begin:end].copy_(torch.frombuffer(part.data, dtype=torch.uint8))
            begin = end
    else:
        data = torch.frombuffer(bytearray().join(part.data for part in parts), dtype=torch.uint8)
        # A byte other than 0 and 1 is not a valid bool of torch's.
    return (data.ne(0) if dtype == torch.bool else data.view(dtype)).view(shape)


def _to_host(output: Any) -> Any:  # noqa: ANN401 -- a tensor
    host = torch.empty(output.shape, dtype=output.dtype, pin_memory=True)
    return host.copy_(output, non_blocking=True)
