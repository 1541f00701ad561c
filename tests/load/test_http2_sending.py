"""Sent bytes on HTTP/2, and their times: windows, streams, slots and ends, without sockets."""

from __future__ import annotations

from typing import TYPE_CHECKING
from unittest import mock

import hpack
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuserve.load.engine import http2
from pytest_gpuserve.load.engine import http2_codec as codec
from pytest_gpuserve.load.engine.http2 import SLOTS
from pytest_gpuserve.load.engine.http2_codec import (
    ACK,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PADDED,
    PING,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    frame,
)
from pytest_gpuserve.load.engine.reactor import WRITABLE
from pytest_gpuserve.load.wire import Endpoint
from tests.fakes.http2_peer import HEAD, Bench, block, end, head, message, number, right
from tests.fakes.no_network import PAYLOAD, room_for

if TYPE_CHECKING:
    from pytest_gpuserve.load.engine.transport import Slot


def test_requests_are_what_grpc_says() -> None:
    """A request is one HEADERS and one DATA frame in one send, which do not change the server's header table."""
    endpoint = Endpoint("grpc", "127.0.0.1", 1, rpc="/fake.Fake/Echo", authority="models.example")
    bench, decoder = Bench(endpoint=endpoint), hpack.Decoder()
    bench.sent_frames()
    for _ in range(2):
        bench.send()
        assert len(bench.socket.sends) == 1
        (kind, flags, stream, fields), data = bench.sent_frames()
        assert (kind, flags) == (HEADERS, END_HEADERS)
        assert data == (DATA, END_STREAM, stream, message(PAYLOAD))
        assert {str(name): str(value) for name, value in decoder.decode(fields)} == {
            ":method": "POST",
            ":scheme": "http",
            ":path": "/fake.Fake/Echo",
            ":authority": "models.example",
            "te": "trailers",
            "content-type": "application/grpc",
            "user-agent": "pytest-gpuserve",
        }
        assert not decoder.header_table.dynamic_entries
        bench.receive(right(stream))
    assert [body for _, body, _ in bench.issuer.answers] == [b"right"] * 2


def test_settings_are_acknowledged_and_windows_seldom_filled() -> None:
    """SETTINGS get an ACK, ACKs get none; the server's window is filled up by what was received, in bulk."""
    bench = Bench(again=10)
    assert bench.sent_frames() == [(SETTINGS, ACK, 0, b"")]
    bench.send()
    with mock.patch.object(http2, "REFILL_BYTES", 25):
        bench.receive(
            *(right(1 + 2 * count) + frame(SETTINGS, ACK, 0) + frame(PING, ACK, 0, bytes(8)) for count in range(5))
        )
    rest = [entry for entry in bench.sent_frames() if entry[0] not in {HEADERS, DATA}]
    assert rest == [(WINDOW_UPDATE, 0, 0, number(30))]


class WindowedServer:
    """Reads requests as RFC 9113 says, and fails where a window, a frame or a stream is overdrawn."""

    def __init__(self, first_window: int, largest: int, most_streams: int) -> None:
        self.first_window = first_window
        self.largest = largest
        self.most_streams = most_streams
        self.window = codec.FIRST_WINDOW
        self.windows: dict[int, int] = {}
        self.bodies: dict[int, bytes] = {}
        self.complete: list[int] = []

    def read(self, frames: list[tuple[int, int, int, bytes]]) -> None:
        """Take what was sent."""
        for kind, flags, stream, content in frames:
            assert len(content) <= self.largest
            if kind == HEADERS:
                assert stream > max(self.bodies, default=0)
                self.windows[stream] = self.first_window
                self.bodies[stream] = b""
                assert len(self.windows) <= self.most_streams
            elif kind == DATA:
                self.windows[stream] -= len(content)
                self.window -= len(content)
                assert self.windows[stream] >= 0
                assert self.window >= 0
                self.bodies[stream] += content
                if flags & END_STREAM:
                    self.complete.append(stream)

    def answer(self) -> bytes:
        """Answer what is complete, and widen all windows."""
        data = b""
        for stream in self.complete:
            data += right(stream, self.bodies[stream][5:])
            del self.windows[stream]
        self.complete.clear()
        for stream in self.windows:
            self.windows[stream] += 20_000
            data += frame(WINDOW_UPDATE, 0, stream, number(20_000))
        self.window += 50_000
        return data + frame(WINDOW_UPDATE, 0, 0, number(50_000))


