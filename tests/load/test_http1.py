"""A slot of HTTP/1.1 reads answers and writes requests, without a network, for all events and pieces."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_gpuserve.load.engine.http1 import (
    ENDED_AFTER_FIRST,
    KNOWN_ANSWER_BYTES,
    KNOWN_ANSWERS,
    STALE_NS,
    UNTIMED_BYTES,
    KnownAnswers,
)
from pytest_gpuserve.load.engine.reactor import PEER_CLOSED, READABLE, WRITABLE
from tests.fakes.http_connection import PAYLOAD, Event, User, cut
from tests.fakes.http_server import ANSWERS, BIG, BODY, ok

pytestmark = pytest.mark.usefixtures("no_network")

KEPT = {"/ok", "/chunked", "/continue", "/empty", "/unavailable", "/moved"}
ENDING = {"/close", "/until-close", "/cut-body", "/cut-chunk", "/half-header"}
ONCE = {path: answer for path, answer in ANSWERS.items() if answer and path != "/big"}


CUTS = st.lists(st.integers(0, 10_000), max_size=20)
WATCHED = READABLE | PEER_CLOSED
KINDS = {"protocol", "incomplete answer", "connection closed", "connection reset"}


@st.composite
def arriving(draw: st.DrawFn) -> list[bytes]:
    """Arbitrary pieces, or real answers that are damaged, joined and cut."""
    noise = st.binary(min_size=1, max_size=40)
    if draw(st.booleans()):
        return draw(st.lists(noise | noise.map(b"HTTP/1.1 ".__add__), max_size=8))
    data = b"".join(ONCE[path] for path in draw(st.lists(st.sampled_from(sorted(ONCE)), min_size=1, max_size=3)))
    for place, inserted in draw(st.lists(st.tuples(st.integers(0, 10_000), st.binary(max_size=3)), max_size=3)):
        position = place % (len(data) + 1)
        data = data[:position] + inserted + data[position + 1 :]
    return cut(data, draw(CUTS))


@settings(max_examples=200)
@given(pieces=arriving(), reset=st.booleans())
def test_nothing_that_arrives_can_raise(pieces: list[bytes], reset: bool) -> None:  # noqa: FBT001 -- hypothesis
    """Every request ends exactly once, as an answer or a failure of a known kind, and the connection is closed."""
    user = User()
    events = user.receive(*pieces, end=ConnectionResetError() if reset else True)
    if ("resent",) in events:
        user.reopen()
        user.receive(end=True)
    assert user.ended == user.requests
    assert {event[1] for event in events if event[0] == "lost"} <= KINDS
    assert user.socket.closed


@given(path=st.sampled_from(sorted(KEPT | ENDING)), cuts=CUTS)
def test_answers_are_read_the_same_in_all_pieces(path: str, cuts: list[int]) -> None:
    """On a kept connection each answer is reported twice with its body, and the next request is sent."""
    whole, pieces, times = User(), User(), 2 if path in KEPT else 1
    expected = whole.receive(*[ONCE[path]] * times, end=path in ENDING)
    assert pieces.receive(*cut(ONCE[path], cuts) * times, end=path in ENDING) == expected
    assert len(expected) == times
    assert whole.socket.sent == pieces.socket.sent == whole.requests * PAYLOAD
    assert whole.requests == pieces.requests == (3 if path in KEPT else 1)


@given(
    slots=st.lists(st.lists(st.tuples(st.sampled_from(sorted(ONCE)), CUTS), max_size=5), min_size=1, max_size=4),
    damage=st.one_of(st.none(), st.tuples(st.integers(0, 4), st.integers(0, 200), st.binary(max_size=2))),
)
def test_a_recognised_answer_is_what_the_parser_would_have_made_of_it(
    slots: list[list[tuple[str, list[int]]]],
    damage: tuple[int, int, bytes] | None,
) -> None:
    """Slots that recognise each other's answers tell the same, in the same order, as slots that parse every one."""
    known = KnownAnswers()
    for slot in slots:
        pieces = []
        for number, (path, cuts) in enumerate(slot):
            # Whole answers are what is recognised; they are the commonest, as on a real network.
            parts = cut(ONCE[path], cuts if len(cuts) < 3 else [])
            if damage is not None and damage[0] == number:
                place = damage[1] % len(parts[0])
                parts[0] = parts[0][:place] + damage[2] + parts[0][place + 1 :] or b"H"
            pieces += parts
        parsing = User(remembers=False)
        parsing.receive(*pieces, end=True)
        assert parsing.transport.known == {}
        for repeats in (False, True):
            recognising = User(known=known, repeats=repeats)
            assert recognising.receive(*pieces, end=True) == parsing.events
            assert (recognising.requests, recognising.socket.sent) == (parsing.requests, parsing.socket.sent)


