"""Events with content in a stream, for any division into pieces, and completeness of answers."""

from __future__ import annotations

import json
import math
from functools import partial
from typing import Any
from unittest import mock

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pytest_gpuserve.load.engine import http1
from pytest_gpuserve.load.engine.__main__ import make_transport
from pytest_gpuserve.load.engine.streams import MAX_EVENT_BYTES, StreamAnswer, Streams
from pytest_gpuserve.load.engine.transport import IDLE, FaultKind, Slot, Stream
from pytest_gpuserve.load.request import Request
from pytest_gpuserve.load.wire import Endpoint
from tests.fakes.http_connection import FakeOpening, User, cut
from tests.fakes.http_server import plan


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
DONE = b"data: [DONE]\n\n"
IN_STREAM = "error in a stream"
ANSWER = ROLE + WORD + WORD + FINISH + USAGE + DONE
"""Two chunks with content, which are five tokens."""

PARTS = [
    *(b"data: a\n\n", b"data: a\r\n", b"data: a\r\n\r\n", b"data: [DONE]\n\n", b"data", b"data:", b"data: "),
    *(b"event: ping", b": comment", b"[DONE]", b"\n", b"\r", b"\r\n", b" ", b":", b"a", b"x" * 40),
    *(b"\xef\xbb\xbf", b"\xef"),
    *(ROLE, WORD, USAGE, WORD.rstrip(), WORD[:-30], b"data:" + WORD[6:], b"data: {}", b"data: {"),
    *(FINISH, DONE, ANSWER, b"data: " + WORD[6:].replace(b", ", b",\ndata: "), chunk({"index": 1, "text": "w"})),
    *(b'error: {"code": 500}\n\n', b"event: error\n", b"event: message\n", b'{"error": "oom"}\n'),
    *(b'data: {"error": {"code": 500}}\n\n', b'data: {"object": "error", "message": "oom"}\n\n'),
]
STREAMS = st.lists(st.sampled_from(PARTS) | st.binary(max_size=4), max_size=20).map(b"".join)
CUTS = st.lists(st.integers(0, 1000), max_size=20)


def read(*pieces: bytes) -> StreamAnswer:
    """Feed the pieces to a new answer."""
    answer = StreamAnswer()
    for piece in pieces:
        answer.feed(piece)
    return answer


def count(*pieces: bytes) -> int:
    """Return how many events of a stream have content."""
    return read(*pieces).chunks


def fault(*pieces: bytes, choices: int = 1) -> str:
    """The kind of fault of a stream; empty for a complete answer."""
    found = read(*pieces).fault(choices)
    return "" if found is None else str(found[0])


@given(stream=STREAMS, cuts=CUTS)
@example(stream=b"xdata: a\n\n", cuts=[1])
@example(stream=b"data: a\n\ndata\n\ndata: a\n\n", cuts=[9, 15])
@example(stream=b"data: a\r\n\r\ndata: b\n\n", cuts=[10, 11])
def test_any_cutting_reads_the_same(stream: bytes, cuts: list[int]) -> None:
    """However a stream is cut, as many events have content, and the answer is good or not."""
    whole = count(stream), not fault(stream)
    for pieces in (cut(stream, cuts), [stream[place : place + 1] for place in range(len(stream))]):
        assert (count(*pieces), not fault(*pieces)) == whole


@pytest.mark.parametrize(
    ("stream", "choices"),
    [
        (ROLE + WORD + FINISH, 1),
        (ROLE + WORD + DONE, 1),
        (b"\xef\xbb\xbf: ping\r\r" + WORD.replace(b", ", b",\ndata: ") + b"id: 7\nevent: message\n" + FINISH, 1),
        (WORD + chunk({"index": 1, "text": "w", "finish_reason": "length"}) + FINISH, 2),
    ],
    ids=["finish reason", "[DONE]", "unusual lines", "two choices"],
)
def test_an_answer_that_is_cut_off_before_its_end_is_said_is_never_good(stream: bytes, choices: int) -> None:
    """The whole answer is good; no beginning of it is."""
    assert fault(stream, choices=choices) == ""
    for place in range(len(stream)):
        assert fault(stream[:place], choices=choices) in {FaultKind.NO_END, FaultKind.NO_TOKENS}