@given(
    sizes=st.lists(st.sampled_from([0, 7, 16_379, 16_380, 30_000, 100_000, 300_000]), min_size=1, max_size=6),
    first_window=st.sampled_from([0, 10, 20_000, 65_535, 1 << 20]),
    largest=st.sampled_from([16_384, 70_000]),
    most_streams=st.integers(1, 6),
    room=st.sampled_from([None, 1_000, 40_000]),
)
def test_windows_streams_and_the_kernel_are_respected(
    sizes: list[int], first_window: int, largest: int, most_streams: int, room: int | None
) -> None:
    """For any room of the server and the kernel, bodies arrive whole, and no window is overdrawn."""
    bench = Bench(len(sizes), settings=((3, most_streams), (4, first_window), (5, largest)))
    server = WindowedServer(first_window, largest, most_streams)
    payloads = [bytes([65 + place]) * size for place, size in enumerate(sizes)]
    bench.sent_frames()
    bench.socket.room = room_for(room)
    for place, payload in enumerate(payloads):
        bench.send(place, payload=payload)
    for _ in range(1_000):
        while bench.reactor.events & WRITABLE:
            bench.socket.room = room_for(room)
            bench.reactor.handler(WRITABLE)
        bench.socket.room = room_for(room)
        server.read(bench.sent_frames())
        bench.receive(server.answer())
        if not bench.issuer.busy:
            break
    assert sorted((place, body) for place, body, _ in bench.issuer.answers) == list(enumerate(payloads))


def test_requests_wait_for_a_stream_in_turn_and_go_when_the_limit_is_raised() -> None:
    """None overtakes; SETTINGS in mid-load apply at once, to streams and to windows of bodies under way."""
    one = Bench(3, again=3, settings=((codec.MAX_CONCURRENT_STREAMS, 1),))
    one.send()
    one.receive(*(right(1 + 2 * count, b"%d" % count) for count in range(6)))
    assert [(place, body) for place, body, _ in one.issuer.answers] == [
        (count % 3, b"%d" % count) for count in range(6)
    ]
    bench = Bench(2, settings=((codec.MAX_CONCURRENT_STREAMS, 1), (codec.INITIAL_WINDOW_SIZE, 5)))
    bench.sent_frames()
    bench.send()
    assert [entry[:3] for entry in bench.sent_frames()] == [(HEADERS, END_HEADERS, 1), (DATA, 0, 1)]
    bench.receive(codec.settings((codec.MAX_CONCURRENT_STREAMS, 2), (codec.INITIAL_WINDOW_SIZE, 100)))
    sent = sorted(entry[:3] for entry in bench.sent_frames() if entry[0] != SETTINGS)
    assert sent == [(DATA, END_STREAM, 1), (DATA, END_STREAM, 3), (HEADERS, END_HEADERS, 3)]


def test_a_timed_out_request_is_cancelled_and_its_answer_ignored() -> None:
    """The stream is reset, the slot sends on, and late bytes of the old answer do not reach the new request."""
    bench = Bench(2, again=1)
    bench.send(0)
    bench.receive(head(1))
    bench.sent_frames()
    bench.slots[0].expire(1.5)
    assert bench.issuer.failures == [(0, "timeout", "no answer within 1.5 s", True)]
    assert bench.sent_frames()[0] == (RST_STREAM, 0, 1, number(codec.CANCEL))
    bench.receive(frame(DATA, PADDED, 1, b"\x00" + message(b"old")) + end(1) + right(3, b"new"))
    assert bench.issuer.answers == [(0, b"new", True)]


def test_requests_that_were_not_sent_to_the_end_can_time_out() -> None:
    """A request that waits for a stream or for a window is given up without trace, and makes room."""
    bench = Bench(2, settings=((codec.MAX_CONCURRENT_STREAMS, 1),))
    bench.send(0, payload=bytes(100_000))
    bench.send(1)
    bench.slots[1].expire(1)
    bench.slots[0].expire(1)
    bench.sent_frames()
    bench.receive(frame(WINDOW_UPDATE, 0, 0, number(1 << 20)), frame(WINDOW_UPDATE, 0, 1, number(1 << 20)))
    assert bench.sent_frames() == []
    bench.send(1)
    bench.receive(right(3))
    assert bench.issuer.kinds == ["timeout", "timeout"]
    assert bench.issuer.answers == [(1, b"right", True)]


def test_an_answer_before_the_request_is_sent_ends_both() -> None:
    """A server that refuses a large request early is not sent the rest of it."""
    bench = Bench()
    bench.send(payload=bytes(100_000))
    bench.sent_frames()
    bench.receive(end(1, block((":status", "200"), ("grpc-status", "8"))))
    assert bench.issuer.kinds == ["grpc status RESOURCE_EXHAUSTED"]
    assert bench.sent_frames() == [(RST_STREAM, 0, 1, number(codec.NO_ERROR))]
    bench.receive(frame(WINDOW_UPDATE, 0, 0, number(1 << 20)))
    assert bench.sent_frames() == []
    assert bench.slots[0]._sender._uploads == []  # type: ignore[attr-defined]


