"""Calls of gRPC: for any pieces, without a network, and of a real server every request ends exactly once."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any
from unittest import mock

import hpack
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuserve.load.driver import Engines
from pytest_gpuserve.load.engine import http2
from pytest_gpuserve.load.engine import http2_codec as codec
from pytest_gpuserve.load.engine.http1 import RECEIVE_BYTES
from pytest_gpuserve.load.engine.http2 import Http2
from pytest_gpuserve.load.engine.http2_codec import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PADDED,
    PING,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    frame,
)
from pytest_gpuserve.load.engine.transport import Sample, Slot, text_of
from pytest_gpuserve.load.wire import Endpoint, Plan
from tests.fakes.grpc_server import serving_grpc
from tests.fakes.http_connection import Event, User, cut
from tests.fakes.http_server import Totals, plan

pytestmark = pytest.mark.usefixtures("no_network")

BIG = b"0123456789abcdef" * 2_500
KINDS = {"protocol", "incomplete answer", "connection closed", "connection reset"}
ENDPOINT = Endpoint("grpc", "127.0.0.1", 1, rpc="/fake.Fake/Echo")


def block(*fields: tuple[str, str]) -> bytes:
    """Encode a header block as a server does that keeps no table."""
    return hpack.Encoder().encode([(name, value, True) for name, value in fields])


HEAD = block((":status", "200"), ("content-type", "application/grpc"))
OK = block(("grpc-status", "0"))


def message(body: bytes, *, compressed: bool = False, length: int | None = None) -> bytes:
    """Put gRPC's prefix before a message; ``length`` is the announced one where that is a lie."""
    return struct.pack(">?I", compressed, len(body) if length is None else length) + body


def head(stream: int, fields: bytes = HEAD) -> bytes:
    """Serialise the begin of an answer."""
    return frame(HEADERS, END_HEADERS, stream, fields)


def end(stream: int, fields: bytes = OK) -> bytes:
    """Serialise the end of an answer."""
    return frame(HEADERS, END_HEADERS | END_STREAM, stream, fields)


def right(stream: int, body: bytes = b"right") -> bytes:
    """Serialise an answer; a long one has several frames."""
    data = message(body)
    pieces = [frame(DATA, 0, stream, data[place : place + 9_000]) for place in range(0, len(data), 9_000)]
    return head(stream) + b"".join(pieces) + end(stream)


def number(value: int) -> bytes:
    """Serialise four bytes."""
    return struct.pack(">I", value)


class Caller(User):
    """A user of one slot of gRPC, which has made a first call.

    Args:
        settings: Settings with which the server begins.
        more: Arguments of `User`.
    """

    def __init__(self, *settings: tuple[int, int], **more: Any) -> None:  # noqa: ANN401 -- as a user takes it
        super().__init__(transport=lambda _, *given, **__: Http2(ENDPOINT, *given), **more)
        self.receive(codec.settings(*settings))

    def receive(self, *pieces: bytes, end: bool | OSError = False) -> list[Event]:
        """Deliver the pieces, as large as they are read at once."""
        parts = (piece[at : at + RECEIVE_BYTES] for piece in pieces for at in range(0, len(piece), RECEIVE_BYTES))
        return super().receive(*parts, end=end)

    def refused(self, slot: Slot, now_ns: int, kind: str, sample: Sample, *, keep: bool) -> None:
        """Note it, and go on."""
        text = text_of(sample)
        self.samples.append(text)
        super().refused(slot, now_ns, kind, lambda: text, keep=keep)

    def sent_frames(self) -> list[tuple[int, int, int, bytes]]:
        """All frames that went out, each as type, flags, stream and content; forgets them."""
        data = b"".join(self.socket.sends).removeprefix(codec.PREFACE)
        self.socket.sends.clear()
        frames = []
        while data:
            length, flags, stream = codec.HEADER.unpack_from(data)
            content, data = data[9 : 9 + (length >> 8)], data[9 + (length >> 8) :]
            assert len(content) == length >> 8
            frames.append((length & 0xFF, flags, stream, content))
        return frames