@pytest.mark.parametrize(
    ("event", "counts"),
    [
        pytest.param(ROLE, 0, id="role and empty content"),
        pytest.param(delta(role="assistant", content=None), 0, id="role and null"),
        pytest.param(WORD, 1, id="content"),
        pytest.param(delta(content=[{"type": "text", "text": "w"}]), 1, id="content in parts"),
        pytest.param(delta(reasoning_content="hm"), 1, id="reasoning_content"),
        pytest.param(delta(reasoning="hm"), 1, id="reasoning"),
        pytest.param(delta(tool_calls=[{"index": 0, "function": {"arguments": "{"}}]), 1, id="tool call"),
        pytest.param(delta(function_call={"name": "f"}), 1, id="function call"),
        pytest.param(chunk({"index": 0, "text": "w"}), 1, id="completion"),
        pytest.param(chunk({"index": 0, "delta": {}}, {"index": 1, "delta": {"content": "w"}}), 1, id="second choice"),
        pytest.param(delta(refusal="I cannot"), 1, id="refusal"),
        pytest.param(delta(audio={"data": "AAA="}), 1, id="audio"),
        pytest.param(USAGE, 0, id="usage"),
        pytest.param(b'data: {"choices": null, "usage": {"completion_tokens": 5}}\n\n', 0, id="usage, null choices"),
        pytest.param(b'data: {"choices": [null]}\n\n', 0, id="null choice"),
        pytest.param(b'data: {"error": {"message": "the engine died"}}\n\n', 0, id="error"),
        pytest.param(b'data: {"token": "a", "error": null}\n\n', 1, id="no error"),
        # What only Python's JSON reads.
        pytest.param(ROLE.replace(b'"logprobs": null', b'"logprobs": NaN'), 0, id="role and NaN"),
        # The text of an answer may look like a chunk's fields, and those of its log-probabilities are no content.
        pytest.param(delta(content='{"choices": []}'), 1, id="JSON in content"),
        # No chunks of this API: as plain text.
        pytest.param(b'data: {"token": 1}\n\n', 1, id="other JSON"),
        pytest.param(b'data: {"choices": [\n\n', 1, id="cut JSON"),
        pytest.param(b'data: {"choices": [{"text": "\xff"}]}\n\n', 1, id="text that is none"),
        # Lines and fields as section 9.2.6 of the standard has them.
        pytest.param(b"data: a\r\n\r\ndata: b\n\ndata: c\r\r", 3, id="ends of lines"),
        pytest.param(b"data: a\r\ndata: b\r\n\r\n", 1, id="two lines of an event"),
        pytest.param(b"data: a\n \ndata: b\n\n\n", 1, id="an empty event and a line of a space"),
        pytest.param(b"data: a\n\ndata\n\ndata: a\n\n", 2, id="empty data"),
        pytest.param(b"data: a\n\ndata: b\n", 1, id="an unfinished event"),
        pytest.param(b"xdata: a\n\n: data\n\nevent: ping\n\n", 0, id="other fields"),
        pytest.param(b"\xef\xbb\xbfdata: a\n\n", 1, id="a byte order mark"),
        pytest.param(b"data: [DONE]\n\ndata:  [DONE]\n\n", 0, id="[DONE]"),
    ],
)
def test_an_event_counts_by_what_it_carries(event: bytes, counts: int) -> None:
    """Role, finish, usage and empty parts have no content, in one piece or byte by byte; other events count as text."""
    assert count(event) == counts
    if len(event) < 1000:
        assert count(*(event[place : place + 1] for place in range(len(event)))) == counts


@pytest.mark.parametrize("size", [1, 7, 50, 10_000])
def test_an_answer_says_how_many_tokens_it_has(size: int) -> None:
    """The last number in a chunk counts; without a valid number the count is unknown."""
    growing = [chunk({"delta": {"content": "w"}}, usage={"completion_tokens": tokens}) for tokens in (1, 3, 4)]
    stream = b"".join([ROLE, *growing, FINISH])
    assert read(*(stream[place : place + size] for place in range(0, len(stream), size))).tokens == 4
    assert read(WORD + chunk(usage={"completion_tokens": 5.0, "cost": math.nan})).tokens == 5
    for odd in (None, {}, *({"completion_tokens": count} for count in (True, None, -1, "many"))):
        assert read(WORD + chunk(usage=odd)).tokens is None


