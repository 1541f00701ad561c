"""How a lane of HTTP/1.1 reads answers and writes requests, without a network: whatever happens, in whatever pieces."""

from __future__ import annotations

import gc
import os
import weakref
from contextlib import suppress
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pytest_gpuserve.load.engine import http1
from pytest_gpuserve.load.engine.http1 import KNOWN_ANSWER_BYTES, KNOWN_ANSWERS, UNTIMED_BYTES, HttpLane
from pytest_gpuserve.load.engine.http1_parser import Malformed, Parsed, ResponseParser
from pytest_gpuserve.load.engine.http2 import Http2
from pytest_gpuserve.load.engine.lane import Transfer
from pytest_gpuserve.load.engine.reactor import READABLE, WRITABLE
from pytest_gpuserve.load.engine.streams import Streams
from pytest_gpuserve.load.wire import Endpoint
from tests.fakes.http_lane import PAYLOAD, Event, FakeOpening, FakeSocket, User
from tests.fakes.http_server import ANSWERS, BIG, BODY, ok

if TYPE_CHECKING:
    from collections.abc import Iterator

ONCE = {path: answer for path, answer in ANSWERS.items() if answer and path != "/big"}


@pytest.fixture(autouse=True, scope="module")
def no_network() -> Iterator[None]:
    """Let lanes be opened by the test instead of a network."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(http1, "Opening", FakeOpening)
        yield


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    """Cut data at these places."""
    places = sorted({cut % (len(data) + 1) for cut in cuts} | {0, len(data)})
    return [data[begin:end] for begin, end in pairwise(places)]


CUTS = st.lists(st.integers(0, 10_000), max_size=20)
KINDS = {"protocol", "incomplete answer", "connection closed", "connection reset"}


@given(pieces=st.lists(st.binary(min_size=1, max_size=40), max_size=8), head=st.booleans(), reset=st.booleans())
@example(pieces=[b"HTTP/1.1 200 OK\r\n\r\n"], head=True, reset=False)
def test_nothing_that_arrives_can_raise(pieces: list[bytes], head: bool, reset: bool) -> None:  # noqa: FBT001 -- hypothesis
    """Arbitrary bytes end in an answer or one failure of a known kind, told once, and the connection is closed."""
    user = User(head=head)
    events = user.receive(*pieces, end=ConnectionResetError() if reset else True)
    assert user.ended == user.requests
    assert {event[1] for event in events if event[0] == "lost"} <= KINDS
    assert user.socket.closed


@given(data=st.lists(st.binary(min_size=1, max_size=40).map(b"HTTP/1.1 ".__add__), max_size=8))
def test_the_parser_raises_malformed_or_nothing(data: list[bytes]) -> None:
    """Whatever it is fed, what it says is an answer, none yet, or ``Malformed``."""
    parser = ResponseParser()
    with suppress(Malformed):
        for piece in data:
            assert isinstance(parser.feed(piece), Parsed | None)
        assert isinstance(parser.end(), Parsed | None)


@given(
    order=st.lists(st.sampled_from(sorted(ONCE)), min_size=1, max_size=3),
    damage=st.lists(st.tuples(st.integers(0, 10_000), st.binary(max_size=3)), max_size=3),
    cuts=CUTS,
    head=st.booleans(),
)
def test_damaged_answers_cannot_raise_nor_be_counted_twice(
    order: list[str],
    damage: list[tuple[int, bytes]],
    cuts: list[int],
    head: bool,  # noqa: FBT001 -- hypothesis
) -> None:
    """Every request that was sent ends exactly once, however real answers are damaged, joined and cut."""
    data = b"".join(ONCE[path] for path in order)
    for place, inserted in damage:
        position = place % (len(data) + 1)
        data = data[:position] + inserted + data[position + 1 :]
    user = User(head=head)
    user.receive(*split(data, cuts), end=True)
    assert user.ended == user.requests
    assert user.socket.closed


@given(path=st.sampled_from(["/ok", "/chunked", "/continue", "/empty", "/unavailable", "/moved"]), cuts=CUTS)
def test_a_kept_connection_reads_answers_the_same_in_all_pieces(path: str, cuts: list[int]) -> None:
    """Where an answer is cut changes nothing: it is told with its body and the next request is sent, twice."""
    whole, pieces = User(), User()
    expected = whole.receive(ONCE[path], ONCE[path])
    assert pieces.receive(*split(ONCE[path], cuts), *split(ONCE[path], cuts)) == expected
    assert len(expected) == 2
    assert whole.requests == pieces.requests == 3
    assert whole.socket.sent == pieces.socket.sent == 3 * PAYLOAD


@given(path=st.sampled_from(["/close", "/until-close", "/cut-body", "/cut-chunk", "/half-header"]), cuts=CUTS)
def test_a_closed_connection_reads_answers_the_same_in_all_pieces(path: str, cuts: list[int]) -> None:
    """An answer that ends with its connection, or is cut off by it, is judged the same however it arrived."""
    expected = User().receive(ONCE[path], end=True)
    assert User().receive(*split(ONCE[path], cuts), end=True) == expected
    assert len(expected) == 1


@given(
    lanes=st.lists(st.lists(st.tuples(st.sampled_from(sorted(ONCE)), CUTS), max_size=5), min_size=1, max_size=4),
    damage=st.one_of(st.none(), st.tuples(st.integers(0, 4), st.integers(0, 200), st.binary(max_size=2))),
    head=st.booleans(),
)
def test_a_recognised_answer_is_what_the_parser_would_have_made_of_it(
    lanes: list[list[tuple[str, list[int]]]],
    damage: tuple[int, int, bytes] | None,
    head: bool,  # noqa: FBT001 -- hypothesis
) -> None:
    """Lanes that recognise each other's answers tell the same, in the same order, as lanes that parse every one."""
    known: dict[bytes, bytes] = {}
    for lane in lanes:
        pieces = []
        for number, (path, cuts) in enumerate(lane):
            # Whole answers are what is recognised; they are the commonest, as on a real network.
            cut = split(ONCE[path], cuts if len(cuts) < 3 else [])
            if damage is not None and damage[0] == number:
                place = damage[1] % len(cut[0])
                cut[0] = cut[0][:place] + damage[2] + cut[0][place + 1 :] or b"H"
            pieces += cut
        recognising, parsing = User(head=head, known=known), User(head=head, remembers=False)
        assert recognising.receive(*pieces, end=True) == parsing.receive(*pieces, end=True)
        assert recognising.requests == parsing.requests
        assert parsing.transport.known == {}