FAILED = {
    "grpc status NOT_FOUND": head(1) + end(1, block(("grpc-status", "5"), ("grpc-message", "no%20model"))),
    "grpc status UNAVAILABLE": end(1, block((":status", "200"), ("grpc-status", "14"), ("grpc-message", "no%20model"))),
    "grpc status 99": end(1, block((":status", "200"), ("grpc-status", "99"), ("grpc-message", "no model"))),
    "status 503": head(1, block((":status", "503"))) + frame(DATA, END_STREAM, 1, b"no model"),
    "stream reset": frame(RST_STREAM, 0, 1, number(7)),
}

WRONG = {
    "no status": head(1) + frame(DATA, END_STREAM, 1, message(b"x")),
    "odd status": head(1) + end(1, block(("grpc-status", "-1"))),
    "long status": head(1) + end(1, block(("grpc-status", "1000"))),
    "compressed": head(1) + frame(DATA, 0, 1, message(b"x", compressed=True)) + end(1),
    "short": head(1) + frame(DATA, 0, 1, message(b"x", length=2)) + end(1),
    "two": head(1) + frame(DATA, 0, 1, message(b"x") * 2) + end(1),
    "none": head(1) + end(1),
    "half prefix": head(1) + frame(DATA, 0, 1, b"\0\0") + end(1),
    "only trailers": end(1, block((":status", "200"), ("grpc-status", "0"))),
    "no head": frame(DATA, 0, 1, message(b"x")) + end(1),
    "status 200 failing": head(1, block((":status", "500"))) + frame(DATA, 0, 1, message(b"x")) + end(1),
}

BREAKING = {
    "long frame": struct.pack(">IBI", (codec.FRAME_BYTES + 1) << 8, 0, 1),
    "window too large": codec.settings((4, 1 << 31)),
    "pushed": frame(PUSH_PROMISE, END_HEADERS, 1, number(2)),
    "overflowing window": frame(WINDOW_UPDATE, 0, 0, number(codec.MAX_WINDOW)),
    "nobody's answer": right(3),
    "server's stream": right(2),
    "stray CONTINUATION": frame(CONTINUATION, END_HEADERS, 1, OK),
    "interrupted block": frame(HEADERS, 0, 1, HEAD) + frame(PING, 0, 0, bytes(8)),
    "endless block": frame(HEADERS, 0, 1) + frame(CONTINUATION, 0, 1, bytes(1 << 14)) * 65,
    "no block": head(1, b"\xff\xff\xff\xff"),
    "block with a table": head(1, b"\x3f\xe1\x1f" + HEAD),
    "all padding": frame(DATA, PADDED, 1, b"\x05abc"),
    "second head": head(1) + head(1),
}

CUTS = st.lists(st.integers(0, 100_000), max_size=20)


@st.composite
def frames(draw: st.DrawFn) -> bytes:
    """Frames that are well-formed outside, and anything inside."""
    kind = draw(st.integers(0, 10))
    inside = st.one_of(
        st.binary(max_size=12),
        st.sampled_from([HEAD, OK, message(b"x"), number(0), number(7), bytes(8), number(1) + number(0)]),
    )
    flags = draw(st.sampled_from([0, END_STREAM, END_HEADERS, END_HEADERS | END_STREAM, PADDED, PRIORITY, 0x2D]))
    return frame(kind, flags, draw(st.sampled_from([0, 1, 1, 3, 3, 5, 2, 1 << 31 | 1])), draw(inside))


@given(
    parts=st.lists(st.one_of(st.binary(max_size=60), frames()), max_size=12),
    cuts=CUTS,
    reset=st.booleans(),
)
def test_nothing_that_arrives_can_raise(parts: list[bytes], cuts: list[int], reset: bool) -> None:  # noqa: FBT001 -- hypothesis
    """Arbitrary bytes, frames in any order, and an end make every request end once, and close the connection."""
    caller = Caller()
    events = caller.receive(*cut(b"".join(parts), cuts), end=ConnectionResetError() if reset else True)
    if ("resent",) in events:
        caller.reopen()
        caller.receive(end=True)
    assert caller.ended - events.count(("lost", "")) == caller.requests
    for kind in [str(event[1]) for event in events if event[0] in {"lost", "refused"}]:
        assert kind in {"", *KINDS} or kind.startswith(("grpc status ", "status ", "stream reset"))
    assert caller.socket.closed