@pytest.mark.parametrize(
    ("stream", "kind"),
    [
        pytest.param(ANSWER, "", id="all said"),
        pytest.param(ROLE + WORD + FINISH, "", id="finish reason alone"),
        pytest.param(ROLE + WORD + DONE, "", id="[DONE] alone"),
        pytest.param(chunk({"index": 0, "text": "w", "finish_reason": "length"}), "", id="finish reason with content"),
        pytest.param(chunk({"text": "w"}) + chunk({"text": "", "finish_reason": "stop"}), "", id="no index"),
        pytest.param(WORD + chunk({"index": 0, "delta": {}, "finish_reason": {"type": "length"}}), "", id="object"),
        pytest.param(b'event: message\nid: 1\nretry: 10\n: "error"\n' + WORD + FINISH, "", id="other fields"),
        pytest.param(b"data: a\n\ndata: {\n\ndata: }\n\n", "", id="plain text"),
        pytest.param(b'data: {"token": "a"}\n\ndata: {"token": "error"}\n\n', "", id="other JSON"),
        pytest.param(ROLE + delta(content="") + FINISH + USAGE, "", id="tokens that make no text"),
        # The end was not said.
        pytest.param(ROLE + WORD, "end not said", id="cut"),
        pytest.param(WORD + DONE[:-1], "end not said", id="[DONE] is unfinished"),
        pytest.param(WORD + USAGE, "end not said", id="usage is no end"),
        pytest.param(WORD + chunk({"index": 1, "text": "w"}) + FINISH, "end not said", id="one choice of two"),
        pytest.param(WORD + chunk({"index": 0, "delta": {}, "finish_reason": ""}), "end not said", id="empty reason"),
        # Errors.
        pytest.param(WORD + b'data: {"error": {"code": 500}}\n\n' + DONE, IN_STREAM, id="error"),
        pytest.param(WORD + b'data: {"error": "CUDA OOM", "error_type": "g"}\n\n', IN_STREAM, id="TGI"),
        pytest.param(WORD + FINISH + b'error: {"code": 500}\n\n' + DONE, IN_STREAM, id="llama.cpp"),
        pytest.param(WORD + b"event: error\ndata: boom\n\n" + DONE, IN_STREAM, id="event: error"),
        pytest.param(b"data: a\n\nevent: error\ndata: boom\n\n", IN_STREAM, id="mosec, plain text"),
        pytest.param(WORD + b'data: {"object": "error", "message": "m", "code": 500}\n\n' + DONE, IN_STREAM, id="vLLM"),
        pytest.param(WORD + b'data: {"type": "InternalServerError", "message": "m"}\n\n' + DONE, IN_STREAM, id="type"),
        pytest.param(WORD + FINISH + b'{"error": {"code": 500}}\n', IN_STREAM, id="bare JSON"),
        pytest.param(b'{"error": "too long"}', "no tokens", id="bare JSON without a line end"),
        pytest.param(WORD + chunk({"index": 0, "delta": {}, "finish_reason": "abort"}) + DONE, IN_STREAM, id="SGLang"),
        pytest.param(chunk({"index": 0, "text": "w", "finish_reason": "error"}), IN_STREAM, id="finish reason"),
        # No answers.
        pytest.param(DONE, "no tokens", id="[DONE] without an answer"),
        pytest.param(ROLE + FINISH + DONE, "no tokens", id="no content"),
        pytest.param(
            chunk({"delta": {}, "finish_reason": "stop"}, usage={"completion_tokens": 0}), "no tokens", id="0"
        ),
        pytest.param(b"", "no tokens", id="empty"),
        pytest.param(WORD + WORD[:-30] + b"\n\n" + FINISH, "unreadable event", id="half a chunk"),
        pytest.param(WORD + b"data: boom\n\n" + DONE, "unreadable event", id="text among chunks"),
    ],
)
def test_an_answer_is_complete_or_it_has_a_fault(stream: bytes, kind: str) -> None:
    """A chat or a completion says its end, by finish reasons or by [DONE]; no stream has an error or no token."""
    assert fault(stream) == kind
    assert fault(*(stream[place : place + 1] for place in range(len(stream)))) == kind


def test_an_answer_has_as_many_choices_as_were_asked_for() -> None:
    """An answer of two choices needs both ends, or the one mark of the end that is for all."""
    assert fault(WORD + FINISH) == ""
    assert fault(WORD + FINISH, choices=2) == FaultKind.NO_END
    assert fault(WORD + FINISH + DONE, choices=2) == ""


class Reader(User):
    """A user of one stream after the other, who notes what comes of them."""

    def __init__(self) -> None:
        self.told: list[object] = []
        self.first_ns = self.last_ns = IDLE
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(http1, "Opening", FakeOpening)
            super().__init__(transport=partial(Streams, choices=[1]))

    def chunk(self, now_ns: int, before_ns: int) -> None:
        """Note whether it is the first, and else whether it came with the one before it."""
        if before_ns == IDLE:
            self.first_ns = now_ns
        self.told.append("first" if before_ns == IDLE else "together" if before_ns == now_ns else "next")
        self.last_ns = now_ns

    def streamed(self, slot: Slot, now_ns: int, stream: Stream, body: bytes, *, keep: bool) -> None:
        """Note how many chunks and tokens it had."""
        seen = (self.first_ns, self.last_ns) if stream.chunks else (IDLE, IDLE)
        assert (stream.first_ns, stream.last_ns) == seen
        self.told.append((stream.chunks, stream.tokens))
        self.answered(slot, now_ns, body, keep)


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def pieces(*parts: bytes) -> list[bytes]:
    """An answer whose parts come one by one."""
    return [HEAD, *(b"%x\r\n%s\r\n" % (len(part), part) for part in parts), b"0\r\n\r\n"]


