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
from pytest_gpuserve.load.engine.reactor import WRITABLE
from pytest_gpuserve.load.wire import Endpoint, Plan
from tests.fakes.grpc_server import serving_grpc
from tests.fakes.http2_peer import HEAD, OK, Caller, block, end, head, message, number, right
from tests.fakes.http_connection import PAYLOAD, cut, room_for
from tests.fakes.http_server import Totals, plan

pytestmark = pytest.mark.usefixtures("no_network")

BIG = b"0123456789abcdef" * 2_500
KINDS = {"protocol", "incomplete answer", "connection closed", "connection reset"}


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
    "half a setting": frame(SETTINGS, 0, 0, bytes(5)),
    "SETTINGS on a stream": frame(SETTINGS, 0, 1),
    "window too large": codec.settings((4, 1 << 31)),
    "frames too small": codec.settings((5, 16383)),
    "short ping": frame(PING, 0, 0, bytes(7)),
    "short GOAWAY": frame(GOAWAY, 0, 0, bytes(7)),
    "pushed": frame(PUSH_PROMISE, END_HEADERS, 1, number(2)),
    "window of nothing": frame(WINDOW_UPDATE, 0, 0, number(0)),
    "overflowing window": frame(WINDOW_UPDATE, 0, 0, number(codec.MAX_WINDOW)),
    "nobody's answer": right(3),
    "server's stream": right(2),
    "DATA on the connection": frame(DATA, 0, 0, b"x"),
    "stray CONTINUATION": frame(CONTINUATION, END_HEADERS, 1, OK),
    "interrupted block": frame(HEADERS, 0, 1, HEAD) + frame(PING, 0, 0, bytes(8)),
    "block of another": frame(HEADERS, 0, 1, HEAD) + frame(CONTINUATION, END_HEADERS, 3, b""),
    "endless block": frame(HEADERS, 0, 1) + frame(CONTINUATION, 0, 1, bytes(1 << 14)) * 65,
    "no block": head(1, b"\xff\xff\xff\xff"),
    "block with a table": head(1, b"\x3f\xe1\x1f" + HEAD),
    "index of a table": head(1, b"\xbe"),
    "all padding": frame(DATA, PADDED, 1, b"\x05abc"),
    "no padding": frame(DATA, PADDED, 1, b""),
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


def test_streams_never_run_out() -> None:
    """A connection whose stream numbers are used up is not kept."""
    with mock.patch.object(http2, "LAST_STREAM", 3):
        caller = Caller()
        assert [event[2] for event in caller.receive(right(1), right(3))] == [True, False]


# -- what is sent


def test_requests_are_what_grpc_says() -> None:
    """A request is one HEADERS and one DATA frame in one send, which do not change the server's header table."""
    caller, decoder = Caller(), hpack.Decoder()
    caller.socket.sends.pop(0)
    for stream in (1, 3):
        sent = [entry for entry in caller.sent_frames() if entry[0] != SETTINGS]
        (kind, flags, found, fields), data = sent
        assert (kind, flags, found) == (HEADERS, END_HEADERS, stream)
        assert data == (DATA, END_STREAM, stream, message(PAYLOAD))
        assert {str(name): str(value) for name, value in decoder.decode(fields)} == {
            ":method": "POST",
            ":scheme": "http",
            ":path": "/fake.Fake/Echo",
            ":authority": "127.0.0.1:1",
            "te": "trailers",
            "content-type": "application/grpc",
            "user-agent": "pytest-gpuserve",
        }
        assert not decoder.header_table.dynamic_entries
        caller.receive(right(stream))
    assert len(caller.socket.sends) == 1


def test_settings_are_acknowledged_and_windows_seldom_filled() -> None:
    """SETTINGS and PING get an ACK, ACKs get none; the server's window is filled up in bulk by what was received."""
    caller = Caller()
    with mock.patch.object(http2, "REFILL_BYTES", 25):
        for stream in range(1, 10, 2):
            caller.receive(right(stream) + frame(SETTINGS, ACK, 0) + frame(PING, ACK, 0, bytes(8)))
    caller.receive(frame(PING, 0, 0, b"are here"))
    rest = [entry for entry in caller.sent_frames() if entry[0] not in {HEADERS, DATA}]
    assert rest == [(SETTINGS, ACK, 0, b""), (WINDOW_UPDATE, 0, 0, number(30)), (PING, ACK, 0, b"are here")]