def test_an_answer_is_parsed_once_and_recognised_from_then_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second time its bytes are enough; in two pieces it is parsed again, to the same effect."""
    fed: list[bytes] = []
    feed = ResponseParser.feed

    def note(parser: ResponseParser, data: bytes) -> Parsed | None:
        fed.append(data)
        return feed(parser, data)

    monkeypatch.setattr(ResponseParser, "feed", note)
    user = User()
    assert user.receive(ok(), ok(), ok()[:20], ok()[20:], ok()) == [("answered", BODY, True)] * 4
    assert fed == [ok(), ok()[:20], ok()[20:]]


@pytest.mark.parametrize("path", ["/close", "/unavailable", "/moved", "/big", "/until-close"])
def test_only_good_short_answers_of_kept_connections_are_recognised(path: str) -> None:
    """Where the outcome is another than "answered, go on", or the bytes are many, nothing is remembered."""
    user = User()
    user.receive(*split(ANSWERS[path], list(range(0, len(ANSWERS[path]), 1 << 16))), end=True)
    assert user.transport.known == {}


def test_the_memory_for_answers_is_bounded() -> None:
    """Answers that are all different, or long, do not make it grow for ever."""
    user = User()
    for number in range(KNOWN_ANSWERS + 10):
        user.receive(ok(b"%d" % number))
    assert len(user.transport.known) == 10
    user.receive(ok(b"." * KNOWN_ANSWER_BYTES))
    assert len(user.transport.known) == 10
    assert user.ended == KNOWN_ANSWERS + 11


@pytest.mark.parametrize("head", [False, True])
def test_what_came_before_an_answer_is_not_skipped_by_recognising_it(*, head: bool) -> None:
    """Known bytes in the middle of an answer are part of it, and on an idle connection they are a fault."""
    user = User(head=head)
    begin = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n"
    answer = ok()[: -len(BODY)] if head else ok()
    user.receive(answer)
    assert answer in user.transport.known
    if not head:
        assert user.receive(begin % len(answer), answer)[1:] == [("answered", answer, True)]
    idle = User(head=head, known=user.transport.known, goes_on=False)
    assert idle.receive(answer, answer) == [("answered", b"" if head else BODY, True), ("lost", "protocol")]


@pytest.mark.parametrize("ending", [b"", b"HTTP", ok()[:30], ok()])
def test_anything_after_an_answer_in_its_own_packet_is_a_fault(ending: bytes) -> None:
    """Even the beginning of a second answer is noticed; taken for the next one it would shift all that follow."""
    expected: Event = ("lost", "protocol") if ending else ("answered", BODY, True)
    assert User().receive(ok() + ending) == [expected]


@pytest.mark.parametrize(
    ("received", "end", "told"),
    [
        (b"", True, [("lost", "connection closed")]),
        (b"", ConnectionResetError("reset by peer"), [("lost", "connection reset")]),
        (b"H", True, [("lost", "incomplete answer")]),
        (ANSWERS["/until-close"], True, [("answered", BODY, False)]),
        (ANSWERS["/until-close"], ConnectionResetError("reset by peer"), [("lost", "incomplete answer")]),
        (ANSWERS["/cut-body"], True, [("lost", "incomplete answer")]),
        (ANSWERS["/cut-chunk"], True, [("lost", "incomplete answer")]),
        (ANSWERS["/half-header"], True, [("lost", "incomplete answer")]),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nbody", True, [("answered", b"body", False)]),
        (b"HTTP/1.1 100 Continue\r\n\r\n", True, [("lost", "incomplete answer")]),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nright", False, [("answered", BODY, False)]),
        # The end comes after an answer, when the next request is under way: nothing of the last one may be left.
        (ok(), True, [("answered", BODY, True), ("lost", "connection closed")]),
        (ANSWERS["/empty"], True, [("answered", b"", True), ("lost", "connection closed")]),
        (
            ANSWERS["/unavailable"],
            True,
            [("refused", "status 503", repr(b"busy"), True), ("lost", "connection closed")],
        ),
    ],
)
def test_what_the_end_of_a_connection_means(received: bytes, end: bool | OSError, told: list[Event]) -> None:  # noqa: FBT001 -- a table
    """An orderly end completes an answer without length, and nothing else; what it cuts off is a failure."""
    assert User().receive(*filter(None, [received]), end=end) == told


@pytest.mark.parametrize("end", [True, ConnectionResetError("reset by peer")])
def test_the_end_of_an_idle_connection_is_no_failure(end: bool | OSError) -> None:  # noqa: FBT001 -- a table
    """Nothing was under way: the lane is gone, in good order or not, and no request with it."""
    user = User(goes_on=False)
    assert user.receive(ok(), end=end) == [("answered", BODY, True), ("lost", "")]
    assert user.socket.closed


def test_answers_to_head_follow_each_other() -> None:
    """Each ends with its headers; the body that it announces is not waited for, nor the next answer taken for it."""
    answers = [ok(b"." * size)[:-size] for size in (1, 100, 3)]
    assert User(head=True).receive(*answers) == [("answered", b"", True)] * 3


def test_a_large_answer_is_put_together_again() -> None:
    """A body of one MB in packets of 64 kB arrives whole."""
    data = ok(BIG)
    assert User().receive(*split(data, list(range(0, len(data), 1 << 16)))) == [("answered", BIG, True)]


@given(
    payload=st.binary(min_size=1, max_size=60),
    room=st.lists(st.one_of(st.integers(0, 20), st.builds(BlockingIOError)), max_size=12),
)
def test_a_request_is_written_in_whatever_pieces_there_is_room_for(payload: bytes, room: list[int | OSError]) -> None:
    """The socket hears of room only while something is left, and what it took is the request, once."""
    user = User(room=room, payload=payload, goes_on=False)
    for _ in range(len(room) + 1):
        assert user.reactor.events == (READABLE if user.socket.sent == payload else READABLE | WRITABLE)
        if user.reactor.events & WRITABLE:
            user.event(WRITABLE)
    assert user.socket.sent == payload
    assert user.receive(ok()) == [("answered", BODY, True)]


class Clock:
    """A clock that goes on by one at each look, and otherwise as the test says."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.looks = 0

    def __call__(self) -> int:
        """Look at it."""
        self.now_ns += 1
        self.looks += 1
        return self.now_ns


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The lane's clock."""
    there = Clock()
    monkeypatch.setattr("time.perf_counter_ns", there)
    return there


