"""A comparator says yes to right tensors alone, and names the worst element of wrong ones."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.load.kserve import Comparator, close_to, equal_to
from pytest_gpuserve.load.request import check_answer

np = pytest.importorskip("numpy")

FLOATS = st.floats(width=32)
TOLERANCES = st.floats(0, 10)


def wrong(comparator: Comparator, **tensors: object) -> str:
    """Fault of an answer with these tensors; empty if it is right."""
    arrays = {name: np.asarray(values) for name, values in tensors.items()}
    try:
        assert replace(comparator, decode=lambda _: arrays)(b"")
    except AssertionError as said:
        (line,) = str(said).splitlines()
        return line
    return ""


@given(st.lists(st.tuples(FLOATS, FLOATS), min_size=1, max_size=5), TOLERANCES, TOLERANCES)
def test_close_is_what_numpy_calls_close(pairs: list[tuple[float, float]], rtol: float, atol: float) -> None:
    """The verdict is numpy.isclose's, NaN and infinities included, at any tolerance."""
    got, want = (np.array(column, dtype=np.float64) for column in zip(*pairs, strict=True))
    right = np.isclose(got, want, rtol=rtol, atol=atol, equal_nan=True).all()
    assert (not wrong(close_to({"Y": want}, rtol=rtol, atol=atol), Y=got)) == right


def test_the_worst_element_is_named() -> None:
    """One line has the output, the number of wrong elements, the worst by its own tolerance, and both values."""
    want = np.zeros((2, 3), dtype=np.float32)
    got = want + np.array([[0, 0.5, 0], [0, 4, 1e-9]], dtype=np.float32)
    assert wrong(close_to({"Y": want}, rtol=0.1, atol=0.01), Y=got) == (
        "output 'Y': 2 of 6 are beyond the tolerance (rtol 0.1, atol 0.01), worst at [1, 1]: 4.0, expected 0.0"
    )
    assert wrong(equal_to({"Y": want}), Y=got) == "output 'Y': 3 of 6 differ, worst at [1, 1]: 4.0, expected 0.0"
    # A larger difference at a large value is within. Neighbours among 64-bit integers are told apart.
    assert "1 of 2 are" in wrong(close_to({"Y": [1000.0, 1.0]}, rtol=0.1, atol=0), Y=[1090.0, 2.0])
    assert "1 of 2" in wrong(equal_to({"Y": np.array([2**63 - 1, -(2**63)])}), Y=np.array([2**63 - 2, -(2**63)]))


@pytest.mark.parametrize(
    ("got", "want", "words"),
    [
        ([math.nan], [1.0], "worst at [0]: nan, expected 1.0"),
        ([math.inf], [-math.inf], "worst at [0]: inf, expected -inf"),
        ([1e30, math.nan], [1.0, 1.0], "2 of 2 are beyond the tolerance (rtol 0.1, atol 0.5), worst at [1]: nan"),
        (np.zeros((2, 1)), np.zeros(2), "shape [2, 1], expected [2]"),
        (np.zeros(2, dtype="f4"), np.zeros(2, dtype="f8"), "float32, expected float64"),
        (np.array([b"a"], dtype=object), np.zeros(1), "strings, expected float64"),
        (np.array([b"a", b"bc"], dtype=object), ["a", "b"], "1 of 2 differ, worst at [1]: b'bc', expected b'b'"),
        (np.array([True]), [False], "1 of 1 differ, worst at [0]: True, expected False"),
        (np.float32(3), 4, "worst at []: 3.0, expected 4"),
    ],
)
def test_what_is_not_close_is_wrong(got: object, want: object, words: str) -> None:
    """A value without a distance does not match; there is no broadcast or conversion; strings have no tolerance."""
    assert words in wrong(close_to({"Y": want}, rtol=0.1, atol=0.5), Y=got)
    assert not wrong(close_to({"Y": got}), Y=got)


def test_only_what_was_said_is_compared() -> None:
    """Every named output counts, with its earlier values, and no other; a list has no datatype or byte order."""
    want = np.array([1.5], dtype=">f4")
    comparator = equal_to({"Y": want})
    want[0] = 2
    assert not wrong(comparator, Y=np.array([1.5], dtype=np.float32), Z=[2])
    assert not wrong(equal_to({"Y": [1, 2]}), Y=np.array([1, 2], dtype=np.float32))
    assert wrong(equal_to({"X": [1]}), Y=[1], Z=[2]) == "output 'X' is missing; found 'Y', 'Z'"


def test_an_unreadable_answer_is_no_pass() -> None:
    """It is a wrong answer, in the words of the reader, through the check that the load uses."""
    said = check_answer(equal_to({"Y": [1]}), b'{"error": "out of memory"}')
    assert (said or "").startswith("ValueError: the server's error: out of memory")


@pytest.mark.parametrize("tolerance", [-1.0, math.nan, math.inf, "1", True, None])
def test_a_tolerance_under_which_all_is_right_is_refused(tolerance: Any) -> None:  # noqa: ANN401 -- on purpose
    """A comparator without outputs is refused too."""
    for name in ("rtol", "atol"):
        with pytest.raises(UsageProblem, match="finite number"):
            close_to({"Y": [1]}, **{name: tolerance})
    with pytest.raises(UsageProblem, match="name at least one output"):
        equal_to({})