@given(cuts=CUTS, last=st.sampled_from([b"right", BIG]))
def test_pieces_do_not_matter(cuts: list[int], last: bytes) -> None:
    """Answers give the same outcome in one piece each and in any others."""
    failed = head(3) + end(3, block(("grpc-status", "5")))
    answers = [right(1), failed, right(5, last)]
    for pieces in (answers, [piece for answer in answers for piece in cut(answer, cuts)]):
        told = Caller().receive(frame(PING, 0, 0, bytes(8)), *pieces, end=True)
        assert [event[:2] for event in told[:3]] == [
            ("answered", b"right"),
            ("refused", "grpc status NOT_FOUND"),
            ("answered", last),
        ]


@pytest.mark.parametrize(
    ("opening", "ending"),
    [
        pytest.param(
            frame(HEADERS, END_HEADERS | PADDED | PRIORITY, 1, b"\x02" + bytes(5) + HEAD + bytes(2)),
            end(1),
            id="padded",
        ),
        pytest.param(
            frame(HEADERS, 0, 1, HEAD[:1]) + frame(CONTINUATION, END_HEADERS, 1, HEAD[1:]),
            frame(HEADERS, END_STREAM, 1, OK[:2])
            + frame(CONTINUATION, 0, 1, OK[2:3])
            + frame(CONTINUATION, END_HEADERS, 1, OK[3:]),
            id="continued",
        ),
        pytest.param(
            head(1, block((":status", "103"))) + head(1, block((":status", "100"))) + head(1), end(1), id="interim"
        ),
        pytest.param(frame(2, 0, 1, bytes(5)) + frame(77, 0xFF, 9, b"?") + head(1), end(1), id="unknown frames"),
        pytest.param(frame(HEADERS, END_HEADERS, 1 << 31 | 1, HEAD), end(1), id="reserved bit"),
        pytest.param(head(1, b"\x20" + HEAD), end(1), id="table of size zero"),
    ],
)
def test_unusual_forms_are_understood(opening: bytes, ending: bytes) -> None:
    """Padding, CONTINUATION, interim answers and unknown frames do not change an answer."""
    data = opening + frame(DATA, PADDED, 1, b"\x03" + message(b"right") + bytes(3)) + ending
    assert Caller().receive(data) == [("answered", b"right", True)]


@pytest.mark.parametrize("kind", FAILED)
def test_failures_are_named_and_keep_the_slot(kind: str) -> None:
    """A status of gRPC or HTTP and a reset stream fail the request with its words; the slot sends on."""
    caller = Caller()
    [(_, told, sample, keep)] = caller.receive(FAILED[kind])
    assert (told, keep) == (kind, True)
    assert "no model" in str(sample) or "REFUSED_STREAM" in str(sample)
    assert caller.receive(right(3))[1:] == [("answered", b"right", True)]


@pytest.mark.parametrize("name", WRONG)
def test_wrong_answers_are_not_answers(name: str) -> None:
    """An answer that is not one plain message with status OK fails as a protocol error of that request alone."""
    caller = Caller()
    [(_, kind, sample, keep), last] = caller.receive(WRONG[name], right(3))
    assert (kind, keep, "compressed" in str(sample)) == ("protocol", True, name == "compressed")
    assert last == ("answered", b"right", True)


@pytest.mark.parametrize("name", BREAKING)
def test_a_broken_rule_of_http2_loses_the_connection(name: str) -> None:
    """Its request fails as a protocol error."""
    caller = Caller()
    assert caller.receive(BREAKING[name]) == [("lost", "protocol")]
    assert caller.socket.closed


