"""Which events of a stream carry content, whatever pieces it arrives in, and what its answers say of their tokens."""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pytest_gpuserve.load.engine import http1
from pytest_gpuserve.load.engine.streams import MAX_LINE_BYTES, EventCounter, Streams
from pytest_gpuserve.load.engine.transport import IDLE
from tests.fakes.http_connection import FakeOpening, User
from tests.fakes.pieces import cut

if TYPE_CHECKING:
    from pytest_gpuserve.load.engine.transport import Slot, Stream


def chunk(*choices: dict[str, Any], **more: object) -> bytes:
    """An event with a chunk of OpenAI's API."""
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    return b"data: %s\n\n" % json.dumps({**head, "choices": choices, **more}).encode()


def delta(**fields: object) -> bytes:
    """An event whose one choice has this delta."""
    return chunk({"index": 0, "delta": fields, "logprobs": None, "finish_reason": None})


ROLE = delta(role="assistant", content="")
WORD = delta(content="wörd")
FINISH = chunk({"index": 0, "delta": {}, "finish_reason": "length"})
USAGE = chunk(usage={"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12})
ANSWER = ROLE + WORD + WORD + FINISH + USAGE + b"data: [DONE]\n\n"
"""Two chunks with content, which are five tokens."""

PARTS = [
    *(b"data: a\n\n", b"data: a\r\n", b"data: a\r\n\r\n", b"data: [DONE]\n\n", b"data", b"data:", b"data: "),
    *(b"event: ping", b": comment", b"[DONE]", b"\n", b"\r", b"\r\n", b" ", b":", b"a", b"x" * 40),
    *(b"\xef\xbb\xbf", b"\xef"),
    *(ROLE, WORD, USAGE, WORD.rstrip(), WORD[:-30], b"data:" + WORD[6:], b"data: {}", b"data: {"),
]
STREAMS = st.lists(st.sampled_from(PARTS) | st.binary(max_size=4), max_size=20).map(b"".join)
CUTS = st.lists(st.integers(0, 1000), max_size=20)


def count(*pieces: bytes) -> int:
    """Feed the pieces to a new counter; return how many events have content."""
    counter = EventCounter()
    return sum(counter.feed(piece) for piece in pieces)


def has_content(data: bytes) -> bool:
    """Whether an event's data counts, by the standard library's JSON."""
    if data in {b"", b"[DONE]"} or not data.startswith(b"{") or b"\n" in data:
        return data not in {b"", b"[DONE]"}
    try:
        choices = json.loads(data).get("choices")
    except ValueError:
        return True
    return choices is None or any(choice["delta"].get("content") for choice in choices)


def by_the_standard(stream: bytes) -> int:
    """Interpret a whole stream step by step as section 9.2.6 says, with all of its text."""
    *lines, _unfinished = re.split(rb"\r\n|\n|\r", stream.removeprefix(b"\xef\xbb\xbf"))
    tokens, buffer = 0, b""
    for line in lines:
        if not line:
            data, buffer = buffer.removesuffix(b"\n"), b""
            tokens += has_content(data)
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
@example(stream=ANSWER, cuts=[3, 8, 40, 200, 400])
@example(stream=b"\xef\xbb\xbf" + ROLE + WORD.rstrip() + b"\r\n\r\n", cuts=[2, 5, 10, 11, 30])
@example(stream=ROLE[:-1] + ROLE, cuts=[20])
def test_any_cutting_counts_what_the_standard_says(stream: bytes, cuts: list[int]) -> None:
    """However the same bytes are cut, events are those of the standard's own algorithm, and chunks whole JSON."""
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
        (b"data: [DO\ndata: NE]\n\n", 1),
        (b'data: {"choices":\ndata: []}\n\n', 1),
        (b"data:  [DONE]\n\n", 1),
        (b": keep-alive\n\n", 0),
        (b"data: \n\ndata\n\n", 0),
        (b"data: a\n", 0),
        (b"\xef\xbb\xbfdata: a\n\n", 1),
        (b"\n\xef\xbb\xbfdata: a\n\n", 0),
    ],
)
def test_what_a_token_is(stream: bytes, tokens: int) -> None:
    """A whole event with data counts; its end, comments, empty data and unfinished events do not."""
    assert count(stream) == tokens


