"""A comparator says yes to right tensors alone, and names the worst element of wrong ones."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.load.request import check_answer
from pytest_gpuserve.load.tensors import Comparator, Decode, close_to, equal_to

np = pytest.importorskip("numpy")

FLOATS = st.floats(width=32)
TOLERANCES = st.floats(0, 10)


def answer(**tensors: object) -> Decode:
    """A reader of answers that finds these tensors in whatever comes."""
    return lambda body: {name: np.asarray(values) for name, values in tensors.items()}


def wrong(comparator: Comparator) -> str:
    """What it says of an answer that it must not accept."""
    with pytest.raises(AssertionError) as caught:
        comparator(b"")
    text = str(caught.value)
    assert len(text.splitlines()) == 1
    return text


@given(st.lists(st.tuples(FLOATS, FLOATS), min_size=1, max_size=5), TOLERANCES, TOLERANCES)
def test_close_is_what_numpy_calls_close(pairs: list[tuple[float, float]], rtol: float, atol: float) -> None:
    """The verdict is numpy.isclose's, NaN and infinities included, at any tolerance."""
    got, want = (np.array(column, dtype=np.float64) for column in zip(*pairs, strict=True))
    # Computed in double precision, its rounding may differ from ours at the very edge.
    with np.errstate(all="ignore"):
        near = np.isclose(np.abs(got - want), atol + rtol * np.abs(want), rtol=1e-9, atol=1e-300)
    if near.any() and not np.array_equal(got, want, equal_nan=True):
        return
    right = np.isclose(got, want, rtol=rtol, atol=atol, equal_nan=True).all()
    comparator = close_to({"Y": want}, rtol=rtol, atol=atol, decode=answer(Y=got))
    if right:
        assert comparator(b"")
    else:
        wrong(comparator)


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1), st.integers(0, 3))
def test_integers_are_compared_exactly(values: list[int], off: int) -> None:
    """Neighbours among 64-bit integers are told apart, and differences do not wrap around."""
    want = np.array(values, dtype=np.int64)
    got = want.copy()
    got[0] ^= off
    comparator = equal_to({"Y": want}, decode=answer(Y=got))
    if off:
        assert "1 of" in wrong(comparator)
    else:
        assert comparator(b"")


def test_the_worst_element_is_named() -> None:
    """One line has the output, how many are wrong, where the worst is against its own tolerance, and both values."""
    want = np.zeros((2, 3), dtype=np.float32)
    got = want + np.array([[0, 0.5, 0], [0, 4, 1e-9]], dtype=np.float32)
    assert wrong(close_to({"Y": want}, rtol=0.1, atol=0.01, decode=answer(Y=got))) == (
        "output 'Y': 2 of 6 are beyond the tolerance (rtol 0.1, atol 0.01), worst at [1, 1]: 4.0, expected 0.0"
    )
    assert wrong(equal_to({"Y": want}, decode=answer(Y=got))) == (
        "output 'Y': 3 of 6 differ, worst at [1, 1]: 4.0, expected 0.0"
    )
    # A larger difference at a large value is within.
    text = wrong(close_to({"Y": [1000.0, 1.0]}, rtol=0.1, atol=0, decode=answer(Y=[1090.0, 2.0])))
    assert "1 of 2 are" in text
    assert "worst at [1]: 2.0, expected 1.0" in text


@pytest.mark.parametrize(
    ("got", "want", "words"),
    [
        ([math.nan], [1.0], "worst at [0]: nan, expected 1.0"),
        ([1.0], [math.nan], "worst at [0]: 1.0, expected nan"),
        ([math.inf], [-math.inf], "worst at [0]: inf, expected -inf"),
        ([1.0], [math.inf], "worst at [0]: 1.0, expected inf"),
        ([math.nan], [math.inf], "worst at [0]: nan, expected inf"),
        ([1e30, math.nan], [1.0, 1.0], "2 of 2 are beyond the tolerance (rtol 1e+09, atol 0.5), worst at [1]: nan"),
    ],
)
def test_nan_and_infinity_are_close_to_themselves_alone(got: list[float], want: list[float], words: str) -> None:
    """What has no distance is no match, whatever the tolerance, and is worse than any that has one."""
    assert words in wrong(close_to({"Y": want}, rtol=1e9, atol=0.5, decode=answer(Y=got)))
    assert close_to({"Y": got}, decode=answer(Y=got))(b"")


@pytest.mark.parametrize(
    ("got", "want", "words"),
    [
        (np.zeros((2, 1)), np.zeros(2), "shape [2, 1], expected [2]"),
        (np.zeros(0), np.zeros(1), "shape [0], expected [1]"),
        (np.zeros(2, dtype="f4"), np.zeros(2, dtype="f8"), "float32, expected float64"),
        (np.array([b"a"], dtype=object), np.zeros(1), "strings, expected float64"),
        (np.zeros(1), ["a"], "float64, expected strings"),
        (np.array([b"a", b"bc"], dtype=object), ["a", "b"], "1 of 2 differ, worst at [1]: b'bc', expected b'b'"),
        (np.array([True]), [False], "1 of 1 differ, worst at [0]: True, expected False"),
        (np.float32(3), 4, "worst at []: 3.0, expected 4"),
    ],
)
def test_another_shape_or_datatype_is_wrong(got: object, want: object, words: str) -> None:
    """Nothing is broadcast or converted, strings and truth values have no tolerance."""
    assert words in wrong(close_to({"Y": want}, rtol=0.1, atol=0.5, decode=answer(Y=got)))


def test_only_what_was_said_is_compared() -> None:
    """Every named output, as it was when named, and no other; a list has no datatype, and byte order is none."""
    want = np.array([1.5], dtype=">f4")
    comparator = equal_to({"Y": want}, decode=answer(Y=np.array([1.5], dtype=np.float32), Z=[2]))
    want[0] = 2
    assert comparator(b"")
    assert equal_to({"Y": [1, 2]}, decode=answer(Y=np.array([1, 2], dtype=np.float32)))(b"")
    assert wrong(equal_to({"Y": [1], "X": [1]}, decode=answer(Y=[1], Z=[2]))) == (
        "output 'X' is missing; there is 'Y', 'Z'"
    )


def test_an_unreadable_answer_is_no_pass() -> None:
    """It is a wrong answer, in the words of the reader, through the check that the load uses."""
    body = b'{"error": "out of memory"}'
    assert (check_answer(equal_to({"Y": [1]}), body) or "").startswith("ValueError: the server's error: out of memory")
    assert (check_answer(equal_to({"Y": [1]}), b"\xff\xff") or "").startswith("ValueError: no answer of KServe v2")


@pytest.mark.parametrize("tolerance", [-1.0, math.nan, math.inf, "1", True, None])
@pytest.mark.parametrize("name", ["rtol", "atol"])
def test_a_tolerance_under_which_all_is_right_is_refused(name: str, tolerance: Any) -> None:  # noqa: ANN401 -- on purpose
    """A tolerance is a finite number of 0 at least."""
    with pytest.raises(UsageProblem, match=rf"close_to\({name}="):
        close_to({"Y": [1]}, **{name: tolerance})


@pytest.mark.parametrize("expected", [{}, [1], None, {"Y": [object()]}])
def test_nothing_to_compare_is_refused(expected: dict[str, object]) -> None:
    """A comparator that compares nothing would find everything right."""
    for make in (close_to, equal_to):
        with pytest.raises(UsageProblem):
            make(expected)