def test_small_transfers_are_not_timed(clock: Clock) -> None:
    """They cost no look at the clock beyond the issuer's and the one of each receipt, and count 0."""
    user = User(payload=b"x" * UNTIMED_BYTES)
    for _ in range(5):
        user.receive(ok())
    assert (user.requests, user.ended) == (6, 5)
    assert clock.looks == user.requests + user.ended
    assert user.transport.take_transfer() == Transfer(0, 0)


def test_a_large_request_is_timed_though_it_goes_out_at_once(clock: Clock) -> None:
    """From its send on until the kernel has it: here one step of the clock each."""
    user = User(payload=b"x" * (UNTIMED_BYTES + 1))
    user.receive(ok(), ok())
    assert user.requests == 3
    assert user.transport.take_transfer() == Transfer(3, 0)
    assert user.transport.take_transfer() == Transfer(0, 0)
    assert clock.looks == 2 * user.requests + user.ended


def test_a_request_in_pieces_is_timed_to_its_last(clock: Clock) -> None:
    """However small: from its send on, over all waits for room; one that is cut off counts nothing."""
    user = User(room=[3, BlockingIOError(), 2], goes_on=False)
    sent_ns = user.lane.sent_ns
    clock.now_ns = 1000
    user.event(WRITABLE)
    user.event(WRITABLE)
    assert user.transport.transfer == Transfer(0, 0)
    clock.now_ns = 5000
    user.event(WRITABLE)
    assert user.socket.sent == PAYLOAD
    assert user.transport.take_transfer() == Transfer(5001 - sent_ns, 0)
    cut = User(room=[3])
    cut.event(READABLE)
    cut.receive(end=ConnectionResetError())
    assert cut.transport.take_transfer() == Transfer(0, 0)