@pytest.mark.parametrize(
    ("event", "counts"),
    [
        pytest.param(ROLE, 0, id="role and empty content"),
        pytest.param(delta(role="assistant", content=None), 0, id="role and null"),
        pytest.param(WORD, 1, id="content"),
        pytest.param(delta(role="assistant", content="w"), 1, id="role and content"),
        pytest.param(delta(content=[{"type": "text", "text": "w"}]), 1, id="content in parts"),
        pytest.param(delta(reasoning_content="hm"), 1, id="reasoning_content"),
        pytest.param(delta(reasoning="hm"), 1, id="reasoning"),
        pytest.param(delta(reasoning_content="", reasoning=None), 0, id="empty reasoning"),
        pytest.param(delta(tool_calls=[{"index": 0, "function": {"arguments": "{"}}]), 1, id="tool call"),
        pytest.param(delta(tool_calls=[]), 0, id="no tool call"),
        pytest.param(delta(function_call={"name": "f"}), 1, id="function call"),
        pytest.param(chunk({"index": 0, "text": "w"}), 1, id="completion"),
        pytest.param(chunk({"index": 0, "text": "", "finish_reason": "stop"}), 0, id="empty completion"),
        pytest.param(chunk({"index": 0, "delta": {}}, {"index": 1, "delta": {"content": "w"}}), 1, id="second choice"),
        pytest.param(chunk({"index": 0, "delta": None}), 0, id="null delta"),
        pytest.param(delta(refusal="I cannot"), 1, id="refusal"),
        pytest.param(delta(audio={"data": "AAA="}), 1, id="audio"),
        pytest.param(FINISH, 0, id="finish"),
        pytest.param(USAGE, 0, id="usage"),
        pytest.param(b'data: {"choices": null, "usage": {"completion_tokens": 5}}\n\n', 0, id="usage, null choices"),
        pytest.param(b'data: {"usage": {"completion_tokens": 5}}\n\n', 0, id="usage alone"),
        pytest.param(b'data: {"choices": [null]}\n\n', 0, id="null choice"),
        pytest.param(b'data: {"error": {"message": "the engine died"}}\n\n', 0, id="error"),
        pytest.param(b'data: {"token": "a", "error": null}\n\n', 1, id="no error"),
        # What only Python's JSON reads.
        pytest.param(ROLE.replace(b'"logprobs": null', b'"logprobs": NaN'), 0, id="role and NaN"),
        pytest.param(ROLE.replace(b'"m"', b'"\\ud83d"'), 0, id="role and half a pair"),
        # The text of an answer may look like a chunk's fields, and those of its log-probabilities are no content.
        pytest.param(chunk({"delta": {}, "logprobs": {"content": [{"token": "w"}]}}), 0, id="log-probabilities"),
        pytest.param(delta(content='{"choices": []}'), 1, id="JSON in content"),
        # No chunks of this API: as plain text.
        pytest.param(b'data: {"token": 1}\n\n', 1, id="other JSON"),
        pytest.param(b'data: {"choices": [\n\n', 1, id="cut JSON"),
        pytest.param(b'data: {"choices": "none"}\n\n', 1, id="other choices"),
        pytest.param(b'data: {"choices": [], "id": "\xff"}\n\n', 0, id="text that is none in a field of no interest"),
        pytest.param(b'data: {"choices": [{"text": "\xff"}]}\n\n', 1, id="text that is none"),
        pytest.param(b'data: {"choices": [{"text": ' + b"[" * 100_000 + b"\n\n", 1, id="endless nesting"),
        pytest.param(b'data: [{"choices": []}]\n\n', 1, id="a list"),
    ],
)
def test_a_chunk_counts_by_what_it_carries(event: bytes, counts: int) -> None:
    """Role, finish, usage and empty parts are no content, in one piece as byte by byte; other events count as text."""
    assert count(event) == counts
    if len(event) < 1000:
        assert count(*(event[place : place + 1] for place in range(len(event)))) == counts