@pytest.mark.parametrize(
    ("arrived", "end", "kind"),
    [
        (b"", True, "connection closed"),
        (b"", ConnectionResetError("reset"), "connection reset"),
        (head(1)[:4], True, "incomplete answer"),
        (head(1), True, "incomplete answer"),
        (frame(HEADERS, 0, 1, HEAD), True, "incomplete answer"),
        (frame(DATA, 0, 1, b"x"), True, "incomplete answer"),
        (frame(GOAWAY, 0, 0, number(0) + number(11) + b"too_many_pings"), False, "connection reset"),
        (frame(GOAWAY, 0, 0, number(0) + number(0)), False, "connection closed"),
    ],
)
def test_the_end_of_a_connection_is_named(arrived: bytes, end: bool | OSError, kind: str) -> None:  # noqa: FBT001 -- a table
    """A request learns whether its connection ended before it, in order or abruptly."""
    caller = Caller()
    assert caller.receive(*filter(None, [arrived]), end=end) == [("lost", kind)]
    if b"too_many" in arrived:
        assert caller.samples == ["GOAWAY ENHANCE_YOUR_CALM too_many_pings"]


def test_a_server_that_goes_away_in_order_answers_the_call_that_it_began() -> None:
    """It is the connection's last one; a call that the server did not begin is made again on a new connection."""
    goodbye = frame(GOAWAY, 0, 0, number(1) + number(0))
    begun, idle, next_one = Caller(), Caller(goes_on=False), Caller()
    assert begun.receive(goodbye, right(1)) == [("answered", b"right", False)]
    assert Caller().receive(right(1) + goodbye) == [("answered", b"right", False)]
    assert idle.receive(right(1), goodbye) == [("answered", b"right", True), ("lost", "")]
    assert next_one.receive(right(1), goodbye) == [("answered", b"right", True), ("resent",)]
    next_one.reopen()
    assert next_one.receive(right(1))[2:] == [("answered", b"right", True)]


def test_a_call_that_a_failing_server_gives_up_is_lost() -> None:
    """A GOAWAY with an error ends a call that the server may have begun; it is not sent again."""
    failing = frame(GOAWAY, 0, 0, number(3) + number(2))
    assert Caller().receive(right(1), failing) == [("answered", b"right", True), ("lost", "connection reset")]


# -- what is sent


def test_settings_are_acknowledged_and_windows_seldom_filled() -> None:
    """SETTINGS and PING get an ACK, ACKs get none; the server's window is filled up in bulk by what was received."""
    caller = Caller()
    with mock.patch.object(http2, "REFILL_BYTES", 25):
        for stream in range(1, 10, 2):
            caller.receive(right(stream) + frame(SETTINGS, ACK, 0) + frame(PING, ACK, 0, bytes(8)))
    caller.receive(frame(PING, 0, 0, b"are here"))
    rest = [entry for entry in caller.sent_frames() if entry[0] not in {HEADERS, DATA}]
    assert rest == [(SETTINGS, ACK, 0, b""), (WINDOW_UPDATE, 0, 0, number(30)), (PING, ACK, 0, b"are here")]


def test_a_larger_first_window_applies_to_the_call_in_progress() -> None:
    """SETTINGS in mid-call release the rest of the message."""
    caller = Caller(payload=bytes(65_535))
    caller.sent_frames()
    caller.receive(frame(WINDOW_UPDATE, 0, 0, number(5)))
    assert caller.sent_frames() == []
    caller.receive(codec.settings((codec.INITIAL_WINDOW_SIZE, 65_540)))
    assert caller.sent_frames() == [(SETTINGS, ACK, 0, b""), (DATA, END_STREAM, 1, bytes(5))]