class WindowedServer:
    """Reads requests as RFC 9113 says, and fails where a window or a frame is overdrawn."""

    def __init__(self, first_window: int, largest: int) -> None:
        self.first_window = first_window
        self.largest = largest
        self.window = codec.FIRST_WINDOW
        self.stream = 0
        self.stream_window = 0
        self.body = b""

    def read(self, frames: list[tuple[int, int, int, bytes]]) -> bytes:
        """Take what was sent, answer what is complete, and widen the windows of the rest."""
        for kind, flags, stream, content in frames:
            assert len(content) <= self.largest
            if kind == HEADERS:
                assert stream > self.stream
                self.stream, self.stream_window, self.body = stream, self.first_window, b""
            elif kind == DATA:
                self.stream_window -= len(content)
                self.window -= len(content)
                assert self.stream_window >= 0
                assert self.window >= 0
                self.body += content
                if flags & END_STREAM:
                    return right(stream, self.body[5:])
        self.stream_window += 20_000
        self.window += 50_000
        return frame(WINDOW_UPDATE, 0, 0, number(50_000)) + frame(WINDOW_UPDATE, 0, self.stream, number(20_000))


@given(
    size=st.sampled_from([0, 7, 16_379, 16_380, 30_000, 100_000, 300_000]),
    first_window=st.sampled_from([0, 10, 20_000, 65_535, 1 << 20]),
    largest=st.sampled_from([16_384, 70_000]),
    room=st.sampled_from([None, 1_000, 40_000]),
)
def test_windows_and_the_kernel_are_respected(size: int, first_window: int, largest: int, room: int | None) -> None:
    """For any room of the server and the kernel, bodies arrive whole, and no window is overdrawn."""
    body = b"." * size
    caller = Caller((codec.INITIAL_WINDOW_SIZE, first_window), (codec.MAX_FRAME_SIZE, largest), payload=b"begin")
    caller.sent_frames()
    server = WindowedServer(first_window, largest)
    server.window -= len(message(b"begin"))
    caller._payload = body
    caller.socket.room = room_for(room)
    caller.receive(right(1))
    for _ in range(1_000):
        while caller.reactor.events & WRITABLE:
            caller.socket.room = room_for(room)
            caller.event(WRITABLE)
        caller.socket.room = room_for(room)
        caller.receive(server.read(caller.sent_frames()))
        if len(caller.events) > 1:
            break
    assert caller.events[1] == ("answered", body, True)


def test_a_larger_first_window_applies_to_the_call_in_progress() -> None:
    """SETTINGS in mid-call release the rest of the message."""
    caller = Caller(payload=bytes(65_535))
    caller.sent_frames()
    caller.receive(frame(WINDOW_UPDATE, 0, 0, number(5)))
    assert caller.sent_frames() == []
    caller.receive(codec.settings((codec.INITIAL_WINDOW_SIZE, 65_540)))
    assert caller.sent_frames() == [(SETTINGS, ACK, 0, b""), (DATA, END_STREAM, 1, bytes(5))]


def test_an_answer_before_the_request_is_sent_ends_both() -> None:
    """A server that refuses a large request early is not sent the rest of it."""
    caller = Caller(payload=bytes(100_000))
    refusal = end(1, block((":status", "200"), ("grpc-status", "8")))
    [(_, kind, _, keep)] = caller.receive(refusal)
    assert (kind, keep, caller.socket.closed) == ("grpc status RESOURCE_EXHAUSTED", False, True)


def test_what_is_remembered_is_bounded() -> None:
    """Header blocks that are all different do not fill the memory, and are right all the same."""
    blocks = codec.HeaderBlocks()
    for count in range(10_000):
        assert blocks.read(block(("grpc-message", str(count)))).message == b"%d" % count
    assert len(blocks.known) <= codec.KNOWN_BLOCKS
    blocks.read(block(("grpc-message", "x" * 2 * codec.KNOWN_BLOCK_BYTES)))
    assert max(map(len, blocks.known)) <= codec.KNOWN_BLOCK_BYTES


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