def test_the_first_content_is_the_first_token_and_usage_corrects_the_count() -> None:
    """Each answer on a connection starts anew; tokens before its end are none, and chunks of one read share a time."""
    reader = Reader()
    events = reader.receive(
        *pieces(ROLE, WORD, WORD + WORD, FINISH, USAGE),
        *pieces(ROLE, WORD, DONE),
        *pieces(USAGE, WORD, FINISH),
        *pieces(ROLE, FINISH, USAGE),
    )
    assert reader.told == ["first", "next", "together", (3, 5), "first", (1, None), "first", (1, 5), (0, 5)]
    assert [event[0] for event in events] == ["answered"] * 4


def test_content_in_one_read_with_the_head_of_its_answer_counts() -> None:
    """It counts for its own answer, however many chunks the previous one on the connection had."""
    reader = Reader()
    reader.receive(*pieces(WORD, WORD, DONE), b"".join(pieces(WORD, FINISH, USAGE)))
    assert reader.told == ["first", "next", (2, None), "first", (1, 5)]


def test_each_request_says_how_many_choices_its_answer_has() -> None:
    """The engine reads that from the requests of its plan."""
    bodies = (b"{}", b'{"n": 2}', b'{"prompt": ["a", "b", "c"]}')
    payloads = tuple((Request("POST", "/v1/completions", body).to_bytes("h:1"),) for body in bodies)
    asked = msgspec.structs.replace(plan(1), endpoint=Endpoint("sse", "127.0.0.1", 1), payloads=payloads)
    transport = make_transport(asked, mock.Mock(), mock.Mock())
    assert isinstance(transport, Streams)
    assert transport.choices == [1, 2, 3]


def test_a_failed_answer_is_refused_with_what_the_server_said() -> None:
    """A failed answer reports no tokens, and the next one on the connection is good again."""
    reader = Reader()
    error = b'data: {"error": {"message": "the engine died", "code": 500}}\n\n'
    events = reader.receive(
        *pieces(error, DONE),
        *pieces(ROLE, WORD, USAGE, error, DONE),
        *pieces(ROLE, b"data: out of memory\nevent: error\n\n", DONE),
        *pieces(WORD, USAGE),
        *[part.replace(b"200", b"503") for part in pieces(WORD, USAGE)],
        *pieces(WORD, DONE),
    )
    assert [event[:2] for event in events] == [
        *[("refused", "error in a stream")] * 3,
        ("refused", "end not said"),
        ("refused", "status 503"),
        ("answered", WORD + DONE),
    ]
    assert "the engine died" in str(events[1][2])
    assert "out of memory" in str(events[2][2])
    assert '"completion_tokens": 5' in str(events[3][2])
    assert reader.told == [*["first"] * 4, (1, None)]


def test_a_token_is_counted_with_the_piece_that_completes_it() -> None:
    """The time of a token is that of its last byte, and two in one piece are two at that time."""
    answer = StreamAnswer()
    pieces = [b"data: a\n\n", b"data: b", b"\n", b"\ndata: c\n\ndata: d\r\n\r", b"\n", b""]
    assert [answer.feed(piece) for piece in pieces] == [1, 0, 0, 3, 0, 0]


@pytest.mark.parametrize("begin", [b"", b"data: ", b": ", b"data: a\ndata: "])
@pytest.mark.parametrize("end", [b"", b"\n", b"\n\n"])
def test_an_endless_event_is_refused(begin: bytes, end: bytes) -> None:
    """An event beyond the bound raises, in one piece as in many; one of just the bound is read."""
    longest = begin.ljust(MAX_EVENT_BYTES + begin.count(b"\n"), b"x")
    assert count(longest + end) == count(longest[:-5], longest[-5:], end) == (b"data" in begin and end == b"\n\n")
    with pytest.raises(ValueError, match="an event of more than 4194304 bytes"):
        count(longest + b"x" + end)
    with pytest.raises(ValueError, match="an event of more than 4194304 bytes"):
        count(longest, b"x", end)