def test_an_answer_in_pieces_is_timed_from_its_first_to_its_last(clock: Clock) -> None:
    """Summed over answers, failed ones too; what the server takes before its first byte is no part of it."""
    user = User()
    data = ok(status="503 Slow")
    for begin_ns in (1000, 20_000):
        for at_ns, piece in zip((begin_ns, begin_ns + 30, begin_ns + 100), split(data, [5, 30]), strict=True):
            clock.now_ns = at_ns - 1
            user.receive(piece)
    assert user.ended == 2
    assert user.transport.take_transfer() == Transfer(0, 200)


def test_other_protocols_do_not_time_transfers() -> None:
    """Of a stream it would be the server's time, and of gRPC frames of several requests go out together."""
    nobody = cast("Any", None)
    endpoint = Endpoint("grpc", "127.0.0.1", 1, rpc="/a/b", authority="x")
    for transport in (Streams(endpoint, nobody, nobody, 1), Http2(endpoint, nobody, nobody, 1)):
        transfer: Transfer | None = transport.take_transfer()
        assert transfer is None


@pytest.mark.parametrize("recognised", [False, True])
def test_an_answer_before_the_request_was_written_costs_the_connection(*, recognised: bool) -> None:
    """The answer counts, and what is left of the request is not sent into the next one."""
    user = User(room=[3], known={ok(): BODY} if recognised else None)
    assert user.receive(ok()) == [("answered", BODY, False)]
    assert user.socket.closed
    assert user.socket.sent == PAYLOAD[:3]


def test_what_a_server_says_of_an_error_is_not_cut() -> None:
    """Who shortens it has to find secrets in it first, wherever they stand; and of any size it is told at once."""
    body = b"no " * 1000
    assert User().receive(ok(body, status="500 No")) == [("refused", "status 500", repr(body), True)]
    answer = ok(BIG, status="500 No")
    ((_, _, sample, _),) = User().receive(*(answer[at : at + (1 << 15)] for at in range(0, len(answer), 1 << 15)))
    assert repr(BIG).startswith(str(sample)[:-1])
    assert (1 << 16) < len(str(sample)) < len(BIG)


