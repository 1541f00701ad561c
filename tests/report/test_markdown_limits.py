"""A comment is never longer than GitHub takes, what is left out is said, and red is left out last."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuserve.report.markdown import COMMENT_BYTES, Part, comment, fitted, step_summary
from tests.support.markdown_results import (
    GITHUB_COMMENT,
    GITHUB_STEP_SUMMARY,
    UNHURRIED,
    gfm,
    hostile_result,
    many,
    only_text,
    rows_in,
)


@pytest.mark.parametrize("count", [1, 20, 60, 150, 400, 2000])
def test_it_never_is_longer_than_github_takes(count: int) -> None:
    """By whatever measure GitHub counts; and it stays a whole document."""
    result = many(count)
    for text, most in ((comment(result), GITHUB_COMMENT), (step_summary(result), GITHUB_STEP_SUMMARY)):
        assert len(text.encode()) < most
        only_text(gfm(text))


def test_it_is_never_longer_whatever_its_texts_are() -> None:
    """Escapes make ten characters of one, and references five."""
    for sign in ("\U000e0041", "&", "\n", "漢", "<"):
        text = comment(hostile_result(sign * 20_000))
        assert len(text.encode()) <= COMMENT_BYTES
        only_text(gfm(text))


def test_what_is_cut_off_is_said_and_never_the_worst() -> None:
    """First logs go, then what passed, then what tests say; the reddest rows stay."""
    count = 400
    text = comment(many(count))
    kept = [row[0] for row in rows_in(text)]
    assert kept == [f"test_{'long_' * 20}[{i}]" for i in range(count - 1, count - 1 - len(kept), -1)]
    assert len(kept) > 150
    assert f"Left out for length: {count - len(kept)} of {count} rows that do not pass, the least bad ones." in text
    for what in ("reasons", "tests that did not pass", "other rows", "ends of logs"):
        assert re.search(rf"Left out for length: \d+ of {count} {what}\.", text) is not None
    assert f"Left out for length: {count} of {count} other rows." in text
    few = comment(many(20))
    assert [row[-1] for row in rows_in(few)].count("REGRESSED") == 20
    assert re.search(r"Left out for length: \d+ of 20 ", few) is None
    assert "Left out" not in step_summary(many(100))


@UNHURRIED
@given(
    sizes=st.lists(st.lists(st.integers(1, 300), max_size=12), min_size=1, max_size=5),
    most=st.integers(600, 4000),
)
def test_pieces_fill_what_there_is_in_their_order(sizes: list[list[int]], most: int) -> None:
    """No piece is cut while a later one has rows that it was given room for, and each row is there or counted."""
    parts = [Part(f"<{i}>", [f"{i}" * size for size in rows], f"</{i}>", f"of {i}") for i, rows in enumerate(sizes)]
    text = fitted(parts, most)
    assert len(text.encode()) <= most
    lines = text.split("\n")
    for i, part in enumerate(parts):
        kept = [line for line in lines if line in part.rows]
        assert kept == list(part.rows[: len(kept)])
        note = f"Left out for length: {len(part.rows) - len(kept)} of {len(part.rows)} of {i}."
        assert (note in text) == (len(kept) < len(part.rows))
    if "Left out" not in text:
        assert sum(map(len, sizes)) == sum(line.isdigit() for line in lines)


def test_a_piece_that_fits_is_whole() -> None:
    """One byte decides."""
    part = Part("<a>", ["1" * 50, "2" * 50], "</a>", "things")
    whole = "\n".join(("<a>", "1" * 50, "2" * 50, "</a>"))
    assert fitted([part], len(whole) + 1) == whole
    assert "1 of 2 things" in fitted([part], len(whole) + 80) or fitted([part], len(whole) + 80) == whole
    assert "2 of 2 things" in fitted([part], len(whole))
    assert fitted([Part("<a>", [], "</a>", "things")], 100) == ""
