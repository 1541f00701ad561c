"""Comparators of tensors: what ``expect=`` of a request may be where the answer is KServe v2.

They read an answer of either protocol, off the timing path, and say in one line which element is worst. Only the
outputs that they name are compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.load.kserve import Array, Tensors, as_array, extra, shown
from pytest_gpuserve.load.kserve_grpc import decode_answer

Decode = Callable[[bytes], Tensors]
"""Reads the tensors of an answer, by name; raises ``ValueError`` where there are none."""


@dataclass(frozen=True)
class _Wanted:
    """An output as it should be; ``typed`` where its datatype should be the same, too."""

    array: Array
    typed: bool


@dataclass(frozen=True)
class Comparator:
    """Called with an answer's body: True when it is right, AssertionError in one line when it is not.

    `close_to` and `equal_to` make it.
    """

    outputs: Mapping[str, _Wanted]
    rtol: float
    atol: float
    decode: Decode

    def __call__(self, body: bytes) -> bool:
        """Compare; raises what ``decode`` raises, too."""
        tensors = self.decode(body)
        for name, wanted in self.outputs.items():
            if name not in tensors:
                there = ", ".join(map(shown, sorted(tensors)))
                raise AssertionError(f"output {shown(name)} is missing; there is {there or 'none'}")
            problem = self._compare(tensors[name], wanted)
            if problem:
                raise AssertionError(f"output {shown(name)}: {problem}")
        return True

    def _compare(self, got: Array, wanted: _Wanted) -> str | None:
        want = wanted.array
        if got.shape != want.shape:
            return f"shape {list(got.shape)}, expected {list(want.shape)}"
        strings = [array.dtype.kind == "O" for array in (got, want)]
        if strings[0] != strings[1] or (wanted.typed and got.dtype.newbyteorder("=") != want.dtype.newbyteorder("=")):
            return f"{_kind(got)}, expected {_kind(want)}"
        np = extra("numpy")
        excess = _excess(np, got, want, rtol=self.rtol, atol=self.atol)
        beyond = int(np.count_nonzero(excess > 0))
        if not beyond:
            return None
        worst = np.unravel_index(int(np.argmax(excess)), got.shape)
        where = ", ".join(str(int(index)) for index in worst)
        exact = self.rtol == self.atol == 0 or got.dtype.kind in "Ob"
        what = "differ" if exact else f"are beyond the tolerance (rtol {self.rtol:g}, atol {self.atol:g})"
        return f"{beyond} of {got.size} {what}, worst at [{where}]: {_text(got[worst])}, expected {_text(want[worst])}"


def close_to(
    expected: Mapping[str, object], *, rtol: float = 1e-5, atol: float = 1e-8, decode: Decode = decode_answer
) -> Comparator:
    """Compare the answer's tensors with these: ``|got - expected| <= atol + rtol * |expected|``.

    That is ``numpy.isclose``'s formula, with its defaults. NaN is close to NaN alone, an infinity to itself alone;
    strings and truth values must be equal. Shapes must be equal, and datatypes where an array is given; of a plain
    list they are not looked at.

    Args:
        expected: Outputs by name.
        rtol: Relative tolerance.
        atol: Absolute tolerance, in the output's unit.
        decode: Reads the answer; of tensors in shared memory it is that memory's own ``decode``.

    Raises:
        UsageProblem: Nothing would be compared, or anything would be right.
    """
    _check_tolerance("rtol", rtol)
    _check_tolerance("atol", atol)
    return Comparator(_wanted("close_to", expected), rtol, atol, decode)


def equal_to(expected: Mapping[str, object], *, decode: Decode = decode_answer) -> Comparator:
    """Compare the answer's tensors with these, each element exactly; else as `close_to`.

    Raises:
        UsageProblem: Nothing would be compared.
    """
    return Comparator(_wanted("equal_to", expected), 0.0, 0.0, decode)


def _check_tolerance(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
        raise UsageProblem(f"close_to({name}=...) is a finite number of 0 at least, not {value!r}")


def _wanted(what: str, expected: object) -> dict[str, _Wanted]:
    if not isinstance(expected, Mapping) or not expected:
        raise UsageProblem(
            f"{what}(...) is told the outputs by name, one at least, not {expected!r}",
            remedies=[f'{what}({{"OUTPUT": array}})'],
        )
    wanted = {}
    for name, values in expected.items():
        array = as_array(f"output {name!r} of {what}", values)
        # Copied: what is changed after this is not what the test said. An answer's BF16 is read as float32.
        copy = array.astype("f4") if array.dtype.name == "bfloat16" else array.copy()
        wanted[name] = _Wanted(copy, typed=hasattr(values, "dtype"))
    return wanted


def _excess(np: Any, got: Array, want: Array, *, rtol: float, atol: float) -> Array:  # noqa: ANN401 -- numpy
    """By how much each element is beyond the tolerance: 0 where it is within, infinite where no distance is."""
    if got.dtype.kind in "Ob" or want.dtype.kind in "Ob":
        return np.where(got == want, 0.0, np.inf)
    # 64-bit integers are exact in a long double, and their differences do not wrap around.
    a, b = got.astype(np.longdouble), want.astype(np.longdouble)
    with np.errstate(all="ignore"):
        distance = np.abs(a - b)
        excess = np.where(distance > atol + rtol * np.abs(b), distance - (atol + rtol * np.abs(b)), 0)
    ordinary = np.isfinite(a) & np.isfinite(b)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    return np.where(same, 0, np.where(ordinary, excess, np.inf))


def _kind(array: Array) -> str:
    return "strings" if array.dtype.kind == "O" else str(array.dtype)


def _text(value: Any) -> str:  # noqa: ANN401 -- any element of an array
    if isinstance(value, bytes):
        return repr(value[:40]) + ("..." if len(value) > 40 else "")
    return str(value)
