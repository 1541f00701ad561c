"""Texts for a page: visible, in one line where that is asked."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuserve.report.html.text import LABEL_CHARACTERS, Texts

ANY_TEXT = st.text(st.characters(exclude_categories=()))


@given(ANY_TEXT)
def test_a_line_is_visible(text: str) -> None:
    """Nothing is left that turns lines around, hides itself, or cannot be written as UTF-8."""
    line = Texts(str).line(text)
    assert line.isprintable()
    line.encode()


def test_what_cannot_be_seen_is_written_out() -> None:
    """Signs that are not printable stand there as escape sequences; letters of any language stay."""
    shown = {"a\x00b": r"a\x00b", "a\u202eb": r"a\u202eb", "a\ud800b": r"a\ud800b", "a\nb\tc": "a b c"}
    shown["größer 模型"] = "größer 模型"
    assert {text: Texts(str).line(text) for text in shown} == shown


def test_lines_of_a_block_stay() -> None:
    """A log keeps its lines and tabs; in a plot there is little room."""
    assert Texts(str).block("a\n\tb\x07") == "a\n\tb\\x07"
    assert len(Texts(str).short("x" * 1000)) == LABEL_CHARACTERS


def test_a_fact_that_is_not_known_is_not_zero() -> None:
    """None is told from 0 and from no."""
    facts = {None: "not known", True: "yes", False: "no", 80.0: "80.0"}
    assert {value: Texts(str).fact(value) for value in facts} == facts
    assert [Texts(str).fact(value) for value in (0, {}, {"a": None})] == ["0", "none", "a: not known"]
