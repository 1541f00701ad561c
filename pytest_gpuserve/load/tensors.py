"""Comparators of tensors: values of a request's ``expect=`` for answers of KServe v2."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.load.kserve import Array, Tensors, decode_answer, extra, tensors_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


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