def test_an_error_is_not_made_text_unless_somebody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a page that takes as long as a request, and of most errors nobody keeps a sample."""
    user = User()
    samples: list[object] = []
    monkeypatch.setattr(user, "refused", lambda *told, keep: samples.append(told[-1]))
    monkeypatch.setattr(http1, "begin_of", lambda _: pytest.fail("it was made"))
    user.receive(ok(b"no", status="500 No"))
    assert [callable(sample) for sample in samples] == [True]


def test_an_early_error_status_costs_the_connection_too() -> None:
    """A server that refuses a request by its header has not read the rest of it."""
    user = User(room=[3])
    assert user.receive(ok(b"", status="413 Content Too Large")) == [("refused", "status 413", "b''", False)]
    assert user.socket.closed


@pytest.mark.parametrize(
    ("room", "end", "kind"),
    [
        ([BrokenPipeError()], True, "connection closed"),
        ([ConnectionResetError()], True, "connection closed"),
        ([BrokenPipeError()], ConnectionResetError(), "connection reset"),
        ([3, BrokenPipeError()], ConnectionResetError(), "connection reset"),
    ],
)
def test_a_request_that_cannot_be_written_is_told_by_the_next_event(
    room: list[int | OSError],
    end: bool | OSError,  # noqa: FBT001 -- a table
    kind: str,
) -> None:
    """Sending raises nothing; the request fails once, when the connection's end is received."""
    user = User(room=room)
    assert user.events == []
    user.socket.incoming.append(b"" if end is True else cast("OSError", end))
    user.event(READABLE | WRITABLE)
    assert user.events == [("lost", kind)]


def test_an_event_without_anything_to_read_is_nothing() -> None:
    """A spurious wake-up, and room that nobody needs, change nothing."""
    user = User()
    for mask in (READABLE, WRITABLE, READABLE | WRITABLE):
        user.event(mask)
    assert (user.events, user.socket.closed) == ([], False)


def test_a_request_expires_once() -> None:
    """A request that has waited too long is one timeout, and its connection is closed; its answer comes too late."""
    user = User()
    user.lane.expire(0.25)
    assert user.socket.closed
    assert user.receive(ok()) == [("lost", "timeout")]


def test_an_abandoned_request_is_not_told() -> None:
    """At the end of the load what is under way is neither an answer nor an error; closing twice is harmless."""
    user = User()
    user.lane.close()
    user.lane.close()
    assert user.receive(ok()) == []
    assert user.socket.closed


def test_a_lane_closed_while_it_opens_gives_up_the_attempt() -> None:
    """Its connection is cancelled, not left to open for nobody."""
    lane = cast("HttpLane", User().transport.open(1))
    opening = cast("FakeOpening", lane._opening)
    lane.close()
    assert opening.cancelled


def test_an_exception_of_our_own_is_not_the_servers_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """What fails inside a callback is raised, for the engine to end with, instead of being counted."""

    def fail(*_: object) -> None:
        raise ArithmeticError

    monkeypatch.setattr(ResponseParser, "on_body", fail)
    user = User()
    with pytest.raises(Exception, match="callback") as caught:
        user.receive(ok())
    assert isinstance(caught.value.__context__, ArithmeticError)
    assert user.events == []


@pytest.mark.parametrize("how", ["hang-up", "close", "Connection: close", "protocol", "never opened", "abandoned"])
def test_a_lost_lane_is_freed_without_a_garbage_collector(how: str) -> None:
    """No reference cycle keeps a lane or its parser: the engine's collector is off."""

    class Watched(HttpLane):
        __slots__ = ("__weakref__",)

    user = User()
    gc.collect()
    gc.disable()
    try:
        user.lane = lane = Watched(0, user.transport)
        watches: list[weakref.ref[Any]] = [weakref.ref(lane), weakref.ref(lane._parser)]
        if how == "never opened":
            lane._not_opened("connection refused", os.strerror(111))
        else:
            user.socket = FakeSocket()
            lane._opened(cast("Any", user.socket))
            user.receive(ok())
            if how in {"close", "abandoned"}:
                lane.close()
            else:
                answers = {"hang-up": b"", "Connection: close": ANSWERS["/close"], "protocol": ok() + ok()}
                user.receive(answers[how])
            assert user.socket.closed
        del lane, user.lane
        assert [watch() for watch in watches] == [None, None]
    finally:
        gc.enable()