def test_what_came_before_an_answer_is_not_skipped_by_recognising_it() -> None:
    """Known bytes in the middle of an answer are part of it, and on an idle connection they are a fault."""
    user, answer = User(), ok()
    user.receive(answer, answer)
    assert answer in user.transport.known
    begin = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(answer)
    assert user.receive(begin, answer)[2:] == [("answered", answer, True)]
    idle = User(known=user.transport.known, goes_on=False)
    assert idle.receive(answer, answer) == [("answered", BODY, True), ("lost", "protocol")]


def test_the_memory_for_answers_is_bounded() -> None:
    """Answers that are all different, or long, do not make the memory grow for ever."""
    user = User()
    user.receive(*(ok(b"%d" % number) for number in range(KNOWN_ANSWERS + 10)), ok(b"." * KNOWN_ANSWER_BYTES))
    assert (len(user.transport.known), user.ended) == (10, KNOWN_ANSWERS + 11)


UNTIL_CLOSE = b"HTTP/1.1 200 OK\r\nContent-Type: %s\r\n\r\n"


@pytest.mark.parametrize(
    ("received", "end", "told"),
    [
        (b"", True, [("lost", "connection closed")]),
        (b"", ConnectionResetError("reset by peer"), [("lost", "connection reset")]),
        (b"H", True, [("lost", "incomplete answer")]),
        (ANSWERS["/until-close"], True, [("answered", BODY, False)]),
        (ANSWERS["/until-close"], ConnectionResetError("reset by peer"), [("lost", "incomplete answer")]),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nbody", True, [("answered", b"body", False)]),
        (UNTIL_CLOSE % b"application/json" + b'{"a": NaN}', True, [("answered", b'{"a": NaN}', False)]),
        # Of JSON an orderly end tells nothing that its text does not.
        (UNTIL_CLOSE % b"application/json; charset=utf-8" + b'{"a": [1, 2', True, [("lost", "incomplete answer")]),
        (UNTIL_CLOSE % b"application/json", True, [("lost", "incomplete answer")]),
        (b"HTTP/1.1 100 Continue\r\n\r\n", True, [("lost", "incomplete answer")]),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nright", False, [("answered", BODY, False)]),
        # Even the beginning of a second answer in its packet: taken for the next one it would shift all that follow.
        (ok() + b"HTTP", False, [("lost", "protocol")]),
        # The end comes after an answer, when the next request is under way: nothing of the last one may be left.
        (ok(), True, [("answered", BODY, True), ("resent",)]),
        (ok(), ConnectionResetError("reset by peer"), [("answered", BODY, True), ("resent",)]),
        (ANSWERS["/empty"], True, [("answered", b"", True), ("resent",)]),
        (ANSWERS["/unavailable"], True, [("refused", "status 503", repr(b"busy"), True), ("resent",)]),
    ],
)
def test_what_the_end_of_a_connection_means(received: bytes, end: bool | OSError, told: list[Event]) -> None:  # noqa: FBT001 -- a table
    """An orderly end completes only an answer without a length; any other cut is a failure."""
    assert User().receive(*filter(None, [received]), end=end) == told


def typed(content_type: bytes, body: bytes = BODY) -> bytes:
    """An answer of this type; without a type where it is empty."""
    field = b"Content-Type: %s\r\n" % content_type if content_type else b""
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n%s\r\n%s" % (len(body), field, body)


JSON, HTML, NONE = typed(b"application/json"), typed(b"text/html", b"<p>busy"), typed(b"")


@pytest.mark.parametrize(
    ("answers", "told"),
    [
        ([JSON, JSON, typed(b"Application/JSON;charset=utf-8")], "aaa"),
        ([JSON, typed(b"application/json", b""), JSON, b"HTTP/1.1 204 No Content\r\n\r\n"], "arar"),
        ([JSON, HTML, JSON, HTML], "arar"),
        ([HTML, JSON], "ar"),
        ([JSON, NONE], "ar"),
        ([NONE, NONE, HTML], "aar"),
        ([typed(b"", b""), typed(b"text/html", b""), JSON, JSON, typed(b"", b"")], "aaaar"),
        ([HTML.replace(b"200", b"503"), JSON, HTML], "rar"),
    ],
)
def test_an_answer_of_another_type_than_the_first_one_is_a_failure(answers: list[bytes], told: str) -> None:
    """Parameters and case of the type do not matter, nor do empty answers before it; a failure has no type."""
    events = User().receive(*answers)
    assert "".join(str(event[0])[0] for event in events) == told
    refused = [event[1:3] for event in events if event[0] == "refused" and event[1] != "status 503"]
    assert {kind for kind, _ in refused} <= {"another content type"}
    if answers[:2] == [JSON, HTML]:
        assert refused[0][1] == "b'text/html' instead of b'application/json': b'<p>busy'"


