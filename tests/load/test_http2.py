"""Answers of gRPC servers: for any pieces every request ends exactly once, with its own outcome."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
from tests.fakes.http2_peer import HEAD, OK, Bench, Recorder, block, end, head, message, number, right
from tests.fakes.pieces import cut

BIG = b"0123456789abcdef" * 2_500
CONNECTION_KINDS = {"protocol", "incomplete answer", "connection closed", "connection reset"}


def outcome(issuer: Recorder) -> tuple[object, ...]:
    """Outcome that must not depend on the pieces."""
    return issuer.answers, [(place, kind, keep) for place, kind, _, keep in issuer.failures], issuer.lost_idle


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

BROKEN = {
    "HTTP/1.1": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "no SETTINGS first": frame(PING, 0, 0, bytes(8)),
    "SETTINGS ACK first": frame(SETTINGS, ACK, 0),
    "answer first": right(1),
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
    begun=st.booleans(),
    cuts=CUTS,
    ending=st.sampled_from([b"", ConnectionResetError("reset")]),
)
def test_nothing_that_arrives_can_raise(
    parts: list[bytes],
    begun: bool,  # noqa: FBT001 -- hypothesis
    cuts: list[int],
    ending: bytes | OSError,
) -> None:
    """Arbitrary bytes, frames in any order, and an end make every request end once, and every slot be gone."""
    bench = Bench(3, again=5, settings=() if begun else None)
    if begun:
        bench.send(0, 1)
    bench.receive(*cut(b"".join(parts), cuts), ending)
    assert not bench.issuer.busy
    assert set(bench.issuer.gone) == set(bench.slots)
    assert len(bench.issuer.answers) + len(bench.issuer.failures) == bench.issuer.sent
    for kind in bench.issuer.kinds + [kind for _, kind in bench.issuer.lost_idle if kind]:
        assert kind in CONNECTION_KINDS or kind.startswith(("grpc status ", "status ", "stream reset"))


@given(
    cuts=CUTS,
    last=st.sampled_from([b"right", BIG]),
    damage=st.lists(st.tuples(st.integers(0, 100_000), st.binary(max_size=3)), max_size=3),
)
def test_pieces_do_not_matter(cuts: list[int], last: bytes, damage: list[tuple[int, bytes]]) -> None:
    """Answers, real or damaged, give the same outcome in one piece and in any others, and each only once."""
    data = right(3) + FAILED["grpc status NOT_FOUND"] + frame(PING, 0, 0, bytes(8)) + right(5, last)
    for place, inserted in damage:
        position = place % (len(data) + 1)
        data = data[:position] + inserted + data[position + 1 :]
    outcomes = []
    for pieces in ([data], cut(data, cuts)):
        bench = Bench(3)
        bench.send()
        bench.receive(*pieces, b"")
        assert not bench.issuer.busy
        outcomes.append(outcome(bench.issuer))
    assert outcomes[0] == outcomes[1]
    if not damage:
        assert [body for _, body, _ in bench.issuer.answers] == [b"right", last]
        assert bench.issuer.kinds == ["grpc status NOT_FOUND"]


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
    bench = Bench()
    bench.send()
    bench.receive(opening + frame(DATA, PADDED, 1, b"\x03" + message(b"right") + bytes(3)) + ending)
    assert bench.issuer.answers == [(0, b"right", True)]


@pytest.mark.parametrize("kind", FAILED)
def test_failures_are_named_and_keep_the_slot(kind: str) -> None:
    """A status of gRPC or HTTP and a reset stream fail the request with its words; the slot sends on."""
    bench = Bench(again=1)
    bench.send()
    bench.receive(FAILED[kind])
    [(place, told, sample, keep)] = bench.issuer.failures
    assert (place, told, keep) == (0, kind, True)
    assert "no model" in sample or "REFUSED_STREAM" in sample
    bench.receive(right(3))
    assert bench.issuer.answers == [(0, b"right", True)]


@pytest.mark.parametrize("name", WRONG)
def test_wrong_answers_are_no_answers(name: str) -> None:
    """An answer that is not one plain message with status OK fails as a protocol error of that request alone."""
    bench = Bench(2)
    bench.send()
    bench.receive(WRONG[name], right(3))
    [(_, kind, sample, keep)] = bench.issuer.failures
    assert (kind, keep, "compressed" in sample) == ("protocol", True, name == "compressed")
    assert bench.issuer.answers == [(1, b"right", True)]


@pytest.mark.parametrize("name", BREAKING)
def test_a_broken_connection_loses_all(name: str) -> None:
    """A violation of HTTP/2 ends the connection, and with it all slots, busy or not."""
    bench = Bench(2)
    bench.send(0)
    bench.receive(BREAKING[name])
    assert (bench.issuer.kinds, bench.issuer.lost_idle) == (["protocol"], [(1, "protocol")])
    assert bench.reactor.closed == 1


@pytest.mark.parametrize("name", BROKEN)
def test_another_protocol_is_recognised(name: str) -> None:
    """A server that does not begin with SETTINGS is refused, and no slot on it becomes ready."""
    bench = Bench(settings=None)
    bench.receive(BROKEN[name])
    assert bench.issuer.lost_idle == [(0, "protocol")]
    assert bench.issuer.slots == []


@pytest.mark.parametrize(
    ("arrived", "ending", "kind"),
    [
        (b"", b"", "connection closed"),
        (b"", ConnectionResetError("reset"), "connection reset"),
        (head(1)[:4], b"", "incomplete answer"),
        (head(1), b"", "incomplete answer"),
        (head(1)[:-1], ConnectionResetError("reset"), "connection reset"),
        (frame(HEADERS, 0, 1, HEAD), b"", "incomplete answer"),
        (frame(DATA, 0, 1, b"x"), b"", "incomplete answer"),
        (frame(GOAWAY, 0, 0, number(0) + number(11) + b"too_many_pings"), b"", "connection closed"),
    ],
)
def test_the_end_of_a_connection_is_named(arrived: bytes, ending: bytes | OSError, kind: str) -> None:
    """A request learns whether its connection ended before it, in order or abruptly; an idle slot loses nothing."""
    bench = Bench(2)
    bench.send(0)
    bench.receive(*filter(None, [arrived]), ending)
    assert bench.issuer.kinds == [kind]
    [(_, told)] = bench.issuer.lost_idle
    assert told == ("" if kind == "connection closed" or (arrived == head(1) and not ending) else told)
    if b"too_many" in arrived:
        assert bench.issuer.failures[0][2] == "GOAWAY ENHANCE_YOUR_CALM too_many_pings"


def test_a_slot_that_never_opened_is_lost_with_a_reason() -> None:
    """After a refusal, silence or an early end each slot gets the reason; an open one has no time-out."""
    refused, silent, hung_up = (Bench(2, settings=None) for _ in range(3))
    opened = Bench()
    refused.openings[0].failed("connection refused", "no")
    silent.reactor.pass_time(far=True)
    hung_up.receive(b"")
    opened.reactor.pass_time(far=True)
    for bench, kind in ((refused, "connection refused"), (silent, "connect timeout"), (hung_up, "connection closed")):
        assert bench.issuer.lost_idle == [(0, kind), (1, kind)]
        assert bench.reactor.closed == 1
    assert opened.issuer.lost_idle == []