def test_a_server_that_goes_away_in_order_answers_what_it_began() -> None:
    """After GOAWAY idle slots lose nothing, begun requests are answered for the last time, others are lost."""
    bench = Bench(4, settings=((codec.MAX_CONCURRENT_STREAMS, 2),))
    bench.send(0, 1, 2)
    bench.sent_frames()
    bench.receive(frame(GOAWAY, 0, 0, number(1) + number(0)))
    assert bench.issuer.lost_idle == [(3, "")]
    assert bench.issuer.failures == [
        (2, "connection closed", "the server went away before it began the request", False),
        (1, "connection closed", "the server went away before it began the request", False),
    ]
    assert [entry[:3] for entry in bench.sent_frames()] == [(RST_STREAM, 0, 3)]
    bench.open(9)
    assert len(bench.openings) == 2
    assert bench.reactor.closed == 0
    bench.receive(right(1))
    assert bench.issuer.answers == [(0, b"right", False)]
    assert bench.reactor.closed == 1
    assert len(bench.transport._connections) == 1


def test_streams_never_run_out() -> None:
    """Before the last number a connection ends in order: answered slots are not kept, and the next one is new."""
    bench = Bench(2)
    bench.slots[0]._connection.sender.next_stream = http2.LAST_STREAM - 1  # type: ignore[attr-defined]
    bench.send(0)
    bench.receive(right(http2.LAST_STREAM - 1))
    assert bench.issuer.answers == [(0, b"right", True)]
    assert bench.issuer.gone == set(bench.slots)
    assert bench.issuer.lost_idle == [(0, ""), (1, "")]
    bench.open(0)
    assert len(bench.openings) == 2


def test_slots_share_connections() -> None:
    """Six slots are one connection; the seventh begins another; a free slot is taken again, and ready only later."""
    bench = Bench(SLOTS)
    assert len(bench.openings) == 1
    for place in range(SLOTS):
        bench.open(SLOTS + place)
    assert len(bench.openings) == 2
    for slot in bench.slots[:2]:
        slot.close()
    again = [bench.open(place) for place in range(2)]
    assert len(bench.openings) == 2
    again[1].close()
    assert len(bench.issuer.slots) == SLOTS
    bench.reactor.pass_time()
    assert bench.issuer.slots[SLOTS:] == again[:1]


def test_what_is_closed_is_told_nothing() -> None:
    """A closed slot cancels its request, the last one its connection; an issuer may close within a report."""
    bench = Bench(2)
    bench.send()
    bench.sent_frames()
    bench.slots[0].close()
    assert bench.sent_frames() == [(RST_STREAM, 0, 1, number(codec.CANCEL))]
    assert bench.reactor.closed == 0
    bench.slots[1].close()
    assert bench.reactor.closed == 1
    bench.reactor.pass_time(far=True)
    assert (bench.issuer.answers, bench.issuer.failures, bench.issuer.lost_idle) == ([], [], [])
    answered = Bench(3)
    answered.open(9)
    answered.send()
    answered.issuer.then = lambda _slot: answered.transport.close()
    answered.receive(right(1) + right(3) + right(5), b"")
    assert answered.issuer.answers == [(0, b"right", True)]
    assert (answered.issuer.failures, answered.issuer.lost_idle, answered.reactor.closed) == ([], [], 1)
    lost = Bench(3)
    lost.send()

    def close_others(told: Slot) -> None:
        for slot in lost.slots:
            if slot is not told:
                slot.close()

    lost.issuer.then = close_others
    lost.receive(ConnectionResetError("reset"))
    assert lost.issuer.kinds == ["connection reset"]


def test_a_send_into_a_broken_connection_is_told_by_its_end() -> None:
    """A failed send does not raise; answers before the end are still reported."""
    bench = Bench(2)
    bench.send(0)
    with mock.patch.object(bench.socket, "send", side_effect=BrokenPipeError("pipe")):
        bench.send(1)
    assert bench.issuer.busy == set(bench.slots)
    bench.receive(right(1), ConnectionResetError("reset"))
    assert bench.issuer.answers == [(0, b"right", True)]
    assert bench.issuer.failures == [(1, "connection reset", "reset", False)]


def test_what_is_remembered_is_bounded() -> None:
    """Header blocks and requests that are all different do not fill the memory, and are right all the same."""
    requests, blocks = codec.Requests(HEAD), codec.HeaderBlocks()
    for count in range(10_000):
        prepared = requests.prepare(b"%d" % count)
        assert prepared is not None
        assert prepared.tail == message(b"%d" % count)
        assert blocks.read(block(("grpc-message", str(count)))).message == b"%d" % count
    assert len(requests.known) <= codec.KNOWN_REQUESTS
    assert len(blocks.known) <= codec.KNOWN_BLOCKS
    blocks.read(block(("grpc-message", "x" * 2 * codec.KNOWN_BLOCK_BYTES)))
    assert max(map(len, blocks.known)) <= codec.KNOWN_BLOCK_BYTES