def test_payloads_may_have_answers_of_unlike_types() -> None:
    """Each payload has its own type, and no answer is recognised that would be good for another payload."""
    user = User(goes_on=False)
    user._send()
    told = []
    for index, answer in [(0, JSON), (0, JSON), (1, HTML), (1, JSON), (0, HTML), (0, JSON), (1, HTML)]:
        user.slot.index = index
        told.append(user.receive(answer)[-1][0])
        user._send()
    assert told == ["answered"] * 3 + ["refused"] * 2 + ["answered"] * 2
    assert user.transport.known == {}


@pytest.mark.parametrize("end", [True, ConnectionResetError("reset by peer")])
@pytest.mark.parametrize("taken", [3, len(PAYLOAD)])
def test_a_request_on_a_connection_that_the_server_had_closed_is_sent_again(
    end: bool | OSError,  # noqa: FBT001 -- a table
    taken: int,
) -> None:
    """A whole request goes out on a new connection, as sent when it first was, and its answer counts."""
    user = User(room=[len(PAYLOAD), taken])
    user.receive(ok())
    sent_ns = user.slot.sent_ns
    assert user.receive(end=end) == [("answered", BODY, True), ("resent",)]
    old = user.socket
    user.reopen()
    assert (old.closed, user.socket.sent, user.requests, user.slot.sent_ns) == (True, PAYLOAD, 2, sent_ns)
    assert user.receive(ok(), ok())[2:] == [("answered", BODY, True)] * 2
    assert (user.requests, user.socket.closed) == (4, False)


@pytest.mark.parametrize(
    ("received", "kind"), [(b"", "connection closed"), (ok()[:9], "incomplete answer"), (b"x", "protocol")]
)
def test_a_request_is_sent_again_once_and_only_without_an_answer(received: bytes, kind: str) -> None:
    """A new connection's end is a failure, and so is an old one's as soon as a byte of the answer came."""
    again = User()
    again.receive(ok(), end=True)
    again.reopen()
    assert again.receive(*filter(None, [received]), end=True)[2:] == [("lost", kind)]
    if received:
        assert User().receive(ok(), received, end=True)[1:] == [("lost", kind)]


def test_a_server_that_ends_a_connection_late_has_failed() -> None:
    """A late end is a failure, since the request was read; a slow connection has the time of three openings."""
    ends = []
    for connect_ns in (0, STALE_NS):
        user = User()
        user.receive(ok())
        user.slot._connect_ns = connect_ns
        user.slot.sent_ns -= 2 * STALE_NS
        user.slot._used_ns -= 4 * STALE_NS
        ends += user.receive(end=True)[1:]
    assert ends == [("lost", "connection closed"), ("resent",)]


def test_a_server_that_ends_connections_after_their_first_answer_is_asked_once_on_each(clock: Clock) -> None:
    """From the third such connection on each has one request; a server that ends them after more is not meant."""
    for answers in (1, 2):
        user = User()
        for number in range(ENDED_AFTER_FIRST):
            for _ in range(answers):
                user.receive(ok())
            if answers == 1:
                clock.now_ns += 10 * STALE_NS
            user.receive(end=True)
            assert user.events[-1] == ("resent",), number
            user.reopen()
        assert user.receive(ok()) == [*user.events[:-1], ("answered", BODY, answers > 1)]


@pytest.mark.parametrize("recognised", [False, True])
@pytest.mark.parametrize("answers", [1, 2, 3])
def test_a_connection_that_the_server_has_closed_is_not_used_again(*, recognised: bool, answers: int) -> None:
    """No request is sent on a connection whose end is known when an answer is read, recognised or not."""
    user = User(known=KnownAnswers({ok(): BODY}) if recognised else None)
    for number in range(answers):
        user.socket.arriving.append(ok())
        user.event(READABLE | (PEER_CLOSED if number == answers - 1 else 0))
    assert user.events == [("answered", BODY, number < answers - 1) for number in range(answers)]
    assert (user.socket.closed, user.requests) == (True, answers)


@given(
    payload=st.binary(min_size=1, max_size=60),
    room=st.lists(st.one_of(st.integers(0, 20), st.builds(BlockingIOError)), max_size=12),
)
def test_a_request_is_written_in_whatever_pieces_there_is_room_for(payload: bytes, room: list[int | OSError]) -> None:
    """The socket hears of room only while something is left, and what it took is the request, once."""
    user = User(room=room, payload=payload, goes_on=False)
    for _ in range(len(room) + 1):
        assert user.reactor.events == (WATCHED if user.socket.sent == payload else WATCHED | WRITABLE)
        if user.reactor.events & WRITABLE:
            user.event(WRITABLE)
    assert user.socket.sent == payload
    assert user.receive(ok()) == [("answered", BODY, True)]