@pytest.mark.parametrize(
    ("size", "first_window", "largest"),
    [(7, 10, 16_384), (16_000, 1 << 20, 16_384), (100_000, 20_000, 70_000), (100_000, 1 << 20, 16_384)],
)
def test_windows_and_frames_are_as_large_as_the_server_allows(size: int, first_window: int, largest: int) -> None:
    """Messages arrive whole: neither a stream's window nor the connection's, which all calls share, is overdrawn."""
    caller = Caller((codec.INITIAL_WINDOW_SIZE, first_window), (codec.MAX_FRAME_SIZE, largest), payload=b"begin")
    caller.sent_frames()
    caller._payload, sent = bytes(size), message(bytes(size))
    window, answered = codec.FIRST_WINDOW - len(message(b"begin")), 1
    for stream in range(3, 13, 2):
        caller.receive(right(answered))
        stream_window, arrived, answered = first_window, b"", stream
        for _ in range(20):
            for content in (entry[3] for entry in caller.sent_frames() if entry[0] == DATA):
                assert len(content) <= min(window, stream_window, largest)
                window, stream_window, arrived = window - len(content), stream_window - len(content), arrived + content
            if arrived == sent:
                break
            window, stream_window = window + 50_000, stream_window + 15_000
            widened = ((0, 50_000), (stream, 15_000))
            caller.receive(*(frame(WINDOW_UPDATE, 0, of, number(more)) for of, more in widened))
        assert arrived == sent


def test_streams_never_run_out() -> None:
    """A connection whose stream numbers are used up is not kept."""
    with mock.patch.object(http2, "LAST_STREAM", 3):
        assert [event[2] for event in Caller().receive(right(1), right(3))] == [True, False]


def test_header_blocks_that_are_all_different_do_not_fill_the_memory() -> None:
    """They are right all the same."""
    blocks = codec.HeaderBlocks()
    for count in range(2 * codec.KNOWN_BLOCKS):
        assert blocks.read(block(("grpc-message", str(count)))).message == b"%d" % count
    blocks.read(block(("grpc-message", "x" * 2 * codec.KNOWN_BLOCK_BYTES)))
    assert len(blocks.known) <= codec.KNOWN_BLOCKS
    assert max(map(len, blocks.known)) <= codec.KNOWN_BLOCK_BYTES


def test_an_answer_before_the_request_is_sent_ends_both() -> None:
    """A server that refuses a large request early is not sent the rest of it."""
    caller = Caller(payload=bytes(100_000))
    refusal = end(1, block((":status", "200"), ("grpc-status", "8")))
    [(_, kind, _, keep)] = caller.receive(refusal)
    assert (kind, keep, caller.socket.closed) == ("grpc status RESOURCE_EXHAUSTED", False, True)


def echo(port: int, payload: bytes = b"x", **more: Any) -> Plan:  # noqa: ANN401 -- of the plan
    """Plan a load with calls that are answered with what was sent."""
    endpoint = Endpoint("grpc", "127.0.0.1", port, rpc="/fake.Fake/Echo")
    return msgspec.structs.replace(plan(port, **more), endpoint=endpoint, payloads=((payload,),))


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """Port of a server for all tests of this file that do not kill it."""
    with serving_grpc() as serving:
        yield serving.port


@pytest.mark.parametrize(
    ("users", "requests", "payload"), [(1, 600, b"ping"), (40, 600, b"ping"), (1, 2, b""), (8, 24, BIG * 26)]
)
def test_every_request_is_answered(port: int, users: int, requests: int, payload: bytes) -> None:
    """All are answered with what was sent, on any number of connections: if empty, or 1 MB in many frames."""
    with Engines(echo(port, payload, connections=users, requests=requests)) as engine:
        totals = Totals(engine).take_to_end()
    assert totals.answers == {payload: requests}
    assert not totals.errors


@pytest.mark.parametrize("killed", [True, False])
def test_a_server_that_ends_ends_every_request_once(*, killed: bool) -> None:
    """Killed, or shut down in order: each request ends as an answer or a failure of a known kind."""
    with serving_grpc() as serving, Engines(echo(serving.port, connections=16)) as engine:
        totals = Totals(engine).take_until(lambda totals, _: totals.requests > 100, "load")
        assert serving.process.stdin is not None
        (serving.process.kill if killed else serving.process.stdin.close)()
        totals.take_until(lambda _, tick: "connection refused" in tick.errors, "its end is noticed")
        totals.take_waiting(0)
    kinds = {"connection refused", "connection closed", "connection reset", "incomplete answer"}
    assert {kind for kind in totals.errors if not kind.startswith(("grpc status", "stream reset"))} <= kinds
    assert totals.sent == totals.ended - totals.errors["connection refused"]
