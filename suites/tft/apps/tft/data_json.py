"""``data.json``, the file that perf_analyzer and Model Analyzer take their examples from (``--input-data FILE``).

``{"data": [{"NAME": {"content": [...], "shape": [...]}, ...}, ...]}``: one entry for each example, without the batch.
A tensor may also be a plain list, whose shape is the model's, or ``{"b64": "..."}``, its bytes. Source: "Input Data"
in the documentation of Triton's perf_analyzer. ``dtype``, which the published generator wrote too, is compared.
"""

from __future__ import annotations

import base64
import binascii
import json
from typing import TYPE_CHECKING, Any

import numpy as np

from .contract import INPUTS, TensorSpec
from .data import DTYPES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray


class BadData(ValueError):
    """A file is not such data; the text has the place, in one line."""


def write_data(path: Path, inputs: Mapping[str, NDArray[np.generic]]) -> None:
    """Write examples.

    Args:
        path: The file.
        inputs: Of each tensor an array of (examples, *shape).

    Raises:
        OSError: It cannot be written.
        BadData: A number has no place in JSON, such as NaN.
    """
    count = len(next(iter(inputs.values())))
    entries = [
        {
            name: {
                "content": values[row].reshape(-1).tolist(),
                "shape": list(values[row].shape),
                "dtype": values.dtype.name,
            }
            for name, values in inputs.items()
        }
        for row in range(count)
    ]
    try:
        text = json.dumps({"data": entries}, allow_nan=False)
    except ValueError as problem:
        raise BadData(f"{path}: {problem}") from None
    path.write_text(text, encoding="utf-8")


def read_data(path: Path, specs: Sequence[TensorSpec] = INPUTS) -> dict[str, NDArray[np.generic]]:
    """Read examples.

    Args:
        path: The file.
        specs: The tensors of an example: all must be present, and no others.

    Returns:
        An array of (examples, *shape) for each tensor.

    Raises:
        OSError: The file cannot be read.
        BadData: The file has another form, or an example lacks one of these tensors.
    """
    try:
        found = json.loads(path.read_bytes(), parse_constant=_no_constant)
    except (ValueError, RecursionError) as problem:
        raise BadData(f"{path}: no JSON: {' '.join(str(problem).split())}") from None
    entries = found.get("data") if isinstance(found, dict) else None
    if not isinstance(entries, list) or not entries:
        raise BadData(f'{path}: the list "data" with at least one example is missing')
    rows = [_example(f"{path}: data[{number}]", entry, specs) for number, entry in enumerate(entries)]
    return {spec.name: np.stack([row[spec.name] for row in rows]) for spec in specs}


def _example(where: str, entry: object, specs: Sequence[TensorSpec]) -> dict[str, NDArray[np.generic]]:
    if isinstance(entry, list):
        raise BadData(f"{where} is a list: sequences of requests are for models that keep state, which these do not")
    if not isinstance(entry, dict):
        raise BadData(f"{where} is not an object")
    names = {spec.name for spec in specs}
    wrong = [f"has no {name}" for name in sorted(names - entry.keys())]
    wrong += [f"has {name!r}, which the model does not take" for name in sorted(entry.keys() - names)]
    if wrong:
        raise BadData(f"{where} {', '.join(wrong)}")
    return {spec.name: _tensor(f"{where}.{spec.name}", entry[spec.name], spec) for spec in specs}


def _tensor(where: str, value: object, spec: TensorSpec) -> NDArray[np.generic]:
    dtype = DTYPES[spec.datatype]
    told = value if isinstance(value, dict) else {"content": value}
    shape = told.get("shape", list(spec.shape))
    if shape != list(spec.shape) or any(type(length) is not int for length in shape):
        raise BadData(f"{where} has shape {_short(shape)}, the model's is {list(spec.shape)}")
    if "dtype" in told and told["dtype"] != dtype.name:
        raise BadData(f"{where} has dtype {_short(told['dtype'])}, the model's is {dtype.name}")
    if "b64" in told:
        return _from_bytes(where, told["b64"], spec)
    numbers: list[Any] = []
    _flatten(where, told.get("content"), numbers)
    if len(numbers) != spec.size:
        raise BadData(f"{where} has {len(numbers)} numbers, its shape {list(spec.shape)} takes {spec.size}")
    whole = np.issubdtype(dtype, np.integer)
    for number in numbers:
        if whole and type(number) is not int:
            raise BadData(f"{where} has {_short(number)} among whole numbers")
    try:
        with np.errstate(over="raise"):
            values = np.array(numbers, dtype=np.int64 if whole else np.float64).astype(dtype)
    except (OverflowError, FloatingPointError):
        raise BadData(f"{where} has a number that {dtype.name} cannot hold") from None
    return _finite(where, values, spec)


def _from_bytes(where: str, text: object, spec: TensorSpec) -> NDArray[np.generic]:
    if not isinstance(text, str):
        raise BadData(f"{where}.b64 is not text")
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise BadData(f"{where}.b64 is no Base64") from None
    if len(data) != spec.bytes:
        raise BadData(f"{where}.b64 has {len(data)} bytes, its shape {list(spec.shape)} takes {spec.bytes}")
    dtype = DTYPES[spec.datatype]
    return _finite(where, np.frombuffer(data, dtype.newbyteorder("<")).astype(dtype), spec)


def _finite(where: str, values: NDArray[np.generic], spec: TensorSpec) -> NDArray[np.generic]:
    if not np.isfinite(values.astype(np.float64)).all():
        raise BadData(f"{where} has a number that is not finite")
    return values.reshape(spec.shape)


def _flatten(where: str, value: object, into: list[Any]) -> None:
    """Nested lists are as good as flat ones."""
    if not isinstance(value, list):
        raise BadData(f"{where} has no list of numbers")
    stack: list[Any] = [iter(value)]
    while stack:
        for item in stack[-1]:
            if isinstance(item, list):
                stack.append(iter(item))
                break
            if isinstance(item, bool) or not isinstance(item, (int, float)):
                raise BadData(f"{where} has {_short(item)} among numbers")
            into.append(item)
        else:
            stack.pop()


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number of JSON")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