class Clock:
    """A clock that goes on by one at each look, and otherwise as the test says."""

    now_ns = 0

    def __call__(self) -> int:
        """Look at it."""
        self.now_ns += 1
        return self.now_ns


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The slot's clock."""
    there = Clock()
    monkeypatch.setattr("time.perf_counter_ns", there)
    return there


@pytest.mark.parametrize("larger", [0, 1])
def test_large_requests_are_timed_though_they_go_out_at_once(clock: Clock, larger: int) -> None:
    """Until the kernel has them; a small one counts 0."""
    user = User(payload=b"x" * (UNTIMED_BYTES + larger))
    user.receive(ok(), ok())
    assert (user.requests, user.counters.sending_ns) == (3, 3 * larger)


def test_an_answer_in_pieces_is_timed_from_its_first_to_its_last(clock: Clock) -> None:
    """The time is summed over answers, including failed ones, without the server's time before the first byte."""
    user = User()
    data = ok(status="503 Slow")
    for begin_ns in (1000, 20_000):
        for at_ns, piece in zip((begin_ns, begin_ns + 30, begin_ns + 100), cut(data, [5, 30]), strict=True):
            clock.now_ns = at_ns - 1
            user.receive(piece)
    assert user.ended == 2
    assert (user.counters.sending_ns, user.counters.receiving_ns) == (0, 200)


@pytest.mark.parametrize("recognised", [False, True])
def test_an_answer_before_the_request_was_written_costs_the_connection(*, recognised: bool) -> None:
    """An early answer or error counts, and the rest of the request is not sent into the next one."""
    user = User(room=[3], known=KnownAnswers({ok(): BODY}) if recognised else None)
    assert user.receive(ok()) == [("answered", BODY, False)]
    assert (user.socket.closed, user.socket.sent) == (True, PAYLOAD[:3])
    refused = User(room=[3])
    told = refused.receive(ok(b"", status="413 Content Too Large"))
    assert (told, refused.socket.closed) == ([("refused", "status 413", "b''", False)], True)


@pytest.mark.parametrize("taken", [len(PAYLOAD), 3, BlockingIOError(), BrokenPipeError()])
@pytest.mark.parametrize("end", [ok(), b"H", b""])
def test_what_a_slot_sends_by_itself_may_be_taken_in_part(taken: int | OSError, end: bytes) -> None:
    """A request that a slot sends by itself, and that is taken in part, ends as if its loop had sent it."""
    told = []
    for repeats in (False, True):
        user = User(room=[len(PAYLOAD)] * 3 + [taken], repeats=repeats)
        user.receive(*[ok()] * 3)
        user.event(WRITABLE)
        told.append((user.receive(end, end=True), user.requests, user.socket.sent, user.reactor.events))
        assert repeats == any(count for count, _ in user.repeat.counts.values())
    assert told[0] == told[1]


@pytest.mark.usefixtures("clock")
def test_the_lag_of_every_eighth_request_that_a_slot_sends_by_itself_is_noted() -> None:
    """Else a late client would not show in the most usual load: users of one request."""
    user, lags = User(repeats=True), list[int]()
    user.repeat.note_lag = lags.append
    user.receive(*[ok()] * 40)
    assert lags == [1] * (user.requests // 8 - 1)


def test_what_a_server_says_of_an_error_is_not_cut() -> None:
    """The text is uncut so that secrets can be found first, and is available at once for any size."""
    body = b"no " * 1000
    assert User().receive(ok(body, status="500 No")) == [("refused", "status 500", repr(body), True)]
    answer = ok(BIG, status="500 No")
    ((_, _, sample, _),) = User().receive(*(answer[at : at + (1 << 15)] for at in range(0, len(answer), 1 << 15)))
    assert repr(BIG).startswith(str(sample)[:-1])
    assert (1 << 16) < len(str(sample)) < len(BIG)


@pytest.mark.parametrize(("end", "kind"), [(b"", "connection closed"), (ConnectionResetError(), "connection reset")])
def test_a_request_that_cannot_be_written_is_told_by_the_next_event(end: bytes | OSError, kind: str) -> None:
    """The send does not raise; the request fails once, at the connection's end."""
    user = User(room=[3, BrokenPipeError()])
    assert user.events == []
    user.socket.arriving.append(end)
    user.event(READABLE | WRITABLE)
    assert user.events == [("lost", kind)]