@pytest.mark.parametrize("size", [1, 7, 50, 10_000])
def test_an_answer_says_how_many_tokens_it_has(size: int) -> None:
    """The last number that a chunk has is its; without any, and where it is no number of tokens, it is not known."""
    counter = EventCounter()
    growing = [chunk({"delta": {"content": "w"}}, usage={"completion_tokens": tokens}) for tokens in (1, 3, 4)]
    stream = b"".join([ROLE, *growing, FINISH])
    for place in range(0, len(stream), size):
        counter.feed(stream[place : place + size])
    assert counter.usage == 4
    fraction = EventCounter()
    fraction.feed(WORD + chunk(usage={"completion_tokens": 5.0, "cost": math.nan}))
    assert fraction.usage == 5
    for odd in (
        {},
        {"completion_tokens": True},
        {"completion_tokens": None},
        {"completion_tokens": -1},
        {"completion_tokens": "many"},
        None,
    ):
        unknown = EventCounter()
        unknown.feed(WORD + chunk(usage=odd))
        assert unknown.usage is None


class Reader(User):
    """A user of one stream after the other, who notes what comes of them."""

    def __init__(self) -> None:
        self.told: list[object] = []
        self.first_ns = IDLE
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(http1, "Opening", FakeOpening)
            super().__init__(transport=Streams)

    def chunk(self, now_ns: int, before_ns: int) -> None:
        """Note whether it is the first, and else whether it came with the one before it."""
        if before_ns == IDLE:
            self.first_ns = now_ns
        self.told.append("first" if before_ns == IDLE else "together" if before_ns == now_ns else "next")

    def streamed(self, slot: Slot, now_ns: int, stream: Stream) -> None:
        """Note how many chunks and tokens it had."""
        assert stream.first_ns == (self.first_ns if stream.chunks else IDLE)
        self.told.append((stream.chunks, stream.tokens))


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def pieces(*parts: bytes) -> list[bytes]:
    """An answer whose parts come one by one."""
    return [HEAD, *(b"%x\r\n%s\r\n" % (len(part), part) for part in parts), b"0\r\n\r\n"]


def test_the_first_content_is_the_first_token_and_usage_corrects_the_count() -> None:
    """Of each answer on a connection anew, none before its end; chunks of one read are so many at one time."""
    reader = Reader()
    events = reader.receive(
        *pieces(ROLE, WORD, WORD + WORD, FINISH, USAGE), *pieces(ROLE, WORD), *pieces(USAGE, WORD), *pieces(ROLE, USAGE)
    )
    assert reader.told == ["first", "next", "together", (3, 5), "first", (1, None), "first", (1, 5), (0, 5)]
    assert [event[0] for event in events] == ["answered"] * 4


def test_an_answer_without_content_is_an_error() -> None:
    """One that says of no tokens either; so is the page of an error, of which no event counts."""
    reader = Reader()
    events = reader.receive(*pieces(ROLE, FINISH), *[part.replace(b"200", b"503") for part in pieces(WORD, USAGE)])
    assert [event[:2] for event in events] == [("refused", "no tokens"), ("refused", "status 503")]
    assert reader.told == []


def test_tokens_that_make_no_text_are_an_answer() -> None:
    """Such as those that end in the middle of a letter: their number is known, and no time of a first one."""
    reader = Reader()
    assert [event[0] for event in reader.receive(*pieces(ROLE, delta(content=""), FINISH, USAGE))] == ["answered"]
    assert reader.told == [(0, 5)]


def test_a_failed_answer_says_nothing_of_tokens() -> None:
    """Else one that failed would stand for one that does not say how many it has."""
    reader = Reader()
    none = chunk(usage={"completion_tokens": 0})
    assert [event[:2] for event in reader.receive(*pieces(ROLE, FINISH, none))] == [("refused", "no tokens")]
    assert reader.told == []


def test_an_error_in_a_stream_is_an_error() -> None:
    """Of an answer with the status of a good one, also after content; the next one on the connection is good again."""
    reader = Reader()
    error = b'data: {"error": {"message": "the engine died", "code": 500}}\n\n'
    done = b"data: [DONE]\n\n"
    events = reader.receive(*pieces(error, done), *pieces(ROLE, WORD, USAGE, error, done), *pieces(WORD))
    assert [event[:2] for event in events[:2]] == [("refused", "error in a stream")] * 2
    assert [event[0] for event in events[2:]] == ["answered"]
    assert reader.told == ["first", "first", (1, None)]


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
    assert sum(len(value) for value in held if isinstance(value, (bytes, bytearray))) < 100
