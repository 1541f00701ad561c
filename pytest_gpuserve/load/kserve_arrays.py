"""Tensors as KServe v2 writes them: between arrays and bytes, or lists of values."""

from __future__ import annotations

import importlib
import math
import os
import struct
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.process.logs import excerpt

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

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
