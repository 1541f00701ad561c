"""How the tokens of a stream are counted, whatever pieces it arrives in."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pytest_gpuserve.load.engine.streams import MAX_LINE_BYTES, EventCounter
from tests.fakes.pieces import cut

PARTS = [
    *(b"data: a\n\n", b"data: a\r\n", b"data: a\r\n\r\n", b"data: [DONE]\n\n", b"data", b"data:", b"data: "),
    *(b"event: ping", b": comment", b"[DONE]", b"\n", b"\r", b"\r\n", b" ", b":", b"a", b"x" * 40),
    *(b"\xef\xbb\xbf", b"\xef"),
]
STREAMS = st.lists(st.sampled_from(PARTS) | st.binary(max_size=4), max_size=20).map(b"".join)
CUTS = st.lists(st.integers(0, 1000), max_size=20)


def count(*pieces: bytes) -> int:
    """Feed the pieces to a new counter; return the tokens."""
    counter = EventCounter()
    return sum(counter.feed(piece) for piece in pieces)


def by_the_standard(stream: bytes) -> int:
    """Interpret a whole stream step by step as section 9.2.6 says, with all of its text."""
    *lines, _unfinished = re.split(rb"\r\n|\n|\r", stream.removeprefix(b"\xef\xbb\xbf"))
    tokens, buffer = 0, b""
    for line in lines:
        if not line:
            data, buffer = buffer.removesuffix(b"\n"), b""
            tokens += data not in {b"", b"[DONE]"}
        elif not line.startswith(b":"):
            field, _, value = line.partition(b":")
            if field == b"data":
                buffer += value.removeprefix(b" ") + b"\n"
    return tokens


@given(stream=STREAMS, cuts=CUTS)
@example(stream=b"\xef\xbb\xbfdata: [DONE]more\n\n", cuts=[])
@example(stream=b"data: a\r\n\r\ndata: a\r\n\r\n", cuts=[8, 10, 18])
@example(stream=b"data: a\r\ndata: b\r\n\r\n", cuts=[8])
@example(stream=b"data: [DONE]\n\n", cuts=[9])
@example(stream=b"data:  [DONE]\n\n", cuts=[3])
@example(stream=b"xdata: a\n\n", cuts=[1])
@example(stream=b"data: a\ndata: b\n\n\n", cuts=[8, 17])
@example(stream=b"data: a\n\n\xef\xbb\xbfdata: b\n\n", cuts=[9])
@example(stream=b"data: a\r\n\r\ndata: b\n\n", cuts=[10, 11])
@example(stream=b"data: a\n\ndata\n\ndata: a\n\n", cuts=[9, 15])
def test_any_cutting_counts_what_the_standard_says(stream: bytes, cuts: list[int]) -> None:
    """However the same bytes are cut, tokens are those of the standard's own algorithm."""
    expected = by_the_standard(stream)
    assert count(stream) == expected
    assert count(*cut(stream, cuts)) == expected
    assert count(*(stream[place : place + 1] for place in range(len(stream)))) == expected


@pytest.mark.parametrize(
    ("stream", "tokens"),
    [
        (b"data: a\n\n", 1),
        (b"data: a\ndata: b\n\n", 1),
        (b"data: a\n\ndata: b\n\ndata: [DONE]\n\n", 2),
        (b"data: [DONE]\ndata: [DONE]\n\n", 1),
        (b"data:  [DONE]\n\n", 1),
        (b": keep-alive\n\n", 0),
        (b"data: \n\ndata\n\n", 0),
        (b"data: a\n", 0),
        (b"\xef\xbb\xbfdata: a\n\n", 1),
        (b"\n\xef\xbb\xbfdata: a\n\n", 0),
    ],
)
def test_what_a_token_is(stream: bytes, tokens: int) -> None:
    """A whole event with data is one token; its end, comments, empty data and unfinished events are none."""
    assert count(stream) == tokens


def test_a_token_is_counted_with_the_piece_that_completes_it() -> None:
    """The time of a token is that of its last byte, and two in one piece are two at that time."""
    counter = EventCounter()
    pieces = [b"data: a\n\n", b"data: b", b"\n", b"\ndata: c\n\ndata: d\r\n\r", b"\n", b""]
    assert [counter.feed(piece) for piece in pieces] == [1, 0, 0, 3, 0, 0]


@pytest.mark.parametrize("begin", [b"", b"data: ", b": "])
@pytest.mark.parametrize("end", [b"", b"\n", b"\n\n"])
def test_an_endless_line_is_refused(begin: bytes, end: bytes) -> None:
    """A line beyond the bound raises, in one piece as in many; one of just the bound is read."""
    longest = begin.ljust(MAX_LINE_BYTES, b"x")
    assert count(longest + end) == count(longest[:-5], longest[-5:], end) == (begin == b"data: " and end == b"\n\n")
    with pytest.raises(ValueError, match="a line of more than 4194304 bytes"):
        count(longest + b"x" + end)
    with pytest.raises(ValueError, match="a line of more than 4194304 bytes"):
        count(longest, b"x", end)


def test_an_unfinished_line_is_not_kept() -> None:
    """What a stream's parser holds does not grow with the line, and an empty piece changes nothing."""
    counter = EventCounter()
    for _ in range(100):
        counter.feed(b"x" * 10_000)
        counter.feed(b"")
    held = [getattr(counter, name) for name in EventCounter.__slots__]
    assert sum(len(value) for value in held if isinstance(value, bytes)) < 100
